//! Claims: parts of GPUs that an agent has reserved for containers, before these exist.
//!
//! # Problem
//! A cluster decides where a pod runs before a container of it exists, and several containers may share what the pod
//! was given. The promise must hold from that decision on, over restarts of the daemon and of the node.
//!
//! # Idea
//! A claim is a slice without a container, named `claim.` and the claim's id. So the ledger and the scheduler need no
//! new notion: a claim is one account and one entity. Containers join it ([`crate::containers`]). This module keeps
//! the words with which a claim was reserved: in a file that outlives a reboot ([`store`], written by a thread,
//! [`writer`]), and in a CDI file by which an engine passes the claim to a container ([`cdi`]).
//!
//! A claim that is released while containers live in it has no files any more; its slice ends with the last of them.

mod cdi;
mod store;
mod writer;

use crate::bucket::Bucket;
use crate::config::{Absolute, DaemonConfig};
use crate::slab::Key;
pub use cdi::CdiFiles;
use gpuslice_host::layout::NODE_DIR;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{NodeAnswer, NodeDenial, Reservation};
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
pub use store::ClaimStore;
pub use writer::{Change, Writer, Written};

/// Where claims of the node's daemon are kept.
const STATE_DIR: &str = "/var/lib/gpuslice";
/// Where container engines look for CDI files.
const CDI_DIR: &str = "/var/run/cdi";
/// Changes that may wait for the disk: more than agents have connections.
const CHANGES_MAX: usize = 64;
/// Time in which the log gains a line of a claim that an agent reserved or released, and how many it may have at once.
const LINE_EVERY: Duration = Duration(1_000_000_000);
const LINES_MOST: u64 = 1_000;

/// Where a daemon keeps its claims.
#[derive(Debug)]
pub struct Directories {
    /// Their words, over a reboot.
    pub state: PathBuf,
    /// Their CDI files.
    pub cdi: PathBuf,
}

impl Directories {
    /// The configured ones; else the system's for the node's daemon, and the daemon's own for any other.
    pub fn of(config: &DaemonConfig, runtime_dir: &Path) -> Directories {
        let is_nodes = runtime_dir == Path::new(NODE_DIR);
        let dir = |configured: &Option<Absolute>, nodes: &str, own: &str| match configured {
            Some(dir) => dir.0.clone(),
            None if is_nodes => nodes.into(),
            None => runtime_dir.join(own),
        };
        Directories {
            state: dir(&config.state_dir, STATE_DIR, "state"),
            cdi: dir(&config.cdi_dir, CDI_DIR, "cdi"),
        }
    }
}

/// What is known of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // at most a few hundred
pub enum Claim {
    /// It is reserved, with these words.
    Reserved(Reservation),
    /// It was released, and containers live in it.
    Released,
    /// Its file cannot be read, or its words cannot be kept any more: why.
    Broken(String),
}

/// Why a request is refused.
pub type NodeDenied = (NodeDenial, String);

/// All claims; see the file's head.
#[derive(Debug)]
pub struct Claims {
    /// Writes their files.
    writer: Writer,
    /// The CDI files.
    pub cdi: CdiFiles,
    known: BTreeMap<ClaimId, Claim>,
    /// The words that the engine is deciding on.
    asked: Option<Reservation>,
    /// Lines that the log may have of them.
    lines: Bucket,
}

impl Claims {
    /// The claims of earlier daemons; those in `store` that cannot be read are reported.
    pub fn restored(store: &ClaimStore, writer: Writer, cdi: CdiFiles) -> Claims {
        let mut known = BTreeMap::new();
        for (claim, found) in store.read_all() {
            let found = found.map_or_else(
                |why| {
                    let path = store.path(&claim);
                    tracing::error!(path = %path.display(), why, "claim not restored; its containers do not start until it is released and reserved again");
                    Claim::Broken(why)
                },
                Claim::Reserved,
            );
            known.insert(claim, found);
        }
        let lines = Bucket::new(LINE_EVERY, LINES_MOST);
        Claims { writer, cdi, known, asked: None, lines }
    }

    /// What is known of a claim.
    pub fn get(&self, claim: &ClaimId) -> Option<&Claim> {
        self.known.get(claim)
    }

    /// All claims, and what is known of each.
    pub fn all(&self) -> impl Iterator<Item = (&ClaimId, &Claim)> {
        self.known.iter()
    }

    /// All claims that hold.
    pub fn reserved(&self) -> impl Iterator<Item = &Reservation> {
        self.known.values().filter_map(|claim| match claim {
            Claim::Reserved(words) => Some(words),
            _ => None,
        })
    }

