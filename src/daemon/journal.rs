//! journald as the end of the log, with the fields of each line.
//!
//! # Problem
//! journald takes entries as datagrams. When it does not read them, because it hangs or waits for a disk, its queue
//! fills, and a socket that blocks waits for room in it. The thread that gives turns writes the log, so it would wait
//! too: no turns, no heartbeat, no grants on the whole node.
//!
//! # Idea
//! The socket does not block. An entry for which there is no room is dropped and counted, and the next one that is
//! sent follows the number of those. An entry is of journald's native protocol: of each field its name, the length of
//! its value and the value, so that a value can have line ends and cannot pass for another field.

use std::fmt::{Debug, Write};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// journald's socket.
const SOCKET: &str = "/run/systemd/journal/socket";
/// What is put before the name of a field of ours.
const PREFIX: &str = "GPUSLICE_";
/// Where this daemon's entries are found: `journalctl -t gpusliced`.
const IDENTIFIER: &str = "gpusliced";

/// See the file's head.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    at: PathBuf,
    /// Entries dropped since the last one that was sent.
    dropped: AtomicU64,
}

impl Journal {
    /// Of the journald of this machine.
    ///
    /// # Errors
    /// It does not listen.
    pub fn open() -> io::Result<Journal> {
        Journal::at(PathBuf::from(SOCKET))
    }

    fn at(at: PathBuf) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let journal = Journal { socket, at, dropped: AtomicU64::new(0) };
        match journal.socket.send_to(&[], &journal.at) {
            // It listens, and does not read at the moment.
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => Ok(journal),
            sent => sent.map(|_| journal),
        }
    }

    /// Sends an entry, after the number of those that were dropped.
    fn send(&self, entry: &Entry) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            let mut about = Entry::new(Level::WARN);
            let text =
                format!("{dropped} log lines were dropped, because journald did not read them");
            about.put("MESSAGE", &text);
            if self.sends(&about) {
                self.dropped.fetch_sub(dropped, Ordering::Relaxed);
            }
        }
        if !self.sends(entry) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sends(&self, entry: &Entry) -> bool {
        self.socket.send_to(&entry.0, &self.at).is_ok()
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::of(event.metadata());
        event.record(&mut entry);
        self.send(&entry);
    }
}

/// An entry of journald's native protocol.
struct Entry(Vec<u8>);

impl Entry {
    fn new(level: Level) -> Entry {
        let mut entry = Entry(Vec::with_capacity(512));
        entry.put("PRIORITY", priority(level));
        entry.put("SYSLOG_IDENTIFIER", IDENTIFIER);
        entry
    }

    fn of(about: &Metadata<'_>) -> Entry {
        let mut entry = Entry::new(*about.level());
        entry.put("TARGET", about.target());
        if let (Some(file), Some(line)) = (about.file(), about.line()) {
            entry.put("CODE_FILE", file);
            entry.put("CODE_LINE", &line.to_string());
        }
        entry
    }

    fn put(&mut self, name: &str, value: &str) {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'\n');
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.put("MESSAGE", value),
            name => self.put(&name_of(name), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // A string takes all that is written to it.
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

/// A field's name as journald permits it: capital letters, digits, underscores.
fn name_of(field: &str) -> String {
    let seen = field.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
        _ => '_',
    });
    PREFIX.chars().chain(seen).collect()
}

/// A priority of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// With a socket that blocks, the second line of a full queue would never return.
    #[test]
    fn a_journal_that_is_not_read_stops_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let at = place.path().join("socket");
        let journald = UnixDatagram::bind(&at).expect("a socket");
        let journal = Journal::at(at).expect("it listens");
        let log = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(log, || {
            (0..20_000).for_each(|n| tracing::warn!(n, "a line"));
            journald.set_nonblocking(true).expect("a mode");
            let mut buffer = [0; 4096];
            let mut read = 0;
            while journald.recv(&mut buffer).is_ok() {
                read += 1;
            }
            tracing::info!(gpu = %"0\nPRIORITY=0", "the next line");
            let mut next = || {
                let length = journald.recv(&mut buffer).expect("an entry");
                String::from_utf8_lossy(&buffer[..length]).into_owned()
            };
            // the first one only asked whether journald is there
            let dropped = format!("{} log lines were dropped", 20_000 - (read - 1));
            let about = next();
            assert!(about.contains(&dropped), "{dropped}: {about}");
            let line = next();
            assert!(line.starts_with("PRIORITY\n\u{1}\0\0\0\0\0\0\u{0}5\n"), "{line:?}");
            assert!(
                line.contains("GPUSLICE_GPU\n\u{c}\0\0\0\0\0\0\u{0}0\nPRIORITY=0\n"),
                "{line:?}"
            );
        });
    }
}
