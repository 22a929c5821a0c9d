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

use super::Containers;
use gpuslice_engine::{
    Engine, GRANTS_BYTES_MAX, Grant, Granted, GrantsHead, Process, Record, copy_at, read_grants,
};
use gpuslice_host::process::own_pid_namespace;
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
            head: GrantsHead { gpus, complete: true, namespace: namespace() },
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
            // Prefer the entry of a client that it took over, which is of the same process: then each grant is on disk
            // once at any moment, and however often a process attaches, there are no more entries than clients.
            let is_over = |entry: &Entry| entry.client.is_some_and(|it| !is_known(it));
            let is_of_it = |entry: &Entry| {
                is_over(entry) && entry.grant.is_some_and(|it| it.process == process)
            };
            let is_free = |entry: &Entry| entry.client.is_none();
            let at = self.entries.iter().position(is_of_it);
            let at = at.or_else(|| self.entries.iter().position(is_over));
            let at = at.or_else(|| self.entries.iter().position(is_free));
            let at = at.unwrap_or(self.entries.len());
            if at == self.entries.len() {
                self.entries.push(Entry { client: None, grant: None, number: 0 });
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
        self.write_if_lost();
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

    /// Writes all grants if they could not be written before, and that works again.
    pub fn write_if_lost(&mut self) {
        if self.file.is_none()
            && let Ok(()) = self.begin()
        {
            tracing::info!(path = %self.path.display(), "grants of processes are written to disk again");
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
        .and_then(|file| file.take(GRANTS_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|why| format!("{}: {why}", path.display()))?;
    let (head, grants) =
        read_grants(&bytes, gpus).map_err(|why| format!("{}: {why}", path.display()))?;
    if head.namespace == 0 || head.namespace != namespace() {
        return Err(format!("{}: written in another pid namespace", path.display()));
    }
    Ok((head.complete, grants))
}

impl Containers {
    /// Writes a process's grants before it is answered.
    pub fn note_granted(
        &mut self,
        engine: &Engine,
        container: &ContainerId,
        client: ClientId,
        process: Option<Process>,
    ) {
        let granted = engine.granted_to(client);
        if let Some((slice, granted)) = self.of_mut(container).zip(granted) {
            let is_known = |client| engine.granted_to(client).is_some();
            slice.grants.note(client, process, granted, is_known);
        }
    }

    /// Reads the grants of a restored slice: whether they are all, and the grants.
    ///
    /// # Errors
    /// Why they are unknown.
    pub fn recorded_grants(&self, record: &Record) -> Result<(bool, Vec<Grant>), String> {
        let dir = self.state.container_dir(&record.container);
        read(&dir, record.lanes.len())
    }

    /// Continues a restored slice's file with the grants of the processes that still run.
    pub fn continue_grants(
        &mut self,
        container: &ContainerId,
        complete: bool,
        taken: Vec<(ClientId, Grant)>,
    ) {
        let Some(slice) = self.of_mut(container) else {
            return self.keep_grants(container, (complete, taken));
        };
        for (client, grant) in taken {
            let grants = &mut slice.grants;
            grants.note(client, grant.process, grant.granted, |_| true);
        }
        slice.grants.head.complete = complete;
        if let Err(why) = slice.grants.begin() {
            let path = slice.grants.path.display();
            tracing::error!(%path, %why, "cannot write the grants of processes");
            let _ = fs::remove_file(&slice.grants.path); // it is the old file
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::limits::ACCOUNTS_MAX;

    fn client(slot: u16) -> ClientId {
        ClientId { slot, generation: 1 }
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
    fn grants_that_could_not_be_written_are_written_when_that_works_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        grants.file = None; // as after a write that failed
        fs::remove_file(&grants.path).expect("it was there");
        grants.note(client(1), Some(WHO), granted(5), |_| true);
        grants.path = dir.path().join("none").join(NAME);
        grants.write_if_lost();
        assert!(grants.file.is_none(), "it cannot be written");
        grants.path = dir.path().join(NAME);
        grants.write_if_lost();
        assert_eq!(says(dir.path()), [5]);
    }

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

    /// Another process has just ended, too. Its entry is not the one that is written first: a daemon killed before the
    /// next write would find the grant of the process that attached twice.
    #[test]
    fn a_grant_that_is_taken_over_replaces_that_of_the_same_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        let other = Process { pid: 8, born: 9 };
        grants.note(client(1), Some(other), granted(1), |_| true);
        grants.note(client(2), Some(WHO), granted(2), |_| true);
        grants.note(client(3), Some(WHO), granted(2), |it| it == client(3));
        let free = grants.entries.iter().map(|it| it.client).collect::<Vec<_>>();
        assert_eq!((free, says(dir.path())), (vec![None, Some(client(3))], vec![2]));
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
        assert_eq!(found.iter().map(|it| it.process).collect::<Vec<_>>(), [None]);
    }
}
