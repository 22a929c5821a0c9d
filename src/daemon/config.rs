//! The configuration file, in TOML. Every key is optional; an unknown key or an invalid value is an error with its
//! line. `packaging/gpusliced.toml` explains each key and holds every default.

mod check;

use check::{Fault, listed};
use gpuslice_engine::{RECLAIM_GRACE_MAX, Reclaim};
use gpuslice_wire::admin::{MemoryAsk, RequestSource};
use gpuslice_wire::limits::{CONTAINERS_MAX, LANES_MAX};
use gpuslice_wire::page::{FOREIGN_CHARGE, FOREIGN_REFUSE};
use gpuslice_wire::policy::{BadPolicy, ClassCaps, Policy};
use gpuslice_wire::units::{Bytes, Duration, Percent, UnitError, plausible};
use serde::Deserialize;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The configuration file if the command line names none.
pub const DEFAULT_FILE: &str = "/etc/gpuslice/gpusliced.toml";
/// Longest configuration file, bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A whole number between the bounds of its type.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "i64")]
pub struct Bounded<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Bounded<MIN, MAX> {
    const fn default_of(value: u64) -> Bounded<MIN, MAX> {
        assert!(MIN <= value && value <= MAX);
        Bounded(value)
    }
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<i64> for Bounded<MIN, MAX> {
    type Error = String;
    fn try_from(value: i64) -> Result<Self, String> {
        match u64::try_from(value) {
            Ok(value) if (MIN..=MAX).contains(&value) => Ok(Bounded(value)),
            _ => Err(format!("{value} is outside {MIN} to {MAX}")),
        }
    }
}

/// An absolute path.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "PathBuf")]
pub struct Absolute(pub PathBuf);

impl TryFrom<PathBuf> for Absolute {
    type Error = String;
    fn try_from(path: PathBuf) -> Result<Absolute, String> {
        if path.is_absolute() {
            return Ok(Absolute(path));
        }
        Err(format!("{} is not an absolute path", path.display()))
    }
}

/// A size of 1 MiB or more, as `"4GiB"`; `without` is what holds without the key.
fn size(text: &str, without: &str) -> Result<Bytes, String> {
    let bytes = text.parse().and_then(|bytes| plausible(text, bytes));
    bytes.map_err(|why| match why {
        UnitError::SizeZero => format!("the size is 0; omit the key for {without}"),
        why => why.to_string(),
    })
}

/// A cap on pinned host memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct PinnedMemory(pub Bytes);

impl TryFrom<String> for PinnedMemory {
    type Error = String;
    fn try_from(text: String) -> Result<PinnedMemory, String> {
        size(&text, "no cap").map(PinnedMemory)
    }
}

/// Most memory of suspended containers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct SuspendedMemory(pub Bytes);

impl TryFrom<String> for SuspendedMemory {
    type Error = String;
    fn try_from(text: String) -> Result<SuspendedMemory, String> {
        size(&text, "half of the host's memory").map(SuspendedMemory)
    }
}

/// A policy, by name.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct PolicyName(pub Policy);

impl TryFrom<String> for PolicyName {
    type Error = String;
    fn try_from(text: String) -> Result<PolicyName, String> {
        let policy = text.parse().map(PolicyName);
        policy.map_err(|why: BadPolicy| why.to_string())
    }
}

/// A source of containers' requests for slices.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct SourceName(pub RequestSource);

impl TryFrom<String> for SourceName {
    type Error = String;
    fn try_from(text: String) -> Result<SourceName, String> {
        let found = RequestSource::ALL.into_iter().find(|it| it.name() == text);
        let names = RequestSource::ALL.map(|it| format!("{:?}", it.name())).join(" and ");
        found
            .map(SourceName)
            .ok_or_else(|| format!("there is no source {text:?}; there are {names}"))
    }
}

/// A cap on each GPU: a size, or a fraction of its memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Cap(pub MemoryAsk);

impl TryFrom<String> for Cap {
    type Error = String;
    fn try_from(text: String) -> Result<Cap, String> {
        let cap = text.parse().and_then(|cap| match cap {
            MemoryAsk::Exactly(bytes) => plausible(&text, bytes).map(MemoryAsk::Exactly),
            part @ MemoryAsk::Ratio { .. } => Ok(part),
        });
        cap.map(Cap).map_err(|why: UnitError| why.to_string())
    }
}

/// How memory beyond caps returns, if it is not given back in time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ReclaimMode {
    /// A container that has some is suspended.
    Suspend,
    /// The allocation that needs it is refused.
    Refuse,
}

/// Treatment of memory that another container exported and this one opens.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ForeignMemory {
    /// It cannot be opened.
    Refuse,
    /// It is charged to both containers.
    Charge,
}

impl ForeignMemory {
    /// Its value in the page.
    pub const fn word(self) -> u32 {
        match self {
            ForeignMemory::Refuse => FOREIGN_REFUSE,
            ForeignMemory::Charge => FOREIGN_CHARGE,
        }
    }
}

