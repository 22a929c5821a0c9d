//! The host's memory.

use procfs::{Current, Meminfo};

/// All of it, bytes; 0 if the kernel does not say.
#[must_use]
pub fn total() -> u64 {
    Meminfo::current().map_or(0, |it| it.mem_total)
}
