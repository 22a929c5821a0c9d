//! The memory shared with tenants, and the daemon's only module with raw memory.
//!
//! Problem: a tenant must read the state of its turn in one load, and report a drain in one store. Yet no
//! write of a tenant may harm the daemon or other tenants.
//! Idea: sealed memfds. The *container page* is sealed against every later
//! writable mapping; only the mapping made here before the seal can write. The *client page* is written by
//! the tenant and read here as claims, the *usage table* ([`usage`]) by all processes of the container for each
//! other. None can change its size, so no access from here can fault.
//! All access goes through atomics, one field at a time, from the raw pointer: no reference to memory
//! that another process writes ever exists.
//!
//! Order of writes to a lane: numbers, then `turn_end_ns`, then `mode` and `gated`, then `turn`, then
//! `futex`, each release or stronger, then the wake-ups ([`WakeUp`]). A reader that sees a turn sees its
//! end. `turn` and `active` are sequentially consistent (see `gpuslice_wire::page`).

#![allow(unsafe_code)]

use gpuslice_engine::{Claims, LaneView, Mode, Record};
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{ACCOUNTS_MAX, LANES_MAX, PAGE_BYTES};
use gpuslice_wire::page::{
    CLIENT_PAGE_MAGIC, CONTAINER_PAGE_MAGIC, ClientPage, ContainerPage, GATE_CLOSED, GATE_OPEN,
    MODE_GATES, MODE_OPEN, MODE_TURNS, PAGE_VERSION, RUNNABLE_PARKED, SHARES_NOTHING,
    STOP_CHANNELS, may_launch,
};
use gpuslice_wire::units::{Bytes, Instant, KIB};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;
use std::cell::Cell;
use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The mapping of a sealed memfd of whole pages, for reading and writing.
#[derive(Debug)]
struct Shared<T> {
    at: NonNull<T>,
}

impl<T> Shared<T> {
    fn new(name: &CStr, seals: SealFlag) -> Result<(Shared<T>, OwnedFd), Errno> {
        let whole = size_of::<T>().is_multiple_of(PAGE_BYTES);
        assert!(whole && align_of::<T>() <= PAGE_BYTES);
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&fd, size_of::<T>() as i64)?;
        let size = NonZeroUsize::new(size_of::<T>()).ok_or(Errno::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
        let at = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, &fd, 0) }?.cast();
        let shared = Shared { at };
        let always = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(always | seals))?;
        Ok((shared, fd))
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `new`, has the size of `T`, and no reference into it outlives
        // `self`: fields are borrowed from it only within the methods below. A failure would leave
        // pages mapped, which is harmless.
        let _ = unsafe { munmap(self.at.cast(), size_of::<T>()) };
    }
}

/// Borrows one atomic field of a shared page.
macro_rules! field {
    ($page:expr, $($path:tt)+) => {
        // SAFETY: `at` points to a live mapping of this size for as long as `$page` is borrowed
        // (`Shared::new`, `drop`); the size is sealed; the place is an atomic, so writes by
        // another process are no data race; array indices are checked.
        unsafe { &(*$page.at.as_ptr()).$($path)+ }
    };
}

mod usage;
pub use usage::{UsageSlot, UsageWriter};

/// Wakes every thread that sleeps on a word of a shared page. Returns the number of threads woken.
fn wake(word: &AtomicU32) -> i64 {
    // SAFETY: FUTEX_WAKE only uses the address of a live word as a name; it writes nothing. It can
    // fail only for a bad address. The flag PRIVATE is absent because sleepers are other processes.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) }
}

/// A turn closed this long after its end is closed late: its processes no longer check for the end.
const LATE_NS: u64 = 100_000;

/// The threads to wake after a change of a lane. Waking one thread costs more than all the rest of a turn
/// change, so a plain turn change wakes a single thread: see `gpuslice_wire::page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeUp {
    /// None: the threads concerned check at that time anyway.
    None,
    /// Launches that wait for the turn; the gate threads only if no launch waits.
    Launches,
    /// The gate threads.
    GateThreads,
    /// Launches and gate threads.
    All,
}