/// The configuration key `cgroup_limits`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CgroupLimitMode {
    /// Set no limit.
    Off,
    /// Set a limit where the driver can; log a line where it cannot.
    #[default]
    Auto,
    /// Refuse a slice that cannot have its limit.
    Require,
}

/// Whether late work is stopped on the GPU.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PreemptionMode {
    /// Never.
    Off,
    /// Where the driver's statistics confirm a stop.
    Probe,
}

/// The node's configuration.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonConfig {
    /// Directory of sockets and records.
    pub runtime_dir: Option<Absolute>,
    /// Directory of the real driver's libraries.
    pub driver_dir: Option<Absolute>,
    /// Directory of the shim's libraries.
    pub shim_dir: Option<Absolute>,
    /// Directory of what outlives a reboot: claims.
    pub state_dir: Option<Absolute>,
    /// Directory in which container engines look for CDI files.
    pub cdi_dir: Option<Absolute>,
    /// Group whose members may use the node's socket.
    pub node_group: Option<String>,
    /// Directory of the node's socket.
    pub node_socket_dir: Option<Absolute>,
    /// How long a GPU is unhealthy after a critical error, if it works since, s.
    pub unhealthy_s: Bounded<1, 86_400>,
    /// Whether the caps on a GPU may exceed its memory.
    pub oversubscribe: bool,
    /// Policy of GPUs whose policy was not changed at run time.
    pub policy: PolicyName,
    /// Slices that "fair" and "fixed" divide a GPU into.
    pub slices_per_gpu: Bounded<1, { CONTAINERS_MAX as u64 }>,
    /// Largest part of a GPU for high-priority containers while others wait, %.
    pub high_cap: Bounded<20, 100>,
    /// Largest part for high-priority and normal ones while best-effort ones wait, %.
    pub normal_cap: Bounded<20, 100>,
    /// Time within which every waiting container gets a turn, ms.
    pub period_ms: Bounded<2, 1_000>,
    /// Shortest turn, ms.
    pub turn_min_ms: Bounded<1, 1_000>,
    /// Longest turn, ms.
    pub turn_max_ms: Bounded<1, 1_000>,
    /// Longest time for which a process with nothing on the GPU keeps its turn, µs.
    pub idle_us: Bounded<10, 1_000_000>,
    /// Most work in flight at a turn's end, µs.
    pub window_us: Bounded<10, 1_000_000>,
    /// Whether the GPU itself blocks best-effort streams when a high-priority container wants it.
    pub stream_gates: bool,
    /// Longest wait for a container to finish after its turn, ms.
    pub drain_max_ms: Bounded<1, 600_000>,
    /// Whether late work is stopped on the GPU.
    pub preemption: PreemptionMode,
    /// Accepted sources of containers' requests.
    pub requests_from: Vec<SourceName>,
    /// Most GPUs that variables of a container's environment may ask for.
    pub environment_gpus_max: Bounded<1, { LANES_MAX as u64 }>,
    /// Largest cap, and largest limit above it, that they may ask for.
    pub environment_memory_max: Option<Cap>,
    /// Whether launches block while no daemon runs.
    pub block_without_daemon: bool,
    /// Treatment of GPU memory that another container exported.
    pub foreign_memory: ForeignMemory,
    /// Interval between two samples of NVML, ms; 0 for none.
    pub accounting_interval_ms: Bounded<0, 3_600_000>,
    /// How long a container may be over its cap until an event tells of it, s; 0 for ever.
    pub over_cap_warn_s: Bounded<0, 86_400>,
    /// How long until its processes are frozen, s.
    pub over_cap_freeze_s: Option<Bounded<1, 86_400>>,
    /// How long until they are killed, s.
    pub over_cap_kill_s: Option<Bounded<1, 86_400>>,
    /// Whether caps are also set as the driver's limits on cgroups.
    pub cgroup_limits: CgroupLimitMode,
    /// Whether such a limit is also a guarantee.
    pub cgroup_guarantees: bool,
    /// Cap on pinned host memory of containers that do not ask for one.
    pub pinned_memory: Option<PinnedMemory>,
    /// Most memory of suspended containers on the host; half of the host's memory if not given.
    pub suspended_memory: Option<SuspendedMemory>,
    /// How memory beyond caps returns to the container to which it is promised.
    pub reclaim: ReclaimMode,
    /// How long the containers that have it may take, s.
    pub reclaim_grace_s: Bounded<0, { RECLAIM_GRACE_MAX.0 / 1_000_000_000 }>,
    /// Most containers with a slice.
    pub containers_max: Bounded<1, { CONTAINERS_MAX as u64 }>,
}

