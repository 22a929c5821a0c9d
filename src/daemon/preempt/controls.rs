//! The controls of channel groups that preemption uses, and their errors.
//!
//! They go to the machine's kernel or, with the simulated driver, to its simulated kernel side. No other part of the
//! daemon knows the difference.

use crate::clients::ChannelGroup;
use crate::simulated;
use gpuslice_host::{control_node, process};
use gpuslice_nvabi::control::simulated::ControlFn;
use gpuslice_nvabi::control::{
    CONTROL, Control, DisableChannels, SwitchStats, TimeSlice, command, status,
};
use gpuslice_wire::tenant::ObjectName;
use nix::errno::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The receiver of controls.
#[derive(Clone, Copy)]
pub enum Controls {
    /// The machine's kernel.
    Kernel,
    /// The simulated driver's library.
    Simulated(ControlFn),
}

/// Why a control failed.
#[derive(Debug)]
pub enum ControlError {
    /// The kernel's error.
    System(io::Error),
    /// The driver's status.
    Driver(u32),
    /// The descriptor is not of the driver's node.
    Stranger,
    /// Too many groups are stopped already.
    TooMany,
    /// The driver reports success, but no work was taken off the GPU.
    NoEffect,
    /// The driver reports success, but reads back another value.
    NotKept,
}

impl ControlError {
    /// Whether it says only that the process has ended.
    pub fn is_of_an_ended_process(&self) -> bool {
        matches!(self, ControlError::System(why) if why.raw_os_error() == Some(Errno::ESRCH as i32))
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::System(why) => write!(out, "the kernel reports: {why}"),
            ControlError::Driver(status::INSUFFICIENT_PERMISSIONS) => {
                out.write_str("the driver does not permit it")
            }
            ControlError::Driver(status::NOT_SUPPORTED) => out.write_str("the driver cannot do it"),
            ControlError::Driver(status::INVALID_CLIENT) => {
                out.write_str("the process named an object of another process")
            }
            ControlError::Driver(status::OBJECT_NOT_FOUND | status::INVALID_CHANNEL) => {
                out.write_str("the process named an object that does not exist")
            }
            ControlError::Driver(code) => write!(out, "the driver reports status {code:#x}"),
            ControlError::Stranger => {
                out.write_str("the process named a file that is not the driver's")
            }
            ControlError::TooMany => out.write_str("too many groups are stopped already"),
            ControlError::NoEffect => {
                out.write_str("the driver reports success, but no work left the GPU")
            }
            ControlError::NotKept => {
                out.write_str("the driver reports success, but reads back another value")
            }
        }
    }
}

impl ControlError {
    /// Whether the group no longer exists.
    pub fn is_gone(&self) -> bool {
        let gone = [status::INVALID_CHANNEL, status::INVALID_CLIENT, status::OBJECT_NOT_FOUND];
        matches!(self, ControlError::Driver(code) if gone.contains(code))
    }
}

impl Controls {
    /// The controls of the simulated driver with this library.
    ///
    /// # Errors
    /// Why the library cannot be used.
    pub fn of_simulated(library: &Path) -> Result<Controls, String> {
        simulated::control_function(library).map(Controls::Simulated)
    }

    /// Duplicates a process's descriptor, if it is of the driver's node.
    ///
    /// # Errors
    /// The process has no such descriptor, access is denied, or the file is another.
    pub fn open(&self, pidfd: impl AsFd, number: u32) -> Result<OwnedFd, ControlError> {
        let file = process::duplicate(pidfd.as_fd(), number).map_err(ControlError::System)?;
        let its = match self {
            Controls::Kernel => {
                control_node::is_control_node(&file).map_err(ControlError::System)?
            }
            // The simulated kernel checks the file with each control.
            Controls::Simulated(_) => true,
        };
        its.then_some(file).ok_or(ControlError::Stranger)
    }

    #[allow(unsafe_code)]
    fn control<T>(
        &self,
        file: &OwnedFd,
        (client, object): (u32, u32),
        command: u32,
        params: &mut T,
    ) -> Result<(), ControlError> {
        let mut it = Control {
            client,
            object,
            command,
            params: std::ptr::from_mut(params) as u64,
            params_bytes: size_of::<T>() as u32,
            ..Control::default()
        };
        // SAFETY: `it` names `params`, which outlives the call, and its size.
        let done = unsafe {
            match self {
                Controls::Kernel => control_node::control(file.as_fd(), &mut it),
                Controls::Simulated(control) => {
                    match control(file.as_raw_fd(), CONTROL, (&raw mut it).cast()) {
                        0 => Ok(()),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    }
                }
            }
        };
        match done {
            Err(why) if why.raw_os_error() == Some(libc::ENOTTY) => Err(ControlError::Stranger),
            Err(why) => Err(ControlError::System(why)),
            Ok(()) if it.status == status::OK => Ok(()),
            Ok(()) => Err(ControlError::Driver(it.status)),
        }
    }

