//! The driver of dynamic resource allocation: the stock scheduler places shares, this node prepares them.
//!
//! Each GPU is a device with consumable capacity: memory, cores and shares. The scheduler takes parts of it for a
//! claim and writes them into the claim's status; [`claim`] reads them, and the daemon's ledger reserves them.
//! [`slices`] says what the scheduler is told, [`publish`] tells it, [`driver`] answers the kubelet.

pub mod claim;
pub mod driver;
pub mod publish;
pub mod slices;

/// The driver's name.
pub const NAME: &str = "gpu.gpuslice.io";
/// Capacity of a device: bytes of memory.
pub const MEMORY: &str = "memory";
/// Capacity of a device: percent of its time.
pub const CORES: &str = "cores";
/// Capacity of a device: tenants.
pub const SHARES: &str = "shares";

/// Whether a claim of the ledger was made by this driver: a uid, and the number of a group of its results.
#[must_use]
pub fn uid_of_claim(claim: &str) -> Option<&str> {
    let (uid, number) = claim.rsplit_once('-')?;
    let number = number.strip_prefix('r')?;
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(uid)
}
