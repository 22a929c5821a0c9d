//! The one thread that asks NVML. It answers over a channel and rings an eventfd, so that a driver
//! that is slow, or hangs on a GPU that fell off the bus, delays an answer and never a turn.
//!
//! Questions are answered in the order in which they were asked; those about single processes
//! that wait together are answered from one look per GPU.

use crate::cgroup;
use crate::nvml::{Nvml, NvmlError};
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::units::Bytes;
use nix::sys::eventfd::EventFd;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Between two looks for single processes: however often these ask, NVML is not asked more often.
const REST: Duration = Duration::from_millis(1);

/// Matches an answer to its question.
pub type Ticket = u64;

/// What the thread is asked.
#[derive(Debug)]
pub enum Question {
    /// What one process has.
    Measure {
        /// For the answer.
        ticket: Ticket,
        /// Of which GPU.
        gpu: GpuUuid,
        /// Which process.
        pid: u32,
    },
    /// What all processes have, and the walls.
    Round {
        /// GPUs to look at.
        gpus: Vec<GpuUuid>,
        /// Directories of cgroups with a wall on a GPU.
        walls: Vec<(GpuUuid, PathBuf)>,
    },
    /// Sets driver limits, one after the other.
    Set {
        /// For the answer.
        ticket: Ticket,
        /// What to set.
        steps: Vec<Step>,
    },
    /// Whether the driver has limits to set.
    Support {
        /// On which GPUs.
        gpus: Vec<GpuUuid>,
    },
    /// Nobody has a slice: NVML is closed until the next question.
    Rest,
}

/// One change of a cgroup's limits on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// On which GPU.
    pub gpu: GpuUuid,
    /// The cgroup's directory.
    pub dir: PathBuf,
    /// The guarantee.
    pub soft: u64,
    /// The limit; [`crate::nvml::NO_LIMIT`] clears.
    pub hard: u64,
    /// Not below what is used now: a limit follows downwards, it does not strangle.
    pub above_used: bool,
}

/// What a process has of a GPU, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `None` where the driver does not tell.
    pub used: Option<Bytes>,
    /// Its cgroup; `None` if it is gone again.
    pub cgroup: Option<String>,
}

/// One GPU in one round.
#[derive(Clone, Debug)]
pub struct Look {
    /// Which.
    pub gpu: GpuUuid,
    /// Its processes by pid.
    pub processes: Result<BTreeMap<u32, Seen>, String>,
    /// What the driver counts for each walled cgroup, by directory.
    pub walls: BTreeMap<PathBuf, Bytes>,
}

/// What the thread answers.
#[derive(Debug)]
pub enum Fact {
    /// To `Measure`.
    Measured {
        /// The question's.
        ticket: Ticket,
        /// `None` where there is nothing to know.
        used: Option<Bytes>,
    },
    /// To `Round`.
    Round(Vec<Look>),
    /// To `Set`.
    Set {
        /// The question's.
        ticket: Ticket,
        /// For each step the limit that is in force now, or what NVML said.
        done: Vec<Result<u64, NvmlError>>,
    },
    /// To `Support`: for each GPU, or why not.
    Support(Vec<(GpuUuid, Result<(), String>)>),
}

/// What belongs to the thread.
pub struct Asker {
    /// NVML's library.
    pub library: PathBuf,
    /// Questions; the thread ends with their asker.
    pub questions: Receiver<Question>,
    /// Answers.
    pub facts: Sender<Fact>,
    /// Rung after each answer.
    pub bell: Arc<EventFd>,
}

impl Asker {
    /// Answers until nobody asks any more.
    pub fn serve(self) {
        let mut nvml = None;
        while let Ok(first) = self.questions.recv() {
            let mut waiting = vec![first];
            waiting.extend(self.questions.try_iter());
            if !self.answer(&mut nvml, waiting) {
                return;
            }
        }
    }

    /// Whether anybody still listens.
    fn answer(&self, nvml: &mut Option<Nvml>, waiting: Vec<Question>) -> bool {
        let measured = waiting
            .iter()
            .any(|q| matches!(q, Question::Measure { .. }));
        let mut looks = BTreeMap::new();
        for question in waiting {
            if matches!(question, Question::Rest) {
                *nvml = None;
                continue;
            }
            let open = match nvml.take() {
                Some(open) => Ok(open),
                None => Nvml::open(&self.library),
            };
            let fact = match &open {
                Ok(open) => asked(open, question, &mut looks),
                Err(why) => unanswered(question, why),
            };
            *nvml = open.ok();
            if self.facts.send(fact).is_err() {
                return false;
            }
            // Full means that it was rung and not yet heard.
            let _ = self.bell.write(1);
        }
        if measured {
            std::thread::sleep(REST);
        }
        true
    }
}

type Looks = BTreeMap<GpuUuid, Result<BTreeMap<u32, Option<Bytes>>, NvmlError>>;

