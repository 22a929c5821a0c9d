//! The NVML thread. It passes questions to a child process ([`super::child`]), sends the answers over a channel
//! and notifies the event loop through an eventfd. A driver that is slow, or hangs on a GPU that fell off the
//! bus, delays an answer and never a turn. A driver that crashes ends only the child;
//! [`super::supervisor`] starts the next one.
//!
//! Questions are answered in order. Those about single processes that wait together share one sample per GPU.

use super::supervisor::Supervisor;
use crate::cgroup::Dir;
use crate::nvml::{Nvml, NvmlError};
use gpuslice_host::cgroup;
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

/// Shortest pause between two samples for single processes, however often these ask.
const PAUSE: Duration = Duration::from_millis(1);

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
}

/// A process's use of a GPU, and its cgroup.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ProcessUsage {
    /// Bytes; `None` where the driver does not report it.
    pub used: Option<u64>,
    /// Its cgroup; `None` if the process has ended.
    pub cgroup: Option<Vec<u8>>,
}

/// A sample of one GPU.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sample {
    /// The GPU.
    pub gpu: Id,
    /// Its processes by pid.
    pub processes: Result<BTreeMap<u32, ProcessUsage>, String>,
    /// Bytes that the driver counts for each limited cgroup, by directory.
    pub limited: Vec<(Dir, u64)>,
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
    /// To `Set`.
    Set {
        /// The question's.
        ticket: Ticket,
        /// For each step the limit now in force, or NVML's error.
        done: Vec<Result<u64, NvmlError>>,
    },
    /// To `Support`: by GPU, why the driver has no limits.
    Support(Vec<(Id, Result<(), String>)>),
}

/// The thread's state.
pub struct NvmlThread {
    /// NVML's library.
    pub library: PathBuf,
    /// Questions; the thread ends with sender.
    pub questions: Receiver<Question>,
    /// Answers.
    pub answers: Sender<NvmlAnswer>,
    /// Written after each batch of answers.
    pub notify: Arc<EventFd>,
}

impl NvmlThread {
    /// Answers questions until the sender is dropped.
    pub fn serve(self) {
        let mut supervisor = Supervisor::default();
        while let Ok(first) = self.questions.recv() {
            let mut waiting = vec![first];
            waiting.extend(self.questions.try_iter());
            if !self.answer(&mut supervisor, waiting) {
                return;
            }
        }
    }

