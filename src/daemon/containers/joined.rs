//! Containers that live in the slice of a claim.
//!
//! Such a container has no slice of its own: its processes connect to the claim's. But it has a directory of its own,
//! because the hook leaves in it what belongs to the container's image (the merged preload list), and because it is
//! mounted. The claim's socket is in it as a hard link, which leads to the same listener. Which processes belong to
//! the container, and when it ends, is noted in it as for any other container.

use super::first_process::{FirstProcess, NotedProcess};
use super::{Containers, Members, notes, owner};
use crate::poll::Source;
use crate::replies::Denied;
use crate::slab::Key;
use gpuslice_host::process::has_exited;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::text::CgroupPath;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The note's name of the container's cgroup.
const CGROUP: &str = "cgroup";

/// A container in the slice of a claim.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) container: ContainerId,
    pub(super) claim: ClaimId,
    /// Which processes are the container's.
    pub(super) members: Members,
    /// The container's first process as its hook named it; 0 if that is forgotten.
    pid: u32,
    /// That process, with which the container ends, if it is known in this pid namespace.
    first: Option<OwnedFd>,
    /// The container's own cgroup; empty if it has none.
    cgroup: CgroupPath,
    owner: Owner,
}

impl Joined {
    pub(super) fn first(&self) -> Option<BorrowedFd<'_>> {
        self.first.as_ref().map(AsFd::as_fd)
    }
}

/// A container that is to join.
#[derive(Clone, Copy, Debug)]
pub struct Joining {
    /// The container.
    pub container: ContainerId,
    /// The claim.
    pub claim: ClaimId,
    /// The container as Kubernetes names it.
    pub owner: Owner,
    /// The container's own cgroup; empty if it has none.
    pub cgroup: CgroupPath,
    /// The container's first process as its hook names it.
    pub pid: u32,
}

impl Containers {
    /// Lets a container live in the slice of a claim.
    ///
    /// # Errors
    /// A system call failed; nothing is left.
    pub fn join(
        &mut self,
        joining: Joining,
        (members, first): (Members, Option<FirstProcess>),
    ) -> io::Result<()> {
        let Joining { container, claim, owner, cgroup, pid } = joining;
        let mut notes = notes(&members, first.as_ref(), &owner);
        notes.push((CGROUP, cgroup.as_bytes().to_vec()));
        self.state.keep_joined(&container, &claim, &notes)?;
        let first = first.map(|first| first.pidfd);
        let joined = Joined { container, claim, members, pid, first, cgroup, owner };
        let done = self.add_joined(joined);
        if done.is_err() {
            let _ = self.state.forget(&container); // the first error is the one to report
        }
        done
    }

    fn add_joined(&mut self, joined: Joined) -> io::Result<()> {
        let container = joined.container;
        let full = |_| io::Error::other("more containers in claims than there can be");
        let key = self.joined.insert(joined).map_err(full)?;
        let first = self.joined.get(key).and_then(Joined::first);
        let watched = first.map_or(Ok(()), |first| self.watch.add(first, Source::JoinedExit(key)));
        if let Err(why) = watched {
            self.joined.remove(key);
            return Err(why.into());
        }
        self.joined_by_id.insert(container, key);
        Ok(())
    }

    /// Restores a container that lived in a claim before a restart; removes its files if it has ended, or if the
    /// claim's slice is gone. A slice that is only not restored, such as one of a GPU that does not answer, has its
    /// record: its containers connect to the next daemon that restores it.
    ///
    /// # Errors
    /// Its files cannot be read or changed.
    pub fn rejoin(&mut self, container: ContainerId, claim: ClaimId) -> io::Result<()> {
        let dir = self.state.container_dir(&container);
        let has_slice = self.has(&claim.slice());
        let (pid, first) = match NotedProcess::of(&dir) {
            _ if !has_slice && !self.state.has_record(&claim.slice()) => {
                return self.state.forget(&container);
            }
            Ok(NotedProcess::Ended) => return self.state.forget(&container),
            Ok(NotedProcess::Lives(pid, first)) => (pid, Some(first)),
            Ok(NotedProcess::Unknown) | Err(_) => (0, None),
        };
        if has_slice {
            self.state.link_socket(&container, &claim)?;
        }
        let cgroup = fs::read(dir.join(CGROUP)).unwrap_or_default();
        self.add_joined(Joined {
            container,
            claim,
            members: Members::noted_in(&dir),
            pid,
            first,
            cgroup: CgroupPath::new(&cgroup).unwrap_or(CgroupPath::EMPTY),
            owner: owner::noted(&dir),
        })
    }

