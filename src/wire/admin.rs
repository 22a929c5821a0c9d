//! Messages between the hook or the CLI and the daemon on the admin socket, which root or the daemon's user may open.

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ContainerId, Lane};
use crate::limits::CLAIMS_OF_CONTAINER_MAX;
use crate::owner::{ClaimId, Owner};
use crate::policy::{Change, Class, Gangs, Policy};
use crate::text::{HostPath, Name, Selector, Text};
use crate::units::{Bytes, Percent, UnitError, Weight};
use core::fmt;
use core::str::FromStr;

/// The cap on pinned host memory that is none.
pub const NO_CAP: Bytes = Bytes(u64::MAX);

/// How much memory a container asks for on each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAsk {
    /// This amount.
    Exactly(Bytes),
    /// `floor(physical MiB * part / whole)` MiB, as cGPU defines it: `whole` is the size that cGPU reports for the
    /// node's GPU. A ratio, not an amount.
    Ratio {
        /// Numerator, at least 1.
        part: u32,
        /// Denominator, at least `part`.
        whole: u32,
    },
}

impl FromStr for MemoryAsk {
    type Err = UnitError;

    /// A size above zero, or a fraction of the GPU's memory: `8GiB`, `1/4`.
    fn from_str(text: &str) -> Result<MemoryAsk, UnitError> {
        let Some((part, whole)) = text.split_once('/') else {
            return match text.parse() {
                Ok(Bytes::ZERO) => Err(UnitError::SizeZero),
                Ok(bytes) => Ok(MemoryAsk::Exactly(bytes)),
                Err(UnitError::SizeGrammar) => Err(UnitError::CapGrammar),
                Err(why) => Err(why),
            };
        };
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        match (number(part), number(whole)) {
            (Some(part), Some(whole)) if 1 <= part && part <= whole => {
                Ok(MemoryAsk::Ratio { part, whole })
            }
            _ => Err(UnitError::Part),
        }
    }
}

impl fmt::Display for MemoryAsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryAsk::Exactly(bytes) => bytes.fmt(f),
            MemoryAsk::Ratio { part, whole } => write!(f, "{part}/{whole} of the GPU's memory"),
        }
    }
}

/// Where a container's request for a slice was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSource {
    /// In the annotations of its configuration, which the orchestrator writes.
    Annotations,
    /// In cGPU's variables of its environment, which the image can set as well.
    Cgpu,
    /// In NVIDIA's variables of its environment, which the image can set as well.
    Nvidia,
}

impl RequestSource {
    /// All sources.
    pub const ALL: [RequestSource; 3] =
        [RequestSource::Annotations, RequestSource::Cgpu, RequestSource::Nvidia];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RequestSource::Annotations => "annotations",
            RequestSource::Cgpu => "cgpu",
            RequestSource::Nvidia => "nvidia",
        }
    }

    /// What to call it in a sentence.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            RequestSource::Annotations => "annotations",
            RequestSource::Cgpu => "cGPU's variables",
            RequestSource::Nvidia => "NVIDIA's variables",
        }
    }
}

field_as!(RequestSource as u8, |source| *source as u8 + 1, |raw| {
    let mut all = RequestSource::ALL.into_iter();
    all.find(|it| *it as u8 + 1 == raw)
});

impl Field for MemoryAsk {
    const BYTES: usize = 16;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        let (bytes, part, whole) = match *self {
            MemoryAsk::Exactly(bytes) => (bytes, 0, 0),
            MemoryAsk::Ratio { part, whole } => (Bytes::ZERO, part, whole),
        };
        bytes.put(w)?;
        part.put(w)?;
        whole.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<MemoryAsk, FrameError> {
        let (bytes, part, whole) = (Bytes::get(r)?, u32::get(r)?, u32::get(r)?);
        match (bytes, part, whole) {
            (bytes, 0, 0) if bytes > Bytes::ZERO => Ok(MemoryAsk::Exactly(bytes)),
            (Bytes::ZERO, part, whole) if part >= 1 && whole >= part => {
                Ok(MemoryAsk::Ratio { part, whole })
            }
            _ => Err(FrameError::Field),
        }
    }
}

