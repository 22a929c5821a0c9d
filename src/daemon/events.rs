//! What happened lately, for `gpuslice events`: a bounded memory that no container can fill at the cost of others.
//!
//! # Problem
//! A container can be refused memory a thousand times a second. A list of the last N events would then show nothing
//! else, not even the change of its cap that caused the refusals.
//!
//! # Idea
//! Each container has a list of its own, and the daemon one for the node's events. Two bounds hold:
//! * an event that a container can cause at will is recorded [`BURST`] times, then once in [`EVERY`]. The next one
//!   that is recorded has the number of those left out.
//! * the slices of claims come and go as an agent wishes, each with an id of its own. So their begins, ends and
//!   refusals are in one list together;
//! * all lists together hold [`KEPT`] events. A new one beyond that replaces the oldest of the *longest* list. So a
//!   container with few events loses none to one with many.

use crate::peer::Asker;
use crate::replies::shortened;
use gpuslice_wire::history::{EventKind, History, NO_GPU, NO_UID};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::limits::EVENT_TEXT_BYTES_MAX;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::text::{Name, Text, is_seen};
use gpuslice_wire::units::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

/// Events of all containers.
const KEPT: usize = 2048;
/// Events of one kind that a container may cause at once.
const BURST: u32 = 8;
/// After that, the time between two of them.
const EVERY: Duration = Duration(1_000_000_000);
/// Entries of one answer.
const ANSWER: usize = 128;

/// An event to record.
#[derive(Clone, Debug)]
pub struct Happening {
    kind: EventKind,
    container: Option<ContainerId>,
    name: Option<Name>,
    gpu: Option<GpuUuid>,
    pid: u32,
    uid: Option<u32>,
    login_uid: Option<u32>,
    amounts: [u64; 2],
    text: String,
}

impl Happening {
    /// An event of the node.
    pub fn of_node(kind: EventKind) -> Happening {
        Happening {
            kind,
            container: None,
            name: None,
            gpu: None,
            pid: 0,
            uid: None,
            login_uid: None,
            amounts: [0; 2],
            text: String::new(),
        }
    }

    /// An event of a container.
    pub fn of(kind: EventKind, container: ContainerId) -> Happening {
        Happening { container: Some(container), ..Happening::of_node(kind) }
    }

    /// With the container's name, where it may have no slice.
    pub fn named(self, name: Name) -> Happening {
        Happening { name: Some(name), ..self }
    }

    /// On this GPU.
    pub fn on(self, gpu: Option<GpuUuid>) -> Happening {
        Happening { gpu, ..self }
    }

    /// Caused by a process: its pid in the daemon's namespace, 0 if it is unknown.
    pub fn by_process(self, pid: u32) -> Happening {
        Happening { pid, ..self }
    }

    /// Asked for by a client of the admin socket.
    pub fn by_client(self, client: Option<Asker>) -> Happening {
        let pid = client.and_then(|it| u32::try_from(it.pid).ok()).unwrap_or(0);
        let uid = client.map(|it| it.uid);
        Happening { pid, uid, login_uid: client.and_then(|it| it.login_uid), ..self }
    }

    /// See [`EventKind`].
    pub fn with(self, amounts: [u64; 2], text: String) -> Happening {
        Happening { amounts, text, ..self }
    }
}

/// A recorded event.
#[derive(Clone, Debug)]
struct Entry {
    sequence: u64,
    unix_ns: u64,
    count: u32,
    name: Name,
    what: Happening,
}

/// How many events of one kind are recorded.
#[derive(Clone, Copy, Debug)]
struct Limit {
    kind: EventKind,
    left: u32,
    /// The last time that `left` grew.
    grew: Instant,
    omitted: u32,
}

impl Limit {
    /// Takes an event; returns its count if it is recorded.
    fn take(&mut self, now: Instant) -> Option<u32> {
        let more = now.since(self.grew).0 / EVERY.0;
        if more > 0 {
            self.left = BURST.min(self.left.saturating_add(u32::try_from(more).unwrap_or(BURST)));
            self.grew = now;
        }
        match self.left {
            0 => {
                self.omitted = self.omitted.saturating_add(1);
                None
            }
            _ => {
                self.left -= 1;
                Some(1 + std::mem::take(&mut self.omitted))
            }
        }
    }
}

/// Whose events a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Node,
    /// Those who reserve claims: begins, ends and refusals of all claims' slices.
    Agents,
    Container(ContainerId),
}

