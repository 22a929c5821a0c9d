//! The administrator's settings. The defaults suit most nodes.

use gpuslice_wire::limits::{CONTAINERS_MAX, HEARTBEAT_STALE_NS};
use gpuslice_wire::policy::{ClassCaps, Policy};
use gpuslice_wire::units::{Bytes, Duration, Instant, Percent};

/// The engine's settings, fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Promise more memory of a GPU than it has, in the hope that not all is taken at once.
    pub oversubscribe: bool,
    /// The time in which up to four runnable containers each have one turn; for more containers it grows in
    /// proportion, so that switches do not use up the GPU. It bounds how uneven shares are over short
    /// times. Two equal tenants are off by at most a quarter of it in any interval: 16 ms keep them
    /// within 0.4 % over every second. Turns of 4 ms do the same for any number of tenants.
    pub round: Duration,
    /// Shortest turn. Below it, switches cost more than they gain.
    pub turn_min: Duration,
    /// Longest turn.
    pub turn_max: Duration,
    /// A container that has not drained this long after its turn's close is reported.
    pub drain: Duration,
    /// A container that has not drained this long after its turn's close has overrun: others get turns.
    pub drain_max: Duration,
    /// Whether late work may be stopped on the GPU itself.
    pub stop: bool,
    /// Work in flight near a turn's end, µs.
    pub window_us: u32,
    /// The same while a high-priority container is attached, µs.
    pub window_high_us: u32,
    /// Streams of best-effort containers get gates while a high-priority one is attached.
    pub stream_gates: bool,
    /// Longest time for which a process with nothing on the GPU keeps its turn, µs. It decides by its own
    /// history for how long: a shortest turn and two hand-overs are the most that giving the GPU up can cost.
    pub idle_us: u32,
    /// Idle time after which a process stops claiming work in open mode, µs.
    pub idle_open_us: u32,
    /// Open mode begins after this long without contention.
    pub open_after: Duration,
    /// Unused time under a cap is kept for this long at most.
    pub burst: Duration,
    /// Number of containers that share the places for processes.
    pub containers: usize,
    /// The policy of GPUs without a policy of their own.
    pub policy: Policy,
    /// Number of slices a GPU is meant for: a fixed cap is a multiple of one part in so many.
    pub slots: u32,
    /// What higher classes may take of a GPU while lower ones wait; 100 percent starves these.
    pub class_caps: ClassCaps,
    /// NVML shows the memory in use on each device: what an ended process had counts until it is free there.
    pub sees_devices: bool,
    /// After a restore, growth waits this long, so that processes that still hold memory attach again and
    /// are counted first.
    pub restore_grace: Duration,
    /// Most memory of suspended containers, which is on the host.
    pub suspended_memory: Bytes,
    /// How memory that is borrowed beyond caps returns when a container lacks what it is promised.
    pub reclaim: Reclaim,
    /// How long containers that borrowed it may take to give it back; at most [`RECLAIM_GRACE_MAX`].
    pub reclaim_grace: Duration,
}

/// How borrowed memory returns to the container that it is promised to, if it is not given back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// A container that borrowed is suspended: the one of the lowest class, then the one that borrowed most.
    Suspend,
    /// The request for it is refused.
    Refuse,
}

/// Longest grace: a program that waits longer for memory seems to hang.
pub const RECLAIM_GRACE_MAX: Duration = Duration::from_millis(20_000);
/// Time for suspensions after the grace: then the request is refused.
pub const RECLAIM_MOVE_MAX: Duration = Duration::from_millis(30_000);

/// Number of containers for which a round has turns of a good length.
pub(crate) const ROUND_FOR: u64 = 4;

const fn percent(percent: u32) -> Percent {
    match Percent::new(percent) {
        Ok(percent) => percent,
        Err(_) => panic!("not a percentage"),
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            oversubscribe: false,
            round: Duration::from_millis(16),
            turn_min: Duration::from_millis(1),
            turn_max: Duration::from_millis(20),
            drain: Duration::from_millis(100),
            drain_max: Duration::from_millis(2_000),
            stop: false,
            window_us: 500,
            window_high_us: 150,
            stream_gates: true,
            idle_us: 2_000,
            idle_open_us: 20_000,
            open_after: Duration::from_millis(20),
            burst: Duration::from_millis(100),
            containers: CONTAINERS_MAX,
            policy: Policy::Soft,
            slots: 16,
            class_caps: const { ClassCaps { high: percent(95), normal: percent(99) } },
            sees_devices: false,
            restore_grace: Duration::from_millis(750),
            suspended_memory: Bytes(u64::MAX),
            reclaim: Reclaim::Suspend,
            reclaim_grace: Duration::from_millis(5_000),
        }
    }
}

/// Charged time: it advances with the clock, but at most by this from one step to the next. In a longer gap
/// the daemon's heartbeat was stale and tenants ran without turns, so no container is charged for the rest.
///
/// Beside it goes the time for which the engine was *absent*: a step that it had requested was later than a
/// heartbeat may be old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Charged {
    time: u64,
    absent: u64,
}

const GAP_MAX: u64 = HEARTBEAT_STALE_NS;

impl Charged {
    /// This much later on the clock.
    pub(crate) fn plus(self, gap: Duration) -> Charged {
        Charged { time: self.time.saturating_add(gap.0.min(GAP_MAX)), ..self }
    }
    /// The same, after a step at `now` that had been requested for `due`.
    pub(crate) fn late(self, due: Option<Instant>, now: Instant) -> Charged {
        let late = due.map_or(0, |due| now.since(due.plus(Duration(GAP_MAX))).0);
        Charged { absent: self.absent.saturating_add(late), ..self }
    }
    /// Charged time since `earlier`.
    pub(crate) fn since(self, earlier: Charged) -> Duration {
        Duration(self.time.saturating_sub(earlier.time))
    }
    /// Time of absence since `earlier`.
    pub(crate) fn absent_since(self, earlier: Charged) -> Duration {
        Duration(self.absent.saturating_sub(earlier.absent))
    }
}

/// While a container is charged, a step is requested at least this often.
pub(crate) const ACCOUNT_EVERY: Duration = Duration(HEARTBEAT_STALE_NS / 2);
