//! The controls: what each asks of the driver, through which file, and how the earlier state is restored.

use crate::row::us_since;
use crate::worker::Names;
use gpuslice_host::control_node;
use gpuslice_nvabi::control::*;
use gpuslice_shim::channels::{self, objects::ChannelGroup};
use gpuslice_sim_device::Machine;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Instant;

/// The open file that a control goes through.
pub enum Way {
    /// This process's own.
    Own(ChannelGroup),
    /// A duplicate of another process's.
    Other(OwnedFd, Option<&'static Machine>),
}

/// The status of a control, and how long the call took.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: String,
    pub us: f64,
}

impl Answer {
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

fn describe(done: &io::Result<u32>) -> String {
    match done {
        Ok(status::OK) => "ok".into(),
        Ok(status::INSUFFICIENT_PERMISSIONS) => "0x1b not permitted".into(),
        Ok(status::NOT_SUPPORTED) => "0x56 not supported".into(),
        Ok(other) => format!("{other:#x}"),
        Err(why) => format!("errno {}", why.raw_os_error().unwrap_or(0)),
    }
}

impl Way {
    /// Controls an object of the tree that `names` belong to.
    ///
    /// # Safety
    /// `T` is the structure of the command's parameters.
    pub unsafe fn control<T>(
        &self,
        names: &Names,
        object: u32,
        command: u32,
        params: &mut T,
    ) -> Answer {
        let start = Instant::now();
        let done = match self {
            // SAFETY: the caller's promise; the group is this process's.
            Way::Own(group) => unsafe { channels::control(group, object, command, params) },
            Way::Other(file, machine) => {
                let mut it = Control {
                    client: names.client,
                    object,
                    command,
                    params: std::ptr::from_mut(params) as u64,
                    params_bytes: size_of::<T>() as u32,
                    ..Control::default()
                };
                // SAFETY: `it` names `params`, which outlives the call; the caller's promise.
                let done = unsafe {
                    match machine {
                        None => control_node::control(file.as_fd(), &mut it),
                        Some(machine) => machine
                            .ioctl(file.as_fd(), CONTROL, (&raw mut it).cast())
                            .map_err(io::Error::from_raw_os_error),
                    }
                };
                done.map(|()| it.status)
            }
        };
        Answer { us: us_since(start), status: describe(&done) }
    }
}

/// A way to take work off the GPU and to resume it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMethod {
    /// The group off the run list.
    Group,
    /// The same, then off the GPU: what the daemon does.
    GroupNow,
    /// Each channel off the run list.
    Channels,
    /// All channels off the GPU in one call.
    Disable,
    /// The same, without taking off what runs.
    DisableLater,
    /// Off the GPU, until its next time slice.
    Preempt,
}

impl StopMethod {
    pub const ALL: [(StopMethod, &str); 6] = [
        (StopMethod::Group, "group off the run list"),
        (StopMethod::GroupNow, "group off the run list, preempted"),
        (StopMethod::Channels, "channels off the run list"),
        (StopMethod::Disable, "channels disabled"),
        (StopMethod::DisableLater, "channels disabled, scheduling only"),
        (StopMethod::Preempt, "preempted"),
    ];

    /// Takes the work off.
    pub fn stop(self, way: &Way, names: &Names) -> Answer {
        match self {
            StopMethod::GroupNow => {
                let off = schedule(way, names, false);
                match off.is_ok() {
                    true => {
                        let now = preempt(way, names);
                        Answer { us: off.us + now.us, ..now }
                    }
                    false => off,
                }
            }
            StopMethod::Preempt => preempt(way, names),
            other => other.switch(way, names, false),
        }
    }

    /// Resumes the work; preempted work comes back by itself.
    pub fn resume(self, way: &Way, names: &Names) -> Option<Answer> {
        (self != StopMethod::Preempt).then(|| self.switch(way, names, true))
    }