impl Origin {
    fn of(what: &Happening) -> Origin {
        let comes_or_goes = matches!(
            what.kind,
            EventKind::SliceBegan | EventKind::SliceEnded | EventKind::SliceRefused
        );
        match what.container {
            None => Origin::Node,
            Some(slice) if comes_or_goes && ClaimId::is_reserved(&slice) => Origin::Agents,
            Some(container) => Origin::Container(container),
        }
    }
}

/// Events of one origin.
#[derive(Debug, Default)]
struct List {
    entries: VecDeque<Entry>,
    limits: Vec<Limit>,
}

impl List {
    /// The event's count, if it is recorded.
    fn count(&mut self, kind: EventKind, now: Instant) -> Option<u32> {
        let at_will = matches!(
            kind,
            EventKind::SliceRefused
                | EventKind::MemoryRefused
                | EventKind::Overrun
                | EventKind::Drained
                | EventKind::Preempted
                | EventKind::GpuFailed
                | EventKind::OverCap
                | EventKind::MemoryWanted
                | EventKind::NotMoved
                | EventKind::Frozen
                | EventKind::Thawed
                | EventKind::Killed
        );
        if !at_will {
            return Some(1);
        }
        let known = self.limits.iter().position(|limit| limit.kind == kind);
        let at = known.unwrap_or_else(|| {
            self.limits.push(Limit { kind, left: BURST, grew: now, omitted: 0 });
            self.limits.len() - 1
        });
        self.limits[at].take(now)
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct Events {
    lists: BTreeMap<Origin, List>,
    /// Names of the containers with a slice.
    names: BTreeMap<ContainerId, Name>,
    started_unix_ns: u64,
    last: u64,
    held: usize,
    dropped: u64,
    /// The log is journald's: events go there too, with their fields.
    to_journal: bool,
    /// All that happened, listed or not, in the order of [`EventKind::ALL`].
    totals: [u64; EventKind::ALL.len()],
}

/// The wall clock, ns since 1970.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Events {
    fn default() -> Events {
        Events {
            lists: BTreeMap::new(),
            names: BTreeMap::new(),
            started_unix_ns: unix_ns(),
            last: 0,
            held: 0,
            dropped: 0,
            to_journal: false,
            totals: [0; EventKind::ALL.len()],
        }
    }
}

/// An event for journald, whose fields are `GPUSLICE_EVENT`, `GPUSLICE_SLICE` and so on.
fn tell(what: &Happening, name: Name, count: u32) {
    let container = what.container.map_or(Text::EMPTY, |container| container.text());
    let slice = if name.is_empty() { container.as_str() } else { name.as_str() };
    let known = |text: &str| (!text.is_empty()).then(|| tracing::field::display(text.to_owned()));
    let amount = |at: usize| (what.amounts != [0; 2]).then_some(what.amounts[at]);
    tracing::info!(
        event = what.kind.name(),
        slice = known(slice),
        container = known(container.as_str()),
        gpu = what.gpu.map(tracing::field::display),
        pid = (what.pid > 0).then_some(what.pid),
        uid = what.uid,
        login_uid = what.login_uid,
        count,
        amount = amount(0),
        amount_2 = amount(1),
        "{} {slice}: {}",
        what.kind.name(),
        what.text,
    );
}

impl Events {
    /// Events that go to journald too, if the log is its.
    pub fn new(to_journal: bool) -> Events {
        Events { to_journal, ..Events::default() }
    }

    /// A container has a slice, and this name.
    pub fn know(&mut self, container: ContainerId, name: Name) {
        self.names.insert(container, name);
    }

    /// The name of a container with a slice; empty for any other.
    pub fn name(&self, container: &ContainerId) -> Name {
        self.names.get(container).copied().unwrap_or(Name::EMPTY)
    }

    /// A container has no slice any more.
    pub fn forget(&mut self, container: &ContainerId) {
        self.names.remove(container);
    }

    /// How often each kind has happened since the start, in the order of [`EventKind::ALL`].
    pub fn totals(&self) -> [u64; EventKind::ALL.len()] {
        self.totals
    }

    /// Records an event that happens now.
    pub fn record(&mut self, now: Instant, what: Happening) {
        self.record_at(now, unix_ns(), what);
    }

    fn record_at(&mut self, now: Instant, unix_ns: u64, mut what: Happening) {
        self.totals[what.kind as usize] += 1;
        let list = self.lists.entry(Origin::of(&what)).or_default();
        let Some(count) = list.count(what.kind, now) else {
            return;
        };
        let known = what.container.and_then(|container| self.names.get(&container).copied());
        let name = what.name.filter(|name| !name.is_empty()).or(known).unwrap_or(Name::EMPTY);
        what.text = escaped(&what.text).as_str().to_owned();
        self.last += 1;
        if self.to_journal {
            tell(&what, name, count);
        }
        list.entries.push_back(Entry { sequence: self.last, unix_ns, count, name, what });
        self.held += 1;
        if self.held > KEPT {
            self.drop_one();
        }
    }

