//! What slices got in the last minutes, as the daemon remembers it: one series for each slice.
//!
//! The daemon answers in parts, and names a series before its first sample in each. A reader that asks again gets only
//! what is new, so that a screen follows the daemon with little work.

use crate::admin::Admin;
use crate::table::{Row, View};
use anyhow::Result;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::samples::{Sample, Samples};
use gpuslice_wire::units::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// The daemon keeps about this many samples of a slice: ten minutes.
const KEPT: usize = 600;

/// One slice's samples.
#[derive(Clone, Debug)]
pub struct Series {
    /// Container id.
    pub container: String,
    /// Display name; the beginning of the id without one.
    pub name: String,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its memory cap, bytes.
    pub cap: u64,
    /// Its memory on the host now, while it is suspended or on the way.
    pub on_host: Bytes,
    /// The oldest first.
    pub samples: VecDeque<Sample>,
}

/// The samples of all slices, those of the last minutes included that have ended.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// By the daemon's number.
    pub series: BTreeMap<u32, Series>,
    /// CLOCK_MONOTONIC of the last answer, ns.
    pub now_ns: u64,
    /// The same instant, ns since 1970.
    pub unix_ns: u64,
    /// The end of the last interval.
    last_ns: u64,
}

impl Past {
    /// Asks for what is new.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn follow(&mut self, admin: &Admin) -> Result<()> {
        while self.take(admin.samples(self.last_ns)?) {}
        Ok(())
    }

    /// Takes in an answer; returns whether there is more.
    pub fn take(&mut self, rows: Vec<Samples>) -> bool {
        let mut has_more = false;
        for row in rows {
            match row {
                Samples::Series { number, container, name, gpu, cap } => {
                    let container = container.to_string();
                    let name = match name.as_str() {
                        "" => container.chars().take(12).collect(),
                        name => name.to_owned(),
                    };
                    let samples = self.series.remove(&number).map(|it| it.samples);
                    let samples = samples.unwrap_or_default();
                    let on_host = Bytes::ZERO;
                    let series = Series { container, name, gpu, cap: cap.0, on_host, samples };
                    self.series.insert(number, series);
                }
                Samples::Rows { count, rows } => {
                    for sample in rows.iter().take(count as usize) {
                        self.add(*sample);
                    }
                }
                Samples::End { now_ns, unix_ns, last_ns, more } => {
                    (self.now_ns, self.unix_ns, self.last_ns) = (now_ns, unix_ns, last_ns);
                    has_more = more != 0;
                }
            }
        }
        self.drop_old();
        has_more
    }

    fn add(&mut self, sample: Sample) {
        if let Some(series) = self.series.get_mut(&sample.series) {
            series.samples.push_back(sample);
            if series.samples.len() > KEPT {
                series.samples.pop_front();
            }
        }
    }

    fn drop_old(&mut self) {
        let from = self.now_ns.saturating_sub(KEPT as u64 * 1_000_000_000);
        for series in self.series.values_mut() {
            while series.samples.pop_front_if(|it| it.end_ns < from).is_some() {}
        }
        self.series.retain(|_, series| !series.samples.is_empty());
    }

    /// Notes the memory of slices that are suspended in `now`.
    pub fn note_suspended(&mut self, now: &View) {
        for it in self.series.values_mut() {
            let is_it = |row: &&Row| row.container == it.container && row.gpu == it.gpu;
            it.on_host = now.rows.iter().find(is_it).map_or(Bytes::ZERO, |row| now.on_host(row));
        }
    }

    /// Forgets everything: another daemon has other numbers and none of these samples.
    pub fn clear(&mut self) {
        *self = Past::default();
    }

    /// Leaves the samples of the last stretch only, and of one container, if it is named.
    pub fn narrow(&mut self, since_ns: u64, container: Option<&str>) {
        let from = self.now_ns.saturating_sub(since_ns);
        for series in self.series.values_mut() {
            series.samples.retain(|it| it.end_ns > from);
        }
        let is_meant = |it: &Series| container.is_none_or(|id| it.container == id);
        self.series.retain(|_, it| !it.samples.is_empty() && is_meant(it));
    }

    /// The GPUs of all series, in the order of `order`, then others.
    pub fn gpus(&self, order: &[GpuUuid]) -> Vec<GpuUuid> {
        let mut gpus: Vec<GpuUuid> = self.series.values().map(|it| it.gpu).collect();
        let place = |gpu: &GpuUuid| order.iter().position(|it| it == gpu).unwrap_or(usize::MAX);
        gpus.sort_by_key(|gpu| (place(gpu), gpu.0));
        gpus.dedup();
        gpus
    }

    /// The series of a GPU, by name.
    pub fn on(&self, gpu: GpuUuid) -> Vec<&Series> {
        let mut all: Vec<&Series> = self.series.values().filter(|it| it.gpu == gpu).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name).then(a.container.cmp(&b.container)));
        all
    }

    /// An instant of CLOCK_MONOTONIC, ns, as ns since 1970.
    pub fn unix_of(&self, ns: u64) -> u64 {
        self.unix_ns.saturating_sub(self.now_ns).saturating_add(ns)
    }
}