    fn switch(self, way: &Way, names: &Names, on: bool) -> Answer {
        match self {
            StopMethod::Group | StopMethod::GroupNow | StopMethod::Preempt => {
                schedule(way, names, on)
            }
            StopMethod::Channels => {
                let mut whole = Answer { status: "no channel was seen".into(), us: 0.0 };
                for channel in &names.channels {
                    let mut it = scheduled(on);
                    let command = command::SCHEDULE_CHANNEL;
                    // SAFETY: the structure of this command.
                    let one = unsafe { way.control(names, *channel, command, &mut it) };
                    whole.us += one.us;
                    whole.status = one.status;
                    if whole.status != "ok" {
                        break;
                    }
                }
                whole
            }
            StopMethod::Disable | StopMethod::DisableLater => {
                let channels = names.channels.iter().copied();
                let mut it = DisableChannels::of(names.client, channels, !on);
                it.only_scheduling = u8::from(self == StopMethod::DisableLater);
                let command = command::DISABLE_CHANNELS;
                // SAFETY: the structure of this command.
                unsafe { way.control(names, names.subdevice, command, &mut it) }
            }
        }
    }
}

fn scheduled(on: bool) -> Schedule {
    Schedule { enable: u8::from(on), ..Schedule::default() }
}

fn schedule(way: &Way, names: &Names, on: bool) -> Answer {
    // SAFETY: the structure of this command.
    unsafe { way.control(names, names.group, command::SCHEDULE, &mut scheduled(on)) }
}

/// Takes the group off the GPU and waits for that for at most 0.1 s.
pub fn preempt(way: &Way, names: &Names) -> Answer {
    let mut it = Preempt { wait: 1, manual_timeout: 1, timeout_us: 100_000, ..Preempt::default() };
    // SAFETY: the structure of this command.
    unsafe { way.control(names, names.group, command::PREEMPT, &mut it) }
}

/// Sets a group's time slice.
pub fn set_slice(way: &Way, names: &Names, us: u64) -> Answer {
    let mut it = TimeSlice { us };
    // SAFETY: the structure of this command.
    unsafe { way.control(names, names.group, command::SET_TIME_SLICE, &mut it) }
}

/// The group's time slice, µs.
pub fn slice(way: &Way, names: &Names) -> (Answer, u64) {
    let mut it = TimeSlice { us: 0 };
    // SAFETY: the structure of this command.
    let answer = unsafe { way.control(names, names.group, command::GET_TIME_SLICE, &mut it) };
    (answer, it.us)
}

/// How often a group was taken off the GPU: in all, when idle, between blocks, between instructions.
pub fn saves(way: &Way, names: &Names) -> Option<[u32; 4]> {
    let mut it = SwitchStats { channel: names.group, ..SwitchStats::default() };
    let command = command::SWITCH_STATS;
    // SAFETY: the structure of this command.
    let answer = unsafe { way.control(names, names.subdevice, command, &mut it) };
    answer.is_ok().then_some([it.saves, it.kinds[0], it.kinds[1], it.kinds[2]])
}

/// The state to restore, however this process ends.
static UNDO: Mutex<Option<(ChannelGroup, Names, Option<u64>)>> = Mutex::new(None);

/// Notes the state as it is now.
pub fn remember(group: ChannelGroup, names: &Names) {
    let (answer, us) = slice(&Way::Own(group), names);
    let us = (answer.is_ok() && us != 0).then_some(us);
    if let Ok(mut undo) = UNDO.lock() {
        *undo = Some((group, names.clone(), us));
    }
}

/// Restores that state; without effect on objects that are in it already. The objects end with this process in
/// any case.
pub fn undo() {
    let Some((group, names, us)) = UNDO.lock().ok().and_then(|mut undo| undo.take()) else {
        return;
    };
    let way = Way::Own(group);
    for method in [StopMethod::Group, StopMethod::Channels, StopMethod::Disable] {
        method.switch(&way, &names, true);
    }
    if let Some(us) = us {
        set_slice(&way, &names, us);
    }
}

/// Restores the state when a signal would end this process. To be called before any other thread exists.
pub fn undo_on_signals() {
    let mut set = nix::sys::signal::SigSet::empty();
    for signal in [nix::sys::signal::SIGINT, nix::sys::signal::SIGTERM, nix::sys::signal::SIGHUP] {
        set.add(signal);
    }
    if set.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        let signal = set.wait().map_or(0, |signal| signal as i32);
        undo();
        std::process::exit(128 + signal);
    });
}
