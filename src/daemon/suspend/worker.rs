//! The worker: a process that loads the driver and moves the memory of a container's processes.
//!
//! A driver maps hundreds of megabytes and starts threads, and any of its calls may hang, so none is made in the
//! daemon. A move is all or nothing: all processes are locked before the first one's memory is moved, and what has
//! been done is undone if one of them refuses. The state that the driver reports of each process decides what there
//! is to do, not what an earlier worker has done; so a job may be repeated after any failure. What would end a process
//! or hang the driver is looked for before ([`obstacles`]).

// For calls into the driver.
#![allow(unsafe_code)]

use super::jobs::{Job, LOCK_MS, PACKET_BYTES_MAX, Report};
use crate::privileges::ALL_CALLS;
use gpuslice_host::process::start_time;
use gpuslice_host::{layout, seqpacket};
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{
    CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_FAILED, CU_PROCESS_STATE_LOCKED,
    CU_PROCESS_STATE_RUNNING, CUcheckpointLockArgs, CUprocessState, CUresult,
};
use libloading::Library;
use nix::sys::socket::{MsgFlags, recv};
use obstacles::Kernel;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::null_mut;

mod obstacles;

/// The worker's program: reads a job from standard input and answers, until the daemon closes it.
///
/// # Errors
/// The channel fails.
pub fn serve_child(library: &Path) -> Result<(), String> {
    let channel = io::stdin();
    let mut packet = vec![0; PACKET_BYTES_MAX];
    let (mut loaded, simulated) = (None, layout::is_simulated(library));
    loop {
        let len = recv(channel.as_raw_fd(), &mut packet, MsgFlags::empty());
        let len = len.map_err(|why| why.to_string())?;
        if len == 0 {
            return Ok(());
        }
        let job: Job = serde_json::from_slice(&packet[..len]).map_err(|why| why.to_string())?;
        let report = report_of(&job, &Kernel::new(), simulated, || {
            let driver = loaded.get_or_insert_with(|| Driver::load(library)).as_ref();
            driver.map_err(Clone::clone)
        });
        let answer = serde_json::to_vec(&report).map_err(|why| why.to_string())?;
        seqpacket::send(&channel, &answer, &[]).map_err(|why| why.to_string())?;
    }
}

/// Does a job, if nothing is known against it. A simulated driver needs no memory of this machine for it.
fn report_of<'a, D: Checkpoints + 'a>(
    job: &Job,
    kernel: &Kernel,
    simulated: bool,
    driver: impl FnOnce() -> Result<&'a D, String>,
) -> Report {
    let of = &job.processes;
    let found = match kernel.silent(of).filter(|_| !job.undoes) {
        Some(why) => Err(why),
        None => driver(),
    };
    let driver = match found {
        Ok(driver) => driver,
        Err(why) => return Report { why: Some(why), ..job.stays() },
    };
    if job.undoes {
        // Calls for one that does not answer hang: the others are free before.
        let (answer, last): (Vec<_>, Vec<_>) =
            of.iter().copied().partition(|it| kernel.silent(&[*it]).is_none());
        return undo(driver, &[answer, last].concat());
    }
    if !job.away {
        return move_back(driver, of);
    }
    move_away(driver, of, |here| {
        // What was moved before is on the host already.
        let memory = if here.len() == of.len() { job.memory } else { 0 };
        match simulated || kernel.has_room(memory) {
            true => kernel.refusal(here, memory),
            false => Some("this machine has too little free memory; see MemAvailable".to_owned()),
        }
    })
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Lock,
    Checkpoint,
    Restore,
    Unlock,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Call::Lock => "cuCheckpointProcessLock",
            Call::Checkpoint => "cuCheckpointProcessCheckpoint",
            Call::Restore => "cuCheckpointProcessRestore",
            Call::Unlock => "cuCheckpointProcessUnlock",
        }
    }
}

/// The driver's calls, for a real driver and for tests.
trait Checkpoints {
    /// The state of a process; `None` if it does not use the driver, or has ended.
    ///
    /// # Errors
    /// The driver does not tell.
    fn state(&self, process: (u32, u64)) -> Result<Option<CUprocessState>, CUresult>;
    /// Makes a call.
    fn call(&self, pid: u32, call: Call) -> CUresult;
}

/// The driver.
struct Driver(Library);

