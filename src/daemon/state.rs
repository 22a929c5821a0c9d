//! The runtime directory on disk, with a directory and a record for each container.
//!
//! ```text
//! <runtime_dir>/            0711, the daemon's own
//!   lock                    held by the one daemon that serves this directory
//!   boot                    id of the boot in which the records were written: a reboot ends all slices
//!   admin.sock              0600; the service manager's where it made it
//!   observe.sock            0660, only where the service manager makes it
//!   gpus                    0644, the driver whose GPUs the node's daemon serves (`driver_lock.rs`)
//!   policies                0600, policies of GPUs that were changed at run time
//!   gpu_errors              0600, errors from which GPUs have not recovered (`health/record.rs`)
//!   c/                      0700
//!   c/<container>/          0711
//!     record                0600, the slice (written beside, synced, renamed); a claim's slice is `claim.<id>`
//!     claim                 0600, instead of a record: the claim in whose slice the container lives
//!     owner                 0600, the container as Kubernetes names it (`containers/owner.rs`)
//!     granted               0600, grants of its processes (`containers/grants.rs`)
//!     untracked             0600, what it is charged beyond them (`containers/untracked.rs`)
//!     container             the hook's note of the container (`hook/claim.rs`)
//!     first                 its first process, with which it ends (`containers/first_process.rs`)
//!     members               which processes may connect (`containers/members.rs`)
//!     inside/               0711, mounted read-only into that container alone
//!       tenant.sock         0666
//!       memory              0644, what it may have of each GPU (`containers/memory_file.rs`)
//!       ld.so.preload       the hook's, to be mounted at that place of `/etc`
//!       claim               the claim in whose slice the container lives; nothing of the node reads it
//!       driver/             empty files for the real driver to be mounted on
//! ```
//! A container whose root is the host's owns what it sees, and can take a lease on it (`F_SETLEASE`): a process that
//! opens that file then waits for 45 s. So what the daemon reads and writes by name is out of its sight, and it opens
//! nothing in `inside` without `O_NONBLOCK`.
//!
//! A directory without a record is left from an unfinished admission and is removed at the start. A record that
//! cannot be read is logged and kept, and its container is refused.

mod files;

use crate::sockets::listen_at;
use files::{make_dir, replace_file};
pub use files::{remove_tree, replace_file_through, replace_passing_file};
use gpuslice_engine::{RECORD_BYTES, Record};
use gpuslice_host::layout::{ADMIN_SOCKET, NODE_SOCKET, TAKEN};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CLAIM_ID_BYTES_MAX;
use gpuslice_wire::owner::ClaimId;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, chown, geteuid};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The kernel's id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Longest policies file, bytes; more than a node's GPUs need.
const POLICIES_BYTES_MAX: u64 = 64 * 1024;

/// Mount points for the real driver in a container's directory.
const MOUNT_POINTS: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// The directory that a container sees, in its directory.
const INSIDE: &str = "inside";

/// The name of a container's socket, in that.
const TENANT_SOCKET: &str = "tenant.sock";

/// The note of a container's members, in its directory.
pub const MEMBERS: &str = "members";
/// A slice's record, in its container's directory.
pub const RECORD: &str = "record";
/// Names and contents of small files in a container's directory.
pub type Notes = [(&'static str, Vec<u8>)];

/// The runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("{}: {why}; give a directory that this user can write with --runtime-dir", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// A system call failed.
        why: io::Error,
    },
    /// Another user could put files there.
    #[error(
        "{}: not a directory that only this user can write; remove it or give another with \
         --runtime-dir", .0.display()
    )]
    NotOurs(PathBuf),
    /// Another daemon serves it.
    #[error("{}: {TAKEN}; stop that one or give another --runtime-dir", .0.display())]
    Taken(PathBuf),
    /// Whether the machine was booted since the records were written is unknown.
    #[error(
        "{}: {why}; the daemon reads there whether the machine was booted since its records were written", .path.display()
    )]
    Boot {
        /// The file.
        path: PathBuf,
        /// A system call failed.
        why: io::Error,
    },
}

/// The runtime directory, locked.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    /// The daemon created the admin socket's file and removes it at the end.
    admin_is_ours: bool,
    /// Where the node's socket is.
    agents_dir: PathBuf,
    _lock: Flock<File>,
}

/// The note's name of the claim in whose slice a container lives.
const CLAIM: &str = "claim";