impl WakeUp {
    /// The threads to wake for a change of (mode, turn, its end); `recalled` if credit is recalled too.
    fn of(old: (u32, u32, u64), new: (u32, u32, u64), recalled: bool) -> WakeUp {
        let ((old_mode, old_turn, end), (mode, turn, closed)) = (old, new);
        if (old_mode, old_turn) == (mode, turn) {
            return if recalled { WakeUp::GateThreads } else { WakeUp::None };
        }
        match (may_launch(old_turn), may_launch(turn)) {
            _ if recalled || (old_mode, mode) != (MODE_TURNS, MODE_TURNS) => WakeUp::All,
            (false, true) => WakeUp::Launches,
            (true, false) if (end..end.saturating_add(LATE_NS)).contains(&closed) => WakeUp::None,
            _ => WakeUp::All,
        }
    }
}

/// The daemon's settings on each container's page.
#[derive(Clone, Copy, Debug)]
pub struct PageSettings {
    /// Number of this run of the daemon; it grows with each start.
    pub epoch: u64,
    /// Whether launches block while no daemon runs.
    pub hard: bool,
    /// Whether processes must report their channel groups.
    pub stop: bool,
    /// Treatment of memory that another container exported; a value of the page.
    pub foreign: u32,
}

/// The page that all processes of a container read.
#[derive(Debug)]
pub struct ContainerWriter {
    page: Shared<ContainerPage>,
    fd: OwnedFd,
    /// The table in which its processes tell each other what they use.
    pub usage: UsageWriter,
    /// Lanes whose gates are closed, a bit each.
    closed: Cell<u32>,
}