impl Driver {
    fn load(library: &Path) -> Result<Driver, String> {
        // SAFETY: loading the driver runs its constructors, as intended.
        let driver = unsafe { Library::new(library) }.map_err(|why| why.to_string())?;
        // SAFETY: the driver's function of this name has the table's signature.
        let init = unsafe { driver.get::<sig::cuInit>(b"cuInit\0") };
        let init = init.map_err(|why| why.to_string())?;
        // SAFETY: it takes a number.
        let CUresult(code) = unsafe { init(0) };
        // SAFETY: as above; it is not called here.
        let known = unsafe { driver.get::<sig::cuCheckpointProcessGetState>(STATE) }.is_ok();
        match (code, known) {
            (0, true) => Ok(Driver(driver)),
            (0, false) => {
                Err("this driver has no checkpoints; install release 570 or later".to_owned())
            }
            (code, _) if CUresult(code) == CUresult::ERROR_OPERATING_SYSTEM => {
                let hint = no_call();
                Err(format!("cuInit answered {code}{hint}, and check that /dev/nvidia-uvm exists"))
            }
            (code, _) => {
                Err(format!("cuInit answered {code}; check that nvidia-smi works on this node"))
            }
        }
    }
}

const STATE: &[u8] = b"cuCheckpointProcessGetState\0";

impl Checkpoints for Driver {
    fn state(&self, (pid, born): (u32, u64)) -> Result<Option<CUprocessState>, CUresult> {
        let lives = || start_time(pid) == Some(born);
        if !lives() {
            return Ok(None);
        }
        let mut state = CUprocessState::MAX;
        // SAFETY: the table's signature, and a live local.
        let code = unsafe {
            let call = self.0.get::<sig::cuCheckpointProcessGetState>(STATE);
            call.map_or(CUresult::ERROR_NOT_SUPPORTED, |call| call(pid as i32, &mut state))
        };
        match code {
            CUresult::SUCCESS => Ok(Some(state)),
            // The header's words for a process that is none, or has not initialised CUDA.
            CUresult::ERROR_INVALID_VALUE | CUresult::ERROR_NOT_INITIALIZED => Ok(None),
            // It ended meanwhile.
            _ if !lives() => Ok(None),
            code => Err(code),
        }
    }

    fn call(&self, pid: u32, call: Call) -> CUresult {
        let (driver, pid) = (&self.0, pid as i32);
        let mut lock = CUcheckpointLockArgs { timeout_ms: LOCK_MS, ..Default::default() };
        // SAFETY: the driver's functions have the table's signatures; arguments are absent or live locals.
        let code = unsafe {
            match call {
                Call::Lock => driver
                    .get::<sig::cuCheckpointProcessLock>(b"cuCheckpointProcessLock\0")
                    .map(|it| it(pid, &mut lock)),
                Call::Checkpoint => driver
                    .get::<sig::cuCheckpointProcessCheckpoint>(b"cuCheckpointProcessCheckpoint\0")
                    .map(|it| it(pid, null_mut())),
                Call::Restore => driver
                    .get::<sig::cuCheckpointProcessRestore>(b"cuCheckpointProcessRestore\0")
                    .map(|it| it(pid, null_mut())),
                Call::Unlock => driver
                    .get::<sig::cuCheckpointProcessUnlock>(b"cuCheckpointProcessUnlock\0")
                    .map(|it| it(pid, null_mut())),
            }
        };
        code.unwrap_or(CUresult::ERROR_NOT_SUPPORTED)
    }
}

/// Makes a call for each process that is in the state `from`; stops at the first refusal. A process that ends
/// meanwhile has no memory, and refuses nothing.
fn each(
    driver: &impl Checkpoints,
    processes: &[(u32, u64)],
    from: CUprocessState,
    call: Call,
) -> Result<(), String> {
    for &process in processes {
        let state = driver.state(process).map_err(|code| untold(process.0, code))?;
        if state != Some(from) {
            continue;
        }
        let code = driver.call(process.0, call);
        if code != CUresult::SUCCESS && driver.state(process) != Ok(None) {
            return Err(refusal(process.0, call, code));
        }
    }
    Ok(())
}

/// Says that the driver does not tell what state a process is in.
fn untold(pid: u32, code: CUresult) -> String {
    let hint = match code {
        CUresult::ERROR_NOT_SUPPORTED => {
            ": it has no checkpoints; install release 570 or later".into()
        }
        CUresult::ERROR_OPERATING_SYSTEM => no_call(),
        _ => String::new(),
    };
    format!("the driver refused cuCheckpointProcessGetState of process {pid} ({}){hint}", code.0)
}

/// What may help where the system refuses the driver something.
fn no_call() -> String {
    format!(": it was refused a file or a system call; start gpusliced with {ALL_CALLS}=1")
}