    /// Drops the oldest event of the longest list; of two as long, of that with the older event.
    fn drop_one(&mut self) {
        let age = |list: &List| Reverse(list.entries.front().map_or(u64::MAX, |it| it.sequence));
        let longest = self.lists.iter_mut().max_by_key(|(_, it)| (it.entries.len(), age(it)));
        let Some((&origin, list)) = longest else {
            return;
        };
        list.entries.pop_front();
        (self.held, self.dropped) = (self.held - 1, self.dropped + 1);
        if list.entries.is_empty() {
            self.lists.remove(&origin);
        }
    }

    /// The events after number `after`, oldest first, as many as one answer has, and the answer's end.
    pub fn after(&self, after: u64) -> Vec<History> {
        let all = self.lists.values().flat_map(|list| &list.entries);
        let mut all: Vec<&Entry> = all.filter(|entry| entry.sequence > after).collect();
        all.sort_unstable_by_key(|entry| entry.sequence);
        let more = all.len() > ANSWER;
        all.truncate(ANSWER);
        let last = all.last().map_or(self.last, |entry| entry.sequence);
        let end = History::End {
            daemon_unix_ns: self.started_unix_ns,
            last,
            more: more.into(),
            dropped: self.dropped,
        };
        all.into_iter().map(row).chain([end]).collect()
    }
}

fn row(entry: &Entry) -> History {
    let what = &entry.what;
    History::Entry {
        sequence: entry.sequence,
        unix_ns: entry.unix_ns,
        kind: what.kind,
        container: what.container.map_or(Text::EMPTY, |container| container.text()),
        name: entry.name,
        gpu: what.gpu.unwrap_or(NO_GPU),
        pid: what.pid,
        uid: what.uid.unwrap_or(NO_UID),
        login_uid: what.login_uid.unwrap_or(NO_UID),
        count: entry.count,
        amounts: what.amounts,
        text: Text::new(&what.text).unwrap_or(Text::EMPTY),
    }
}

/// A text whose control characters and invisible ones are escaped, cut to what an event holds.
fn escaped(text: &str) -> Text<EVENT_TEXT_BYTES_MAX> {
    let mut all = String::new();
    for c in text.chars() {
        match is_seen(c) {
            true => all.push(c),
            false => all.extend(c.escape_unicode()),
        }
    }
    Text::new(&shortened(all, EVENT_TEXT_BYTES_MAX)).unwrap_or(Text::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> ContainerId {
        ContainerId::new(&format!("c{n}")).expect("an id")
    }

    fn at(ms: u64) -> Instant {
        Instant(1 + ms * 1_000_000)
    }

    /// All events, answer by answer: container, kind, count.
    fn all(events: &Events) -> Vec<(String, EventKind, u32)> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            for row in events.after(after) {
                match row {
                    History::Entry { container, kind, count, .. } => {
                        all.push((container.to_string(), kind, count));
                    }
                    History::End { more: 0, .. } => return all,
                    History::End { last, .. } => after = last,
                }
            }
        }
    }

    #[test]
    fn a_flood_leaves_the_events_of_others_and_its_own_earlier_ones() {
        let mut events = Events::default();
        for n in 0..50 {
            events.record(at(0), Happening::of(EventKind::SliceBegan, id(n)));
        }
        let kinds = [EventKind::MemoryRefused, EventKind::MemoryWanted];
        for ms in 0..10_000 {
            kinds.iter().for_each(|kind| events.record(at(ms), Happening::of(*kind, id(7))));
        }
        let told = all(&events);
        assert_eq!(told.iter().filter(|it| it.1 == EventKind::SliceBegan).count(), 50);
        for kind in kinds {
            let counts: Vec<u32> = told.iter().filter(|it| it.1 == kind).map(|it| it.2).collect();
            assert_eq!(counts[..8], [1; 8]);
            assert_eq!(counts[8..].len(), 9, "one in each further second");
            assert_eq!(events.totals()[kind as usize], 10_000, "all are counted");
            let omitted = 10_000 - counts.iter().sum::<u32>();
            assert!(omitted < 1_000, "the last second's are still to be told: {omitted}");
        }
    }

