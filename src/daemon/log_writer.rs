//! Standard error as the end of the log.
//!
//! Whatever reads the daemon's standard error can stop reading: a pager, a stopped terminal, a container engine that
//! hangs. The thread that gives turns writes the log, so a write must not wait. A line that would have to is dropped
//! and counted, and the next one that is written follows the number of those.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room that a pipe or socket has where it can be written to: a longer line is cut, because the rest could wait.
const ROOM: usize = 4096;

/// Lines dropped since the last one that was written.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// See the file's head.
#[derive(Clone, Copy, Debug)]
pub struct LogWriter {
    /// Each line is a JSON object.
    pub json: bool,
}

impl LogWriter {
    /// The line about `count` dropped ones.
    fn about_dropped(self, count: u64) -> String {
        let text = format!("{count} log lines were dropped, because standard error was not read");
        match self.json {
            true => format!("{{\"level\":\"WARN\",\"message\":\"{text}\"}}\n"),
            false => format!(" WARN {text}\n"),
        }
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut end = io::stderr();
        let dropped = DROPPED.load(Ordering::Relaxed);
        if dropped > 0 && is_ready() {
            DROPPED.fetch_sub(dropped, Ordering::Relaxed);
            let _ = end.write_all(self.about_dropped(dropped).as_bytes());
        }
        if is_ready() {
            // Nothing reads a closed one, and the subscriber would tell of the error there.
            let _ = end.write_all(cut(line));
        } else {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether standard error takes [`ROOM`] bytes at once. A closed one does, with an error that is dropped.
fn is_ready() -> bool {
    let end = io::stderr();
    let mut ends = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
    poll(&mut ends, PollTimeout::ZERO) != Ok(0)
}

/// The line, with its end, in the room that there is.
fn cut(line: &[u8]) -> &[u8] {
    &line[..line.len().min(ROOM)]
}
