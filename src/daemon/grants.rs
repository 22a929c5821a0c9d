//! What a container's processes were granted, on disk, for the daemon that comes after this one.
//!
//! It must know it before any process has come back: one that is stopped may never do so, and its memory
//! stays where it is. So what is granted is written down first, and only then is the process
//! told: one `pwrite` of some 50 bytes, into the memory of a tmpfs by default. What is given back or freed
//! is written down with the next heartbeat; until then the file says too much, never too little. (How
//! the file is laid out, and what is made of a damaged one: `gpuslice_engine::Grant`.)
//!
//! A file that cannot be written is removed, so that no daemon believes it, and begun anew as soon as that
//! works again. Processes go on meanwhile; only a daemon that is restarted just then waits for them, as one
//! does that finds no such file.

use crate::daemon::Daemon;
use crate::executor::NO_REPLY;
use crate::exit_watch::{own_namespace, start_time};
use crate::lingering::{ClientHolder, has_exited};
use crate::peer::process;
use gpuslice_engine::{
    Action, Event, GRANTS_BYTES_MAX, Grant, Granted, GrantsHead, Process, Record, copy_at,
    read_grants,
};
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::units::Bytes;
use nix::errno::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file's name in a container's directory.
const NAME: &str = "granted";

/// One account's entry in the file.
#[derive(Debug)]
struct Place {
    /// Whose it is; one without a client is free to be used again.
    client: Option<ClientId>,
    /// What it says, and as which of its copies.
    grant: Option<Grant>,
    number: u64,
}

/// A container's file.
#[derive(Debug)]
pub struct Grants {
    path: PathBuf,
    head: GrantsHead,
    /// None while it cannot be written.
    file: Option<File>,
    entries: Vec<Place>,
}

impl Grants {
    /// Of a slice of so many GPUs of which nothing was granted yet, and nothing is written.
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

    /// Writes all down, in a new file that takes the entry of an old one at once.
    ///
    /// # Errors
    /// What the system says.
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

    /// A process was granted this. To be written down before it is told. `is_known`: accounts that there are.
    pub fn note(
        &mut self,
        client: ClientId,
        process: Option<Process>,
        granted: Granted,
        is_known: impl Fn(ClientId) -> bool,
    ) {
        let of_it = |entry: &Place| entry.client == Some(client);
        if let Some(at) = self.entries.iter().position(of_it) {
            return self.write(at, Some(Grant { process, granted }));
        }
        if granted.iter().any(|&bytes| bytes > Bytes::ZERO) {
            // Best in the entry of an account that it took over: so that is written down once at any moment,
            // and however often a process attaches, there are no more entries than accounts.
            let is_over = |entry: &Place| entry.client.is_some_and(|it| !is_known(it));
            let is_free = |entry: &Place| entry.client.is_none();
            let at = self.entries.iter().position(is_over);
            let at = at.or_else(|| self.entries.iter().position(is_free));
            let at = at.unwrap_or(self.entries.len());
            if at == self.entries.len() {
                self.entries.push(Place {
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

    /// Frees the entries of accounts that there are no more.
    fn forget_unknown(&mut self, is_known: impl Fn(ClientId) -> bool) {
        for at in 0..self.entries.len() {
            let client = self.entries[at].client;
            if client.is_some_and(|client| !is_known(client)) {
                self.entries[at].client = None;
                self.write(at, None);
            }
        }
    }

    /// Brings down what processes have less of by now; `now` is what each was granted, if it is known.
    pub fn follow(&mut self, now: impl Fn(ClientId) -> Option<Granted>) {
        if self.file.is_none()
            && let Ok(()) = self.begin()
        {
            tracing::info!(path = %self.path.display(), "what processes were granted is written down again");
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
            // First of all it must not be believed any more.
            let removed = fs::remove_file(&self.path);
            let path = self.path.display();
            tracing::error!(%path, %why, ?removed, "what processes were granted cannot be written down; a daemon that is restarted now lets growth wait for them");
            self.file = None;
        }
    }
}

/// The pid namespace as a number; 0 where it is not known, which is no namespace's.
fn namespace() -> u64 {
    let digits = |text: &str| text.trim_matches(|it: char| !it.is_ascii_digit()).parse();
    own_namespace().map_or(0, |text| digits(text).unwrap_or(0))
}

/// What an earlier life of the daemon wrote down.
///
/// # Errors
/// Why that is not known, for the person.
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

/// A process that was written down, if it still lives.
fn living(of: Process) -> nix::Result<Option<OwnedFd>> {
    // The descriptor first: what is read then is of the process that it holds, if of any.
    let pidfd = match process(of.pid) {
        Err(Errno::ESRCH) => return Ok(None),
        pidfd => pidfd?,
    };
    let same = start_time(of.pid) == Some(of.born) && !has_exited(pidfd.as_fd());
    Ok(same.then_some(pidfd))
}

impl Daemon {
    /// Writes down what a process was granted, before it is told.
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

    /// The same of one that may not have its connection yet.
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

    /// Writes down what was given back since the last time.
    pub fn follow_grants(&mut self) {
        if !std::mem::take(&mut self.given_back) {
            return;
        }
        for slice in self.slices.iter_mut() {
            slice.grants.follow(|client| self.engine.granted_to(client));
        }
    }

    /// A new slice: nothing was granted of it yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn begin_grants(&mut self, record: &Record) -> io::Result<()> {
        let slice = self.slices.of_mut(&record.container);
        slice.map_or(Ok(()), |slice| slice.grants.begin())
    }

    /// A restored slice: what its processes were granted is charged to those that live.
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
                    tracing::warn!(%container, why, "what a process was granted is not known");
                    complete = false;
                }
            }
        }
        if complete {
            self.step_now(Event::Complete { container });
        } else {
            let why = why.as_deref().unwrap_or("a record that is not complete");
            tracing::warn!(%container, why, "not all that its processes were granted is known: growth waits until they have come back, and what they say counts");
        }
        begun.head.complete = complete;
        if let Err(why) = begun.begin() {
            let path = begun.path.display();
            tracing::error!(%path, %why, "what processes were granted cannot be written down");
            let _ = fs::remove_file(&begun.path); // it is the old one's
        }
        if let Some(slice) = self.slices.of_mut(&container) {
            slice.grants = begun;
        }
    }

