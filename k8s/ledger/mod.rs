//! The node's ledger, which the daemon keeps. This crate reads it, and reserves and releases claims in it.

pub mod socket;

use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::node::{GpuFacts, NodeDenial, Reservation};
use gpuslice_wire::owner::{ClaimId, Owner};
use gpuslice_wire::units::{Bytes, Percent};
use std::sync::Arc;
use tokio::sync::watch;

/// All rows at one time.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    pub gpus: Vec<GpuFacts>,
    pub claims: Vec<Claimed>,
    pub own: Vec<Own>,
}

/// A slice of a container without a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// Its name for display.
    pub name: String,
    /// Its container as Kubernetes names it; empty for others.
    pub owner: Owner,
    /// By their number in [`GpuFacts`].
    pub gpus: Vec<u8>,
    /// On each GPU.
    pub memory: Bytes,
    /// On all of them, by its processes.
    pub used: Bytes,
    pub share: Option<Percent>,
}

/// A claim that is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub claim: ClaimId,
    pub owner: Owner,
    /// By their number in [`GpuFacts`].
    pub gpus: Vec<u8>,
    /// On each GPU.
    pub memory: Bytes,
    /// On all of them, by the processes of its containers.
    pub used: Bytes,
    pub share: Option<Percent>,
    /// It ends with its containers, and no other joins it.
    pub released: bool,
    /// Containers that live in it, as their runtime names them.
    pub members: Vec<ContainerId>,
}

/// The daemon did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Nothing was changed.
    #[error("{text}")]
    Denied {
        why: NodeDenial,
        /// What is wrong and what to do next.
        text: String,
    },
    /// It is not known whether anything was changed; every request may be repeated.
    #[error("gpusliced does not answer at {0}; is it running, and is this user in its node group?")]
    Unreachable(String),
}

/// What the daemon offers an agent of the node.
#[tonic::async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// All rows now.
    async fn rows(&self) -> Result<Rows, LedgerError>;

    /// Reserves memory and compute; the answer is the CDI device that gives them to a container.
    async fn reserve(&self, words: &Reservation) -> Result<String, LedgerError>;

    /// Gives a claim up. A claim that does not exist is given up too.
    async fn release(&self, claim: ClaimId) -> Result<(), LedgerError>;

    /// The GPUs as they change: health, and unreserved memory and time. Empty until the daemon has answered once.
    fn gpus(&self) -> watch::Receiver<Arc<Vec<GpuFacts>>>;
}