    /// Answers a reservation from what is known: `Some(Ok)` for the same words, `Some(Err)` for a refusal.
    pub fn known_answer(&self, words: &Reservation) -> Option<Result<(), NodeDenied>> {
        let claim = words.claim;
        let refused = |why, text| Some(Err((why, text)));
        match self.known.get(&claim)? {
            Claim::Reserved(known) if known == words => Some(Ok(())),
            Claim::Reserved(known) => {
                let what = difference(known, words);
                let text =
                    format!("claim differs: {claim} exists with another {what}; release it first");
                refused(NodeDenial::ClaimDiffers, text)
            }
            Claim::Released => {
                let text = format!(
                    "claim {claim} was released, and containers still live in it; use another id, or wait for their end"
                );
                refused(NodeDenial::Released, text)
            }
            Claim::Broken(why) => {
                refused(NodeDenial::Host, format!("claim {claim}: {why}; release it first"))
            }
        }
    }

    /// The engine decides on these words.
    pub fn ask(&mut self, words: Reservation) {
        self.asked = Some(words);
    }

    /// The words that the engine has decided on.
    pub fn take_asked(&mut self) -> Option<Reservation> {
        self.asked.take()
    }

    /// Writes a claim's CDI file, and lets its own be written.
    ///
    /// # Errors
    /// The CDI file and the error; nothing is left.
    pub fn keep(&mut self, words: Reservation) -> Result<(), String> {
        let claim = words.claim;
        self.cdi
            .keep(&claim, words.gpus.as_slice())
            .map_err(|why| format!("{}: {why}", self.cdi.path(&claim).display()))?;
        // After a reboot its file is there already.
        if self.known.insert(claim, Claim::Reserved(words)) != Some(Claim::Reserved(words)) {
            self.writer.queue(Change::Keep(words));
        }
        Ok(())
    }

    /// Removes a claim's CDI file, and lets its own be deleted. Its containers live on in it, if `has_members`.
    pub fn release(&mut self, claim: &ClaimId, has_members: bool) {
        let before = match has_members {
            true => self.known.insert(*claim, Claim::Released),
            false => self.known.remove(claim),
        };
        if before.is_some() {
            self.cdi.forget(claim);
            self.writer.queue(Change::Forget(*claim));
        }
    }

    /// Refuses further changes while the disk is behind: an agent that connects again and again, and does not wait for
    /// its answers, would have the daemon hold changes without end.
    ///
    /// # Errors
    /// So many changes wait.
    pub fn may_change(&self) -> Result<(), NodeDenied> {
        match self.writer.behind() {
            behind if behind < CHANGES_MAX => Ok(()),
            behind => {
                let text = format!(
                    "{behind} changes of claims are not on the disk yet; find out why it is slow, or try again later"
                );
                Err((NodeDenial::Host, text))
            }
        }
    }

    /// Whether the log may have another line of a claim that an agent reserved or released.
    pub fn may_log(&mut self, now: Instant) -> bool {
        self.lines.take(now)
    }

    /// Lets an answer wait for the disk. It comes back if everything about its claim is written.
    pub fn hold(&mut self, claim: &ClaimId, key: Key, answer: NodeAnswer) -> Option<NodeAnswer> {
        self.writer.hold(claim, key, answer)
    }

    /// The next change that was written, or could not be.
    pub fn written(&mut self) -> Option<Written> {
        self.writer.written()
    }

    /// Whether a claim's file cannot be written that is still to be there.
    pub fn is_lost(&self, words: &Reservation) -> bool {
        let known = self.known.get(&words.claim) == Some(&Claim::Reserved(*words));
        known && !self.writer.is_writing(&words.claim)
    }

    /// The slice of a claim without files lives on for its containers.
    pub fn note_released(&mut self, claim: &ClaimId) {
        self.known.insert(*claim, Claim::Released);
    }

    /// The words of a claim can be kept no longer.
    pub fn note_broken(&mut self, claim: &ClaimId, why: String) {
        self.known.insert(*claim, Claim::Broken(why));
    }

    /// The slice of a released claim has ended.
    pub fn forget_released(&mut self, claim: &ClaimId) {
        if self.known.get(claim) == Some(&Claim::Released) {
            self.known.remove(claim);
        }
    }

    /// Writes the CDI files that are missing or differ, and removes those of unknown claims.
    pub fn restore_cdi(&mut self) {
        let all: Vec<(ClaimId, Vec<GpuUuid>)> =
            self.reserved().map(|it| (it.claim, it.gpus.as_slice().to_vec())).collect();
        self.cdi.restore(&all);
    }
}

/// The first word in which two reservations differ.
fn difference(known: &Reservation, asked: &Reservation) -> &'static str {
    let differs = [
        (known.gpus != asked.gpus, "list of GPUs"),
        (known.memory != asked.memory, "memory"),
        (known.share != asked.share, "share"),
        (known.share_limit != asked.share_limit, "share limit"),
        (known.weight != asked.weight, "weight"),
        (known.class != asked.class, "priority"),
        (known.gang != asked.gang, "gang"),
        (known.pinned != asked.pinned, "pinned memory"),
    ];
    differs.into_iter().find(|(differs, _)| *differs).map_or("owner", |(_, what)| what)
}
