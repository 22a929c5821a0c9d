//! Small pieces of a 2 MiB slab: the buddy system.
//!
//! A block of one size is halved until it fits, and a freed block joins its other half if that is
//! free. Sizes are powers of two from 512 bytes, so every piece is aligned to its size. Free blocks
//! of each size are bits of a map.

/// Smallest piece, as with the real driver.
pub const UNIT: u64 = 512;
const UNITS: usize = (SLAB / UNIT) as usize;
/// Bytes of a slab.
pub const SLAB: u64 = super::space::STEP;
/// Order of the whole slab: 512 << 12 is 2 MiB.
const TOP: usize = 12;
const WORDS: usize = 64;

const _: () = assert!(UNITS == 1 << TOP && UNITS.div_ceil(64) == WORDS);

/// Which pieces of one slab are free.
pub struct Buddy {
    /// By order and number of the block.
    free: [[u64; WORDS]; TOP + 1],
    count: [u16; TOP + 1],
}

/// The order of the smallest piece of `bytes`; `None` for what a slab cannot hold.
pub fn order(bytes: u64) -> Option<usize> {
    let order = bytes.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize;
    (bytes > 0 && bytes <= SLAB && order <= TOP).then_some(order)
}

impl Buddy {
    /// A slab that is free as a whole.
    pub fn new() -> Self {
        let mut buddy = Self { free: [[0; WORDS]; TOP + 1], count: [0; TOP + 1] };
        buddy.set(TOP, 0);
        buddy
    }

    /// Offset of a piece of the order, now taken.
    pub fn take(&mut self, order: usize) -> Option<u64> {
        let mut from = (order..=TOP).find(|&order| self.count[order] > 0)?;
        let word = self.free[from].iter().position(|&word| word != 0)?;
        let mut block = word * 64 + self.free[from][word].trailing_zeros() as usize;
        self.clear(from, block);
        while from > order {
            from -= 1;
            block *= 2;
            self.set(from, block + 1);
        }
        Some((block as u64) << order << UNIT.trailing_zeros())
    }

    /// Gives a piece back that was taken with this order.
    pub fn give(&mut self, offset: u64, order: usize) {
        let mut order = order;
        let mut block = (offset / UNIT) as usize >> order;
        while order < TOP && self.is_set(order, block ^ 1) {
            self.clear(order, block ^ 1);
            block /= 2;
            order += 1;
        }
        self.set(order, block);
    }

    pub fn is_empty(&self) -> bool {
        self.count[TOP] > 0
    }

    /// Whether a piece of the order can be had.
    pub fn has(&self, order: usize) -> bool {
        self.count[order..].iter().any(|&count| count > 0)
    }

    fn is_set(&self, order: usize, block: usize) -> bool {
        self.free[order][block / 64] >> (block % 64) & 1 == 1
    }

    fn set(&mut self, order: usize, block: usize) {
        self.free[order][block / 64] |= 1 << (block % 64);
        self.count[order] += 1;
    }

    fn clear(&mut self, order: usize, block: usize) {
        self.free[order][block / 64] &= !(1 << (block % 64));
        self.count[order] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders() {
        assert_eq!(order(0), None);
        assert_eq!(order(1), Some(0));
        assert_eq!(order(513), Some(1));
        assert_eq!(order(SLAB), Some(TOP));
        assert_eq!(order(SLAB + 1), None);
        assert_eq!(order(u64::MAX), None);
    }

    #[test]
    fn pieces_never_overlap_and_all_join_again() {
        let mut buddy = Buddy::new();
        let mut held: Vec<(u64, usize)> = Vec::new();
        let mut seed = 12345_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as usize;
            if !random.is_multiple_of(3) {
                let order = random / 3 % (TOP - 1);
                if let Some(at) = buddy.take(order) {
                    let len = UNIT << order;
                    assert_eq!(at % len, 0);
                    assert!(at + len <= SLAB);
                    for &(other, other_order) in &held {
                        assert!(at + len <= other || other + (UNIT << other_order) <= at);
                    }
                    held.push((at, order));
                }
            } else if !held.is_empty() {
                let (at, order) = held.swap_remove(random / 3 % held.len());
                buddy.give(at, order);
            }
        }
        for (at, order) in held {
            buddy.give(at, order);
        }
        assert!(buddy.is_empty());
        assert_eq!(buddy.take(TOP), Some(0));
        assert!(!buddy.has(0) && buddy.take(0).is_none());
    }
}