/// A container's directory found at the start.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time, at the start
pub enum Found {
    /// A slice to restore.
    Record(Record),
    /// A record that cannot be read, and why.
    Unreadable(PathBuf, String),
    /// A container that lives in the slice of a claim.
    Joined(ContainerId, ClaimId),
}

impl State {
    /// Makes and locks the runtime directory.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(dir: &Path) -> Result<State, StateError> {
        State::open_in(dir, Path::new(BOOT_ID))
    }

    /// As [`State::open`]; the file `boot_id` has the id of this boot.
    fn open_in(dir: &Path, boot_id: &Path) -> Result<State, StateError> {
        // Without it, the slices of running containers would be taken for those of another boot.
        let boot = fs::read_to_string(boot_id);
        let boot = boot.map_err(|why| StateError::Boot { path: boot_id.to_owned(), why })?;
        let io = |path: &Path| {
            let path = path.to_owned();
            move |why| StateError::Io { path, why }
        };
        make_dir(dir).map_err(io(dir))?;
        let meta = fs::symlink_metadata(dir).map_err(io(dir))?;
        if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(StateError::NotOurs(dir.to_owned()));
        }
        let path = dir.join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(io(&path))?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, why)| match why {
                Errno::EWOULDBLOCK => StateError::Taken(dir.to_owned()),
                why => StateError::Io { path: path.clone(), why: why.into() },
            })?;
        let agents_dir = dir.to_owned();
        let state = State { dir: dir.to_owned(), admin_is_ours: false, agents_dir, _lock: lock };
        state.forget_other_boots(&boot).map_err(io(dir))?;
        let containers = dir.join("c");
        make_dir(&containers)
            .and_then(|()| fs::set_permissions(&containers, Permissions::from_mode(0o700)))
            .map_err(io(dir))?;
        Ok(state)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A container's directory, whether it exists or not.
    pub fn container_dir(&self, container: &ContainerId) -> PathBuf {
        self.dir.join("c").join(container.as_str())
    }

    /// The directory that a container sees at `/run/gpuslice`.
    pub fn inside(&self, container: &ContainerId) -> PathBuf {
        self.container_dir(container).join(INSIDE)
    }

    fn forget_other_boots(&self, now: &str) -> io::Result<()> {
        let path = self.dir.join("boot");
        if fs::read_to_string(&path).is_ok_and(|then| then == now) {
            return Ok(());
        }
        remove_tree(&self.dir.join("c"))?;
        remove_tree(&self.gpu_errors_path())?;
        replace_file(&path, now.as_bytes())
    }

    /// The file of recorded policies.
    pub fn policies_path(&self) -> PathBuf {
        self.dir.join("policies")
    }

    /// The file of recorded errors of GPUs.
    pub fn gpu_errors_path(&self) -> PathBuf {
        self.dir.join("gpu_errors")
    }

    /// The text of the recorded policies; empty without a file.
    ///
    /// # Errors
    /// The file and the error.
    pub fn policies(&self) -> Result<String, String> {
        let path = self.policies_path();
        let mut text = String::new();
        let read = File::open(&path)
            .and_then(|file| file.take(POLICIES_BYTES_MAX).read_to_string(&mut text));
        match read {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {why}", path.display()))
            }
            _ => Ok(text),
        }
    }

    /// Writes the policies. If that fails, the old ones are still there.
    ///
    /// # Errors
    /// The file and the error.
    pub fn keep_policies(&self, policies: &str) -> Result<(), String> {
        let path = self.policies_path();
        let done = replace_file(&path, policies.as_bytes());
        done.map_err(|why| format!("{}: {why}", path.display()))
    }

    /// All records of earlier daemons.
    ///
    /// # Errors
    /// The directory itself cannot be read.
    pub fn records(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.dir.join("c"))? {
            let path = entry?.path();
            let record = path.join(RECORD);
            if !record.exists() {
                match joined(&path) {
                    Some((container, claim)) => found.push(Found::Joined(container, claim)),
                    None => remove_tree(&path)?,
                }
                continue;
            }
            found.push(match read_record(&record) {
                Ok(record) if path.ends_with(record.container.as_str()) => Found::Record(record),
                Ok(_) => Found::Unreadable(record, "of another container".to_owned()),
                Err(why) => Found::Unreadable(record, why),
            });
        }
        Ok(found)
    }

    /// A container's record, if there is one that can be read.
    pub fn record(&self, container: &ContainerId) -> Option<Record> {
        read_record(&self.container_dir(container).join(RECORD)).ok()
    }

    /// Whether a container has a record, be it one that cannot be read.
    pub fn has_record(&self, container: &ContainerId) -> bool {
        self.container_dir(container).join(RECORD).exists()
    }

    /// Writes what is noted of a container and then its slice's record, and creates the mount points that its container
    /// needs. So a record that is there has all of its notes, whenever a daemon is killed.
    ///
    /// # Errors
    /// A file operation failed, such as on a full disk; created files are removed.
    pub fn keep(&self, record: &Record, notes: &Notes) -> io::Result<()> {
        let dir = self.container_dir(&record.container);
        let kept = make_container_dir(&dir)
            .and_then(|()| write_notes(&dir, notes))
            .and_then(|()| replace_file(&dir.join(RECORD), &record.encode()));
        if kept.is_err() {
            let _ = remove_tree(&dir); // the first error is the one to report
        }
        kept
    }

    /// Notes that a container lives in the slice of a claim: its directory has the claim's socket.
    ///
    /// # Errors
    /// A file operation failed; created files are removed.
    pub fn keep_joined(
        &self,
        container: &ContainerId,
        claim: &ClaimId,
        notes: &Notes,
    ) -> io::Result<()> {
        let dir = self.container_dir(container);
        let kept = make_container_dir(&dir)
            .and_then(|()| write_notes(&dir, notes))
            .and_then(|()| self.link_socket(container, claim))
            .and_then(|()| fs::write(self.inside(container).join(CLAIM), claim.as_str()))
            .and_then(|()| replace_file(&dir.join(CLAIM), claim.as_str().as_bytes()));
        if kept.is_err() {
            let _ = remove_tree(&dir); // the first error is the one to report
        }
        kept
    }

    /// Puts the socket of a claim's slice into the directory of a container that lives in it.
    ///
    /// # Errors
    /// A system call failed.
    pub fn link_socket(&self, container: &ContainerId, claim: &ClaimId) -> io::Result<()> {
        let socket = self.inside(container).join(TENANT_SOCKET);
        remove_tree(&socket)?;
        fs::hard_link(self.inside(&claim.slice()).join(TENANT_SOCKET), socket)
    }

    /// Replaces the record of a slice. If that fails, the old one is still there.
    ///
    /// # Errors
    /// A system call failed.
    pub fn rewrite(&self, record: &Record) -> io::Result<()> {
        let dir = self.container_dir(&record.container);
        replace_file(&dir.join(RECORD), &record.encode())
    }

    /// Deletes a container's directory, if it exists.
    ///
    /// # Errors
    /// A system call failed.
    pub fn forget(&self, container: &ContainerId) -> io::Result<()> {
        let dir = self.container_dir(container);
        unlist(&dir)?;
        remove_tree(&dir)
    }

    /// The container's socket, listening.
    ///
    /// # Errors
    /// A system call failed.
    pub fn listen_tenants(&self, container: &ContainerId) -> io::Result<OwnedFd> {
        listen_at(&self.inside(container), TENANT_SOCKET, 0o666)
    }

    /// The admin socket, listening.
    ///
    /// # Errors
    /// A system call failed.
    pub fn listen_admin(&mut self) -> io::Result<OwnedFd> {
        let listener = listen_at(&self.dir, ADMIN_SOCKET, 0o600)?;
        self.admin_is_ours = true;
        Ok(listener)
    }

    /// The node's socket, listening, for members of `group`; in `dir` if it has one of its own. An agent in a
    /// container sees that directory, and not the admin socket. Programs of the node find it by a link.
    ///
    /// # Errors
    /// A system call failed.
    pub fn listen_agents(&mut self, group: Option<Gid>, dir: Option<&Path>) -> io::Result<OwnedFd> {
        if let Some(dir) = dir {
            DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            self.agents_dir = dir.to_owned();
        }
        let listener = listen_at(&self.agents_dir, NODE_SOCKET, 0o600)?;
        if self.agents_dir != self.dir {
            let link = self.dir.join(NODE_SOCKET);
            let _ = fs::remove_file(&link); // there may be none
            symlink(self.agents_dir.join(NODE_SOCKET), link)?;
        }
        if let Some(group) = group {
            let path = self.agents_dir.join(NODE_SOCKET);
            chown(&path, None, Some(group))?;
            fs::set_permissions(&path, Permissions::from_mode(0o660))?;
        }
        Ok(listener)
    }

    /// Whether the admin socket ends with this daemon.
    pub fn admin_is_ours(&self) -> bool {
        self.admin_is_ours
    }

    /// Removes the sockets; if `ephemeral`, removes all files.
    pub fn close(self, containers: impl Iterator<Item = ContainerId>, ephemeral: bool) {
        let removed = match self.admin_is_ours {
            true => fs::remove_file(self.dir.join(ADMIN_SOCKET)),
            false => Ok(()),
        };
        // There may be none, and in the runtime directory it may be a link.
        let _ = fs::remove_file(self.agents_dir.join(NODE_SOCKET));
        let _ = fs::remove_file(self.dir.join(NODE_SOCKET));
        for container in containers {
            let _ = fs::remove_file(self.inside(&container).join(TENANT_SOCKET));
        }
        if !ephemeral {
            return;
        }
        let whole = removed
            .and_then(|()| remove_tree(&self.dir.join("c")))
            .and_then(|()| remove_tree(&self.policies_path()))
            .and_then(|()| remove_tree(&self.gpu_errors_path()))
            .and_then(|()| fs::remove_file(self.dir.join("boot")))
            .and_then(|()| fs::remove_file(self.dir.join("lock")));
        match whole {
            // The directory stays if it holds files of other programs.
            Ok(()) => drop(fs::remove_dir(&self.dir)),
            Err(why) => {
                tracing::warn!(dir = %self.dir.display(), %why, "not all files were removed")
            }
        }
    }
}

