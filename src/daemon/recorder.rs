//! Recorded turns until a client has read them: `gpuslice record`.
//!
//! A client asks for a recording, and asks again for what was recorded while it lasts. The memory is bounded: the
//! newest [`KEPT`] rows are kept, and the answer says how many a slow client has missed. A while after the end of the
//! last recording all is dropped.

use gpuslice_engine::Stretch;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::limits::RECORD_NS_MAX;
use gpuslice_wire::text::Name;
use gpuslice_wire::turns::{TURNS_OF_FRAME, TurnRow, Turns};
use gpuslice_wire::units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rows kept: more than a minute of turns of 4 ms with their drains, 1.3 MiB.
const KEPT: usize = 32_768;
/// Containers on GPUs that are named at a time.
const TRACKS: usize = 4_096;
/// Rows of one answer.
const ANSWER: usize = 8_192;
/// How long rows are kept after a recording.
const KEPT_AFTER: Duration = Duration(RECORD_NS_MAX);

/// See the file's head.
#[derive(Debug, Default)]
pub struct Recorder {
    rows: VecDeque<TurnRow>,
    tracks: BTreeMap<u32, (ContainerId, GpuUuid, Name)>,
    numbers: BTreeMap<(ContainerId, GpuUuid), u32>,
    /// The number of the last track.
    last_track: u32,
    /// The number of the last row.
    last: u64,
    /// The end of the recording.
    until: Instant,
}

impl Recorder {
    /// The end of the recording if a client asks for one of `for_ns` from now on.
    pub fn extend(&mut self, now: Instant, for_ns: u64) -> Instant {
        let asked = now.plus(Duration(for_ns.min(RECORD_NS_MAX)));
        self.until = self.until.max(asked);
        self.until
    }

    /// Adds a row.
    pub fn add(&mut self, (container, gpu, name): (ContainerId, GpuUuid, Name), stretch: &Stretch) {
        let track = *self.numbers.entry((container, gpu)).or_insert_with(|| {
            self.last_track = self.last_track.wrapping_add(1);
            self.last_track
        });
        self.tracks.insert(track, (container, gpu, name));
        let Stretch { kind, from, to, charged } = *stretch;
        let row = TurnRow { track, kind, from_ns: from.0, to_ns: to.0, gpu_ns: charged.0 };
        self.rows.push_back(row);
        self.last += 1;
        if self.rows.len() > KEPT {
            self.rows.pop_front();
        }
        if self.tracks.len() > TRACKS {
            let named: BTreeSet<u32> = self.rows.iter().map(|row| row.track).collect();
            self.tracks.retain(|track, _| named.contains(track));
            self.numbers.retain(|_, track| named.contains(track));
        }
    }

    /// Drops everything a while after the recording's end.
    pub fn due(&mut self, now: Instant) {
        if !self.tracks.is_empty() && self.until.plus(KEPT_AFTER) < now {
            (self.rows, self.tracks, self.numbers) = Default::default();
        }
    }

    /// The rows after number `after`, as many as one answer has, and the answer's end.
    pub fn after(&self, after: u64, (now, unix_ns): (Instant, u64)) -> Vec<Turns> {
        let first = self.last - self.rows.len() as u64;
        let dropped = first.saturating_sub(after);
        let skip = usize::try_from(after.saturating_sub(first)).unwrap_or(usize::MAX);
        let rows: Vec<TurnRow> = self.rows.iter().skip(skip).take(ANSWER).copied().collect();
        let last = (first + skip as u64).min(self.last) + rows.len() as u64;
        let named: BTreeSet<u32> = rows.iter().map(|row| row.track).collect();
        let tracks = named.iter().filter_map(|number| {
            let (container, gpu, name) = *self.tracks.get(number)?;
            Some(Turns::Track { number: *number, container, name, gpu })
        });
        let frame = |some: &[TurnRow]| {
            let mut rows = [TurnRow::default(); TURNS_OF_FRAME];
            rows[..some.len()].copy_from_slice(some);
            Turns::Rows { count: some.len() as u32, rows }
        };
        let more = u32::from(last < self.last);
        let end = Turns::End { now_ns: now.0, unix_ns, last, more, dropped };
        tracks.chain(rows.chunks(TURNS_OF_FRAME).map(frame)).chain([end]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::turns::TurnKind;

    fn add(recorder: &mut Recorder, n: u64) {
        let container = ContainerId::new(&format!("c{}", n % 3)).expect("an id");
        let (from, to, charged) = (Instant(n), Instant(n + 1), Duration(1));
        let stretch = Stretch { kind: TurnKind::Turn, from, to, charged };
        recorder.add((container, GpuUuid([1; 16]), Name::EMPTY), &stretch);
    }

    fn end(answer: &[Turns]) -> (u64, u32, u64) {
        match answer.last() {
            Some(Turns::End { last, more, dropped, .. }) => (*last, *more, *dropped),
            other => panic!("{other:?}"),
        }
    }

    fn begins(answer: &[Turns]) -> Vec<u64> {
        let rows = answer.iter().map(|it| match it {
            Turns::Rows { count, rows } => &rows[..*count as usize],
            _ => &[],
        });
        rows.flatten().map(|row| row.from_ns).collect()
    }

    #[test]
    fn a_client_reads_each_row_once() {
        let mut recorder = Recorder::default();
        let now = (Instant(5), 0);
        assert_eq!(end(&recorder.after(0, now)), (0, 0, 0));
        (0..10_000).for_each(|n| add(&mut recorder, n));
        let first = recorder.after(0, now);
        assert_eq!((end(&first), begins(&first).len()), ((8_192, 1, 0), 8_192));
        let second = recorder.after(8_192, now);
        assert_eq!((end(&second), begins(&second)), ((10_000, 0, 0), (8_192..10_000).collect()));
        assert_eq!(second.iter().filter(|it| matches!(it, Turns::Track { .. })).count(), 3);
        assert_eq!(
            (end(&recorder.after(10_000, now)), end(&recorder.after(99_999, now)).1),
            ((10_000, 0, 0), 0)
        );
        (10_000..100_000).for_each(|n| add(&mut recorder, n));
        let late = recorder.after(10_000, now);
        assert_eq!((end(&late).2, begins(&late)[0]), (90_000 - KEPT as u64, 100_000 - KEPT as u64));
    }

    #[test]
    fn recordings_overlap_and_are_dropped_a_while_after() {
        let mut recorder = Recorder::default();
        let s = |n: u64| Instant(n * 1_000_000_000);
        assert_eq!(recorder.extend(s(1), 5_000_000_000), s(6));
        assert_eq!(recorder.extend(s(2), 1_000_000_000), s(6), "another client's goes on");
        assert_eq!(recorder.extend(s(3), u64::MAX), s(63));
        add(&mut recorder, 1);
        recorder.due(s(123));
        assert_eq!(recorder.rows.len(), 1);
        recorder.due(s(124));
        assert_eq!((recorder.rows.len(), recorder.tracks.len(), recorder.last), (0, 0, 1));
    }
}