    /// Disables channels of a group's client, or enables them again. All are names in this client, which the driver
    /// finds only by its own file: so a process can name no channel of another one.
    fn switch(
        &self,
        file: &OwnedFd,
        of: &ChannelGroup,
        channels: impl Iterator<Item = ObjectName>,
        disable: bool,
    ) -> Result<(), ControlError> {
        let mut it = DisableChannels::of(of.client.0, channels.map(|it| it.0), disable);
        self.control(file, (of.client.0, of.subdevice.0), command::DISABLE_CHANNELS, &mut it)
    }

    /// Takes a group's work off the GPU and keeps it off: disables the group's channels. The driver preempts what runs
    /// and saves its state before it answers.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn stop(&self, file: &OwnedFd, of: &ChannelGroup) -> Result<(), ControlError> {
        self.switch(file, of, of.channels(), true)
    }

    /// Enables a group's channels. If that fails, as where a channel has ended, each is enabled by itself: one that the
    /// driver refuses keeps no other one stopped.
    ///
    /// # Errors
    /// [`ControlError`]; of single channels, the first one of a channel that exists.
    pub fn resume(&self, file: &OwnedFd, of: &ChannelGroup) -> Result<(), ControlError> {
        let Err(together) = self.switch(file, of, of.channels(), false) else {
            return Ok(());
        };
        let single = |channel| self.switch(file, of, core::iter::once(channel), false);
        let (mut gone, mut refused) = (true, None);
        for done in of.channels().map(single) {
            match done {
                Err(why) if why.is_gone() => {}
                Err(why) => refused = refused.or(Some(why)),
                Ok(()) => gone = false,
            }
        }
        match refused {
            Some(why) => Err(why),
            None if gone => Err(together),
            None => Ok(()),
        }
    }

    /// A group's time slice, µs.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn time_slice(&self, file: &OwnedFd, of: &ChannelGroup) -> Result<u64, ControlError> {
        let mut slice = TimeSlice::default();
        let names = (of.client.0, of.group.0);
        self.control(file, names, command::GET_TIME_SLICE, &mut slice)?;
        Ok(slice.us)
    }

    /// Sets a group's time slice and reads it back.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn set_time_slice(
        &self,
        file: &OwnedFd,
        of: &ChannelGroup,
        us: u64,
    ) -> Result<(), ControlError> {
        let names = (of.client.0, of.group.0);
        let mut slice = TimeSlice { us };
        self.control(file, names, command::SET_TIME_SLICE, &mut slice)?;
        match self.time_slice(file, of)? == us {
            true => Ok(()),
            false => Err(ControlError::NotKept),
        }
    }

    /// How often a group was taken off the GPU with unfinished work.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn saves(&self, file: &OwnedFd, of: &ChannelGroup) -> Result<u32, ControlError> {
        let mut stats = SwitchStats { channel: of.group.0, ..SwitchStats::default() };
        let names = (of.client.0, of.subdevice.0);
        self.control(file, names, command::SWITCH_STATS, &mut stats)?;
        Ok(stats.saves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::{c_int, c_void};
    use gpuslice_wire::ids::Lane;
    use std::cell::RefCell;

    thread_local! {
        /// Channels that were enabled.
        static ENABLED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    }

    /// A driver without channel 1, which cannot enable channel 2.
    #[allow(unsafe_code)]
    extern "C" fn driver(_: c_int, _: u64, control: *mut c_void) -> c_int {
        // SAFETY: the caller's, which lives until the answer.
        let it = unsafe { &mut *control.cast::<Control>() };
        // SAFETY: the parameters of the one command that is sent here.
        let params = unsafe { &*(it.params as *const DisableChannels) };
        assert_eq!((it.command, params.disable), (command::DISABLE_CHANNELS, 0));
        let channels = &params.channels[..params.count as usize];
        it.status = match channels {
            [1] => status::INVALID_CHANNEL,
            [2] => status::NOT_SUPPORTED,
            [other] => {
                ENABLED.with_borrow_mut(|all| all.push(*other));
                status::OK
            }
            _ => status::INVALID_CHANNEL,
        };
        0
    }

    fn resume(channels: Vec<u32>) -> (Result<(), String>, Vec<u32>) {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("there"));
        let group = ChannelGroup {
            lane: Lane(0),
            fd: 0,
            client: ObjectName(10),
            group: ObjectName(11),
            subdevice: ObjectName(12),
            channels: crate::clients::channels_of(channels),
        };
        let done = Controls::Simulated(driver).resume(&file, &group);
        (done.map_err(|why| why.to_string()), ENABLED.take())
    }

    #[test]
    fn a_channel_that_cannot_be_enabled_keeps_no_other_one_stopped() {
        let cannot = || Err("the driver cannot do it".to_owned());
        assert_eq!(resume(vec![3, 4]), (Ok(()), vec![3, 4]));
        assert_eq!(resume(vec![1, 3, 4]), (Ok(()), vec![3, 4]));
        assert_eq!(resume(vec![2, 3, 1, 4]), (cannot(), vec![3, 4]));
        assert_eq!(resume(vec![2]), (cannot(), vec![]));
        let (gone, enabled) = resume(vec![1, 1]);
        assert!(gone.is_err_and(|why| why.contains("does not exist")) && enabled.is_empty());
    }
}
