//! The NVML child's program (`--ask-nvml`): answers questions from standard input with the NVML that it loads.
//!
//! Each line of input is a list of questions as JSON, each line of output the list of their answers.

use super::questions::{
    DeviceUsage, GpuRoom, Id, LimitSupport, LimitedGroup, NvmlAnswer, ProcessUsage, Question,
    Sample, Step, unanswered,
};
use crate::cgroup::Dir;
use crate::mps::among;
use crate::nvml::{Device, Nvml, NvmlError};
use gpuslice_host::cgroup;
use gpuslice_host::process::{has_exited, pidfd_open};
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::ids::GpuUuid;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Reads each line as a list of questions, writes a list of answers.
///
/// # Errors
/// The parent has ended.
pub fn serve(library: &Path) -> io::Result<()> {
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

/// Lists of processes that are asked for before the memory of one counts as unknown. With one that is unknown, a sample
/// says nothing of its container.
const LISTS: usize = 4;

type SampleCache = BTreeMap<Id, Result<BTreeMap<u32, Option<u64>>, NvmlError>>;

fn answer_question(nvml: &Nvml, question: Question, cache: &mut SampleCache) -> NvmlAnswer {
    match question {
        Question::Measure { ticket, gpu, pid } => {
            NvmlAnswer::Measured { ticket, used: memory_of(nvml, gpu, pid, cache) }
        }
        Question::Sample { gpus, limited, modes } => {
            let one = |gpu| sample_gpu(nvml, gpu, &limited, modes.contains(&gpu));
            NvmlAnswer::Samples(gpus.into_iter().map(one).collect())
        }
        Question::Devices { asked_ns, gpus } => {
            let usage = gpus.into_iter().filter_map(|gpu| usage_of(nvml, gpu)).collect();
            NvmlAnswer::Devices { asked_ns, usage }
        }
        Question::Room { ticket, gpus } => {
            let rooms = gpus.into_iter().map(|gpu| room_of(nvml, gpu)).collect();
            NvmlAnswer::Room { ticket, rooms }
        }
        Question::Loads { gpus } => {
            let load = |gpu: Id| Some((gpu, nvml.of(GpuUuid(gpu)).ok()?.load().ok()?));
            NvmlAnswer::Loads(gpus.into_iter().filter_map(load).collect())
        }
        Question::Set { ticket, steps } => {
            let done = steps.iter().map(|step| set(nvml, step)).collect();
            NvmlAnswer::Set { ticket, done }
        }
        Question::Support { gpus } => {
            let one = |gpu| match supports(nvml, GpuUuid(gpu)) {
                Ok(()) => (gpu, LimitSupport::Has),
                Err(why) => (gpu, LimitSupport::Lacks(why)),
            };
            NvmlAnswer::Support(gpus.into_iter().map(one).collect())
        }
        Question::Close => NvmlAnswer::Samples(Vec::new()),
    }
}

/// The memory of a process on a GPU, if NVML tells it. A list without the process's memory is not the last word.
fn memory_of(nvml: &Nvml, gpu: Id, pid: u32, cache: &mut SampleCache) -> Option<u64> {
    for _ in 0..LISTS {
        let processes = cache.entry(gpu).or_insert_with(|| nvml.of(GpuUuid(gpu))?.processes());
        match processes.as_ref().ok()?.get(&pid)? {
            Some(used) => return Some(*used),
            None => cache.remove(&gpu),
        };
    }
    None
}

/// The first list that has the memory of all its processes, or the last of [`LISTS`].
fn complete_list(
    mut list: impl FnMut() -> Result<BTreeMap<u32, Option<u64>>, NvmlError>,
) -> Result<BTreeMap<u32, Option<u64>>, NvmlError> {
    let mut last = list()?;
    for _ in 1..LISTS {
        if last.values().all(Option::is_some) {
            break;
        }
        last = list()?;
    }
    Ok(last)
}

/// Whether a process runs, as far as can be known.
fn lives(pid: u32) -> bool {
    match pidfd_open(pid) {
        Ok(pidfd) => !has_exited(pidfd.as_fd()),
        Err(why) => why != Errno::ESRCH,
    }
}

/// The memory in use on a GPU, if NVML tells it. Processes take and free memory meanwhile, so each is asked for before
/// and after. Graphics alone counts as the driver's own.
fn usage_of(nvml: &Nvml, gpu: Id) -> Option<DeviceUsage> {
    let device = nvml.of(GpuUuid(gpu)).ok()?;
    let before = device.processes().ok();
    let used = device.used().ok()?.0;
    let processes = before.zip(device.computing().ok()).map(|(before, after)| {
        let both = |(pid, was): (u32, Option<u64>)| {
            (pid, was.zip(after.get(&pid)).map(|(was, is)| [was.min(*is), was.max(*is)]))
        };
        let new = after.iter().filter(|(pid, _)| !before.contains_key(pid));
        let new: Vec<_> = new.map(|(pid, is)| (*pid, Some([0, *is]))).collect();
        // A driver may name a process for a while after its end; its memory is not a living one's then.
        let named = before.into_iter().map(both).chain(new);
        named.filter(|(pid, _)| lives(*pid)).collect()
    });
    Some(DeviceUsage { gpu, used, processes })
}

/// The free memory of a GPU.
fn room_of(nvml: &Nvml, gpu: Id) -> GpuRoom {
    let device = nvml.of(GpuUuid(gpu));
    let free = device.as_ref().map_err(Clone::clone).and_then(Device::free);
    let free = match free {
        Ok(bytes) => Ok(Some(bytes.0)),
        Err(why) if why.answer == nvmlReturn_t::ERROR_NOT_SUPPORTED => Ok(None),
        Err(why) => Err(why.to_string()),
    };
    let processes = device.and_then(|it| it.processes()).unwrap_or_default();
    GpuRoom { gpu, free, processes }
}

/// A sample of a GPU; `asks_mode`: with its compute mode.
fn sample_gpu(nvml: &Nvml, gpu: Id, limited: &[(Id, Dir)], asks_mode: bool) -> Sample {
    // Limited cgroups first: memory allocated in between then counts for its process, not as unattributed.
    let device = nvml.of(GpuUuid(gpu));
    let counted = |dir: &Dir| {
        let limits = device.as_ref().ok()?.limits(dir).ok()?;
        Some(LimitedGroup { dir: dir.clone(), used: limits.used, hard: limits.hard })
    };
    let here = limited.iter().filter(|(whose, _)| *whose == gpu);
    let limited = here.filter_map(|(_, dir)| counted(dir)).collect();
    let mut clients = Vec::new();
    let processes = device.as_ref().map_err(Clone::clone).and_then(|it| {
        complete_list(|| {
            let (processes, those) = it.processes_and_clients()?;
            clients = those;
            Ok(processes)
        })
    });
    let mps = among(processes.iter().flat_map(BTreeMap::keys).copied(), clients);
    let exclusive = asks_mode && device.as_ref().is_ok_and(Device::is_exclusive);
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
        mps,
        exclusive,
    }
}

