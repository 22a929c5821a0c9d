//! Records on disk what a container's processes were granted, for a restarted daemon.
//!
//! A restarted daemon must know all grants before processes reconnect: a stopped process may never reconnect,
//! and keeps its memory. So a grant is written before its process is answered: one `pwrite` of some 50 bytes,
//! to a tmpfs by default. Released memory is written with the next heartbeat; until then the file shows too
//! much, never too little. (`gpuslice_engine::Grant` has the file's layout and the treatment of a damaged one.)
//!
//! A file that cannot be written is removed, so that no daemon uses it, and is written again as soon as that
//! works. Processes continue meanwhile; only a daemon restarted in that time lets growth wait until they have
//! reconnected, as it does without such a file.

use crate::daemon::Daemon;
use crate::executor::NO_REPLY;
use crate::lingering::ClientHolder;
use gpuslice_engine::{
    Action, Event, GRANTS_BYTES_MAX, Grant, Granted, GrantsHead, Process, Record, copy_at,
    read_grants,
};
use gpuslice_host::clock::now;
use gpuslice_host::process::{own_pid_namespace, pidfd_of};
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::units::Bytes;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file's name in a container's directory.
const NAME: &str = "granted";

/// A client's entry in the file.
#[derive(Debug)]
struct Entry {
    /// The client; without one the entry is free.
    client: Option<ClientId>,
    /// Its content, and the number of the copy that holds it.
    grant: Option<Grant>,
    number: u64,
}

/// A container's file.
#[derive(Debug)]
pub struct Grants {
    path: PathBuf,
    head: GrantsHead,
    /// `None` while it cannot be written.
    file: Option<File>,
    entries: Vec<Entry>,
}

impl Grants {
    /// The grants of a new slice of `gpus` GPUs; writes nothing.
    pub fn of(dir: &Path, gpus: usize) -> Grants {
        Grants {
            path: dir.join(NAME),
            head: GrantsHead {
                gpus,
                complete: true,
                namespace: namespace(),
            },
            file: None,
            entries: Vec::new(),
        }
    }

    /// Writes all entries to a new file, which replaces an old one atomically.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn begin(&mut self) -> io::Result<()> {
        let mut bytes = self.head.encode();
        self.entries.retain(|entry| entry.client.is_some());
        for (at, entry) in self.entries.iter().enumerate() {
            let start = copy_at(self.head.gpus, at, entry.number);
            let copy = Grant::encode(entry.grant.as_ref(), self.head.gpus, entry.number);
            bytes.resize(bytes.len().max(start + copy.len()), 0);
            bytes[start..start + copy.len()].copy_from_slice(&copy);
        }
        let beside = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&beside).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            fs::rename(&beside, &self.path)?;
            Ok(file)
        });
        if written.is_err() {
            let _ = fs::remove_file(&beside); // the first error is the one to tell
        }
        self.file = Some(written?);
        Ok(())
    }

    /// Writes a client's grants; call it before the process is answered. `is_known`: whether the engine has a client.
    pub fn note(
        &mut self,
        client: ClientId,
        process: Option<Process>,
        granted: Granted,
        is_known: impl Fn(ClientId) -> bool,
    ) {
        let of_it = |entry: &Entry| entry.client == Some(client);
        if let Some(at) = self.entries.iter().position(of_it) {
            return self.write(at, Some(Grant { process, granted }));
        }
        if granted.iter().any(|&bytes| bytes > Bytes::ZERO) {
            // Prefer the entry of a client that it took over: then each grant is on disk once at any moment, and
            // however often a process attaches, there are no more entries than clients.
            let is_over = |entry: &Entry| entry.client.is_some_and(|it| !is_known(it));
            let is_free = |entry: &Entry| entry.client.is_none();
            let at = self.entries.iter().position(is_over);
            let at = at.or_else(|| self.entries.iter().position(is_free));
            let at = at.unwrap_or(self.entries.len());
            if at == self.entries.len() {
                self.entries.push(Entry {
                    client: None,
                    grant: None,
                    number: 0,
                });
            }
            self.entries[at].client = Some(client);
            self.write(at, Some(Grant { process, granted }));
        }
        self.forget_unknown(is_known);
    }

    /// Frees the entries of clients that no longer exist.
    fn forget_unknown(&mut self, is_known: impl Fn(ClientId) -> bool) {
        for at in 0..self.entries.len() {
            let client = self.entries[at].client;
            if client.is_some_and(|client| !is_known(client)) {
                self.entries[at].client = None;
                self.write(at, None);
            }
        }
    }

    /// Writes reduced grants; `now` returns a client's present grants, if it exists.
    pub fn follow(&mut self, now: impl Fn(ClientId) -> Option<Granted>) {
        if self.file.is_none()
            && let Ok(()) = self.begin()
        {
            tracing::info!(path = %self.path.display(), "grants of processes are written to disk again");
        }
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            let Some(client) = entry.client else { continue };
            let process = entry.grant.and_then(|grant| grant.process);
            let granted = now(client);
            if granted.is_none() {
                self.entries[at].client = None;
            }
            self.write(at, granted.map(|granted| Grant { process, granted }));
        }
    }

    fn write(&mut self, at: usize, grant: Option<Grant>) {
        let entry = &mut self.entries[at];
        if entry.grant == grant && entry.number > 0 {
            return;
        }
        entry.grant = grant;
        entry.number += 1;
        let copy = Grant::encode(grant.as_ref(), self.head.gpus, entry.number);
        let start = copy_at(self.head.gpus, at, entry.number);
        let Some(file) = &self.file else { return };
        if let Err(why) = file.write_all_at(&copy, start as u64) {
            // Remove it first, so that it is not used any more.
            let removed = fs::remove_file(&self.path);
            let path = self.path.display();
            tracing::error!(%path, %why, ?removed, "cannot write the grants of processes; a daemon restarted now lets growth wait until they have reconnected");
            self.file = None;
        }
    }
}