impl Field for Option<MemoryAsk> {
    const BYTES: usize = MemoryAsk::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        match self {
            Some(asked) => asked.put(w),
            None => MemoryAsk::Exactly(Bytes::ZERO).put(w),
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Option<MemoryAsk>, FrameError> {
        match (Bytes::get(r)?, u32::get(r)?, u32::get(r)?) {
            (Bytes::ZERO, 0, 0) => Ok(None),
            (bytes, 0, 0) => Ok(Some(MemoryAsk::Exactly(bytes))),
            (Bytes::ZERO, part, whole) if part >= 1 && whole >= part => {
                Ok(Some(MemoryAsk::Ratio { part, whole }))
            }
            _ => Err(FrameError::Field),
        }
    }
}

messages! {
    /// From the hook or the CLI to the daemon.
    Command {
        /// Gives a container a slice requested by the node itself: by an administrator, or by the hook's
        /// registration. Refused if the container has a slice already.
        301 Admit {
            /// What is requested.
            asked: Admission,
        }
        /// Ends a container's slice and disconnects its processes. Idempotent.
        302 Dismiss {
            /// The container.
            container: ContainerId,
        }
        /// Asks for a [`crate::snapshot::Snapshot`]; the rows follow as frames of their own.
        303 List {}
        /// Changes a slice's cap, from the next allocation on. A cap below the memory held frees nothing: growth is
        /// refused until less is held.
        304 Resize {
            /// The container.
            container: ContainerId,
            /// GPU of the slice, [`Lane::HOST`] for pinned host memory.
            lane: Lane,
            /// The new cap; [`NO_CAP`] for none on pinned host memory.
            memory: MemoryAsk,
        }
        /// Changes the policy of GPUs, from the next turn on.
        305 SetPolicy {
            /// Which GPUs; empty and `any` mean all.
            gpu: Selector,
            /// The new policy.
            policy: Policy,
        }
        /// Changes a slice's weight, share, limit or class, from the next turn on. Time used so far stays charged.
        306 Retune {
            /// The container.
            container: ContainerId,
            /// The new weight.
            weight: Change<Weight>,
            /// The new share.
            share: Change<Percent>,
            /// The new limit of its share.
            share_limit: Change<Percent>,
            /// The new class; `None` keeps it.
            class: Option<Class>,
        }
        /// Like `Admit`, for a request in the container's own configuration. The daemon knows which sources the node
        /// accepts, and within which bounds.
        307 AdmitFrom {
            /// Where the request was found.
            source: RequestSource,
            /// What is requested.
            asked: Admission,
        }
        /// Asks for what happened lately, as [`crate::history::History`].
        308 Events {
            /// Number of the last event that the client has; 0 for none.
            after: u64,
        }
        /// Asks for a [`crate::snapshot::Snapshot`] with the rows of metrics.
        320 Observe {}
        /// Lets a container live in the slice of a claim. Idempotent for the same first process.
        309 Join {
            /// The container as its runtime names it.
            container: ContainerId,
            /// The claims whose devices it has, each once.
            claims: [Option<ClaimId>; CLAIMS_OF_CONTAINER_MAX],
            /// The container as Kubernetes names it.
            owner: Owner,
            /// Its first process in the daemon's pid namespace.
            pid: u32,
        }
        /// Asks for the samples of intervals that ended after an instant, as [`crate::samples::Samples`].
        310 Samples {
            /// CLOCK_MONOTONIC, ns; 0 for all.
            after_ns: u64,
        }
        /// Records turns from now on for a time, and asks for what was recorded up to now, as
        /// [`crate::turns::Turns`]. Recordings that overlap are one.
        311 Record {
            /// How long, ns; a daemon records for [`crate::limits::RECORD_NS_MAX`] at most without being asked again.
            for_ns: u64,
            /// Number of the last row that the client has; 0 for none.
            after: u64,
        }
        /// Asks for the processes of a container: rows of [`crate::snapshot::Snapshot`], one for each process and GPU.
        312 Processes {
            /// The container.
            container: ContainerId,
        }
        /// Moves a container's GPU memory to the host until it is resumed. Its processes' calls wait meanwhile.
        313 Suspend {
            /// The container.
            container: ContainerId,
        }
        /// Moves a suspended container's memory back, and lets its processes go on.
        314 Resume {
            /// The container.
            container: ContainerId,
        }
        /// Changes how far a slice may grow beyond its cap into what others leave unused, from the next allocation
        /// on. Answered by `Resized` with the new limit.
        315 Relimit {
            /// The container.
            container: ContainerId,
            /// GPU of the slice.
            lane: Lane,
            /// The new limit; none for the cap.
            limit: Option<MemoryAsk>,
        }
    }
}

messages! {
    /// From the daemon to the hook or the CLI.
    Answer {
        /// The slice exists; these host paths are what a container needs mounted.
        401 Admitted {
            /// The paths.
            mounts: Mounts,
        }
        /// The slice was removed.
        402 Dismissed {}
        /// The cap was changed.
        404 Resized {
            /// The new cap.
            cap: Bytes,
            /// Memory reserved now; more than the cap if the cap was lowered below it.
            reserved: Bytes,
        }
        /// The change is in force; to `Join`, that the container lives in the claim already.
        405 Done {}
        /// Nothing was changed.
        403 Denied {
            /// Kind of reason.
            why: Denial,
            /// What is wrong and what to do next.
            text: Text<512>,
        }
    }
}

/// A container's request for a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The container as its runtime names it.
    pub container: ContainerId,
    /// Name for display; if empty, the beginning of the id.
    pub name: Name,
    /// Which GPUs.
    pub gpus: Selector,
    /// GPUs that it also gets as a whole, if no other container uses them; a GPU in both belongs to the
    /// slice. None if empty.
    pub whole: Selector,
    /// Memory cap on each GPU of the slice.
    pub memory: MemoryAsk,
    /// How far it may grow on each of them into what others leave unused; not below the cap. Without one, to the cap.
    pub memory_limit: Option<MemoryAsk>,
    /// Weight for the time that shares leave. Without one it is 1, or, beside a share, none: the container then gets
    /// its share, and time that no other container wants.
    pub weight: Option<Weight>,
    /// Share of each GPU's time, reserved for it.
    pub share: Option<Percent>,
    /// The most of each GPU's time that it may get, if limited; not below the share.
    pub share_limit: Option<Percent>,
    /// Scheduling priority.
    pub class: Class,
    /// Whether its GPUs may take turns together.
    pub gang: Gangs,
    /// Cap on the host memory that it may pin, if any.
    pub pinned: Option<Bytes>,
    /// A process of the container in the daemon's pid namespace, for its cgroup; 0 for none.
    pub pid: u32,
    /// The container as Kubernetes names it.
    pub owner: Owner,
}

