//! Decides which processes may connect to a container's socket.
//!
//! # Problem
//! The socket is mounted into its container only, but a process outside can reach it by its path on the host, or
//! through an open directory. It could then use up the container's memory.
//!
//! # Idea
//! The kernel reports the control groups and the mount namespace of a process, and a process cannot enter those of
//! another container. So a peer belongs to the container if one of these is true:
//!
//! * It is in a control group of the container's own, or below it, in any hierarchy (v1, v2 or both). These groups
//!   are noted when the slice is created, before the container's first program can create others. A group that
//!   also holds the daemon or the hook is not the container's own.
//! * It is in the mount namespace of the container's first process. This covers containers without a
//!   control group of their own, and `nsenter`, which changes namespaces and no groups.
//! * A command requested the slice for itself (`gpuslice run`), and the process has the command's user and is in no
//!   other container's group.
//!
//! If the hook is in another pid namespace than the daemon, none of this is known. Then any process that is in no
//! other container's group may connect, and the log reports this once.

use crate::peer::Peer;
use crate::state::{MEMBERS, RECORD, read_record};
use gpuslice_engine::Record;
use gpuslice_host::cgroup::{UNIFIED, text_of, within};
use gpuslice_host::process::{namespace, pid_of};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// The kind of namespace that is compared.
const MOUNTS: &str = "mnt";

/// The properties by which a container's processes are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Lines of /proc/PID/cgroup that name the container's own groups.
    groups: Vec<Vec<u8>>,
    /// The mount namespace of the hook, which is not the container's.
    outside: Option<String>,
    /// The user of a command that requested the slice for itself.
    user: Option<u32>,
    /// No property is known: any process is accepted.
    any: bool,
}

impl Members {
    /// The processes of a command run by `user`; `pid` is its process if it has a group of its own.
    pub fn of_command(user: u32, pid: Option<u32>) -> Members {
        let mut groups = own_groups(pid, None);
        // In the v1 hierarchies it is in its caller's group.
        groups.retain(|line| line.starts_with(UNIFIED));
        Members { groups, user: Some(user), ..Members::default() }
    }

    /// The processes of a container with first process `pid`; `hook` made the request.
    pub fn of_container(pid: u32, hook: u32) -> Members {
        Members {
            groups: own_groups(Some(pid), Some(hook)),
            outside: namespace(hook, MOUNTS),
            ..Members::default()
        }
    }

    /// The processes of a container about which nothing is known.
    pub fn unknown() -> Members {
        Members { any: true, ..Members::default() }
    }

    /// Reads the note in a container's directory. Without a note, as older daemons left it, the record's group
    /// counts.
    pub fn noted(dir: &Path, record: &Record) -> Members {
        match fs::read(dir.join(MEMBERS)) {
            Ok(note) => Members::parse(&note),
            Err(_) if record.cgroup.is_empty() => Members::unknown(),
            Err(_) => Members {
                groups: vec![[UNIFIED, record.cgroup.as_bytes()].concat()],
                ..Members::default()
            },
        }
    }

    /// Reads the note in a container's directory. Without a note no process is a member.
    pub fn noted_in(dir: &Path) -> Members {
        Members::parse(&fs::read(dir.join(MEMBERS)).unwrap_or_default())
    }

    /// The notes of all containers in a daemon's directory.
    pub fn all_noted(runtime_dir: &Path) -> Vec<Members> {
        let dirs = fs::read_dir(runtime_dir.join("c")).into_iter().flatten().flatten();
        let noted = dirs.map(|dir| match read_record(&dir.path().join(RECORD)) {
            Ok(record) => Members::noted(&dir.path(), &record),
            Err(_) => Members::noted_in(&dir.path()),
        });
        noted.collect()
    }

    /// The note.
    pub fn note(&self) -> Vec<u8> {
        let mut note = Vec::new();
        let mut add = |word: &[u8], value: &[u8]| note.extend([word, b" ", value, b"\n"].concat());
        for line in &self.groups {
            add(b"group", line);
        }
        if let Some(outside) = &self.outside {
            add(b"outside", outside.as_bytes());
        }
        if let Some(user) = self.user {
            add(b"user", user.to_string().as_bytes());
        }
        if self.any {
            add(b"any", b"process");
        }
        note
    }