/// The pid namespace as a number; 0, which no namespace has, if unknown.
fn namespace() -> u64 {
    let digits = |text: &str| text.trim_matches(|it: char| !it.is_ascii_digit()).parse();
    own_pid_namespace().map_or(0, |text| digits(text).unwrap_or(0))
}

/// Reads the grants that an earlier daemon wrote.
///
/// # Errors
/// Why they are unknown, as a sentence for the log.
fn read(dir: &Path, gpus: usize) -> Result<(bool, Vec<Grant>), String> {
    let path = dir.join(NAME);
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| {
            file.take(GRANTS_BYTES_MAX as u64 + 1)
                .read_to_end(&mut bytes)
        })
        .map_err(|why| format!("{}: {why}", path.display()))?;
    let (head, grants) =
        read_grants(&bytes, gpus).map_err(|why| format!("{}: {why}", path.display()))?;
    if head.namespace == 0 || head.namespace != namespace() {
        return Err(format!(
            "{}: written in another pid namespace",
            path.display()
        ));
    }
    Ok((head.complete, grants))
}

impl Daemon {
    /// Writes a process's grants before it is answered.
    pub fn note_grant(&mut self, client: ClientId) {
        let Some(ClientHolder::Connected(key)) = self.holder_of(client) else {
            return;
        };
        let Some(tenant) = self.tenants.get(key) else {
            return;
        };
        let (container, process) = (tenant.container(), tenant.process());
        self.note_granted(&container, client, process);
    }

    /// The same for a process that may not be connected yet.
    pub fn note_granted(
        &mut self,
        container: &ContainerId,
        client: ClientId,
        process: Option<Process>,
    ) {
        let granted = self.engine.granted_to(client);
        let engine = &self.engine;
        if let Some((slice, granted)) = self.slices.of_mut(container).zip(granted) {
            let is_known = |client| engine.granted_to(client).is_some();
            slice.grants.note(client, process, granted, is_known);
        }
    }

    /// Writes what was released since the last call.
    pub fn follow_grants(&mut self) {
        if !std::mem::take(&mut self.given_back) {
            return;
        }
        for slice in self.slices.iter_mut() {
            slice.grants.follow(|client| self.engine.granted_to(client));
        }
    }

    /// Creates the file of a new slice without grants.
    ///
    /// # Errors
    /// A file operation failed.
    pub fn begin_grants(&mut self, record: &Record) -> io::Result<()> {
        let slice = self.slices.of_mut(&record.container);
        slice.map_or(Ok(()), |slice| slice.grants.begin())
    }

    /// Charges the recorded grants of a restored slice to the processes that still run.
    pub fn take_up_grants(&mut self, record: &Record) {
        let (container, gpus) = (record.container, record.lanes.len());
        let dir = self.state.container_dir(&container);
        let found = read(&dir, gpus);
        let why = found.as_ref().err().cloned();
        let (whole, grants) = found.unwrap_or_default();
        let mut complete = whole;
        let mut begun = Grants::of(&dir, gpus);
        for grant in grants {
            match self.take_up(&container, &grant) {
                Ok(Some(client)) => begun.note(client, grant.process, grant.granted, |_| true),
                Ok(None) => {}
                Err(why) => {
                    tracing::warn!(%container, why, "the grants of a process are unknown");
                    complete = false;
                }
            }
        }
        if complete {
            self.step_now(Event::Complete { container });
        } else {
            let why = why.as_deref().unwrap_or("the record is incomplete");
            tracing::warn!(%container, why, "the grants of its processes are not all known: growth waits until they have reconnected and reported their memory");
        }
        begun.head.complete = complete;
        if let Err(why) = begun.begin() {
            let path = begun.path.display();
            tracing::error!(%path, %why, "cannot write the grants of processes");
            let _ = fs::remove_file(&begun.path); // it is the old file
        }
        if let Some(slice) = self.slices.of_mut(&container) {
            slice.grants = begun;
        }
    }