    /// One account of an earlier life; none if its process is gone, and what it held with it.
    fn take_up(
        &mut self,
        container: &ContainerId,
        grant: &Grant,
    ) -> Result<Option<ClientId>, String> {
        let process = grant.process.ok_or("it has no number here")?;
        let pidfd = living(process).map_err(|why| format!("process {}: {why}", process.pid))?;
        let Some(pidfd) = pidfd else {
            return Ok(None);
        };
        let known = self.step_now(Event::Account {
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
        tracing::info!(%container, pid = process.pid, held = %Bytes(held), "a process of before holds memory");
        Ok(Some(client))
    }

    /// Tells the engine at once, and performs what follows; the account that came of it, if any.
    fn step_now(&mut self, event: Event) -> Option<ClientId> {
        let mut actions = Vec::new();
        self.engine.step(crate::poll::now(), event, &mut actions);
        let mut known = None;
        for action in actions {
            if let Action::Accounted { client, .. } = action {
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

    /// What the file says: amounts of lane 0, in order.
    fn says(dir: &Path) -> Vec<u64> {
        let (complete, grants) = read(dir, 1).expect("readable");
        assert!(complete && grants.iter().all(|it| it.process == Some(WHO)));
        grants.iter().map(|it| it.granted[0].0).collect()
    }

    #[test]
    fn what_is_granted_is_there_at_once_and_what_is_given_back_later() {
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
        // The entry of the one that is gone is used again, and the file does not grow.
        let size = || fs::metadata(dir.path().join(NAME)).expect("there").len();
        let before = size();
        for round in 3..50 {
            grants.note(client(round), Some(WHO), granted(1), |_| true);
            grants.follow(now);
        }
        assert_eq!((says(dir.path()), size()), (vec![3], before));
    }

    /// A process that attaches anew takes its accounts over: they are not written down beside the new one, and
    /// need no room, however often it does so between two heartbeats.
    #[test]
    fn what_is_taken_over_is_written_down_once() {
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
    fn a_file_that_cannot_be_written_is_not_believed_and_begun_anew() {
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
    fn a_process_that_cannot_be_named_leaves_the_file_readable_and_itself_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut grants = begun(dir.path());
        grants.note(client(1), None, granted(5), |_| true);
        let (_, found) = read(dir.path(), 1).expect("readable");
        assert_eq!(
            found.iter().map(|it| it.process).collect::<Vec<_>>(),
            [None]
        );
    }

    #[test]
    fn only_the_same_process_is_alive() {
        let own = std::process::id();
        let born = start_time(own).expect("we live");
        let lives = |pid, born| living(Process { pid, born }).expect("known").is_some();
        assert!(lives(own, born));
        assert!(!lives(own, born + 1), "another one had that number");
        assert!(!lives(i32::MAX as u32, born));
    }
}
