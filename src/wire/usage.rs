//! The usage table: how much memory each process of a container uses, for its siblings.
//!
//! # Problem
//! A process asks how much memory is free, and must learn it in nanoseconds. What the daemon has granted is not
//! what is used: a process keeps *credit* that it does not use, and grants change only with messages. So the
//! sum of grants is too large after every free, for as long as the credit is kept.
//!
//! # Idea
//! All processes of a container share one table, in a sealed memfd that each maps writable. Each has a *slot*,
//! assigned by the daemon, to which it writes the bytes that it uses itself, without credit but for what is in caches
//! of its threads (1 MiB at most). The container's use is the sum of the slots and of
//! [`crate::page::ContainerPage::untracked`], which no process knows. No message is sent and nothing is estimated.
//!
//! A slot is a claim. It informs the container's own processes. The daemon grants nothing by it; it takes it for what
//! the process uses where NVML has no figure of that, at most what was granted. So a process that writes to a
//! sibling's slot misleads its own container alone.
//!
//! # Consistency
//! A byte is in one slot or in `untracked`, and moves between the two only when a measurement changes. So a sum
//! needs no sequence counter: each addend is current when it is read, and addends of processes that allocate at
//! the same time are not of one instant. The daemon fills a new slot before it raises [`UsageTable::slots`], and
//! empties the slot of a process when that process has ended. A process that connects again keeps its slot.

use crate::limits::{ACCOUNTS_MAX, CLIENTS_PER_CONTAINER_MAX, PAGE_BYTES};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of a usage table: "GSLUSAGE".
pub const USAGE_TABLE_MAGIC: u64 = u64::from_le_bytes(*b"GSLUSAGE");
/// Version of its layout.
pub const USAGE_VERSION: u32 = 1;
/// Slots of a table: one for each process, and as many for those that a restarted daemon finds running.
pub const USAGE_SLOTS: usize = 2 * CLIENTS_PER_CONTAINER_MAX;
/// The bytes in a word of a slot. Above them is a version, by which threads of the process see which number is newer.
pub const SLOT_BYTES: u64 = (1 << 48) - 1;
/// In place of a slot's number: the process has none.
pub const NO_SLOT: u32 = u32::MAX;

/// Processes of one container to each other.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct UsageTable {
    /// [`USAGE_TABLE_MAGIC`].
    pub magic: AtomicU64,
    /// [`USAGE_VERSION`].
    pub version: AtomicU32,
    /// All slots in use have numbers below this one.
    pub slots: AtomicU32,
    reserved: [u32; 12],
    /// The slots, by number.
    pub slot: [UsageSlot; USAGE_SLOTS],
}

/// One process's use.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct UsageSlot {
    /// Bytes in use, by account: allocations, contexts and pools, without credit. See [`SLOT_BYTES`].
    pub held: [AtomicU64; ACCOUNTS_MAX],
}

const _: () = {
    assert!(size_of::<UsageTable>().is_multiple_of(PAGE_BYTES));
    assert!(size_of::<UsageSlot>() == 192 && core::mem::offset_of!(UsageTable, slot) == 64);
};

/// The bytes in a word of a slot.
#[inline]
#[must_use]
pub const fn slot_bytes(word: u64) -> u64 {
    word & SLOT_BYTES
}

impl UsageTable {
    /// The sum of an account over all slots but `own`. False claims do not overflow it.
    #[inline]
    #[must_use]
    pub fn others(&self, account: usize, own: u32) -> u64 {
        let slots = self.slots.load(Acquire);
        if slots == 1 && own == 0 { 0 } else { self.sum(account, own, slots) }
    }

    #[inline(never)]
    fn sum(&self, account: usize, own: u32, slots: u32) -> u64 {
        let slots = slots.min(USAGE_SLOTS as u32);
        let others = (0..slots).zip(&self.slot).filter(|(number, _)| *number != own);
        let words = others.filter_map(|(_, slot)| Some(slot.held.get(account)?.load(Relaxed)));
        words.map(slot_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    fn table() -> Box<UsageTable> {
        Box::new(UsageTable {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            slots: AtomicU32::new(0),
            reserved: [0; 12],
            slot: [const { UsageSlot { held: [const { AtomicU64::new(0) }; ACCOUNTS_MAX] } };
                USAGE_SLOTS],
        })
    }

    #[test]
    fn others_are_all_slots_in_use_but_the_own() {
        let table = table();
        for (number, slot) in table.slot.iter().enumerate() {
            slot.held[1].store(1 << number.min(40), Relaxed);
        }
        assert_eq!(table.others(1, 0), 0, "no slot is in use");
        table.slots.store(3, Relaxed);
        assert_eq!((table.others(1, 1), table.others(1, NO_SLOT)), (0b101, 0b111));
        assert_eq!((table.others(0, 1), table.others(ACCOUNTS_MAX, 1)), (0, 0));
        table.slots.store(1, Relaxed);
        assert_eq!((table.others(1, 0), table.others(1, 7)), (0, 1));
    }

    #[test]
    fn false_claims_neither_overflow_nor_lead_outside_the_table() {
        let table = table();
        table.slots.store(u32::MAX, Relaxed);
        table.slot.iter().for_each(|slot| slot.held[0].store(u64::MAX, Relaxed));
        assert_eq!(table.others(0, 5), SLOT_BYTES * (USAGE_SLOTS as u64 - 1));
    }
}
