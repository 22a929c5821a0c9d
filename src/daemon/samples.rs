//! What slices got in the last ten minutes, second by second, for `gpuslice plot` and `gpuslice top`.
//!
//! # Problem
//! A snapshot shows sums since a slice began. A user asks what happened before the first look.
//!
//! # Idea
//! Once a second the engine's running sums are compared with those of the second before, and the differences are kept.
//! They are cut from the sums in µs, so they add up to the sums however long they are added. Without turns, a slice
//! is charged all the time in which it has work: what slices got then is no more than what NVML shows of the GPU's
//! use, if it shows that. Two bounds hold: samples of [`KEPT_FOR`], and [`KEPT`] samples of all slices together. With
//! more slices than these allow, the memory is shorter for all. A slice that has ended is remembered as long as its
//! samples.

use gpuslice_engine::Figures;
use gpuslice_wire::due::{Claimant, due};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::samples::{SAMPLES_OF_FRAME, Sample, Samples as Answer};
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long samples are kept.
const KEPT_FOR: Duration = Duration(600_000_000_000);
/// Samples of all slices: those of 218 slices in ten minutes, 10 MiB.
const KEPT: usize = 131_072;
/// Samples of one answer; a second's are never divided.
const ANSWER: usize = 4_096;

/// A slice that has samples, or will have some.
#[derive(Debug)]
struct Series {
    container: ContainerId,
    name: Name,
    gpu: GpuUuid,
    cap: Bytes,
    /// Its sums at the end of the last interval; none after its end.
    sums: Option<Figures>,
    /// The end of its last sample.
    until: Instant,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Samples {
    /// The samples of each interval, none of them empty, the oldest first.
    intervals: VecDeque<Vec<Sample>>,
    series: BTreeMap<u32, Series>,
    /// The series of slices that exist.
    numbers: BTreeMap<(ContainerId, GpuUuid), u32>,
    /// The number of the last series.
    last: u32,
    /// The end of the last interval.
    taken: Instant,
    held: usize,
}

/// The growth of a sum in ns, as µs.
fn growth(before: Duration, now: Duration) -> u32 {
    u32::try_from((now.0 / 1_000).saturating_sub(before.0 / 1_000)).unwrap_or(u32::MAX)
}

/// A slice in an interval.
struct Interval {
    number: u32,
    before: Figures,
    now: Figures,
}

impl Interval {
    fn claimant(&self, length: Duration) -> Claimant {
        let runnable = self.now.runnable.0.saturating_sub(self.before.runnable.0);
        Claimant {
            class: self.now.class,
            share: self.now.share.map(|share| share.get()),
            weight: self.now.weight.map(|weight| weight.get()),
            cap_ppm: self.now.cap_ppm,
            active: (runnable as f64 / length.0.max(1) as f64).min(1.0),
        }
    }

