//! Standard error as the end of the log.
//!
//! Whatever reads the daemon's standard error can stop reading: a pager, a stopped terminal, a container engine that
//! hangs. The thread that gives turns writes the log, so a write must not wait. A line that would have to is dropped
//! and counted, and the next one that is written follows the number of those.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::borrow::Cow;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room that a pipe or socket has where it can be written to: of a longer line the beginning is written, because the
/// rest could wait.
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

    /// The line in the room that there is; a JSON object that does not fit becomes the text of a smaller one.
    fn cut(self, line: &[u8]) -> Cow<'_, [u8]> {
        if line.len() <= ROOM {
            return Cow::Borrowed(line);
        }
        let text = String::from_utf8_lossy(line);
        // Each byte of the text takes at most two in JSON, whose control characters are escaped already.
        let room = if self.json { ROOM / 2 - 50 } else { ROOM - 1 };
        let begins = &text[..text.floor_char_boundary(room)];
        let short = match self.json {
            true => serde_json::json!({ "level": "WARN", "message": format!("{begins}...") })
                .to_string(),
            false => begins.to_owned(),
        };
        Cow::Owned((short + "\n").into_bytes())
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
            let _ = end.write_all(&self.cut(line));
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

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::Seek;

    /// The lines that this work logs in its own thread.
    pub fn logged(work: impl FnOnce()) -> String {
        let mut lines = tempfile::tempfile().expect("a file");
        let to = lines.try_clone().expect("a descriptor");
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(to);
        tracing::subscriber::with_default(log.finish(), work);
        lines.rewind().expect("a file");
        io::read_to_string(lines).expect("text")
    }

    #[test]
    fn a_long_line_is_cut_and_stays_one() {
        let [text, json] = [false, true].map(|json| LogWriter { json });
        assert_eq!(text.cut(b"short\n"), &b"short\n"[..]);
        let long = format!("{{\"message\":\"{}\"}}\n", "\\\"\u{fc}".repeat(ROOM));
        let cut =
            String::from_utf8(text.cut(long.as_bytes()).into_owned()).expect("whole characters");
        assert!(cut.len() <= ROOM && long.starts_with(cut.trim_end()));
        assert_eq!(cut.matches('\n').count(), 1, "{cut}");
        assert!(cut.ends_with('\n'), "{cut}");
        let cut = json.cut(long.as_bytes());
        assert!(cut.len() <= ROOM && cut.ends_with(b"}\n"), "{}", cut.len());
        let value: serde_json::Value = serde_json::from_slice(&cut).expect("JSON");
        let begins = value["message"].as_str().expect("a text");
        assert!(
            begins.ends_with("...") && long.starts_with(begins.trim_end_matches('.')),
            "{begins}"
        );
    }
}
