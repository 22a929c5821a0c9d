//! Placement: which GPUs of a node get a share.
//!
//! A share takes the same memory and compute on each of its GPUs, and these are distinct. So a GPU either fits or
//! not, and no choice of one GPU spoils another: the first GPUs that fit are the answer, in whatever order the
//! caller prefers. The stock scheduler takes the order of the published slice ([`first_fit`]). The device plugin
//! and the scheduler extender sort by the remainder ([`choose`]). The DRA driver publishes its slice in that
//! same order ([`order`]), so that both ways place alike. Of several GPUs, a node that knows its links takes the set
//! that is connected best ([`links`]).

pub mod links;
mod order;

pub use order::{Placement, choose, choose_linked, order};

use gpuslice_wire::units::Bytes;

/// Compute of one GPU, in percent.
pub const CORES: u32 = 100;
/// Shares on one GPU, at most: cGPU's limit on instances.
pub const SHARES: u32 = 20;

/// What shares take of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: Bytes,
    /// Percent of the GPU's time.
    pub cores: u32,
    /// Number of shares.
    pub shares: u32,
}

/// A GPU that shares are placed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// GPUs with the same text are linked directly; none: linked with no other.
    pub island: Option<String>,
    /// Memory for shares, less what slices outside Kubernetes use.
    pub memory: Bytes,
    pub used: Usage,
    /// No new share is placed on a GPU that is unhealthy or tainted.
    pub unhealthy: bool,
}

/// Whether the GPUs of one share must be linked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Links {
    /// Any GPUs.
    #[default]
    Any,
    /// One island if it has room, otherwise any GPUs.
    Prefer,
    /// One island, or no placement.
    Require,
}

/// A share to be placed. The amounts are for each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub memory: Bytes,
    /// Percent of each GPU's time; 0: memory only.
    pub cores: u32,
    /// Number of GPUs.
    pub count: usize,
    pub links: Links,
}

impl Gpu {
    /// A GPU without shares.
    #[must_use]
    pub fn new(memory: Bytes) -> Gpu {
        Gpu { memory, ..Gpu::default() }
    }

    /// Memory that no share has.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.memory.saturating_sub(self.used.memory)
    }

    /// Whether the GPU has room for the ask: memory, compute and one more share.
    #[must_use]
    pub fn fits(&self, ask: &Ask) -> bool {
        let cores = self.used.cores.checked_add(ask.cores);
        !self.unhealthy
            && ask.memory <= self.free()
            && cores.is_some_and(|cores| cores <= CORES)
            && self.used.shares < SHARES
    }

    /// Adds a share of the ask's amounts.
    pub fn take(&mut self, ask: &Ask) {
        self.used.memory = self.used.memory.saturating_add(ask.memory);
        self.used.cores = self.used.cores.saturating_add(ask.cores);
        self.used.shares += 1;
    }

    /// Removes a share of the ask's amounts.
    pub fn free_share(&mut self, ask: &Ask) {
        self.used.memory = self.used.memory.saturating_sub(ask.memory);
        self.used.cores = self.used.cores.saturating_sub(ask.cores);
        self.used.shares = self.used.shares.saturating_sub(1);
    }
}

/// The GPUs, by position, that the stock scheduler's allocator chooses from a slice in this order.
/// `None`: no set of GPUs fits.
#[must_use]
pub fn first_fit(gpus: &[Gpu], ask: &Ask) -> Option<Vec<usize>> {
    let positions: Vec<usize> = (0..gpus.len()).collect();
    first_of(gpus, &positions, ask)
}

/// The first GPUs that fit, in the order of `positions`.
fn first_of(gpus: &[Gpu], positions: &[usize], ask: &Ask) -> Option<Vec<usize>> {
    let fitting = || positions.iter().copied().filter(|&at| gpus[at].fits(ask));
    let take = |island: Option<&str>| {
        let member = |at: &usize| island.is_none() || gpus[*at].island.as_deref() == island;
        let chosen: Vec<usize> = fitting().filter(member).take(ask.count).collect();
        (chosen.len() == ask.count && ask.count > 0).then_some(chosen)
    };
    // A GPU without an island is one by itself.
    let linked = || {
        fitting().find_map(|first| match &gpus[first].island {
            Some(island) => take(Some(island)),
            None => (ask.count == 1).then(|| vec![first]),
        })
    };
    match ask.links {
        Links::Any => take(None),
        Links::Prefer => linked().or_else(|| take(None)),
        Links::Require => linked(),
    }
}

#[cfg(test)]
mod tests;