impl Default for DaemonConfig {
    fn default() -> DaemonConfig {
        DaemonConfig {
            runtime_dir: None,
            driver_dir: None,
            shim_dir: None,
            state_dir: None,
            cdi_dir: None,
            node_group: None,
            node_socket_dir: None,
            unhealthy_s: Bounded::default_of(300),
            oversubscribe: false,
            policy: PolicyName(Policy::Soft),
            slices_per_gpu: Bounded::default_of(16),
            high_cap: Bounded::default_of(95),
            normal_cap: Bounded::default_of(99),
            period_ms: Bounded::default_of(16),
            turn_min_ms: Bounded::default_of(1),
            turn_max_ms: Bounded::default_of(20),
            idle_us: Bounded::default_of(2_000),
            window_us: Bounded::default_of(500),
            stream_gates: true,
            drain_max_ms: Bounded::default_of(2_000),
            preemption: PreemptionMode::Off,
            requests_from: RequestSource::ALL.map(SourceName).into(),
            environment_gpus_max: Bounded::default_of(1),
            environment_memory_max: None,
            block_without_daemon: false,
            foreign_memory: ForeignMemory::Charge,
            accounting_interval_ms: Bounded::default_of(1_000),
            over_cap_warn_s: Bounded::default_of(10),
            over_cap_freeze_s: None,
            over_cap_kill_s: None,
            cgroup_limits: CgroupLimitMode::Auto,
            cgroup_guarantees: false,
            pinned_memory: None,
            suspended_memory: None,
            reclaim: ReclaimMode::Suspend,
            reclaim_grace_s: Bounded::default_of(5),
            containers_max: Bounded::default_of(CONTAINERS_MAX as u64),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {why}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: String,
    },
    /// Lines are wrong.
    #[error("{}", listed(.file, .faults))]
    Wrong {
        /// The file.
        file: PathBuf,
        /// The lines, in their order.
        faults: Vec<Fault>,
    },
}

impl DaemonConfig {
    /// The file that is read: the given one, or the node's if there is one.
    pub fn file(given: Option<&Path>) -> Option<&Path> {
        let default = Path::new(DEFAULT_FILE);
        given.or_else(|| default.exists().then_some(default))
    }

    /// Reads `file`, or without one the node's file if there is one.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(file: Option<&Path>) -> Result<DaemonConfig, ConfigError> {
        let Some(found) = DaemonConfig::file(file) else {
            return Ok(DaemonConfig::default());
        };
        DaemonConfig::read(found).map_err(|why| match why {
            ConfigError::Unreadable { file: unread, why } if file.is_none() => {
                let why = format!("{why}; give another configuration with --config FILE");
                ConfigError::Unreadable { file: unread, why }
            }
            why => why,
        })
    }

    /// Reads one file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(file: &Path) -> Result<DaemonConfig, ConfigError> {
        let unreadable = |why: String| ConfigError::Unreadable { file: file.to_owned(), why };
        // Counted while reading, because a device or a pipe has no length.
        let mut bytes = Vec::new();
        fs::File::open(file)
            .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(|e| unreadable(e.to_string()))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(unreadable(format!("longer than {FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable("not UTF-8".to_owned()))?;
        DaemonConfig::parse(&text)
            .map_err(|faults| ConfigError::Wrong { file: file.to_owned(), faults })
    }

    /// The engine's part of the configuration.
    pub fn engine(&self) -> gpuslice_engine::Config {
        let us = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let window_us = us(self.window_us.get());
        let idle_us = us(self.idle_us.get());
        let percent = |value, default| Percent::new(us(value)).unwrap_or(default);
        let default = gpuslice_engine::Config::default();
        gpuslice_engine::Config {
            oversubscribe: self.oversubscribe,
            policy: self.policy.0,
            slots: us(self.slices_per_gpu.get()),
            class_caps: ClassCaps {
                high: percent(self.high_cap.get(), default.class_caps.high),
                normal: percent(self.normal_cap.get(), default.class_caps.normal),
            },
            round: Duration::from_millis(self.period_ms.get()),
            turn_min: Duration::from_millis(self.turn_min_ms.get()),
            turn_max: Duration::from_millis(self.turn_max_ms.get()),
            drain: default.drain.min(Duration::from_millis(self.drain_max_ms.get())),
            drain_max: Duration::from_millis(self.drain_max_ms.get()),
            window_us,
            window_high_us: default.window_high_us.min(window_us),
            stream_gates: self.stream_gates,
            idle_us,
            idle_open_us: default.idle_open_us.max(idle_us),
            reclaim: match self.reclaim {
                ReclaimMode::Suspend => Reclaim::Suspend,
                ReclaimMode::Refuse => Reclaim::Refuse,
            },
            reclaim_grace: Duration::from_millis(1_000 * self.reclaim_grace_s.get()),
            ..default
        }
    }

    /// Most memory of suspended containers on the host.
    pub fn suspended_memory(&self) -> Bytes {
        let half = || Bytes(gpuslice_host::memory::total() / 2);
        self.suspended_memory.map_or_else(half, |size| size.0)
    }
}
