//! GPUs of which no slices are given, because of how the driver runs them or because they have failed.
//!
//! | state | why caps and turns of it would mean nothing |
//! |---|---|
//! | MIG mode | CUDA shows its instances in its place, each with memory and time that the hardware keeps apart |
//! | MPS | one server has the work of all its clients at once, and NVML shows their memory as the server's |
//! | an exclusive compute mode | one process at a time can have a context, so a second slice could do nothing |
//! | a critical error (Xid) or a memory error | what runs there may fail, or compute wrong results |
//! | lost | the driver does not list it, so no program can use it |
//!
//! NVIDIA recommends an exclusive compute mode for MPS, so that programs that reach no server fail. Errors that are a
//! program's own are none of the GPU's; the daemon tells which those are, and when a GPU has recovered.

use core::fmt;
use gpuslice_wire::ids::NvmlIndex;

/// Why no slices of a GPU are given. Its text is the cause as the rest of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlices {
    /// It is in MIG mode.
    Mig,
    /// An MPS server uses it.
    Mps,
    /// Its compute mode admits one process, or none.
    Exclusive,
    /// The driver reported this critical error lately.
    Xid(u32),
    /// The driver reported an uncorrectable memory error lately.
    Ecc,
    /// The driver does not list it any more.
    Lost,
}

/// The state of a GPU and its consequence, as a sentence without its end.
#[derive(Clone, Copy, Debug)]
pub struct Described(NoSlices, NvmlIndex);

/// The same without its subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition(NoSlices);

/// What gives it slices again, as the rest of an advice.
#[derive(Clone, Copy, Debug)]
pub struct Remedy(NoSlices, NvmlIndex);

/// The command that ends the state of a GPU.
#[derive(Clone, Copy, Debug)]
pub enum EndCommand {
    /// MIG mode.
    Mig(NvmlIndex),
    /// MPS: one server has all GPUs.
    Mps,
    /// An exclusive compute mode.
    Exclusive(NvmlIndex),
}

impl NoSlices {
    /// The sentence about a GPU.
    #[must_use]
    pub const fn of(self, gpu: NvmlIndex) -> Described {
        Described(self, gpu)
    }
    /// The state without its GPU.
    pub(crate) const fn condition(self) -> Condition {
        Condition(self)
    }
    /// Whether the daemon sees its end by its accounting.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        matches!(self, NoSlices::Mps)
    }
    /// What gives a GPU slices again.
    #[must_use]
    pub const fn remedy(self, gpu: NvmlIndex) -> Remedy {
        Remedy(self, gpu)
    }
    /// The command that ends it on a GPU; `None` for an error, which no command ends.
    #[must_use]
    pub fn end_command(self, gpu: NvmlIndex) -> Option<EndCommand> {
        match self {
            NoSlices::Mig => Some(EndCommand::Mig(gpu)),
            NoSlices::Mps => Some(EndCommand::Mps),
            NoSlices::Exclusive => Some(EndCommand::Exclusive(gpu)),
            NoSlices::Xid(_) | NoSlices::Ecc | NoSlices::Lost => None,
        }
    }
}

impl fmt::Display for NoSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoSlices::Mig => "it is in MIG mode",
            NoSlices::Mps => "an MPS server uses it, whose clients keep no turn",
            NoSlices::Exclusive => "its compute mode is exclusive",
            NoSlices::Xid(xid) => return write!(f, "the driver reported Xid {xid}"),
            NoSlices::Ecc => "it has an uncorrectable memory error",
            NoSlices::Lost => "the driver does not list it any more",
        })
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Described(why, NvmlIndex(gpu)) = self;
        write!(f, "GPU {gpu} {}", why.condition())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            NoSlices::Mig => {
                "is in MIG mode: its instances are no slices, and programs see no other part of it"
            }
            NoSlices::Mps => {
                "has an MPS server, which runs its clients' work at once: no cap or turn can be kept"
            }
            NoSlices::Exclusive => {
                "is in an exclusive compute mode: it admits one process at a time, and no second slice"
            }
            why @ (NoSlices::Xid(_) | NoSlices::Ecc | NoSlices::Lost) => {
                return write!(f, "is unhealthy: {why}");
            }
        })
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Remedy(why, gpu) = self;
        if let Some(end) = why.end_command(gpu) {
            write!(f, "end that ({end})")?;
            return f.write_str(match why.is_sampled() {
                true => {
                    "; gpusliced sees that by its next samples, without accounting at its restart"
                }
                false => " and restart gpusliced",
            });
        }
        f.write_str(match why {
            NoSlices::Lost => {
                "reset that GPU or boot the node: it takes slices again when the driver lists it (nvidia-smi -L)"
            }
            _ => {
                "wait: that GPU takes slices again when it has worked for unhealthy_s (in gpusliced's configuration) \
                 without another error"
            }
        })
    }
}

impl fmt::Display for EndCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndCommand::Mig(NvmlIndex(gpu)) => write!(f, "nvidia-smi -i {gpu} -mig 0"),
            EndCommand::Mps => f.write_str("echo quit | nvidia-cuda-mps-control"),
            EndCommand::Exclusive(NvmlIndex(gpu)) => write!(f, "nvidia-smi -i {gpu} -c DEFAULT"),
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
        let modes = [NoSlices::Mig, NoSlices::Mps, NoSlices::Exclusive];
        for why in modes.into_iter().chain([NoSlices::Xid(999), NoSlices::Ecc, NoSlices::Lost]) {
            let gpu = NvmlIndex(15);
            for refusal in [Refusal::NoSlices(gpu, why), Refusal::OnlyNoSlices(gpu, why)] {
                let text = refusal.to_string();
                assert!(text.len() <= EVENT_TEXT_BYTES_MAX, "{} bytes: {text}", text.len());
            }
        }
    }
}
