//! Atomics for the shim's modules, on loom's.
//!
//! loom takes a sequentially consistent access for an acquiring or releasing one. What such accesses add is the one
//! order of all of them: a thread's load follows its earlier store. A fence between the two has that effect. Compilers
//! put it behind each such store or before each such load, and each test runs on both kinds of machine: the first
//! shows a store that is too weak, or too late, and the second a load that is too weak.

pub use loom::sync::atomic::Ordering;
use loom::sync::atomic::fence;

/// Where the fence is that sequentially consistent accesses have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    BehindStores,
    BeforeLoads,
}

impl Fence {
    pub const ALL: [Fence; 2] = [Fence::BehindStores, Fence::BeforeLoads];

    /// The fence of an access in `order`, if it is at this place.
    fn at(self, place: Fence, order: Ordering) {
        if order == Ordering::SeqCst && self == place {
            fence(Ordering::SeqCst);
        }
    }
}

macro_rules! atomic {
    ($name:ident, $of:ty) => {
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name, Fence);

        impl $name {
            pub fn new(value: $of, fence: Fence) -> $name {
                $name(loom::sync::atomic::$name::new(value), fence)
            }
            pub fn load(&self, order: Ordering) -> $of {
                self.1.at(Fence::BeforeLoads, order);
                self.0.load(order)
            }
            pub fn store(&self, value: $of, order: Ordering) {
                self.0.store(value, order);
                self.1.at(Fence::BehindStores, order);
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub fn compare_exchange(
        &self,
        from: u64,
        to: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, u64> {
        let done_with = self.0.compare_exchange(from, to, done, failed);
        self.1.at(Fence::BehindStores, done);
        done_with
    }
}

/// For types of the shim that derive it. Tests say where the fence is.
impl Default for AtomicU64 {
    fn default() -> AtomicU64 {
        AtomicU64::new(0, Fence::BehindStores)
    }
}

impl AtomicU32 {
    pub fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_or(bits, order)
    }
    pub fn fetch_and(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_and(bits, order)
    }
}