    /// Parses a note of this or a later version. An unknown line admits no process.
    fn parse(note: &[u8]) -> Members {
        let mut members = Members::default();
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).ok();
        // No control group has a newline in its name.
        for line in note.split(|byte| *byte == b'\n') {
            let end = line.iter().position(|byte| *byte == b' ');
            let (word, value) = line.split_at(end.map_or(line.len(), |end| end + 1));
            match word {
                b"group " if path_of(value).is_some() => members.groups.push(value.to_vec()),
                b"outside " => members.outside = text(value),
                b"user " => members.user = text(value).and_then(|user| user.parse().ok()),
                b"any " => members.any = true,
                _ => {}
            }
        }
        members
    }

    /// Whether a peer belongs to the container. `first` is the container's first process, `others` are the members
    /// of the other slices.
    pub fn has<'a>(
        &self,
        peer: &Peer,
        first: Option<BorrowedFd<'_>>,
        mut others: impl Iterator<Item = &'a Members>,
    ) -> bool {
        let groups = text_of(peer.pid.unsigned_abs());
        let mut elsewhere = || others.any(|other| other.is_around(&groups));
        let is_it = self.is_around(&groups)
            || first.is_some_and(|first| self.share_mounts(first, peer.pid))
            || ((self.user == Some(peer.uid) || self.any) && !elsewhere());
        // All of this was read by the peer's pid.
        is_it && peer.is_alive()
    }

    /// Whether a process in these groups may be one of the container's.
    pub fn may_hold(&self, groups: &[u8]) -> bool {
        self.any || self.is_around(groups)
    }

    /// Whether a process that is in no container's group may be one of this container's, which has no group of its own.
    pub fn may_have(&self, pid: u32, first: Option<BorrowedFd<'_>>) -> bool {
        let by_mounts = self.groups.is_empty().then_some(first).flatten();
        by_mounts.is_some_and(|first| self.share_mounts(first, pid as i32))
    }

    /// Whether one of these groups is the container's own, or below one.
    fn is_around(&self, groups: &[u8]) -> bool {
        let lines = || groups.split(|byte| *byte == b'\n');
        let around = |own: &Vec<u8>| lines().any(|line| within(line, own));
        self.groups.iter().any(around)
    }

    /// Whether a peer is in the mount namespace of the container's first process, and neither the daemon
    /// nor the hook is.
    fn share_mounts(&self, first: BorrowedFd<'_>, peer: i32) -> bool {
        let (Some(outside), Some(pid)) = (&self.outside, pid_of(first)) else {
            return false;
        };
        let theirs = namespace(pid, MOUNTS);
        theirs.as_ref().is_some_and(|it| it != outside)
            && theirs != namespace("self", MOUNTS)
            && theirs == namespace(peer, MOUNTS)
            // It was read by pid.
            && pid_of(first) == Some(pid)
    }
}

fn own_groups(pid: Option<u32>, hook: Option<u32>) -> Vec<Vec<u8>> {
    let others = [Some(std::process::id()), hook];
    let others: Vec<Vec<u8>> = others.into_iter().flatten().map(text_of).collect();
    own_of(&pid.map(text_of).unwrap_or_default(), &others)
}

/// The lines that name a group which holds none of these other processes.
fn own_of(groups: &[u8], others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let lines = groups.split(|byte| *byte == b'\n');
    let own = lines.filter(|line| {
        let shared = |other: &Vec<u8>| {
            let mut theirs = other.split(|byte| *byte == b'\n');
            theirs.any(|their| within(their, line))
        };
        path_of(line).is_some_and(is_below_the_root) && !others.iter().any(shared)
    });
    own.map(<[u8]>::to_vec).collect()
}

/// The path in a line `NUMBER:CONTROLLERS:PATH`.
fn path_of(line: &[u8]) -> Option<&[u8]> {
    line.splitn(3, |byte| *byte == b':').nth(2)
}