impl Field for Admission {
    const BYTES: usize = ContainerId::BYTES
        + Name::BYTES
        + 2 * Selector::BYTES
        + 2 * MemoryAsk::BYTES
        + <Option<Weight>>::BYTES
        + 2 * <Option<Percent>>::BYTES
        + Class::BYTES
        + Gangs::BYTES
        + <Option<Bytes>>::BYTES
        + u32::BYTES
        + Owner::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.container.put(w)?;
        self.name.put(w)?;
        self.gpus.put(w)?;
        self.whole.put(w)?;
        self.memory.put(w)?;
        self.memory_limit.put(w)?;
        self.weight.put(w)?;
        self.share.put(w)?;
        self.share_limit.put(w)?;
        self.class.put(w)?;
        self.gang.put(w)?;
        self.pinned.put(w)?;
        self.pid.put(w)?;
        self.owner.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Admission, FrameError> {
        Ok(Admission {
            container: Field::get(r)?,
            name: Field::get(r)?,
            gpus: Field::get(r)?,
            whole: Field::get(r)?,
            memory: Field::get(r)?,
            memory_limit: Field::get(r)?,
            weight: Field::get(r)?,
            share: Field::get(r)?,
            share_limit: Field::get(r)?,
            class: Field::get(r)?,
            gang: Field::get(r)?,
            pinned: Field::get(r)?,
            pid: Field::get(r)?,
            owner: Field::get(r)?,
        })
    }
}