impl ContainerWriter {
    /// A page for a slice of these GPUs.
    ///
    /// # Errors
    /// No memory, or no descriptor left.
    pub fn new(
        settings: PageSettings,
        now: Instant,
        record: &Record,
    ) -> Result<ContainerWriter, Errno> {
        let (page, fd): (Shared<ContainerPage>, _) =
            Shared::new(c"gpuslice-container", SealFlag::F_SEAL_FUTURE_WRITE)?;
        let gpus = record.lanes.iter().take(LANES_MAX);
        for (lane, promised) in gpus.clone().enumerate() {
            let (high, low) = promised.gpu.0.split_at(8);
            let half = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, &b| sum << 8 | u64::from(b));
            field!(page, lane[lane].uuid_high).store(half(high), Relaxed);
            field!(page, lane[lane].uuid_low).store(half(low), Relaxed);
            field!(page, lane[lane].cap).store(promised.limit.0, Relaxed);
        }
        let pinned = record.pinned.map_or(u64::MAX, |cap| cap.0);
        field!(page, lane[usize::from(Lane::HOST.0)].cap).store(pinned, Relaxed);
        field!(page, version).store(PAGE_VERSION, Relaxed);
        field!(page, lanes).store(gpus.len() as u32, Relaxed);
        field!(page, epoch).store(settings.epoch, Relaxed);
        field!(page, hard).store(u32::from(settings.hard), Relaxed);
        field!(page, foreign).store(settings.foreign, Relaxed);
        field!(page, stop).store(if settings.stop { STOP_CHANNELS } else { 0 }, Relaxed);
        field!(page, heartbeat_ns).store(now.0, Relaxed);
        field!(page, magic).store(CONTAINER_PAGE_MAGIC, Release);
        Ok(ContainerWriter { page, fd, usage: UsageWriter::new()?, closed: Cell::default() })
    }

    /// The descriptor to send to the container's processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Writes the daemon's heartbeat.
    pub fn heartbeat(&self, now: Instant) {
        field!(self.page, heartbeat_ns).store(now.0, Release);
    }

    /// Writes the number of attached processes.
    pub fn set_clients(&self, count: usize) {
        field!(self.page, clients).store(count as u32, Relaxed);
    }

    /// Lets the processes hold the calls that the driver does not hold back while it moves memory, or go on with them.
    pub fn set_suspended(&self, suspended: bool) {
        let word = field!(self.page, suspended);
        word.store(u32::from(suspended), SeqCst);
        if !suspended {
            wake(word);
        }
    }

    /// Whether the gates in the streams of the container's processes are to be set for this view, which the caller
    /// does then. Where none of a higher class is on the GPU, no stream has gates: they are open, and stay so.
    pub fn moves_gates(&self, lane: Lane, view: &LaneView) -> bool {
        let (bit, closed) = (1 << lane.0, self.closed.get());
        let moves = view.gates || closed & bit != 0;
        if moves {
            self.closed.set(if view.gate_open { closed & !bit } else { closed | bit });
        }
        moves
    }

    /// Writes a lane, and wakes the threads that wait for a change of turn or mode, or for a recall.
    pub fn set_lane(&self, lane: Lane, view: &LaneView) {
        let (page, at) = (&self.page, usize::from(lane.0));
        if at >= ACCOUNTS_MAX {
            return;
        }
        let mode = match view.mode {
            Mode::Turns if view.gates => MODE_GATES,
            mode => mode.word(),
        };
        field!(page, lane[at].cap).store(view.cap.0, Relaxed);
        field!(page, lane[at].reserved).store(view.reserved.0, Relaxed);
        field!(page, untracked[at]).store(view.untracked.0, Relaxed);
        let context_kib = view.context.0.div_ceil(KIB).min(u64::from(u32::MAX)) as u32;
        field!(page, lane[at].context_kib).store(context_kib, Relaxed);
        field!(page, lane[at].window_us).store(view.window_us, Relaxed);
        field!(page, lane[at].idle_us).store(view.idle_us, Relaxed);
        let old_end = field!(page, lane[at].turn_end_ns).swap(view.turn_end.0, Release);
        let recalled = field!(page, lane[at].recall).swap(view.recall, Release) != view.recall;
        let old_mode = field!(page, lane[at].mode).swap(mode, SeqCst);
        let gated = field!(page, gated);
        match (old_mode == MODE_OPEN, mode == MODE_OPEN) {
            (true, false) => _ = gated.fetch_add(1, SeqCst),
            (false, true) => _ = gated.fetch_sub(1, SeqCst),
            _ => {}
        }
        let old_turn = field!(page, lane[at].turn).swap(view.turn, SeqCst);
        if old_turn != view.turn || old_mode != mode || recalled {
            field!(page, futex).fetch_add(1, SeqCst);
        }
        let (old, new) = ((old_mode, old_turn, old_end), (mode, view.turn, view.turn_end.0));
        self.wake_up(WakeUp::of(old, new, recalled), at);
    }

    fn wake_up(&self, which: WakeUp, lane: usize) {
        let (futex, turn) = (field!(self.page, futex), field!(self.page, lane[lane].turn));
        let woken = match which {
            WakeUp::None => return,
            WakeUp::GateThreads => 0,
            WakeUp::Launches | WakeUp::All => wake(turn),
        };
        if woken <= 0 || which == WakeUp::All {
            wake(futex);
        }
    }
}

/// The page to which one process writes its claims.
#[derive(Debug)]
pub struct ClaimsReader(Shared<ClientPage>);

impl ClaimsReader {
    /// A page without claims for a process with this slot of the usage table, and the descriptor to send to it.
    ///
    /// # Errors
    /// No memory, or no descriptor left.
    pub fn new(slot: u32) -> Result<(ClaimsReader, OwnedFd), Errno> {
        let (page, fd): (Shared<ClientPage>, _) =
            Shared::new(c"gpuslice-client", SealFlag::empty())?;
        field!(page, slot).store(slot, Relaxed);
        for lane in 0..LANES_MAX {
            field!(page, lane[lane].gate).store(GATE_OPEN, Relaxed);
        }
        field!(page, version).store(PAGE_VERSION, Relaxed);
        field!(page, magic).store(CLIENT_PAGE_MAGIC, Release);
        Ok((ClaimsReader(page), fd))
    }

    /// Opens or closes the gates in the process's streams.
    pub fn set_gate(&self, lane: Lane, open: bool) {
        if usize::from(lane.0) >= LANES_MAX {
            return;
        }
        let word = if open { GATE_OPEN } else { GATE_CLOSED };
        field!(self.0, lane[usize::from(lane.0)].gate).store(word, SeqCst);
    }

