//! GPUs that have no slices, because of how the driver runs them.
//!
//! | state | why caps and turns of it would mean nothing |
//! |---|---|
//! | MIG mode | CUDA shows its instances in its place, each with memory and time that the hardware keeps apart |
//! | MPS | one server has the work of all its clients at once, and NVML shows their memory as the server's |
//! | an exclusive compute mode | one process at a time can have a context, so a second slice could do nothing |
//!
//! NVIDIA recommends the last one for MPS, so that programs that reach no server fail.

use core::fmt;
use gpuslice_wire::ids::NvmlIndex;

/// Why a GPU has no slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlices {
    /// It is in MIG mode.
    Mig,
    /// An MPS server uses it.
    Mps,
    /// Its compute mode admits one process, or none.
    Exclusive,
}

/// The state of a GPU and its consequence, as a sentence without its end.
#[derive(Clone, Copy, Debug)]
pub struct Described(NoSlices, NvmlIndex);

/// The command that ends the state of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct EndCommand(NoSlices, NvmlIndex);

impl NoSlices {
    /// The sentence about a GPU.
    #[must_use]
    pub const fn of(self, gpu: NvmlIndex) -> Described {
        Described(self, gpu)
    }
    /// Whether the daemon sees its end by its accounting.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        matches!(self, NoSlices::Mps)
    }
    /// What follows the command that ends it, as the rest of a sentence.
    #[must_use]
    pub const fn after_end(self) -> &'static str {
        match self.is_sampled() {
            true => {
                "; gpusliced sees that with its next samples, without accounting after its restart"
            }
            false => " and restart gpusliced",
        }
    }
    /// What ends it on a GPU.
    #[must_use]
    pub const fn end_command(self, gpu: NvmlIndex) -> EndCommand {
        EndCommand(self, gpu)
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Described(why, NvmlIndex(gpu)) = self;
        let state = match why {
            NoSlices::Mig => {
                "is in MIG mode: its instances are no slices, and programs see no other part of it"
            }
            NoSlices::Mps => {
                "has an MPS server, which runs its clients' work at once: no cap and no turn can be kept"
            }
            NoSlices::Exclusive => {
                "is in an exclusive compute mode: it admits one process at a time, and no second slice"
            }
        };
        write!(f, "GPU {gpu} {state}")
    }
}

impl fmt::Display for EndCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EndCommand(why, NvmlIndex(gpu)) = self;
        match why {
            NoSlices::Mig => write!(f, "nvidia-smi -i {gpu} -mig 0"),
            NoSlices::Mps => f.write_str("echo quit | nvidia-cuda-mps-control"),
            NoSlices::Exclusive => write!(f, "nvidia-smi -i {gpu} -c DEFAULT"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;
    use gpuslice_wire::limits::EVENT_TEXT_BYTES_MAX;
    use std::string::ToString;

    /// The end of the sentence is the advice, so an event must hold all of it.
    #[test]
    fn an_event_holds_the_refusal() {
        for why in [NoSlices::Mig, NoSlices::Mps, NoSlices::Exclusive] {
            let text = Refusal::NoSlices(NvmlIndex(15), why).to_string();
            assert!(text.len() <= EVENT_TEXT_BYTES_MAX, "{} bytes: {text}", text.len());
        }
    }
}