/// Host paths of a slice's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounts {
    /// Directory to mount at `/run/gpuslice` in the container, read-only.
    pub dir: HostPath,
    /// The real driver's `libcuda.so.1`.
    pub cuda: HostPath,
    /// The real driver's `libnvidia-ml.so.1`; empty if there is none.
    pub nvml: HostPath,
    /// The shim for preload injection.
    pub preload: HostPath,
    /// The shim for mount injection.
    pub mount: HostPath,
    /// The NVML shim.
    pub nvml_shim: HostPath,
    /// The simulated GPU's device directory; empty on a real driver.
    pub device: HostPath,
}

impl Field for Mounts {
    const BYTES: usize = 7 * HostPath::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        let libraries = [&self.preload, &self.mount, &self.nvml_shim];
        let all = [&self.dir, &self.cuda, &self.nvml].into_iter();
        all.chain(libraries).chain([&self.device]).try_for_each(|path| path.put(w))
    }
    fn get(r: &mut Reader<'_>) -> Result<Mounts, FrameError> {
        Ok(Mounts {
            dir: Field::get(r)?,
            cuda: Field::get(r)?,
            nvml: Field::get(r)?,
            preload: Field::get(r)?,
            mount: Field::get(r)?,
            nvml_shim: Field::get(r)?,
            device: Field::get(r)?,
        })
    }
}

/// Kinds of refusal; the accompanying text has the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// An invalid frame, or a command not allowed on this socket.
    Protocol,
    /// The container has a slice already.
    Exists,
    /// No such GPU.
    NoSuchGpu,
    /// More memory than the GPU has, or has left to promise.
    Memory,
    /// More shares than 100 %, or too many containers.
    Capacity,
    /// A weight, share, limit or name outside its bounds.
    Invalid,
    /// The daemon failed: disk full, descriptor limit.
    Host,
    /// No slice of that name, or no such GPU in it.
    NoSuchSlice,
}

field_as!(Denial as u16, |d| *d as u16 + 1, |raw| match raw {
    1 => Some(Denial::Protocol),
    2 => Some(Denial::Exists),
    3 => Some(Denial::NoSuchGpu),
    4 => Some(Denial::Memory),
    5 => Some(Denial::Capacity),
    6 => Some(Denial::Invalid),
    7 => Some(Denial::Host),
    8 => Some(Denial::NoSuchSlice),
    _ => None,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_requested_as_a_size_or_a_part() {
        let (part, whole) = (1, 4);
        assert_eq!("1/4".parse(), Ok(MemoryAsk::Ratio { part, whole }));
        assert_eq!("1Ki".parse(), Ok(MemoryAsk::Exactly(Bytes(1024))));
        assert_eq!("0".parse::<MemoryAsk>(), Err(UnitError::SizeZero));
        assert_eq!("8GB".parse::<MemoryAsk>(), Err(UnitError::SizeDecimal(8, "GiB")));
        for bad in ["0/4", "5/4", "1/", "/4", "1/4/2", "+1/4", "1/ 4", "1/99999999999", "1.5/4"] {
            assert_eq!(bad.parse::<MemoryAsk>(), Err(UnitError::Part), "{bad}");
        }
    }
}
