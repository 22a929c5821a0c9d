//! What a node's administrator may choose. Everything has a default that is right mostly.

use gpuslice_wire::limits::{CONTAINERS_MAX, HEARTBEAT_STALE_NS};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::units::{Duration, Percent};

/// The engine's settings, fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Promise more memory of a GPU than it has, in the hope that not all is taken at once.
    pub oversubscribe: bool,
    /// All who want a GPU have had a turn after about this long, if they are no more than four; it
    /// is longer in proportion where they are, so that handing over does not eat the GPU. It bounds how
    /// uneven shares are over short times: two equal tenants are off by at most a quarter of it in any
    /// interval, so 16 ms keep them within 0.4 % over every second, and so do turns of 4 ms any number.
    pub round: Duration,
    /// Shortest turn. Below it, handing over costs more than it brings.
    pub turn_min: Duration,
    /// Longest turn.
    pub turn_max: Duration,
    /// A container that is not quiet this long after its turn's close is reported.
    pub drain: Duration,
    /// ... and this long after it others get turns beside it.
    pub drain_max: Duration,
    /// Whether work that is late may be stopped on the GPU itself.
    pub stop: bool,
    /// Work in flight near a turn's end, µs.
    pub window_us: u32,
    /// The same while a high-priority container is attached, µs.
    pub window_high_us: u32,
    /// Streams of best-effort containers get gates while a high-priority one is attached.
    pub stream_gates: bool,
    /// Idle time after which a process gives its turn back, µs.
    pub idle_us: u32,
    /// Idle time after which a process that runs freely stops wanting, µs.
    pub idle_open_us: u32,
    /// Turns end for good when nobody competed for this long.
    pub open_after: Duration,
    /// A hard share's unused time is kept for this long at most.
    pub burst: Duration,
    /// Containers among which the places for processes are shared.
    pub containers: usize,
    /// How a GPU's time is divided unless its own policy says otherwise.
    pub policy: Policy,
    /// How many slices a GPU is meant for: parts of fixed size are of this many.
    pub slots: u32,
    /// What high-priority containers may take of a GPU while others wait; 100 starves them.
    pub high_cap: Percent,
    /// What high and normal ones may take while best-effort ones wait; 100 starves them.
    pub normal_cap: Percent,
    /// After a restore, growth waits this long, so that processes that still hold memory come
    /// back and are counted first.
    pub restore_grace: Duration,
}

/// Containers for which a round has turns of a good length.
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
            idle_us: 500,
            idle_open_us: 20_000,
            open_after: Duration::from_millis(20),
            burst: Duration::from_millis(100),
            containers: CONTAINERS_MAX,
            policy: Policy::Soft,
            slots: 16,
            high_cap: const { percent(95) },
            normal_cap: const { percent(99) },
            restore_grace: Duration::from_millis(750),
        }
    }
}

/// Time as it is charged: it advances with the clock, but by no more than this from one step to
/// the next. In a longer gap the daemon's heartbeat was stale and tenants ran without turns, so
/// the rest of it is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Charged(u64);

const GAP_MAX: u64 = HEARTBEAT_STALE_NS;

impl Charged {
    /// This much later on the clock.
    pub(crate) fn plus(self, gap: Duration) -> Charged {
        Charged(self.0.saturating_add(gap.0.min(GAP_MAX)))
    }
    /// Charged time since `earlier`.
    pub(crate) fn since(self, earlier: Charged) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

/// While anybody is charged, a step is asked for at least this often.
pub(crate) const ACCOUNT_EVERY: Duration = Duration(HEARTBEAT_STALE_NS / 2);