fn set(nvml: &Nvml, step: &Step) -> Result<u64, NvmlError> {
    let device = nvml.of(GpuUuid(step.gpu))?;
    let there = device.limits(&step.dir).ok();
    if let Some(theirs) = there.and_then(|there| kept(step, there.hard)) {
        return Ok(theirs);
    }
    let used = there.filter(|_| step.above_used).map_or(0, |there| there.used);
    let hard = step.hard.max(used);
    device.set_limits(&step.dir, step.soft, hard).map(|()| hard)
}

/// The limit that is there, if another program has set it and it stays.
fn kept(step: &Step, there: u64) -> Option<u64> {
    let ours = step.keeps_all_but?;
    (there < step.hard && there != ours).then_some(there)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for lists of which the first `gaps` lack a figure; returns the last figure and the number of lists.
    fn asked(gaps: usize) -> (Option<u64>, usize) {
        let mut lists = 0;
        let all = complete_list(|| {
            lists += 1;
            Ok(BTreeMap::from([(1, Some(7)), (2, (lists > gaps).then_some(9))]))
        });
        (all.expect("a list")[&2], lists)
    }

    #[test]
    fn a_list_without_a_figure_is_asked_for_again() {
        assert_eq!(asked(0), (Some(9), 1));
        assert_eq!(asked(2), (Some(9), 3));
        assert_eq!(asked(usize::MAX), (None, LISTS));
    }
}