    /// Whether the process claims to have shared GPU memory with another one; `None`: it does not tell.
    pub fn shares(&self) -> Option<bool> {
        match field!(self.0, shared).load(SeqCst) {
            0 => None,
            count => Some(count != SHARES_NOTHING),
        }
    }

    /// The present claims of the process; each field is read once.
    pub fn read(&self, lane: Lane) -> Claims {
        let (page, at) = (&self.0, usize::from(lane.0).min(ACCOUNTS_MAX - 1));
        let runnable = field!(page, lane[at].runnable).load(Acquire);
        Claims {
            active: field!(page, lane[at].active).load(SeqCst),
            drained: field!(page, lane[at].drained).load(SeqCst),
            began: Instant(field!(page, lane[at].began_ns).load(Relaxed)),
            calm: Instant(field!(page, lane[at].drained_ns).load(Relaxed)),
            runnable: runnable != 0,
            parked: runnable & RUNNABLE_PARKED != 0,
            held: Bytes(field!(page, lane[at].held).load(Relaxed)),
            unseen: Bytes(field!(page, lane[at].unseen).load(Relaxed)),
            contexts: field!(page, families[at].contexts).load(Relaxed),
            launches: field!(page, lane[at].launches).load(Relaxed),
            denied: field!(page, lane[at].denied).load(Relaxed),
            untold: self.shares().is_none(),
        }
    }
}

/// What a process claims that its memory on a GPU is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldFamilies {
    /// In the order of [`Family::ALL`].
    pub bytes: [Bytes; Family::ALL.len()],
    /// Its contexts.
    pub contexts: u32,
}

impl ClaimsReader {
    /// What the process claims that its memory on a GPU is used for.
    pub fn families(&self, lane: Lane) -> HeldFamilies {
        let (page, at) = (&self.0, usize::from(lane.0).min(ACCOUNTS_MAX - 1));
        let bytes =
            |family: Family| Bytes(field!(page, families[at].bytes[family as usize]).load(Relaxed));
        let contexts = field!(page, families[at].contexts).load(Relaxed);
        HeldFamilies { bytes: Family::ALL.map(bytes), contexts }
    }
}