    /// Events that no bound limits: the longest list gives up its oldest.
    #[test]
    fn the_longest_list_loses_its_oldest_event() {
        let mut events = Events::default();
        events.record(at(0), Happening::of_node(EventKind::DaemonStarted));
        (0..20).for_each(|n| events.record(at(0), Happening::of(EventKind::SliceBegan, id(n))));
        for _ in 0..3 * KEPT {
            events.record(at(1), Happening::of(EventKind::CapChanged, id(3)));
        }
        let told = all(&events);
        assert_eq!((told.len(), KEPT), (2_048, 2_048));
        let began = told.iter().filter(|it| it.1 == EventKind::SliceBegan).count();
        assert_eq!((began, told[0].1), (19, EventKind::DaemonStarted), "all but that of c3");
        // containers without number: each has one event, and the oldest goes
        for n in 100..100 + 2 * KEPT {
            events.record(at(2), Happening::of(EventKind::SliceRefused, id(n)));
        }
        assert_eq!((all(&events).len(), events.lists.len() <= KEPT), (KEPT, true));
        let Some(History::End { dropped, .. }) = events.after(u64::MAX).pop() else {
            panic!("an answer has an end");
        };
        assert_eq!(dropped as usize, 21 + 5 * KEPT - KEPT);
    }

    /// An agent that reserves and releases claims without end loses its own earlier events.
    #[test]
    fn claims_without_number_leave_the_events_of_others() {
        let mut events = Events::default();
        events.record(at(0), Happening::of_node(EventKind::DaemonStarted));
        (0..20).for_each(|n| events.record(at(0), Happening::of(EventKind::SliceBegan, id(n))));
        let claim = |n: usize| ClaimId::new(&format!("c-{n}")).expect("an id").slice();
        events.record(at(0), Happening::of(EventKind::MemoryRefused, claim(0)));
        for n in 0..KEPT {
            for kind in [EventKind::SliceBegan, EventKind::SliceEnded, EventKind::SliceRefused] {
                events.record(at(1), Happening::of(kind, claim(n)));
            }
        }
        let told = all(&events);
        let others = told.iter().filter(|it| !it.0.starts_with("claim.")).count();
        assert_eq!((told.len(), others, told[0].1), (KEPT, 21, EventKind::DaemonStarted));
        assert!(told.iter().any(|it| it.1 == EventKind::MemoryRefused), "a claim's own event");
        let refused = told.iter().filter(|it| it.1 == EventKind::SliceRefused).count();
        assert!(refused <= BURST as usize, "{refused} refusals of one second");
    }

    /// Also where the bound is inside of a character of several bytes.
    #[test]
    fn a_long_text_ends_after_a_word() {
        let words = "na\u{ef}ve caf\u{e9}s ".repeat(30);
        for more in 0..20 {
            let text = escaped(&("x".repeat(more) + " " + &words));
            let begin = text.as_str().strip_suffix('\u{2026}').expect("an ellipsis");
            assert!(text.as_str().len() <= EVENT_TEXT_BYTES_MAX && begin.len() > 230, "{text}");
            assert!(begin.ends_with("na\u{ef}ve") || begin.ends_with("caf\u{e9}s"), "{text}");
        }
        let fits = "ab ".repeat(EVENT_TEXT_BYTES_MAX / 3) + "c";
        assert_eq!(escaped(&fits).as_str(), fits);
    }

    #[test]
    fn texts_are_escaped_and_names_are_those_of_the_slice() {
        let mut events = Events::default();
        let name = |text| Name::new(text).expect("a name");
        events.know(id(1), name("web"));
        let refused = Happening::of(EventKind::SliceRefused, id(1)).by_client(Some(Asker {
            pid: 5,
            uid: 7,
            login_uid: Some(8),
        }));
        events.record(at(0), refused.with([1, 2], "a\u{202e}b\u{200b}\nc".to_owned()));
        let long = "\u{200b}".repeat(1_000);
        let of_other = Happening::of(EventKind::SliceRefused, id(2)).named(name("db"));
        events.record(at(0), of_other.with([0; 2], long));
        let rows = events.after(0);
        let History::Entry { text, name, uid, login_uid, pid, amounts, .. } = rows[0] else {
            panic!("an entry")
        };
        assert_eq!(text.as_str(), "a\\u{202e}b\\u{200b}\\u{a}c");
        assert_eq!((name.as_str(), uid, login_uid, pid, amounts), ("web", 7, 8, 5, [1, 2]));
        let History::Entry { text, name, .. } = rows[1] else { panic!("an entry") };
        assert_eq!((name.as_str(), text.as_str().len() <= EVENT_TEXT_BYTES_MAX), ("db", true));
        assert!(text.as_str().ends_with('\u{2026}'), "one word is cut anywhere: {text}");
        events.forget(&id(1));
        assert_eq!(events.after(1).len(), 2, "one entry and the end");
    }
}