    /// Restores one client; `None` if its process has exited, which freed its memory.
    fn take_up(
        &mut self,
        container: &ContainerId,
        grant: &Grant,
    ) -> Result<Option<ClientId>, String> {
        let process = grant
            .process
            .ok_or("its pid in this namespace is unknown")?;
        let pidfd = pidfd_of(process.pid, process.born)
            .map_err(|why| format!("process {}: {why}", process.pid))?;
        let Some(pidfd) = pidfd else {
            return Ok(None);
        };
        let known = self.step_now(Event::RestoreProcess {
            token: NO_REPLY,
            container: *container,
            process,
            granted: grant.granted,
        });
        let client = known.ok_or("there are too many processes")?;
        if let Err(why) = self.wait_for(*container, client, process, pidfd) {
            self.step_now(Event::Gone { client });
            return Err(why.to_owned());
        }
        let held = grant
            .granted
            .iter()
            .fold(0, |sum: u64, it: &Bytes| sum.saturating_add(it.0));
        tracing::info!(%container, pid = process.pid, held = %Bytes(held), "a process from before the restart holds memory");
        Ok(Some(client))
    }

    /// Passes an event to the engine and executes the actions; returns the client created, if any.
    fn step_now(&mut self, event: Event) -> Option<ClientId> {
        let mut actions = Vec::new();
        self.engine.step(now(), event, &mut actions);
        let mut known = None;
        for action in actions {
            if let Action::ProcessRestored { client, .. } = action {
                known = Some(client);
            }
            self.perform(action);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::limits::ACCOUNTS_MAX;

    fn client(slot: u16) -> ClientId {
        ClientId {
            slot,
            generation: 1,
        }
    }

    fn granted(bytes: u64) -> Granted {
        let mut granted = [Bytes::ZERO; ACCOUNTS_MAX];
        granted[0] = Bytes(bytes);
        granted
    }

    fn begun(dir: &Path) -> Grants {
        let mut grants = Grants::of(dir, 1);
        grants.begin().expect("begun");
        grants
    }

    const WHO: Process = Process { pid: 7, born: 9 };

    /// The amounts of lane 0 in the file, in order.
    fn says(dir: &Path) -> Vec<u64> {
        let (complete, grants) = read(dir, 1).expect("readable");
        assert!(complete && grants.iter().all(|it| it.process == Some(WHO)));
        grants.iter().map(|it| it.granted[0].0).collect()
    }

    #[test]
    fn grants_are_written_at_once_and_releases_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        assert!(says(dir.path()).is_empty());
        for bytes in [5, 9, 4] {
            grants.note(client(1), Some(WHO), granted(bytes), |_| true);
            assert_eq!(says(dir.path()), [bytes]);
        }
        grants.note(client(2), Some(WHO), granted(8), |_| true);
        let now = |id: ClientId| (id == client(2)).then(|| granted(3));
        assert_eq!(says(dir.path()), [4, 8]);
        grants.follow(now);
        assert_eq!(says(dir.path()), [3]);
        // The entry of the client that ended is used again, and the file does not grow.
        let size = || fs::metadata(dir.path().join(NAME)).expect("there").len();
        let before = size();
        for round in 3..50 {
            grants.note(client(round), Some(WHO), granted(1), |_| true);
            grants.follow(now);
        }
        assert_eq!((says(dir.path()), size()), (vec![3], before));
    }

    /// A process that attaches again takes over its clients: their entries are reused, so that the file does not grow
    /// however often it attaches between two heartbeats.
    #[test]
    fn a_grant_that_is_taken_over_is_written_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        for id in [1, 2, 3] {
            grants.note(client(id), Some(WHO), granted(u64::from(id)), |_| true);
        }
        let size = || fs::metadata(dir.path().join(NAME)).expect("there").len();
        let before = size();
        for id in 4..1_000 {
            let known = |it| it == client(id) || it == client(3);
            grants.note(client(id), Some(WHO), granted(3), known);
            assert_eq!((says(dir.path()), size()), (vec![3, 3], before));
        }
        grants.note(client(1_000), Some(WHO), granted(0), |it| it == client(3));
        assert_eq!((says(dir.path()), size()), (vec![3], before));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_removed_and_written_again_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        grants.note(client(1), Some(WHO), granted(5), |_| true);
        grants.file = Some(File::open(dir.path().join(NAME)).expect("for reading alone"));
        grants.note(client(1), Some(WHO), granted(6), |_| true);
        assert!(read(dir.path(), 1).is_err(), "it would be believed");
        grants.note(client(2), Some(WHO), granted(7), |_| true);
        grants.follow(|id| Some(granted(u64::from(id.slot))));
        assert_eq!(says(dir.path()), [1, 2]);
    }

    #[test]
    fn a_process_without_a_known_pid_leaves_the_file_readable_and_incomplete() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        grants.note(client(1), None, granted(5), |_| true);
        let (_, found) = read(dir.path(), 1).expect("readable");
        assert_eq!(
            found.iter().map(|it| it.process).collect::<Vec<_>>(),
            [None]
        );
    }
}
