//! The properties by which a driver is kind or strict to the programs above it.
//!
//! A kind driver answers at once, and each of its figures is the same every time. A real driver blocks, varies and
//! is late. Each property is a key of the configuration of its own (`config.rs`); a profile is a default for
//! each of them. `docs/simulated-gpu.md` names the source of every value.

use crate::units;

/// A time that differs from one use to the next: anything from `least_ns` to `most_ns`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub least_ns: u64,
    pub most_ns: u64,
}

pub(crate) const SPAN_FORM: &str =
    "a whole number and a unit of ns, us, ms or s, or two joined by `..`";

impl Span {
    /// Always the same.
    pub const fn exactly(ns: u64) -> Self {
        Self { least_ns: ns, most_ns: ns }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let span = Self { least_ns: units::duration(least)?, most_ns: units::duration(most)? };
        (span.least_ns <= span.most_ns).then_some(span)
    }

    /// Whether it is the same every time.
    pub const fn is_fixed(self) -> bool {
        self.least_ns == self.most_ns
    }

    /// Whether it takes no time, ever.
    pub const fn is_zero(self) -> bool {
        self.most_ns == 0
    }

    /// The `nth` time of a seed's sequence: the same for the same two numbers, everywhere.
    pub fn draw(self, seed: u64, nth: u64) -> u64 {
        let width = self.most_ns - self.least_ns;
        // The product of two 64-bit numbers, divided by 2^64: even over the span.
        let part = u128::from(mix(seed, nth)) * (u128::from(width) + 1);
        self.least_ns + (part >> 64) as u64
    }
}

/// A number without a pattern, made of two: SplitMix64.
pub fn mix(seed: u64, nth: u64) -> u64 {
    let step = nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut word = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(step);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What NVML tells of single processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Listing {
    /// Their pids and their memory.
    #[default]
    Always,
    /// The same, but in one of four answers the memory is not available.
    Sometimes,
    /// Their pids alone.
    Pids,
    /// Nothing: the calls are not supported.
    Never,
}

impl Listing {
    pub(crate) const FORM: &str = "always, sometimes, pids or never";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "always" => Self::Always,
            "sometimes" => Self::Sometimes,
            "pids" => Self::Pids,
            "never" => Self::Never,
            _ => return None,
        })
    }

    pub(crate) fn from_number(number: u32) -> Self {
        let all = [Self::Sometimes, Self::Pids, Self::Never];
        all.into_iter().find(|one| *one as u32 == number).unwrap_or(Self::Always)
    }
}

/// The properties of a machine that do not belong to one of its GPUs, as the mapped file has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Of every sequence of drawn times.
    pub seed: u64,
    /// The creation of a context blocks so long.
    pub create: Span,
    /// What a context takes until its creation is over; 0: all of it, from the beginning.
    pub part_bytes: u64,
    /// The first launch of a function blocks so long, while it is loaded; zero: modules are loaded as a whole.
    pub lazy: Span,
    /// What a process held is given back so long after its end.
    pub exit: Span,
    /// A call of NVML's takes so long.
    pub nvml: Span,
    /// The GPU's work for the recording of an event.
    pub event: Span,
    /// Bytes that a checkpoint moves each second.
    pub checkpoint_speed: u64,
    /// Bytes that a restore moves each second.
    pub restore_speed: u64,
    /// A checkpoint of a process that shares memory with another one fails after this time, where it is fatal.
    pub shared: Span,
    /// NVML's figures are sampled so often.
    pub late_ns: u64,
    /// Hardware queues of a context; 0: no stream that waits holds up another one, and the device's work is in 32.
    pub queues: u32,
    /// Not 0: work of different queues of a context runs at the same time.
    pub overlap: u32,
    /// Not 0: a call that blocks holds up the calls of other threads in its context.
    pub lock: u32,
    /// Not 0: a process's end is the close of its last descriptor, in whatever process that is.
    pub held: u32,
    /// A [`Listing`].
    pub listed: u32,
    /// Bits of the GPUs that NVML says are in MIG mode.
    pub mig: u32,
    /// Of those on which NVML lists a client of an MPS server.
    pub mps: u32,
    /// Of those whose compute mode NVML calls exclusive.
    pub exclusive: u32,
    /// Of those that NVML counts and does not open.
    pub lost: u32,
    /// Not 0: managed memory takes room on a GPU once the GPU uses it, and gives way to other memory.
    pub managed: u32,
}

impl Properties {
    /// What NVML tells of single processes.
    pub fn listing(&self) -> Listing {
        Listing::from_number(self.listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_one_duration_or_two_in_order() {
        assert_eq!(Span::parse("50us"), Some(Span::exactly(50_000)));
        let span = Span::parse("1ms..2ms").unwrap();
        assert_eq!((span.least_ns, span.most_ns), (1_000_000, 2_000_000));
        for bad in ["", "..", "1ms..", "..1ms", "2ms..1ms", "1..2", "1ms..2ms..3ms", "1ms-2ms"] {
            assert_eq!(Span::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn drawn_times_fill_the_span_and_follow_from_the_seed() {
        let span = Span { least_ns: 50, most_ns: 149 };
        let drawn: Vec<u64> = (0..10_000).map(|nth| span.draw(7, nth)).collect();
        assert!(drawn.iter().all(|ns| (50..150).contains(ns)));
        // Each of the hundred values about a hundred times.
        for value in 50..150 {
            let times = drawn.iter().filter(|ns| **ns == value).count();
            assert!((50..=150).contains(&times), "{value}: {times}");
        }
        assert_eq!(drawn, (0..10_000).map(|nth| span.draw(7, nth)).collect::<Vec<_>>());
        assert_ne!(drawn, (0..10_000).map(|nth| span.draw(8, nth)).collect::<Vec<_>>());
        assert_eq!(Span::exactly(9).draw(1, 1), 9);
        assert!(Span { least_ns: 0, most_ns: u64::MAX }.draw(1, 1) > 0);
    }
}