    fn sample(&self, end: Instant, length: Duration, due: f64) -> Sample {
        let (before, now) = (&self.before, &self.now);
        let mut waits = before.waits.into_iter().zip(now.waits);
        Sample {
            series: self.number,
            end_ns: end.0,
            length_us: growth(Duration(end.0 - length.0), Duration(end.0)),
            due_ppm: (due * 1e6 + 0.5) as u32,
            got_us: growth(before.gpu_time, now.gpu_time),
            running_us: growth(before.running, now.running),
            handover_us: growth(before.handover, now.handover),
            limited_us: growth(before.limited, now.limited),
            gang_us: growth(before.gang, now.gang),
            idle_us: growth(before.idle, now.idle),
            suspended_us: growth(before.suspended, now.suspended),
            absent_us: growth(before.absent, now.absent),
            wait_us: [(); 5].map(|()| {
                let (before, now) = waits.next().unwrap_or_default();
                growth(Duration(before), Duration(now))
            }),
            memory: now.memory,
        }
    }
}

/// The part of what was charged on a GPU in an interval that NVML shows as used, where it was charged without turns.
fn measured(here: &[&Interval], length: Duration, load: Option<u32>) -> f64 {
    let is_open = here.iter().any(|it| !it.before.gated || !it.now.gated);
    let charged = here.iter().map(|it| it.now.gpu_time.0.saturating_sub(it.before.gpu_time.0));
    let charged = charged.fold(0, u64::saturating_add);
    match load.filter(|_| is_open && charged > 0) {
        Some(percent) => (length.0 as f64 * f64::from(percent) / 100.0 / charged as f64).min(1.0),
        None => 1.0,
    }
}

impl Samples {
    /// Takes the sums of all slices; an interval has ended.
    /// `load` is what NVML shows of a GPU's use, percent.
    pub fn take(&mut self, now: Instant, all: &[Figures], load: impl Fn(GpuUuid) -> Option<u32>) {
        let length = Duration(now.0.saturating_sub(self.taken.0));
        let is_first = self.taken == Instant(0);
        self.taken = now;
        let intervals: Vec<Interval> = all.iter().filter_map(|it| self.follow(it)).collect();
        let exist: BTreeSet<_> = all.iter().map(|it| (it.container, it.gpu)).collect();
        self.numbers.retain(|slice, _| exist.contains(slice));
        if !is_first && !intervals.is_empty() {
            self.keep(now, length, &intervals, load);
        }
        self.drop_old(now);
    }

    /// Finds a slice's series and replaces its sums. None in the slice's first interval, which is not whole.
    fn follow(&mut self, now: &Figures) -> Option<Interval> {
        let number = *self.numbers.entry((now.container, now.gpu)).or_insert_with(|| {
            self.last = self.last.wrapping_add(1);
            self.last
        });
        let Figures { container, name, gpu, cap, .. } = *now;
        let until = self.taken;
        let new = || Series { container, name, gpu, cap, sums: None, until };
        let series = self.series.entry(number).or_insert_with(new);
        (series.name, series.cap) = (name, cap);
        let before = series.sums.replace(*now)?;
        // a slice of the same id that began in this interval has begun anew
        (before.since == now.since).then_some(Interval { number, before, now: *now })
    }

    fn keep(
        &mut self,
        end: Instant,
        length: Duration,
        all: &[Interval],
        load: impl Fn(GpuUuid) -> Option<u32>,
    ) {
        let mut rows = Vec::with_capacity(all.len());
        let gpus: BTreeSet<GpuUuid> = all.iter().map(|it| it.now.gpu).collect();
        for gpu in gpus {
            let here: Vec<&Interval> = all.iter().filter(|it| it.now.gpu == gpu).collect();
            let scale = measured(&here, length, load(gpu));
            let claimants: Vec<Claimant> = here.iter().map(|it| it.claimant(length)).collect();
            for (at, it) in here.iter().enumerate() {
                let due = due(it.now.policy, it.now.class_caps, &claimants, at);
                let mut sample = it.sample(end, length, due);
                sample.got_us = (f64::from(sample.got_us) * scale) as u32;
                rows.push(sample);
                if let Some(series) = self.series.get_mut(&it.number) {
                    series.until = end;
                }
            }
        }
        self.held += rows.len();
        self.intervals.push_back(rows);
    }

    fn drop_old(&mut self, now: Instant) {
        let from = now.0.saturating_sub(KEPT_FOR.0);
        while let Some(oldest) = self.intervals.front() {
            let end = oldest.first().map_or(0, |sample| sample.end_ns);
            if end >= from && self.held <= KEPT {
                break;
            }
            self.held -= oldest.len();
            self.intervals.pop_front();
        }
        let oldest = self.intervals.front().and_then(|rows| rows.first());
        let oldest = oldest.map_or(now.0, |sample| sample.end_ns);
        let exist: BTreeSet<u32> = self.numbers.values().copied().collect();
        self.series.retain(|number, it| exist.contains(number) || it.until.0 >= oldest);
        for (number, series) in &mut self.series {
            series.sums = series.sums.filter(|_| exist.contains(number));
        }
    }

