//! The questions to NVML and their answers, as they pass between the event loop, the NVML thread and its child
//! process.

use crate::cgroup::Dir;
use crate::mps::MpsProcess;
use crate::nvml::NvmlError;
use gpuslice_nvabi::types::nvmlReturn_t;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Matches an answer to its question.
pub type Ticket = u64;

/// The bytes of a GPU's UUID.
pub type Id = [u8; 16];

/// A question for the thread.
#[derive(Debug, Deserialize, Serialize)]
pub enum Question {
    /// The memory of one process.
    Measure {
        /// Copied into the answer.
        ticket: Ticket,
        /// The GPU.
        gpu: Id,
        /// The process.
        pid: u32,
    },
    /// The memory of all processes and of all limited cgroups.
    Sample {
        /// The GPUs to sample.
        gpus: Vec<Id>,
        /// Cgroups with a limit in force, and the GPU of the limit.
        limited: Vec<(Id, Dir)>,
        /// The GPUs whose compute mode is asked for, too.
        modes: Vec<Id>,
    },
    /// The memory in use on GPUs, and of all their processes.
    Devices {
        /// When this was asked, by CLOCK_MONOTONIC.
        asked_ns: u64,
        /// The GPUs.
        gpus: Vec<Id>,
    },
    /// The free memory of GPUs, and of all their processes.
    Room {
        /// Copied into the answer.
        ticket: Ticket,
        /// The GPUs.
        gpus: Vec<Id>,
    },
    /// How much of their time GPUs were in use lately.
    Loads {
        /// The GPUs.
        gpus: Vec<Id>,
    },
    /// Sets driver limits, one after the other.
    Set {
        /// Copied into the answer.
        ticket: Ticket,
        /// The limits to set.
        steps: Vec<Step>,
    },
    /// Whether the driver has limits to set.
    Support {
        /// The GPUs.
        gpus: Vec<Id>,
    },
    /// Close NVML until the next question.
    Close,
}

/// One change of a cgroup's limits on one GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The GPU.
    pub gpu: Id,
    /// The cgroup's directory.
    pub dir: Dir,
    /// The guarantee, bytes.
    pub soft: u64,
    /// The limit, bytes; [`crate::nvml::NO_LIMIT`] clears it.
    pub hard: u64,
    /// Raise `hard` to the present use if it is below it.
    pub above_used: bool,
    /// Keep a limit below `hard` that another program has set: any but this one, which is the daemon's own, or
    /// [`crate::nvml::NO_LIMIT`] where it has set none. `None`: no limit is kept.
    pub keeps_all_but: Option<u64>,
}

/// A cgroup with limits, as the driver has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct LimitedGroup {
    /// The cgroup's directory.
    pub dir: Dir,
    /// Bytes that its processes use.
    pub used: u64,
    /// The limit in force, bytes.
    pub hard: u64,
}

/// A process's use of a GPU, and its cgroup.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ProcessUsage {
    /// Bytes; `None` where the driver does not report it.
    pub used: Option<u64>,
    /// Its cgroup; `None` if the process has ended.
    pub cgroup: Option<Vec<u8>>,
}

/// The memory in use on one GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct DeviceUsage {
    /// The GPU.
    pub gpu: Id,
    /// Bytes in use.
    pub used: u64,
    /// Its processes' part of it, by pid: the smaller and the larger of two figures, before and after. None if there
    /// is no list.
    pub processes: Option<BTreeMap<u32, Option<[u64; 2]>>>,
}

/// The free memory of one GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct GpuRoom {
    /// The GPU.
    pub gpu: Id,
    /// Bytes; `None` where NVML has no such figure, or else its error.
    pub free: Result<Option<u64>, String>,
    /// Its processes' bytes by pid, as far as they are told.
    pub processes: BTreeMap<u32, Option<u64>>,
}

/// A sample of one GPU.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sample {
    /// The GPU.
    pub gpu: Id,
    /// Its processes by pid.
    pub processes: Result<BTreeMap<u32, ProcessUsage>, String>,
    /// The limited cgroups.
    pub limited: Vec<LimitedGroup>,
    /// The processes by which NVML shows MPS, of slices or not.
    pub mps: Vec<MpsProcess>,
    /// The GPU's compute mode is exclusive, if it was asked for.
    pub exclusive: bool,
}

impl Sample {
    /// A sample without limits, of a GPU without MPS.
    pub fn of(gpu: Id, processes: Result<BTreeMap<u32, ProcessUsage>, String>) -> Sample {
        Sample { gpu, processes, limited: Vec::new(), mps: Vec::new(), exclusive: false }
    }
}

/// Whether the driver can limit cgroups on a GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum LimitSupport {
    /// It can.
    Has,
    /// It cannot, and why.
    Lacks(String),
    /// NVML has not told, and why; it may later.
    Unknown(String),
}

/// An answer of the thread.
#[derive(Debug, Deserialize, Serialize)]
pub enum NvmlAnswer {
    /// To `Measure`.
    Measured {
        /// The question's.
        ticket: Ticket,
        /// Bytes; `None` if unknown.
        used: Option<u64>,
    },
    /// To `Round`.
    Samples(Vec<Sample>),
    /// To `Devices`: those that answered.
    Devices {
        /// The question's.
        asked_ns: u64,
        /// By GPU.
        usage: Vec<DeviceUsage>,
    },
    /// To `Room`.
    Room {
        /// The question's.
        ticket: Ticket,
        /// By GPU.
        rooms: Vec<GpuRoom>,
    },
    /// To `Loads`: percent, of those that told it.
    Loads(Vec<(Id, u32)>),
    /// To `Set`.
    Set {
        /// The question's.
        ticket: Ticket,
        /// For each step the limit now in force, or NVML's error.
        done: Vec<Result<u64, NvmlError>>,
    },
    /// To `Support`: by GPU.
    Support(Vec<(Id, LimitSupport)>),
}

/// The answer if NVML cannot be opened.
pub fn unanswered(question: Question, why: &str) -> NvmlAnswer {
    match question {
        Question::Measure { ticket, .. } => NvmlAnswer::Measured { ticket, used: None },
        Question::Sample { gpus, .. } => {
            let one = |gpu| Sample::of(gpu, Err(why.to_owned()));
            NvmlAnswer::Samples(gpus.into_iter().map(one).collect())
        }
        Question::Devices { asked_ns, .. } => NvmlAnswer::Devices { asked_ns, usage: Vec::new() },
        Question::Room { ticket, gpus } => {
            let free = Err(why.to_owned());
            let one = |gpu| GpuRoom { gpu, free: free.clone(), processes: BTreeMap::new() };
            NvmlAnswer::Room { ticket, rooms: gpus.into_iter().map(one).collect() }
        }
        Question::Loads { .. } => NvmlAnswer::Loads(Vec::new()),
        Question::Set { ticket, steps } => {
            let closed = NvmlError {
                call: "nvmlInit_v2".to_owned(),
                answer: nvmlReturn_t::ERROR_UNINITIALIZED,
            };
            NvmlAnswer::Set { ticket, done: vec![Err(closed); steps.len()] }
        }
        Question::Support { gpus } => {
            let one = |gpu| (gpu, LimitSupport::Unknown(why.to_owned()));
            NvmlAnswer::Support(gpus.into_iter().map(one).collect())
        }
        Question::Close => NvmlAnswer::Samples(Vec::new()),
    }
}