fn asked(nvml: &Nvml, question: Question, looks: &mut Looks) -> Fact {
    match question {
        Question::Measure { ticket, gpu, pid } => {
            let look = looks
                .entry(gpu)
                .or_insert_with(|| nvml.of(gpu)?.processes());
            let known = look.as_ref().ok().and_then(|all| all.get(&pid).copied());
            Fact::Measured {
                ticket,
                used: known.flatten(),
            }
        }
        Question::Round { gpus, walls } => {
            let one = |gpu| look(nvml, gpu, &walls);
            Fact::Round(gpus.into_iter().map(one).collect())
        }
        Question::Set { ticket, steps } => {
            let done = steps.iter().map(|step| set(nvml, step)).collect();
            Fact::Set { ticket, done }
        }
        Question::Support { gpus } => {
            let one = |gpu| (gpu, supports(nvml, gpu));
            Fact::Support(gpus.into_iter().map(one).collect())
        }
        Question::Rest => Fact::Round(Vec::new()),
    }
}

/// The answer where NVML does not even open.
fn unanswered(question: Question, why: &str) -> Fact {
    match question {
        Question::Measure { ticket, .. } => Fact::Measured { ticket, used: None },
        Question::Round { gpus, .. } => {
            let one = |gpu| Look {
                gpu,
                processes: Err(why.to_owned()),
                walls: BTreeMap::new(),
            };
            Fact::Round(gpus.into_iter().map(one).collect())
        }
        Question::Set { ticket, steps } => {
            let closed = NvmlError {
                call: "nvmlInit_v2",
                answer: nvmlReturn_t::ERROR_UNINITIALIZED,
            };
            Fact::Set {
                ticket,
                done: vec![Err(closed); steps.len()],
            }
        }
        Question::Support { gpus } => {
            let one = |gpu| (gpu, Err(why.to_owned()));
            Fact::Support(gpus.into_iter().map(one).collect())
        }
        Question::Rest => Fact::Round(Vec::new()),
    }
}

fn look(nvml: &Nvml, gpu: GpuUuid, walls: &[(GpuUuid, PathBuf)]) -> Look {
    // Walls first: what a process takes in between then counts for it, and not as a stranger's.
    let device = nvml.of(gpu);
    let counted = |dir: &PathBuf| {
        let limits = device.as_ref().ok()?.limits(&cgroup::named(dir)).ok()?;
        Some((dir.clone(), Bytes(limits.used)))
    };
    let here = walls.iter().filter(|(whose, _)| *whose == gpu);
    let walls = here.filter_map(|(_, dir)| counted(dir)).collect();
    let processes = device
        .as_ref()
        .map_err(|why| *why)
        .and_then(|d| d.processes());
    let placed = |(pid, used): (u32, Option<Bytes>)| {
        let cgroup = cgroup::of(pid);
        (pid, Seen { used, cgroup })
    };
    Look {
        gpu,
        processes: processes
            .map(|all| all.into_iter().map(placed).collect())
            .map_err(|why| why.to_string()),
        walls,
    }
}

fn set(nvml: &Nvml, step: &Step) -> Result<u64, NvmlError> {
    let device = nvml.of(step.gpu)?;
    let name = cgroup::named(&step.dir);
    let used = match step.above_used {
        true => device.limits(&name).map_or(0, |limits| limits.used),
        false => 0,
    };
    let hard = step.hard.max(used);
    device.set_limits(&name, step.soft, hard).map(|()| hard)
}

/// Whether the driver can limit cgroups on this GPU.
///
/// # Errors
/// Why not, for the person.
pub fn supports(nvml: &Nvml, gpu: GpuUuid) -> Result<(), String> {
    let mount = cgroup::mount().ok_or("no cgroup v2 hierarchy is mounted at /sys/fs/cgroup")?;
    can_limit(nvml, gpu, &mount)
}

/// The same, as seen from one cgroup.
fn can_limit(nvml: &Nvml, gpu: GpuUuid, dir: &Path) -> Result<(), String> {
    let device = nvml.of(gpu).map_err(|why| why.to_string())?;
    if device.is_mig().map_err(|why| why.to_string())? {
        return Err("the GPU is in MIG mode, which has no limits per cgroup".to_owned());
    }
    match device.limits(&cgroup::named(dir)) {
        Ok(_) => Ok(()),
        // It understood, and nothing is set there.
        Err(why) if why.answer == nvmlReturn_t::ERROR_NOT_FOUND => Ok(()),
        Err(why) => Err(why_no_limits(why)),
    }
}

/// For the person, what an answer to a question for limits means.
pub fn why_no_limits(why: NvmlError) -> String {
    match why.answer {
        nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND => {
            "the driver has no limits per cgroup; they come with r615".to_owned()
        }
        nvmlReturn_t::ERROR_NOT_SUPPORTED => {
            "the driver does not support limits per cgroup on this GPU or kernel".to_owned()
        }
        nvmlReturn_t::ERROR_NO_PERMISSION => {
            "only root may set the driver's limits; run gpusliced as root".to_owned()
        }
        _ => why.to_string(),
    }
}