/// The part of a sample's interval that is `us`, 0..=1.
pub fn part(sample: &Sample, us: u64) -> f64 {
    us as f64 / f64::from(sample.length_us.max(1))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use gpuslice_wire::ids::ContainerId;
    use gpuslice_wire::samples::SAMPLES_OF_FRAME;
    use gpuslice_wire::text::Name;

    const S: u64 = 1_000_000_000;

    /// A slice of a test: its id, its GPU, its sample of a second.
    pub type Slice<'a> = (&'a str, u8, &'a dyn Fn(u64) -> Sample);

    /// A past of `seconds`, until half a second after the last sample.
    pub fn build(slices: &[Slice<'_>], seconds: u64) -> Past {
        let mut past = Past::default();
        let series = |(at, (name, gpu, _)): (usize, &Slice<'_>)| Samples::Series {
            number: at as u32 + 1,
            container: ContainerId::new(name).expect("an id"),
            name: Name::new(name).expect("a name"),
            gpu: GpuUuid([*gpu; 16]),
            cap: Bytes(8 << 30),
        };
        let mut rows: Vec<Samples> = slices.iter().enumerate().map(series).collect();
        let mut samples = Vec::new();
        for second in 1..=seconds {
            for (at, (_, _, sample)) in slices.iter().enumerate() {
                let end_ns = (1_000 + second) * S;
                let series = at as u32 + 1;
                samples.push(Sample { series, end_ns, length_us: 1_000_000, ..sample(second) });
            }
        }
        for some in samples.chunks(SAMPLES_OF_FRAME) {
            let mut frame = [Sample::default(); SAMPLES_OF_FRAME];
            frame[..some.len()].copy_from_slice(some);
            rows.push(Samples::Rows { count: some.len() as u32, rows: frame });
        }
        let (now_ns, last_ns) = ((1_000 + seconds) * S + S / 2, (1_000 + seconds) * S);
        rows.push(Samples::End { now_ns, unix_ns: 1_800_000_000 * S + now_ns, last_ns, more: 0 });
        assert!(!past.take(rows));
        past
    }

    /// A busy second: what it got and was due, µs; the rest it waited.
    pub fn busy(got_us: u32, due_ppm: u32) -> Sample {
        let (running_us, handover_us) = (got_us, 10_000);
        let wait_us = [990_000 - got_us, 0, 0, 0, 0];
        Sample { got_us, due_ppm, running_us, handover_us, wait_us, ..Sample::default() }
    }

    /// A second with work for a part of it alone.
    pub fn idle(got_us: u32, due_ppm: u32) -> Sample {
        let wait_us = [0; 5];
        Sample { idle_us: 990_000 - got_us, wait_us, ..busy(got_us, due_ppm) }
    }

    /// Samples of two slices of a GPU and one of another: what each got is a known wave.
    pub fn past(seconds: u64) -> Past {
        let wave = |second: u64| ((second * 7) % 20) as u32 * 10_000;
        let memory = |gib: u64, sample| Sample { memory: Bytes(gib << 30), ..sample };
        build(
            &[
                ("train", 1, &|at| memory(1, busy(700_000 - wave(at), 500_000))),
                ("web", 1, &|at| memory(2, busy(250_000 + wave(at), 500_000))),
                ("batch", 2, &|_| memory(3, idle(400_000, 1_000_000))),
            ],
            seconds,
        )
    }

    #[test]
    fn samples_are_sorted_into_series_and_narrowed() {
        let mut past = past(100);
        let gpus = past.gpus(&[GpuUuid([2; 16]), GpuUuid([1; 16])]);
        assert_eq!(gpus, [GpuUuid([2; 16]), GpuUuid([1; 16])]);
        let names: Vec<&str> = past.on(gpus[1]).iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["train", "web"]);
        past.narrow(10 * S, Some("web"));
        let web = &past.series[&2];
        assert_eq!((past.series.len(), web.samples.len()), (1, 10));
        assert_eq!(past.unix_of(past.now_ns - S), past.unix_ns - S);
        // a second answer goes on where the first ended, and what is old goes
        let end = Samples::End { now_ns: 2_000 * S, unix_ns: 0, last_ns: 1_100 * S, more: 1 };
        assert!(past.take(vec![end]));
        assert_eq!((past.series.len(), past.last_ns), (0, 1_100 * S));
    }
}