    /// The samples of intervals that ended after `after_ns`, as many as one answer has, and the answer's end.
    pub fn after(&self, after_ns: u64, (now, unix_ns): (Instant, u64)) -> Vec<Answer> {
        let end = |rows: &Vec<Sample>| rows.first().map_or(0, |sample| sample.end_ns);
        let mut wanted = self.intervals.iter().filter(|rows| end(rows) > after_ns).peekable();
        let (mut rows, mut last_ns) = (Vec::new(), after_ns);
        while let Some(next) =
            wanted.next_if(|it| rows.is_empty() || rows.len() + it.len() <= ANSWER)
        {
            last_ns = end(next);
            rows.extend_from_slice(next);
        }
        let named: BTreeSet<u32> = rows.iter().map(|sample| sample.series).collect();
        let series = named.iter().filter_map(|number| {
            let Series { container, name, gpu, cap, .. } = *self.series.get(number)?;
            Some(Answer::Series { number: *number, container, name, gpu, cap })
        });
        let frame = |some: &[Sample]| {
            let mut rows = [Sample::default(); SAMPLES_OF_FRAME];
            rows[..some.len()].copy_from_slice(some);
            Answer::Rows { count: some.len() as u32, rows }
        };
        let more = wanted.peek().is_some().into();
        let last = Answer::End { now_ns: now.0, unix_ns, last_ns, more };
        series.chain(rows.chunks(SAMPLES_OF_FRAME).map(frame)).chain([last]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::policy::{Class, ClassCaps, Policy};
    use gpuslice_wire::units::Weight;

    const S: u64 = 1_000_000_000;

    fn figures(n: u16, gpu_time: u64) -> Figures {
        let zero = Duration(0);
        Figures {
            container: ContainerId::new(&format!("c{n}")).expect("an id"),
            name: Name::EMPTY,
            gpu: GpuUuid([1; 16]),
            policy: Policy::Soft,
            class_caps: ClassCaps::ALL,
            class: Class::Normal,
            share: None,
            weight: Weight::new(1).ok(),
            cap_ppm: 1_000_000,
            cap: Bytes(9),
            memory: Bytes(5),
            since: Instant(gpu_time / 4 / S),
            gated: true,
            gpu_time: Duration(gpu_time),
            runnable: Duration(2 * gpu_time),
            running: Duration(gpu_time),
            handover: zero,
            limited: zero,
            gang: zero,
            idle: zero,
            suspended: zero,
            absent: zero,
            waits: [0, 0, gpu_time, 0, 0],
        }
    }

    /// All samples, answer by answer, and the names of their series.
    fn all(samples: &Samples) -> (Vec<Sample>, BTreeMap<u32, String>) {
        let (mut all, mut names, mut after) = (Vec::new(), BTreeMap::new(), 0);
        loop {
            for row in samples.after(after, (Instant(9 * S), 0)) {
                match row {
                    Answer::Series { number, container, .. } => {
                        names.insert(number, container.to_string());
                    }
                    Answer::Rows { count, rows } => all.extend_from_slice(&rows[..count as usize]),
                    Answer::End { more: 0, .. } => return (all, names),
                    Answer::End { last_ns, .. } => after = last_ns,
                }
            }
        }
    }

    #[test]
    fn samples_add_up_to_the_sums() {
        let mut samples = Samples::default();
        let third = 333_333_333;
        for second in 0..=10 {
            let end = Instant((1 + second) * S);
            samples.take(
                end,
                &[figures(1, 77 + second * third), figures(2, second * third / 2)],
                |_| None,
            );
        }
        let (rows, names) = all(&samples);
        assert_eq!((rows.len(), names.len()), (20, 2));
        let sum = |number: u32, of: fn(&Sample) -> u32| -> u64 {
            rows.iter().filter(|it| it.series == number).map(|it| u64::from(of(it))).sum()
        };
        assert_eq!(sum(1, |it| it.got_us), (77 + 10 * third) / 1_000);
        assert_eq!(sum(1, |it| it.wait_us[2]), (77 + 10 * third) / 1_000);
        assert_eq!(sum(2, |it| it.length_us), 10_000_000);
        // the first has work for two thirds of the time, the second for a third
        assert_eq!(
            (rows[0].due_ppm, rows[1].due_ppm, rows[0].memory),
            (666_667, 500_000, Bytes(5))
        );
    }

    /// A slice ends, and another one of its id begins: it is another series, and nothing is taken from the first.
    #[test]
    fn an_ended_slice_is_remembered_as_long_as_its_samples() {
        let mut samples = Samples::default();
        let mut take =
            |second: u64, all: &[Figures]| samples.take(Instant(second * S), all, |_| None);
        take(1, &[figures(1, 0)]);
        take(2, &[figures(1, S)]);
        take(3, &[]);
        take(4, &[figures(1, 5 * S)]);
        take(5, &[figures(1, 5 * S)]);
        // an id that is used again within an interval
        take(6, &[figures(1, 7)]);
        take(7, &[figures(1, 8)]);
        let (rows, names) = all(&samples);
        let got: Vec<_> = rows.iter().map(|it| (it.series, it.end_ns / S, it.got_us)).collect();
        assert_eq!(got, [(1, 2, 1_000_000), (2, 5, 0), (2, 7, 0)]);
        assert_eq!(names.len(), 2);
        samples.take(Instant(603 * S), &[], |_| None);
        assert_eq!(all(&samples).0.len(), 2, "the first is older than ten minutes");
        samples.take(Instant(700 * S), &[], |_| None);
        assert_eq!((all(&samples).0.len(), samples.series.len()), (0, 0));
    }

    #[test]
    fn many_slices_have_a_shorter_memory_and_whole_seconds() {
        let mut samples = Samples::default();
        for second in 1..=150 {
            let sums: Vec<Figures> = (0..1_000).map(|n| figures(n, second)).collect();
            samples.take(Instant(second * S), &sums, |_| None);
        }
        assert!((130_073..=131_072).contains(&samples.held), "{}", samples.held);
        let (rows, names) = all(&samples);
        assert_eq!((rows.len(), names.len()), (samples.held, 1_000));
        assert_eq!(samples.after(0, (Instant(0), 0)).len(), 1_000 + 4_000_usize.div_ceil(48) + 1);
        let last = samples.after(150 * S, (Instant(0), 7)).pop();
        assert_eq!(last, Some(Answer::End { now_ns: 0, unix_ns: 7, last_ns: 150 * S, more: 0 }));
    }

    /// Alone, a slice is charged for all the time in which it claims work; NVML shows how much of that it used.
    #[test]
    fn without_turns_a_slice_got_what_nvml_shows() {
        let open = |n, gpu_time| Figures { gated: false, ..figures(n, gpu_time) };
        let got = |of: &dyn Fn(u16, u64) -> Figures, load: Option<u32>| {
            let mut samples = Samples::default();
            for second in 1..=2 {
                // one has the GPU for 600 ms of the second, as the ledger has it, the other for 300 ms
                let sums = [of(1, second * S / 10 * 6), of(2, second * S / 10 * 3)];
                samples.take(Instant(second * S), &sums, |_| load);
            }
            all(&samples).0.iter().map(|it| it.got_us / 1_000).collect::<Vec<_>>()
        };
        assert_eq!(got(&open, Some(30)), [200, 100]);
        assert_eq!(got(&open, Some(95)), [600, 300], "never more than was charged");
        assert_eq!(got(&open, None), [600, 300]);
        assert_eq!(got(&figures, Some(30)), [600, 300], "turns are measured");
    }
}
