//! A daemon shared by commands (`gpuslice run` where no other daemon answers) ends with the last of them.
//!
//! A command keeps its connection to the admin socket as long as it runs, so the kernel reports its end in
//! every case. Slices requested over a connection end with it. The daemon ends without connections, and if
//! none arrives within [`FIRST_WITHIN`]. A command that connects at that moment gets no answer and starts
//! another daemon.

use gpuslice_wire::units::{Duration, Instant};

/// How long the first command may take to connect.
const FIRST_WITHIN: Duration = Duration(10_000_000_000);

/// When the daemon ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub enum IdleExit {
    /// Never: it runs until a signal.
    #[default]
    Never,
    /// If no command has connected by then.
    AwaitFirst(Instant),
    /// When no command is connected.
    WhenUnused,
}

impl IdleExit {
    /// Ends when no command is connected any more.
    pub fn while_used(now: Instant) -> IdleExit {
        IdleExit::AwaitFirst(now.plus(FIRST_WITHIN))
    }

    /// Whether the daemon ends with its commands.
    pub fn is_on(&self) -> bool {
        !matches!(self, IdleExit::Never)
    }

    /// A command is served.
    pub fn used(&mut self) {
        if let IdleExit::AwaitFirst(_) = self {
            *self = IdleExit::WhenUnused;
        }
    }

    /// When the first command must have come.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            IdleExit::AwaitFirst(by) => Some(*by),
            IdleExit::Never | IdleExit::WhenUnused => None,
        }
    }

    /// Whether the daemon ends, with this number of commands connected.
    pub fn is_over(&self, now: Instant, commands: usize) -> bool {
        match self {
            IdleExit::Never => false,
            IdleExit::AwaitFirst(by) => *by <= now,
            IdleExit::WhenUnused => commands == 0,
        }
    }
}