    /// Whether a container may join: it lives in no other slice, and there is room.
    ///
    /// # Errors
    /// Why not. `Ok(true)`: this container lives in this claim already.
    pub fn may_join(
        &self,
        container: &ContainerId,
        claim: &ClaimId,
        pid: u32,
    ) -> Result<bool, Denied> {
        if self.has(container) {
            let text = format!("container {container} has a slice of its own");
            return Err((Denial::Exists, text));
        }
        if let Some(joined) = self.joined_of(container) {
            if joined.claim == *claim && joined.pid == pid && pid != 0 {
                return Ok(true);
            }
            let text = format!("a container {container} lives in claim {}", joined.claim);
            return Err((Denial::Exists, text));
        }
        let (of_containers, of_claims) = self.counts();
        if !self.budget.has_descriptors(of_containers, of_claims, self.joined.len() + 1) {
            let text = format!(
                "{} containers live in claims, as many as containers_max allows",
                self.joined.len()
            );
            return Err((Denial::Capacity, text));
        }
        Ok(false)
    }

    fn joined_of(&self, container: &ContainerId) -> Option<&Joined> {
        self.joined.get(*self.joined_by_id.get(container)?)
    }

    /// The claim in whose slice a container lives.
    pub fn claim_of(&self, container: &ContainerId) -> Option<ClaimId> {
        Some(self.joined_of(container)?.claim)
    }

    /// The container of a first process that has exited.
    pub fn joined_container(&self, key: Key) -> Option<ContainerId> {
        Some(self.joined.get(key)?.container)
    }

    /// Whether a container in a claim is known to have ended.
    pub fn has_left(&self, container: &ContainerId) -> bool {
        let first = self.joined_of(container).and_then(Joined::first);
        first.is_some_and(has_exited)
    }

    /// Whether a container in a claim is known to have ended, or its end cannot be detected.
    pub fn may_have_left(&self, container: &ContainerId) -> bool {
        self.joined_of(container).is_some_and(|joined| joined.first().is_none_or(has_exited))
    }

    /// A container in a claim has ended: removes its files; returns the claim.
    pub fn leave(&mut self, container: &ContainerId) -> Option<ClaimId> {
        let key = self.joined_by_id.remove(container)?;
        let joined = self.joined.remove(key)?;
        if let Err(why) = self.state.forget(container) {
            tracing::error!(%container, %why, "cannot delete the files of an ended container");
        }
        Some(joined.claim)
    }

    /// The containers that live in a claim.
    pub fn members_of(&self, claim: &ClaimId) -> Vec<ContainerId> {
        let claim = *claim;
        let all = self.joined.iter().filter(move |(_, joined)| joined.claim == claim);
        all.map(|(_, joined)| joined.container).collect()
    }

    /// Lets new processes of a claim's containers reach its slice, which was lost and has been made anew.
    pub fn link_members(&self, claim: &ClaimId) {
        for container in self.members_of(claim) {
            if let Err(why) = self.state.link_socket(&container, claim) {
                tracing::error!(%container, %claim, %why, "a container in a claim cannot reach it: its new processes are refused");
            }
        }
    }

    /// All containers in claims.
    pub fn all_members(&self) -> impl Iterator<Item = (ClaimId, ContainerId)> {
        self.joined.iter().map(|(_, joined)| (joined.claim, joined.container))
    }

    /// The cgroups of the containers that live in a slice beside its own.
    pub fn joined_cgroups(&self, slice: &ContainerId) -> Vec<CgroupPath> {
        let claim = ClaimId::of_slice(slice);
        let all = self.joined.iter().filter(|(_, joined)| Some(joined.claim) == claim);
        all.map(|(_, joined)| joined.cgroup).filter(|cgroup| !cgroup.is_empty()).collect()
    }

    /// The owner of a slice: its own, or that of the first container that joined its claim.
    pub fn owner_of(&self, slice: &ContainerId) -> Owner {
        let own = self.of(slice).map_or_else(Owner::default, |slice| slice.owner);
        let claim = ClaimId::of_slice(slice).filter(|_| own.is_empty());
        let first = self.joined.iter().find(|(_, joined)| Some(joined.claim) == claim);
        first.map_or(own, |(_, joined)| joined.owner)
    }
}