/// Reads a record file.
///
/// # Errors
/// Why it is not a valid record.
pub fn read_record(path: &Path) -> Result<Record, String> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES + 1);
    File::open(path)
        .and_then(|file| file.take(RECORD_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|why| why.to_string())?;
    Record::decode(&bytes).map_err(|why| why.to_string())
}

/// The container of a directory with the note of a claim, and that claim.
fn joined(dir: &Path) -> Option<(ContainerId, ClaimId)> {
    let mut note = String::new();
    let file = File::open(dir.join(CLAIM)).ok()?;
    file.take(CLAIM_ID_BYTES_MAX as u64 + 1).read_to_string(&mut note).ok()?;
    let container = ContainerId::new(dir.file_name()?.to_str()?).ok()?;
    Some((container, ClaimId::new(&note).ok()?))
}

/// Deletes a container's record and its claim: a partial directory without them is removed at the next start.
fn unlist(dir: &Path) -> io::Result<()> {
    remove_tree(&dir.join(RECORD))?;
    remove_tree(&dir.join(CLAIM))
}

fn write_notes(dir: &Path, notes: &Notes) -> io::Result<()> {
    notes.iter().try_for_each(|(name, bytes)| fs::write(dir.join(name), bytes))
}

fn make_container_dir(dir: &Path) -> io::Result<()> {
    make_dir(dir)?;
    let driver = dir.join(INSIDE).join("driver");
    make_dir(&driver)?;
    for name in MOUNT_POINTS {
        let path = driver.join(name);
        File::create(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o444))?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use gpuslice_engine::LaneRecord;
    use gpuslice_wire::ids::GpuUuid;
    use gpuslice_wire::policy::{Class, Gangs};
    use gpuslice_wire::text::{CgroupPath, Name};
    use gpuslice_wire::units::Bytes;

    pub fn record(id: &str) -> Record {
        Record {
            container: ContainerId::new(id).expect("an id"),
            name: Name::new("web").expect("a name"),
            weight: None,
            share: None,
            share_limit: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            lanes: vec![LaneRecord {
                gpu: GpuUuid([7; 16]),
                cap: Bytes(1 << 30),
                limit: Bytes(1 << 30),
                elastic: false,
                whole: false,
            }],
            pinned: None,
            cgroup: CgroupPath::EMPTY,
        }
    }

    #[test]
    fn records_survive_and_damaged_ones_are_kept_but_not_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = State::open(&dir.path().join("run")).expect("ours");
        for id in ["good", "torn", "moved"] {
            state.keep(&record(id), &[]).expect("kept");
        }
        let c = dir.path().join("run/c");
        let bytes = fs::read(c.join("torn/record")).expect("a record");
        fs::write(c.join("torn/record"), &bytes[..bytes.len() / 2]).expect("torn");
        fs::rename(c.join("moved"), c.join("elsewhere")).expect("moved");
        fs::create_dir(c.join("unfinished")).expect("made");
        drop(state);

        let state = State::open(&dir.path().join("run")).expect("ours again");
        let found = state.records().expect("readable");
        let good: Vec<_> = found.iter().filter(|f| matches!(f, Found::Record(_))).collect();
        assert_eq!((found.len(), good.len()), (3, 1), "{found:?}");
        assert!(c.join("torn/record").exists() && !c.join("unfinished").exists());
        state.forget(&record("torn").container).expect("gone");
        assert!(!c.join("torn").exists());
    }

    #[test]
    fn a_second_daemon_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let _first = State::open(dir.path().join("run").as_path()).expect("ours");
        let second = State::open(dir.path().join("run").as_path()).expect_err("taken");
        assert!(matches!(second, StateError::Taken(_)), "{second}");
    }

    #[test]
    fn a_directory_others_can_write_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("chmod");
        let refused = State::open(dir.path()).expect_err("not ours");
        assert!(matches!(refused, StateError::NotOurs(_)), "{refused}");
    }

    #[test]
    fn the_records_of_another_boot_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = State::open(&dir.path().join("run")).expect("ours");
        state.keep(&record("old"), &[]).expect("kept");
        fs::write(state.gpu_errors_path(), "errors").expect("written");
        drop(state);
        let state = State::open(&dir.path().join("run")).expect("ours");
        assert!(state.gpu_errors_path().exists(), "the next daemon of this boot");
        fs::write(dir.path().join("run/boot"), "another").expect("written");
        drop(state);
        let state = State::open(&dir.path().join("run")).expect("ours");
        assert!(state.records().expect("readable").is_empty());
        assert!(!state.gpu_errors_path().exists(), "a reboot ends the errors of GPUs");
    }

    /// Whether it was booted since is unknown then, and the containers may run.
    #[test]
    fn an_unreadable_boot_id_ends_no_slice() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = dir.path().join("run");
        let state = State::open(&run).expect("ours");
        state.keep(&record("a"), &[]).expect("kept");
        drop(state);
        let refused = State::open_in(&run, Path::new("/proc/no/boot_id")).expect_err("unknown");
        assert!(refused.to_string().starts_with("/proc/no/boot_id: "), "{refused}");
        let state = State::open(&run).expect("ours");
        assert_eq!(state.records().expect("readable").len(), 1);
    }

    /// A daemon that is killed while it removes such a directory leaves no member of the claim.
    #[test]
    fn a_container_of_a_claim_is_unlisted_before_its_directory_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = State::open(&dir.path().join("run")).expect("ours");
        let (container, claim) = (record("a").container, ClaimId::new("one").expect("an id"));
        state.keep(&Record { container: claim.slice(), ..record("a") }, &[]).expect("kept");
        let _listener = state.listen_tenants(&claim.slice()).expect("listening");
        state.keep_joined(&container, &claim, &[("first", Vec::new())]).expect("kept");
        assert_eq!(state.records().expect("readable").len(), 2);
        unlist(&state.container_dir(&container)).expect("its words are gone");
        assert!(state.container_dir(&container).join("first").exists());
        assert!(matches!(&state.records().expect("readable")[..], [Found::Record(_)]));
        assert!(!state.container_dir(&container).exists());
        state.forget(&claim.slice()).expect("gone");
        state.forget(&claim.slice()).expect("it is gone already");
    }

    #[test]
    fn parents_are_created_and_a_failure_names_the_option() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(State::open(&dir.path().join("a/b/c")).is_ok());
        let refused = State::open(Path::new("/proc/gpuslice/run")).expect_err("not there");
        assert!(refused.to_string().contains("--runtime-dir"), "{refused}");
    }

    #[test]
    fn an_ephemeral_end_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut state = State::open(&dir.path().join("run")).expect("ours");
        state.keep(&record("a"), &[]).expect("kept");
        let _admin = state.listen_admin().expect("listening");
        let _tenant = state.listen_tenants(&record("a").container).expect("listening");
        state.close([record("a").container].into_iter(), true);
        assert!(!dir.path().join("run").exists());
    }
}