/// Whether a path names a group at all. Outside the daemon's cgroup namespace it begins with `/..`.
fn is_below_the_root(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| !part.is_empty() && part != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAEMON: &[u8] = b"4:memory:/system.slice/gpusliced.service\n1:name=systemd:/system.slice/gpusliced.service\n0::/system.slice/gpusliced.service\n";

    fn of(groups: &[u8], hook: &[u8]) -> Members {
        Members { groups: own_of(groups, &[DAEMON.to_vec(), hook.to_vec()]), ..Members::default() }
    }

    #[test]
    fn the_containers_own_groups_are_found_in_every_kind_of_hierarchy() {
        let v1 = b"4:memory:/docker/web\n1:name=systemd:/docker/web\n";
        let v2 = b"0::/kubepods.slice/pod1/web\n";
        let hybrid = b"4:memory:/docker/web\n0::/\n";
        let engine = b"4:memory:/system.slice/docker.service\n0::/system.slice/docker.service\n";
        let inside: [(&[u8], &[u8]); 7] = [
            (v1, v1),
            (v1, b"4:memory:/docker/web\n1:name=systemd:/docker/web/init.scope\n"),
            (v1, b"4:memory:/elsewhere\n1:name=systemd:/docker/web/sshd.service\n"),
            (v2, b"0::/kubepods.slice/pod1/web\n"),
            (v2, b"0::/kubepods.slice/pod1/web/system.slice/cron.service\n"),
            (v2, b"0::/kubepods.slice/pod1/web/\xff \n"),
            (hybrid, b"4:memory:/docker/web\n0::/user.slice\n"),
        ];
        for (first, peer) in inside {
            let members = of(first, engine);
            assert!(members.is_around(peer), "{}", peer.escape_ascii());
        }
        let outside: [(&[u8], &[u8]); 9] = [
            (v1, b"4:memory:/docker/web2\n1:name=systemd:/docker/other\n"),
            // The same path in another hierarchy is another group.
            (v1, b"3:cpu:/docker/web\n"),
            (v1, b"4:memory:/docker\n"),
            (v2, b"0::/kubepods.slice/pod1\n"),
            (v2, b"0::/kubepods.slice/pod1/other\n"),
            (v2, b"0::/kubepods.slice/pod1/web (deleted)\n"),
            (v2, b"0::/x\n4:memory:/kubepods.slice/pod1/web\n"),
            (hybrid, b"0::/\n"),
            (v2, b""),
        ];
        for (first, peer) in outside {
            let members = of(first, engine);
            assert!(!members.is_around(peer), "{}", peer.escape_ascii());
        }
    }

    #[test]
    fn a_group_that_holds_others_is_not_the_containers_own() {
        let session = b"0::/user.slice/session-2.scope\n";
        assert_eq!(of(session, session).groups, Vec::<Vec<u8>>::new());
        let below = b"0::/user.slice/session-2.scope/conmon\n";
        assert!(of(session, below).groups.is_empty(), "the hook is in it");
        for shared in [&b"0::/\n"[..], b"0::/system.slice\n", b"0::/../..\n", b"", b"x\n0::\n"] {
            let members = of(shared, b"0::/elsewhere\n");
            assert!(members.groups.is_empty(), "{}", shared.escape_ascii());
        }
        // Outside the daemon's cgroup namespace.
        let above = of(b"0::/../../pods/web\n", b"0::/../engine\n");
        assert!(above.is_around(b"0::/../../pods/web/inner\n"));
        assert!(!above.is_around(b"0::/../../pods/other\n"));
    }

    #[test]
    fn a_note_keeps_all_properties() {
        let all = [
            Members::unknown(),
            Members::default(),
            Members { user: Some(1000), ..Members::default() },
            Members {
                groups: vec![b"0::/a b/\xff".to_vec(), b"4:memory:/x".to_vec()],
                outside: Some("mnt:[4026531841]".to_owned()),
                ..Members::default()
            },
        ];
        for members in all {
            assert_eq!(Members::parse(&members.note()), members);
        }
        for damaged in [&b"any"[..], b"user x\n", b"group /a\n", b"\0\n", b"group"] {
            let members = Members::parse(damaged);
            assert_eq!(members, Members::default(), "{}", damaged.escape_ascii());
        }
    }

    /// What a note admits is written again as the same note.
    #[test]
    fn any_note_has_one_meaning() {
        gpuslice_fuzz::fuzz!("members", |bytes| {
            let members = Members::parse(bytes);
            let again = Members::parse(&members.note());
            assert_eq!(format!("{again:?}"), format!("{members:?}"));
        });
    }
}