/// Says which call the driver refused, and what may help.
fn refusal(pid: u32, call: Call, CUresult(code): CUresult) -> String {
    let hint = match (CUresult(code), call) {
        (CUresult::ERROR_NOT_READY, _) => {
            format!(": its work did not end within {} s; try again when it has", LOCK_MS / 1000)
        }
        (CUresult::ERROR_NOT_SUPPORTED, Call::Lock | Call::Checkpoint) => {
            ": the driver moves no managed memory and none shared between processes".to_owned()
        }
        // Drivers 580 and 595 answer the first to a restore that finds too little memory, and the second to all that
        // follow.
        (CUresult::ERROR_OUT_OF_MEMORY | CUresult::ERROR_OPERATING_SYSTEM, Call::Restore) => {
            ": a restore that once found too little memory cannot be repeated; end the process"
                .to_owned()
        }
        (CUresult::ERROR_OPERATING_SYSTEM, _) => no_call(),
        _ => String::new(),
    };
    format!("the driver refused {} of process {pid} ({code}){hint}", call.name())
}

/// Moves all memory to the host, or leaves all on the GPU. A worker that was killed may have left a lock before the
/// process's work had ended, so each lock is taken anew. What an earlier daemon's move has brought to the host stays
/// there also if the driver refuses the rest: another container may have its room by now.
fn move_away(
    driver: &impl Checkpoints,
    processes: &[(u32, u64)],
    refused: impl FnOnce(&[(u32, u64)]) -> Option<String>,
) -> Report {
    let here = processes.iter().copied().filter(|it| !is_moved(driver, *it));
    let here: Vec<(u32, u64)> = here.collect();
    // A process that the driver has lost can only be ended.
    let moved = lost(driver, processes)
        .or_else(|| refused(&here))
        .map_or(Ok(()), Err)
        .and_then(|()| each(driver, processes, CU_PROCESS_STATE_LOCKED, Call::Unlock))
        .and_then(|()| each(driver, processes, CU_PROCESS_STATE_RUNNING, Call::Lock))
        .and_then(|()| each(driver, processes, CU_PROCESS_STATE_LOCKED, Call::Checkpoint));
    match moved {
        Ok(()) => Report { away: true, moved: moved_of(driver, processes), why: None },
        Err(why) => {
            let undone = put_back(driver, &here);
            let rest = undone.err().map(|why| format!("and back: {why}"));
            let lost = lost(driver, processes).filter(|lost| *lost != why);
            let all: Vec<String> = [Some(why), rest, lost].into_iter().flatten().collect();
            shown(driver, processes, all.join("; "))
        }
    }
}

/// The report of a move that failed.
fn shown(driver: &impl Checkpoints, processes: &[(u32, u64)], why: String) -> Report {
    let moved = moved_of(driver, processes);
    Report { away: is_away(driver, processes), moved, why: Some(why) }
}

/// The processes that the driver reports as moved.
fn moved_of(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> Option<Vec<(u32, u64)>> {
    Some(processes.iter().copied().filter(|it| is_moved(driver, *it)).collect())
}

/// Whether the driver reports that a process's memory is on the host.
fn is_moved(driver: &impl Checkpoints, process: (u32, u64)) -> bool {
    driver.state(process) == Ok(Some(CU_PROCESS_STATE_CHECKPOINTED))
}

/// Moves all memory back to the GPU, or leaves all on the host.
fn move_back(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> Report {
    let Err(why) = put_back(driver, processes) else {
        let why = lost(driver, processes);
        return Report { away: false, moved: moved_of(driver, processes), why };
    };
    // Those that are back wait for the others on the host. Their errors say nothing more than the first.
    let _ = each(driver, processes, CU_PROCESS_STATE_LOCKED, Call::Checkpoint);
    shown(driver, processes, why)
}

/// Undoes a move to the host of which it is not known how far it came. One that is locked alone is free at once: it
/// may be what keeps another one from answering.
fn undo(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> Report {
    let freed = each(driver, processes, CU_PROCESS_STATE_LOCKED, Call::Unlock);
    let report = move_back(driver, processes);
    let why = report.why.clone().or(freed.err());
    Report { why, ..report }
}

/// Restores all before the first one is unlocked.
fn put_back(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> Result<(), String> {
    each(driver, processes, CU_PROCESS_STATE_CHECKPOINTED, Call::Restore)?;
    each(driver, processes, CU_PROCESS_STATE_LOCKED, Call::Unlock)
}

/// Whether a process still waits for its memory, or for its unlock.
fn is_away(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> bool {
    let waits = [CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED];
    let state = |process| driver.state(process).ok().flatten();
    processes.iter().any(|&it| state(it).is_some_and(|state| waits.contains(&state)))
}

/// Names the processes that the driver has lost.
fn lost(driver: &impl Checkpoints, processes: &[(u32, u64)]) -> Option<String> {
    let is_failed = |it: &&_| driver.state(**it) == Ok(Some(CU_PROCESS_STATE_FAILED));
    let failed = processes.iter().filter(is_failed);
    let pids: Vec<String> = failed.map(|(pid, _)| pid.to_string()).collect();
    (!pids.is_empty())
        .then(|| format!("the driver has lost the memory of process {}; end it", pids.join(", ")))
}

#[cfg(test)]
mod tests;