/// Leaves the process's gates open, since the daemon will not open them again.
impl Drop for ClaimsReader {
    fn drop(&mut self) {
        (0..LANES_MAX).for_each(|lane| self.set_gate(Lane(lane as u8), true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_engine::LaneRecord;
    use gpuslice_wire::ids::{ContainerId, GpuUuid};
    use gpuslice_wire::page::{FOREIGN_CHARGE, STOP_CHANNELS};
    use gpuslice_wire::policy::{Class, Gangs};
    use gpuslice_wire::text::{CgroupPath, Name};

    /// Maps a page as a tenant would.
    fn tenant_map(fd: &OwnedFd, access: ProtFlags) -> Result<NonNull<u8>, Errno> {
        let size = NonZeroUsize::new(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice, read below while it lives.
        unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, fd, 0) }.map(NonNull::cast)
    }

    fn view(turn: u32, mode: Mode) -> LaneView {
        LaneView {
            mode,
            gates: false,
            gate_open: true,
            turn,
            turn_end: Instant(77),
            window_us: 1,
            idle_us: 2,
            cap: Bytes(3),
            reserved: Bytes(4),
            untracked: Bytes(5),
            recall: 0,
            context: Bytes(0),
        }
    }

    fn page() -> ContainerWriter {
        let settings = PageSettings { epoch: 9, hard: true, foreign: FOREIGN_CHARGE, stop: true };
        let record = Record {
            container: ContainerId::new("a").expect("an id"),
            name: Name::EMPTY,
            weight: None,
            share: None,
            share_limit: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            lanes: vec![LaneRecord {
                gpu: GpuUuid(*b"0123456789abcdef"),
                cap: Bytes(8),
                limit: Bytes(8),
                elastic: false,
                whole: false,
            }],
            pinned: None,
            cgroup: CgroupPath::EMPTY,
        };
        ContainerWriter::new(settings, Instant(5), &record).expect("a page")
    }

    #[test]
    fn a_tenant_can_read_the_container_page_and_not_write_it() {
        let writer = page();
        let read = tenant_map(&writer.fd, ProtFlags::PROT_READ).expect("readable");
        let reader = Shared::<ContainerPage> { at: read.cast() };
        assert_eq!(field!(reader, lane[0].uuid_high).load(Relaxed).to_be_bytes(), *b"01234567");
        assert_eq!(field!(reader, lane[0].uuid_low).load(Relaxed).to_be_bytes(), *b"89abcdef");
        assert_eq!(
            (field!(reader, hard).load(Relaxed), field!(reader, lanes).load(Relaxed)),
            (1, 1)
        );
        writer.set_lane(Lane(0), &view(1, Mode::Turns));
        writer.set_lane(Lane(0), &view(1, Mode::Turns));
        assert_eq!(field!(reader, gated).load(Relaxed), 1);
        assert_eq!(field!(reader, futex).load(Relaxed), 1, "the second changed nothing");
        writer.set_lane(Lane(0), &view(2, Mode::Open));
        let seen = [&field!(reader, gated), &field!(reader, futex), &field!(reader, lane[0].turn)];
        assert_eq!(seen.map(|word| word.load(Relaxed)), [0, 2, 2]);

        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        assert_eq!(tenant_map(&writer.fd, both), Err(Errno::EPERM));
        assert_eq!(nix::unistd::write(&writer.fd, b"x"), Err(Errno::EPERM));
        assert_eq!(ftruncate(&writer.fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(&writer.fd, 2 * PAGE_BYTES as i64), Err(Errno::EPERM));
        let more = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        assert_eq!(fcntl(&writer.fd, more), Err(Errno::EPERM));
    }

    #[test]
    fn a_plain_turn_change_wakes_waiting_launches_alone() {
        let turns = |turn, end| (MODE_TURNS, turn, end);
        let wake_up = |old, new| WakeUp::of(old, new, false);
        assert_eq!(wake_up(turns(4, 80), turns(5, 100)), WakeUp::Launches);
        assert_eq!(wake_up(turns(5, 100), turns(5, 120)), WakeUp::None, "longer");
        assert_eq!(wake_up(turns(5, 100), turns(6, 100)), WakeUp::None);
        assert_eq!(wake_up(turns(5, 100), turns(6, 99)), WakeUp::All, "early");
        assert_eq!(wake_up(turns(4, 80), turns(6, 80)), WakeUp::All);
        for mode in [MODE_OPEN, MODE_GATES] {
            let other = (mode, 6, 100);
            assert_eq!(wake_up(turns(5, 100), other), WakeUp::All);
            assert_eq!(wake_up(other, turns(7, 120)), WakeUp::All);
            assert_eq!(wake_up(other, (mode, 7, 120)), WakeUp::All);
            assert_eq!(wake_up(other, other), WakeUp::None);
            assert_eq!(WakeUp::of(other, other, true), WakeUp::GateThreads);
        }
        let recalled = WakeUp::of(turns(5, 100), turns(6, 100), true);
        assert_eq!(recalled, WakeUp::All);
    }

    #[test]
    fn a_recall_changes_the_futex_and_the_host_has_an_account() {
        let writer = page();
        let read = tenant_map(&writer.fd, ProtFlags::PROT_READ).expect("readable");
        let reader = Shared::<ContainerPage> { at: read.cast() };
        let host = usize::from(Lane::HOST.0);
        assert_eq!(field!(reader, lane[host].cap).load(Relaxed), u64::MAX);
        assert_eq!(field!(reader, foreign).load(Relaxed), FOREIGN_CHARGE);
        assert_eq!(field!(reader, stop).load(Relaxed), STOP_CHANNELS);
        let mut view = view(0, Mode::Open);
        (view.recall, view.context) = (3, Bytes(KIB + 1));
        writer.set_lane(Lane::HOST, &view);
        writer.set_lane(Lane::HOST, &view);
        for suspended in [true, true, false] {
            writer.set_suspended(suspended);
            assert_eq!(field!(reader, suspended).load(Relaxed), u32::from(suspended));
        }
        let lane = [
            field!(reader, lane[host].recall),
            field!(reader, lane[host].context_kib),
            field!(reader, futex),
            field!(reader, gated),
        ];
        assert_eq!(lane.map(|word| word.load(Relaxed)), [3, 2, 1, 0]);
        writer.set_lane(Lane(ACCOUNTS_MAX as u8), &view);
    }

    #[test]
    fn claims_are_read_as_the_tenant_wrote_them() {
        let (reader, fd) = ClaimsReader::new(0).expect("a page");
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let tenant = Shared::<ClientPage> { at: tenant_map(&fd, both).expect("mapped").cast() };
        field!(tenant, lane[3].runnable).store(1, Relaxed);
        field!(tenant, lane[3].active).store(7, Relaxed);
        field!(tenant, lane[3].held).store(u64::MAX, Relaxed);
        let claims = reader.read(Lane(3));
        assert_eq!((claims.runnable, claims.active, claims.held), (true, 7, Bytes(u64::MAX)));
        assert_eq!(reader.read(Lane(0)), Claims { untold: true, ..Claims::default() });
        assert_eq!(reader.shares(), None, "a shim of an older build");
        for (count, shares) in
            [(SHARES_NOTHING, false), (SHARES_NOTHING + 1, true), (u32::MAX, true)]
        {
            field!(tenant, shared).store(count, Relaxed);
            assert_eq!(reader.shares(), Some(shares));
            assert!(!reader.read(Lane(0)).untold);
        }
        assert_eq!(ftruncate(&fd, 0), Err(Errno::EPERM));
        field!(tenant, lane[3].runnable).store(RUNNABLE_PARKED, Relaxed);
        assert!(reader.read(Lane(3)).runnable && reader.read(Lane(3)).parked);
    }

    #[test]
    fn gates_are_counted_as_turns_and_open_when_the_daemon_drops_the_page() {
        let writer = page();
        let read = tenant_map(&writer.fd, ProtFlags::PROT_READ).expect("readable");
        let page = Shared::<ContainerPage> { at: read.cast() };
        let gated = |gates, mode| LaneView { gates, ..view(1, mode) };
        for (view, mode, count) in [
            (gated(true, Mode::Turns), MODE_GATES, 1),
            (gated(false, Mode::Turns), Mode::Turns.word(), 1),
            (gated(true, Mode::Turns), MODE_GATES, 1),
            (gated(true, Mode::Open), MODE_OPEN, 0),
        ] {
            writer.set_lane(Lane(0), &view);
            let found =
                (field!(page, lane[0].mode).load(Relaxed), field!(page, gated).load(Relaxed));
            assert_eq!(found, (mode, count));
        }
        let (claims, fd) = ClaimsReader::new(0).expect("a page");
        let read = tenant_map(&fd, ProtFlags::PROT_READ).expect("readable");
        let tenant = Shared::<ClientPage> { at: read.cast() };
        let gate = || field!(tenant, lane[2].gate).load(SeqCst);
        assert_eq!(gate(), GATE_OPEN);
        claims.set_gate(Lane(2), false);
        claims.set_gate(Lane::HOST, false);
        assert_eq!(gate(), GATE_CLOSED);
        drop(claims);
        assert_eq!(gate(), GATE_OPEN);
    }

    /// Closed gates are opened also where no new ones are made any more.
    #[test]
    fn gates_move_where_there_are_any() {
        let writer = page();
        for (gates, gate_open, moves) in [
            (false, true, false),
            (false, false, false),
            (true, true, true),
            (true, false, true),
            (false, false, true),
            (false, true, true),
            (false, false, false),
        ] {
            let view = LaneView { gates, gate_open, ..view(2, Mode::Turns) };
            assert_eq!(writer.moves_gates(Lane(1), &view), moves, "{gates} {gate_open}");
            assert!(
                !writer.moves_gates(Lane(0), &LaneView { gates: false, ..view }),
                "another lane"
            );
        }
    }
}