    /// Returns false when the receiver has been dropped.
    fn answer(&self, supervisor: &mut Supervisor, mut waiting: Vec<Question>) -> bool {
        let closes = matches!(waiting.last(), Some(Question::Close));
        let measured = waiting
            .iter()
            .any(|question| matches!(question, Question::Measure { .. }));
        waiting.retain(|question| !matches!(question, Question::Close));
        if !waiting.is_empty() {
            for answer in self.ask(supervisor, waiting) {
                if self.answers.send(answer).is_err() {
                    return false;
                }
            }
            // A full counter means that a notification is pending already.
            let _ = self.notify.write(1);
        }
        if closes {
            supervisor.stop_child();
        }
        if measured {
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn ask(&self, supervisor: &mut Supervisor, questions: Vec<Question>) -> Vec<NvmlAnswer> {
        supervisor
            .ask(&self.library, &questions)
            .unwrap_or_else(|why| {
                let answers = questions.into_iter().map(|one| unanswered(one, &why));
                answers.collect()
            })
    }
}

/// Runs in the child: reads each line as a list of questions, writes a list of answers.
///
/// # Errors
/// The parent has ended.
pub fn serve_child(library: &Path) -> io::Result<()> {
    let mut nvml = None;
    for line in io::stdin().lock().lines() {
        let questions: Vec<Question> = serde_json::from_str(&line?)?;
        let mut cache = SampleCache::new();
        let mut answers = Vec::new();
        for question in questions {
            let open = match nvml.take() {
                Some(open) => Ok(open),
                None => Nvml::open(library),
            };
            answers.push(match &open {
                Ok(open) => answer_question(open, question, &mut cache),
                Err(why) => unanswered(question, why),
            });
            nvml = open.ok();
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answers)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

type SampleCache = BTreeMap<Id, Result<BTreeMap<u32, Option<u64>>, NvmlError>>;

fn answer_question(nvml: &Nvml, question: Question, cache: &mut SampleCache) -> NvmlAnswer {
    match question {
        Question::Measure { ticket, gpu, pid } => {
            let processes = cache
                .entry(gpu)
                .or_insert_with(|| nvml.of(GpuUuid(gpu))?.processes());
            let known = processes
                .as_ref()
                .ok()
                .and_then(|all| all.get(&pid).copied());
            NvmlAnswer::Measured {
                ticket,
                used: known.flatten(),
            }
        }
        Question::Sample { gpus, limited } => {
            let one = |gpu| sample_gpu(nvml, gpu, &limited);
            NvmlAnswer::Samples(gpus.into_iter().map(one).collect())
        }
        Question::Set { ticket, steps } => {
            let done = steps.iter().map(|step| set(nvml, step)).collect();
            NvmlAnswer::Set { ticket, done }
        }
        Question::Support { gpus } => {
            let one = |gpu| (gpu, supports(nvml, GpuUuid(gpu)));
            NvmlAnswer::Support(gpus.into_iter().map(one).collect())
        }
        Question::Close => NvmlAnswer::Samples(Vec::new()),
    }
}

/// The answer if NVML cannot be opened.
fn unanswered(question: Question, why: &str) -> NvmlAnswer {
    match question {
        Question::Measure { ticket, .. } => NvmlAnswer::Measured { ticket, used: None },
        Question::Sample { gpus, .. } => {
            let one = |gpu| Sample {
                gpu,
                processes: Err(why.to_owned()),
                limited: Vec::new(),
            };
            NvmlAnswer::Samples(gpus.into_iter().map(one).collect())
        }
        Question::Set { ticket, steps } => {
            let closed = NvmlError {
                call: "nvmlInit_v2".to_owned(),
                answer: nvmlReturn_t::ERROR_UNINITIALIZED,
            };
            NvmlAnswer::Set {
                ticket,
                done: vec![Err(closed); steps.len()],
            }
        }
        Question::Support { gpus } => {
            let one = |gpu| (gpu, Err(why.to_owned()));
            NvmlAnswer::Support(gpus.into_iter().map(one).collect())
        }
        Question::Close => NvmlAnswer::Samples(Vec::new()),
    }
}

fn sample_gpu(nvml: &Nvml, gpu: Id, limited: &[(Id, Dir)]) -> Sample {
    // Limited cgroups first: memory allocated in between then counts for its process, not as unattributed.
    let device = nvml.of(GpuUuid(gpu));
    let counted = |dir: &Dir| {
        let limits = device.as_ref().ok()?.limits(dir).ok()?;
        Some((dir.clone(), limits.used))
    };
    let here = limited.iter().filter(|(whose, _)| *whose == gpu);
    let limited = here.filter_map(|(_, dir)| counted(dir)).collect();
    let processes = device
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|d| d.processes());
    let placed = |(pid, used): (u32, Option<u64>)| {
        let cgroup = cgroup::of(pid);
        (pid, ProcessUsage { used, cgroup })
    };
    Sample {
        gpu,
        processes: processes
            .map(|all| all.into_iter().map(placed).collect())
            .map_err(|why| why.to_string()),
        limited,
    }
}

fn set(nvml: &Nvml, step: &Step) -> Result<u64, NvmlError> {
    let device = nvml.of(GpuUuid(step.gpu))?;
    let used = match step.above_used {
        true => device.limits(&step.dir).map_or(0, |limits| limits.used),
        false => 0,
    };
    let hard = step.hard.max(used);
    device.set_limits(&step.dir, step.soft, hard).map(|()| hard)
}

/// Whether the driver can limit cgroups on this GPU.
///
/// # Errors
/// Why not, as a sentence for the log.
pub fn supports(nvml: &Nvml, gpu: GpuUuid) -> Result<(), String> {
    let mount = cgroup::mount().ok_or("no cgroup v2 hierarchy is mounted at /sys/fs/cgroup")?;
    can_limit(nvml, gpu, &mount)
}

/// Whether the driver can limit this cgroup on this GPU.
fn can_limit(nvml: &Nvml, gpu: GpuUuid, dir: &Path) -> Result<(), String> {
    let device = nvml.of(gpu).map_err(|why| why.to_string())?;
    if device.is_mig().map_err(|why| why.to_string())? {
        return Err("the GPU is in MIG mode, which has no limits per cgroup".to_owned());
    }
    match device.limits(dir) {
        Ok(_) => Ok(()),
        // The call is supported, and no limit is set there.
        Err(why) if why.answer == nvmlReturn_t::ERROR_NOT_FOUND => Ok(()),
        Err(why) => Err(why_no_limits(why)),
    }
}

/// Explains NVML's error about limits, for the log.
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
