//! The thread that writes to control groups. The kernel makes such a write wait for other changes of groups, and the
//! thread that gives turns must not wait with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

/// The file that stops and continues a group's processes.
const FREEZE: &str = "cgroup.freeze";

/// What happens to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Freeze,
    Thaw,
    Kill,
}

impl Operation {
    /// The file and what is written to it.
    const fn write(self) -> (&'static str, &'static str) {
        match self {
            Operation::Freeze => (FREEZE, "1"),
            Operation::Thaw => (FREEZE, "0"),
            Operation::Kill => ("cgroup.kill", "1"),
        }
    }
}

/// The event loop's side.
#[derive(Debug, Default)]
pub struct Groups(Option<Sender<(PathBuf, Operation)>>);

impl Groups {
    /// Has a group changed, after all that was asked for before.
    pub fn change(&mut self, dir: &Path, operation: Operation) {
        let asked = (dir.to_owned(), operation);
        let sent = match &self.0 {
            Some(thread) => thread.send(asked).map_err(io::Error::other),
            None => start().and_then(|thread| {
                let sent = thread.send(asked).map_err(io::Error::other);
                self.0 = Some(thread);
                sent
            }),
        };
        if let Err(why) = sent {
            tracing::error!(dir = %dir.display(), ?operation, %why, "a control group was not changed");
        }
    }
}

fn start() -> io::Result<Sender<(PathBuf, Operation)>> {
    let (thread, asked) = channel::<(PathBuf, Operation)>();
    std::thread::Builder::new().name("over-cap".to_owned()).spawn(move || {
        while let Ok((dir, operation)) = asked.recv() {
            let (file, value) = operation.write();
            match fs::write(dir.join(file), value) {
                // A container that has ended has no group to thaw.
                Err(why) if operation == Operation::Thaw && why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => {
                    tracing::error!(dir = %dir.display(), ?operation, %why, "a control group cannot be changed");
                }
                Ok(()) => {}
            }
        }
    })?;
    Ok(thread)
}

/// Whether a group is frozen already, as by `docker pause`.
pub fn is_frozen(dir: &Path) -> bool {
    fs::read(dir.join(FREEZE)).is_ok_and(|text| text.starts_with(b"1"))
}
