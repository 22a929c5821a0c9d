//! Errors of configurations, of the directory and of operations.

use std::fmt;
use std::path::PathBuf;

/// An invalid configuration text; names the key and its valid values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub key: String,
    pub value: String,
    pub expected: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, expected } = self;
        write!(out, "simulated GPU configuration: `{key}={value}`: expected {expected}")
    }
}

impl std::error::Error for ConfigError {}

/// Why the device directory cannot be used.
#[derive(Debug)]
pub enum Error {
    Config(ConfigError),
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The directory was made by another version, or is not one of ours at all.
    Layout {
        path: PathBuf,
        reason: String,
    },
    /// As many processes as the device has places for are attached.
    TooManyProcesses {
        path: PathBuf,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(out),
            Self::Io { doing, path, source } => {
                write!(out, "simulated GPU: {doing} {}: {source}", path.display())
            }
            Self::Layout { path, reason } => write!(
                out,
                "simulated GPU: {} {reason}; remove it or name another directory with \
                 GPUSLICE_SIM_DEVICE",
                path.display()
            ),
            Self::TooManyProcesses { path } => write!(
                out,
                "simulated GPU: {} has {} processes attached already, end some of them",
                path.display(),
                crate::limits::MAX_PROCESSES
            ),
        }
    }
}

impl std::error::Error for Error {}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// Why the driver's memory limits could not be set or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The driver has no such limits.
    NotSupported,
    /// Only root may set them.
    NotPermitted,
    /// The soft limit is above the hard one, one is above the GPU's memory, or more would be
    /// guaranteed than a group above may have.
    Invalid,
    /// The path is not that of a control group of the unified hierarchy.
    NoGroup,
    /// The group has no limit, or, being the root, can have none.
    NotFound,
    NoSuchGpu,
    /// As many groups have limits as can have.
    TooMany,
}

/// Why a call of checkpoints was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointError {
    /// No living process of that pid has the driver.
    NoProcess,
    /// The process is not in the state that the call requires.
    WrongState,
    /// Its work did not end in time.
    TimedOut,
    /// It holds memory that no checkpoint can move, or the driver has no checkpoints.
    NotSupported,
    /// The GPU lacks room for its memory, or the host does.
    OutOfMemory,
    /// The call moved a part of the memory only: the process is of no more use.
    Failed,
    /// A restore has found too little memory before, and there is no other one.
    Spent,
    /// The process shared memory with another one when it was moved, and cannot be moved back.
    Shared,
}

/// Why an operation on the device was refused; small, because it is on hot paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// No GPU of that index.
    NoSuchGpu,
    /// Zero bytes, or more than any GPU has.
    BadSize,
    OutOfMemory,
    /// The context was destroyed, or never existed.
    StaleContext,
    /// The allocation was freed, or never existed.
    StaleMemory,
    /// The context has as much work queued as it may; wait for some to complete.
    QueueFull,
    /// The context was killed by this Xid.
    Faulted {
        xid: u32,
    },
    TooManyContexts,
    /// The process cannot open another file.
    NoDescriptor,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoSuchGpu => "the simulated machine has no such GPU",
            Self::BadSize => "this is no size of an allocation",
            Self::OutOfMemory => "the GPU has not that much free memory",
            Self::StaleContext => "the context no longer exists",
            Self::StaleMemory => "the allocation no longer exists",
            Self::QueueFull => "the context's queue is full, wait for work to complete",
            Self::Faulted { xid } => return write!(out, "the context was killed by xid {xid}"),
            Self::NoDescriptor => "the process has as many open files as it may have",
            Self::TooManyContexts => "the simulated machine has as many contexts as it can have",
        };
        out.write_str(text)
    }
}

impl std::error::Error for DeviceError {}
