//! The one thread that has NVML asked, by a process of its own ([`super::child`]). It answers over a
//! channel and rings an eventfd, so that a driver that is slow, or hangs on a GPU that fell off the bus,
//! delays an answer and never a turn; and one that crashes takes only that process with it. The next
//! one is started by [`super::line`].
//!
//! Questions are answered in the order in which they were asked; those about single processes
//! that wait together are answered from one look per GPU.

use super::line::Line;
use crate::cgroup::{self, Dir};
use crate::nvml::{Nvml, NvmlError};
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::ids::GpuUuid;
use nix::sys::eventfd::EventFd;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Between two looks for single processes: however often these ask, NVML is not asked more often.
const REST: Duration = Duration::from_millis(1);

/// Matches an answer to its question.
pub type Ticket = u64;

/// The bytes of a GPU's UUID.
pub type Id = [u8; 16];

/// What the thread is asked.
#[derive(Debug, Deserialize, Serialize)]
pub enum Question {
    /// What one process has.
    Measure {
        /// For the answer.
        ticket: Ticket,
        /// Of which GPU.
        gpu: Id,
        /// Which process.
        pid: u32,
    },
    /// What all processes have, and the walls.
    Round {
        /// GPUs to look at.
        gpus: Vec<Id>,
        /// Directories of cgroups with a wall on a GPU.
        walls: Vec<(Id, Dir)>,
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
        gpus: Vec<Id>,
    },
    /// Nobody has a slice: NVML is closed until the next question.
    Rest,
}

/// One change of a cgroup's limits on one GPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Step {
    /// On which GPU.
    pub gpu: Id,
    /// The cgroup's directory.
    pub dir: Dir,
    /// The guarantee.
    pub soft: u64,
    /// The limit; [`crate::nvml::NO_LIMIT`] clears.
    pub hard: u64,
    /// Not below what is used now: a limit follows downwards, it does not strangle.
    pub above_used: bool,
}

/// What a process has of a GPU, and where it belongs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// `None` where the driver does not tell.
    pub used: Option<u64>,
    /// Its cgroup; `None` if it is gone again.
    pub cgroup: Option<Vec<u8>>,
}

/// One GPU in one round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Look {
    /// Which.
    pub gpu: Id,
    /// Its processes by pid.
    pub processes: Result<BTreeMap<u32, Seen>, String>,
    /// What the driver counts for each walled cgroup, by directory.
    pub walls: Vec<(Dir, u64)>,
}

/// What the thread answers.
#[derive(Debug, Deserialize, Serialize)]
pub enum Fact {
    /// To `Measure`.
    Measured {
        /// The question's.
        ticket: Ticket,
        /// `None` where there is nothing to know.
        used: Option<u64>,
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
    Support(Vec<(Id, Result<(), String>)>),
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
        let mut line = Line::default();
        while let Ok(first) = self.questions.recv() {
            let mut waiting = vec![first];
            waiting.extend(self.questions.try_iter());
            if !self.answer(&mut line, waiting) {
                return;
            }
        }
    }

    /// Whether anybody still listens.
    fn answer(&self, line: &mut Line, mut waiting: Vec<Question>) -> bool {
        let rests = matches!(waiting.last(), Some(Question::Rest));
        let measured = waiting
            .iter()
            .any(|question| matches!(question, Question::Measure { .. }));
        waiting.retain(|question| !matches!(question, Question::Rest));
        if !waiting.is_empty() {
            for fact in self.asked(line, waiting) {
                if self.facts.send(fact).is_err() {
                    return false;
                }
            }
            // Full means that it was rung and not yet heard.
            let _ = self.bell.write(1);
        }
        if rests {
            line.rest();
        }
        if measured {
            std::thread::sleep(REST);
        }
        true
    }

    fn asked(&self, line: &mut Line, questions: Vec<Question>) -> Vec<Fact> {
        line.ask(&self.library, &questions).unwrap_or_else(|why| {
            let facts = questions.into_iter().map(|one| unanswered(one, &why));
            facts.collect()
        })
    }
}

/// The child's side: questions come as lines, each a list, and so go the answers.
///
/// # Errors
/// Its parent is gone.
pub fn serve_child(library: &Path) -> io::Result<()> {
    let mut nvml = None;
    for line in io::stdin().lock().lines() {
        let questions: Vec<Question> = serde_json::from_str(&line?)?;
        let mut looks = Looks::new();
        let mut facts = Vec::new();
        for question in questions {
            let open = match nvml.take() {
                Some(open) => Ok(open),
                None => Nvml::open(library),
            };
            facts.push(match &open {
                Ok(open) => asked(open, question, &mut looks),
                Err(why) => unanswered(question, why),
            });
            nvml = open.ok();
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &facts)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

type Looks = BTreeMap<Id, Result<BTreeMap<u32, Option<u64>>, NvmlError>>;

fn asked(nvml: &Nvml, question: Question, looks: &mut Looks) -> Fact {
    match question {
        Question::Measure { ticket, gpu, pid } => {
            let look = looks
                .entry(gpu)
                .or_insert_with(|| nvml.of(GpuUuid(gpu))?.processes());
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
            let one = |gpu| (gpu, supports(nvml, GpuUuid(gpu)));
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
                walls: Vec::new(),
            };
            Fact::Round(gpus.into_iter().map(one).collect())
        }
        Question::Set { ticket, steps } => {
            let closed = NvmlError {
                call: "nvmlInit_v2".to_owned(),
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

fn look(nvml: &Nvml, gpu: Id, walls: &[(Id, Dir)]) -> Look {
    // Walls first: what a process takes in between then counts for it, and not as a stranger's.
    let device = nvml.of(GpuUuid(gpu));
    let counted = |dir: &Dir| {
        let limits = device.as_ref().ok()?.limits(&cgroup::named(dir)).ok()?;
        Some((dir.clone(), limits.used))
    };
    let here = walls.iter().filter(|(whose, _)| *whose == gpu);
    let walls = here.filter_map(|(_, dir)| counted(dir)).collect();
    let processes = device
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|d| d.processes());
    let placed = |(pid, used): (u32, Option<u64>)| {
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
    let device = nvml.of(GpuUuid(step.gpu))?;
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
