//! What the hook and the CLI say to the daemon on its admin socket (root's, or its owner's).

use crate::frame::{Field, FrameError, Reader, Writer, field_as, messages};
use crate::ids::{ContainerId, Lane};
use crate::policy::{Class, Gangs, Policy, ShareAsk};
use crate::text::{HostPath, Name, Selector, Text};
use crate::units::{Bytes, Percent, UnitError, Weight};
use core::str::FromStr;

/// How much memory a container asks for on each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAsk {
    /// This much.
    Exactly(Bytes),
    /// `floor(physical MiB * part / whole)` MiB: cGPU's contract, where `whole` is what a node's
    /// GPU is said to have. A ratio, not an amount.
    Ratio {
        /// Numerator, at least 1.
        part: u32,
        /// Denominator, at least `part`.
        whole: u32,
    },
}

impl FromStr for MemoryAsk {
    type Err = UnitError;

    /// A size above zero, or a part of what the GPU has: `8GiB`, `1/4`.
    fn from_str(text: &str) -> Result<MemoryAsk, UnitError> {
        let Some((part, whole)) = text.split_once('/') else {
            return match text.parse()? {
                Bytes::ZERO => Err(UnitError::SizeZero),
                bytes => Ok(MemoryAsk::Exactly(bytes)),
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

/// Where a container's request for a slice was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSource {
    /// In the annotations of its configuration, which are the orchestrator's to write.
    Annotations,
    /// In cGPU's variables of its environment, which are the image's to set as well.
    Cgpu,
}

impl RequestSource {
    /// All.
    pub const ALL: [RequestSource; 2] = [RequestSource::Annotations, RequestSource::Cgpu];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RequestSource::Annotations => "annotations",
            RequestSource::Cgpu => "cgpu",
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

messages! {
    /// From the hook or the CLI to the daemon.
    Command {
        /// Gives a container a slice that the node itself asks for: an administrator, or the hook as it was
        /// registered. Refused when the id is known already.
        301 Admit {
            /// The container as its runtime names it.
            container: ContainerId,
            /// For people; the id's beginning if empty.
            name: Name,
            /// Which GPUs.
            gpus: Selector,
            /// GPUs that it gets as a whole beside them, if they are nobody else's; one that is in both
            /// is of the slice. None if empty.
            whole: Selector,
            /// Cap on each of the slice's.
            memory: MemoryAsk,
            /// Weight of its share.
            weight: Weight,
            /// Hard share, if any.
            share: Option<Percent>,
            /// Who goes before it and after it.
            class: Class,
            /// Whether its GPUs may take turns together.
            gang: Gangs,
            /// Cap on the host memory that it may pin, if any.
            pinned: Option<Bytes>,
            /// A process of the container in the daemon's pid namespace, for its cgroup; 0 for none.
            pid: u32,
        }
        /// Ends a container's slice; its processes lose their sockets. Idempotent.
        302 Dismiss {
            /// The container.
            container: ContainerId,
        }
        /// Asks for a [`crate::snapshot::Snapshot`]; the rows follow as frames of their own.
        303 List {}
        /// Changes a slice's cap, from the next allocation on. One below what is held takes nothing
        /// away: growth is refused until less is held.
        304 Resize {
            /// The container.
            container: ContainerId,
            /// GPU of the slice, [`Lane::HOST`] for pinned host memory.
            lane: Lane,
            /// The new cap.
            memory: MemoryAsk,
        }
        /// Changes how time is divided on GPUs, from the next turn on.
        305 SetPolicy {
            /// Which GPUs; the empty one and `any` mean all.
            gpu: Selector,
            /// How.
            policy: Policy,
        }
        /// Changes what a slice gets of time, from the next turn on. What it used stays used.
        306 Retune {
            /// The container.
            container: ContainerId,
            /// The new weight; `None` keeps it.
            weight: Option<Weight>,
            /// The new hard share.
            share: ShareAsk,
            /// The new class; `None` keeps it.
            class: Option<Class>,
        }
        /// As `Admit`, for what the container's own configuration asks for: the daemon knows which sources
        /// the node takes requests from, and within which bounds.
        307 AdmitFrom {
            /// Where the request was found.
            source: RequestSource,
            /// As in `Admit`, and all that follow.
            container: ContainerId,
            /// For people.
            name: Name,
            /// Which GPUs.
            gpus: Selector,
            /// Which others as a whole.
            whole: Selector,
            /// Cap on each of the slice's.
            memory: MemoryAsk,
            /// Weight of its share.
            weight: Weight,
            /// Hard share, if any.
            share: Option<Percent>,
            /// Scheduling priority.
            class: Class,
            /// Whether its GPUs may take turns together.
            gang: Gangs,
            /// Cap on the host memory that it may pin, if any.
            pinned: Option<Bytes>,
            /// A process of the container.
            pid: u32,
        }
    }
}

messages! {
    /// From the daemon to the hook or the CLI.
    Answer {
        /// The slice exists; these host paths are what a container needs mounted.
        401 Admitted {
            /// Directory to mount at `/run/gpuslice` in the container, read-only.
            dir: HostPath,
            /// The real driver's `libcuda.so.1`.
            cuda: HostPath,
            /// The real driver's `libnvidia-ml.so.1`; empty if there is none.
            nvml: HostPath,
            /// The shim for preload injection.
            preload: HostPath,
            /// The shim for mount injection.
            mount: HostPath,
            /// The NVML shim.
            nvml_shim: HostPath,
            /// The simulated GPU's device directory; empty on a real driver.
            device: HostPath,
        }
        /// The slice is gone.
        402 Dismissed {}
        /// The cap is another.
        404 Resized {
            /// What it is now.
            cap: Bytes,
            /// What is reserved now: more than the cap if that was lowered below it.
            reserved: Bytes,
        }
        /// It is so from now on.
        405 Done {}
        /// Nothing was changed.
        403 Denied {
            /// What kind of reason.
            why: Denial,
            /// For the person: what, and what to do next.
            text: Text<512>,
        }
    }
}

/// Kinds of refusal; the text beside them says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Unreadable, or not allowed on this socket.
    Protocol,
    /// The container has a slice already.
    Exists,
    /// No such GPU.
    NoSuchGpu,
    /// More memory than the GPU has, or has left to promise.
    Memory,
    /// More hard shares than 100 %, or too many containers.
    Capacity,
    /// A weight, share or name outside its bounds.
    Invalid,
    /// The daemon could not do its part: disk full, descriptor limit.
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
        assert_eq!("8GB".parse::<MemoryAsk>(), Err(UnitError::SizeDecimal));
        for bad in [
            "0/4",
            "5/4",
            "1/",
            "/4",
            "1/4/2",
            "+1/4",
            "1/ 4",
            "1/99999999999",
            "1.5/4",
        ] {
            assert_eq!(bad.parse::<MemoryAsk>(), Err(UnitError::Part), "{bad}");
        }
    }
}
