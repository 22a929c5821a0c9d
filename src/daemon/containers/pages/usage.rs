//! The usage table of a container, and the slots of its processes.
//!
//! A slot belongs to a client of the engine from its attach until its process has ended, also while it has no
//! connection: the process holds its memory then as well, and still writes to its slot. The slot is empty
//! afterwards, so a process that is killed in the middle of a call leaves no bytes behind.

use super::Shared;
use gpuslice_engine::Granted;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::units::Bytes;
use gpuslice_wire::usage::{USAGE_SLOTS, USAGE_TABLE_MAGIC, USAGE_VERSION, UsageTable, slot_bytes};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The table and its slots in use.
#[derive(Debug)]
struct Usage {
    table: Shared<UsageTable>,
    in_use: RefCell<Vec<bool>>,
}

impl Usage {
    /// Empties or fills a slot.
    fn set(&self, slot: usize, held: &Granted) {
        for (account, Bytes(bytes)) in held.iter().enumerate().take(ACCOUNTS_MAX) {
            field!(self.table, slot[slot].held[account]).store(*bytes, Relaxed);
        }
    }

    /// Writes the number below which all slots in use are.
    fn show_slots(&self) {
        let last = self.in_use.borrow().iter().rposition(|used| *used);
        let slots = last.map_or(0, |last| last as u32 + 1);
        field!(self.table, slots).store(slots, Release);
    }
}

/// The usage table of one container.
#[derive(Debug)]
pub struct UsageWriter {
    usage: Rc<Usage>,
    fd: OwnedFd,
}

impl UsageWriter {
    /// A table without slots in use.
    ///
    /// # Errors
    /// No memory, or no descriptor left.
    pub(super) fn new() -> Result<UsageWriter, Errno> {
        let (table, fd): (Shared<UsageTable>, _) =
            Shared::new(c"gpuslice-usage", SealFlag::empty())?;
        field!(table, version).store(USAGE_VERSION, Relaxed);
        field!(table, magic).store(USAGE_TABLE_MAGIC, Release);
        let in_use = RefCell::new(vec![false; USAGE_SLOTS]);
        Ok(UsageWriter { usage: Rc::new(Usage { table, in_use }), fd })
    }

    /// The descriptor to send to the container's processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A free slot, filled with what its process holds at most; `None` if all are in use.
    pub fn slot(&self, held: &Granted) -> Option<UsageSlot> {
        let number = self.usage.in_use.borrow().iter().position(|used| !used)?;
        self.usage.set(number, held);
        self.usage.in_use.borrow_mut()[number] = true;
        self.usage.show_slots();
        Some(UsageSlot { usage: Rc::clone(&self.usage), number })
    }
}

/// A process's slot; empty and free again when dropped.
#[derive(Debug)]
pub struct UsageSlot {
    usage: Rc<Usage>,
    number: usize,
}

impl UsageSlot {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number as u32
    }

    /// Writes all accounts.
    pub fn set(&self, held: &Granted) {
        self.usage.set(self.number, held);
    }

    /// What its process says that it holds of an account.
    pub fn account(&self, account: usize) -> Bytes {
        let account = account.min(ACCOUNTS_MAX - 1);
        let word = field!(self.usage.table, slot[self.number].held[account]).load(Relaxed);
        Bytes(slot_bytes(word))
    }

    /// Writes one account, for a process that does not write its slot.
    pub fn set_account(&self, account: usize, held: Bytes) {
        let account = account.min(ACCOUNTS_MAX - 1);
        field!(self.usage.table, slot[self.number].held[account]).store(held.0, Relaxed);
    }
}

impl Drop for UsageSlot {
    fn drop(&mut self) {
        self.set(&Granted::default());
        if let Some(used) = self.usage.in_use.borrow_mut().get_mut(self.number) {
            *used = false;
        }
        self.usage.show_slots();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: u64) -> Granted {
        [Bytes(bytes); ACCOUNTS_MAX]
    }

    fn sum(writer: &UsageWriter) -> (u32, u64) {
        let table = &writer.usage.table;
        let slots = field!(table, slots).load(Relaxed);
        let words = (0..slots as usize).map(|at| field!(table, slot[at].held[1]).load(Relaxed));
        (slots, words.sum())
    }

    #[test]
    fn a_slot_is_filled_before_it_counts_and_empty_afterwards() {
        let writer = UsageWriter::new().expect("a table");
        assert_eq!(sum(&writer), (0, 0));
        let slots: Vec<UsageSlot> =
            (1..4).map(|n| writer.slot(&held(n)).expect("a free one")).collect();
        assert_eq!(sum(&writer), (3, 6));
        let [one, two, three] = <[UsageSlot; 3]>::try_from(slots).expect("three");
        drop(two);
        assert_eq!(sum(&writer), (3, 4));
        three.set_account(1, Bytes(10));
        assert_eq!(three.account(1), Bytes(10));
        assert_eq!(sum(&writer), (3, 11));
        let again = writer.slot(&held(5)).expect("a free one");
        assert_eq!((again.number(), sum(&writer)), (1, (3, 16)));
        drop(three);
        drop(again);
        assert_eq!(sum(&writer), (1, 1));
        drop(one);
        assert_eq!(sum(&writer), (0, 0));
    }

    #[test]
    fn slots_end() {
        let writer = UsageWriter::new().expect("a table");
        let all: Vec<_> = (0..USAGE_SLOTS).map_while(|_| writer.slot(&held(1))).collect();
        assert_eq!(all.len(), USAGE_SLOTS);
        assert!(writer.slot(&held(1)).is_none());
    }
}
