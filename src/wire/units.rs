//! Quantities: bytes, weights, percentages, instants and durations, each parsed in one place.
//!
//! A size is written as whole bytes or with a binary suffix (`1GiB`, `512Mi`). Decimal suffixes are
//! refused instead of guessed: people write `8GB` and mean `8GiB`, and the difference is 590 MB.

use crate::limits::WEIGHT_MAX;
use core::fmt;
use core::str::FromStr;

/// An amount of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// One KiB, MiB, GiB.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// `self + other`, or the largest amount there is.
    #[must_use]
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
    /// `self - other`, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
    /// `self + other`, or `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Bytes(sum)),
            None => None,
        }
    }
}

/// Why a written quantity was refused; its `Display` names the accepted forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitError {
    /// Not of the form digits + optional binary suffix.
    SizeGrammar,
    /// A decimal suffix such as `GB` or `G`; the number, and the binary unit that is mostly meant.
    SizeDecimal(u64, &'static str),
    /// Larger than 2^64 - 1 bytes.
    SizeTooLarge,
    /// Zero bytes were asked for.
    SizeZero,
    /// Too little for any program: the unit was forgotten. The size, and the GiB that are mostly meant.
    SizeTiny(Bytes, u64),
    /// Neither a size nor a fraction of the GPU's memory.
    CapGrammar,
    /// An invalid fraction of the GPU's memory: `0/4`, `5/4`, `1/`.
    Part,
    /// A weight outside 1..=1000.
    Weight,
    /// A percentage outside 1..=100.
    Percent,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitError::SizeGrammar => f.write_str(
                "a size is whole bytes or a whole number of KiB, MiB or GiB, as in 8GiB",
            ),
            UnitError::SizeDecimal(count, unit) => write!(
                f,
                "decimal units (K, MB, GB) are not accepted because they are mostly meant as binary ones; \
                 write {count}{unit}, or the bytes themselves"
            ),
            UnitError::SizeTooLarge => f.write_str("the size does not fit in 64 bits of bytes"),
            UnitError::SizeZero => f.write_str("the size is 0; ask for at least one byte"),
            UnitError::SizeTiny(bytes, count) => {
                write!(f, "{bytes} is less than 1MiB; did you mean {count}GiB?")
            }
            UnitError::CapGrammar => f.write_str(
                "a size is whole bytes or a whole number of KiB, MiB or GiB, as in 8GiB, or a part of the GPU's memory, \
                 as in 1/4",
            ),
            UnitError::Part => f.write_str(
                "a part of the GPU's memory is two whole numbers, as in 1/4, the first from 1 to the second",
            ),
            UnitError::Weight => write!(f, "a weight is a whole number from 1 to {WEIGHT_MAX}"),
            UnitError::Percent => f.write_str("a share or a limit is a whole percentage from 1 to 100"),
        }
    }
}

impl core::error::Error for UnitError {}

/// `bytes`, written as `text`, unless no program could run in so little.
///
/// # Errors
/// [`UnitError::SizeZero`] and [`UnitError::SizeTiny`] below 1 MiB.
pub fn plausible(text: &str, bytes: Bytes) -> Result<Bytes, UnitError> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    match bytes.0 {
        0 => Err(UnitError::SizeZero),
        1..MIB => Err(UnitError::SizeTiny(bytes, digits.parse().unwrap_or(1))),
        _ => Ok(bytes),
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    /// Parses `[0-9]{1,20}(KiB|Ki|MiB|Mi|GiB|Gi|TiB|Ti|B)?`; zero is allowed here.
    fn from_str(text: &str) -> Result<Bytes, UnitError> {
        let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(end);
        if digits.is_empty() || digits.len() > 20 {
            return Err(UnitError::SizeGrammar);
        }
        let count: u64 = digits.parse().map_err(|_| UnitError::SizeTooLarge)?;
        let unit = match suffix {
            "" | "B" => 1,
            "Ki" | "KiB" => KIB,
            "Mi" | "MiB" => MIB,
            "Gi" | "GiB" => GIB,
            "Ti" | "TiB" => 1 << 40,
            "K" | "k" | "KB" | "kB" | "kb" => return Err(UnitError::SizeDecimal(count, "KiB")),
            "M" | "m" | "MB" | "mb" => return Err(UnitError::SizeDecimal(count, "MiB")),
            "G" | "g" | "GB" | "gb" => return Err(UnitError::SizeDecimal(count, "GiB")),
            "T" | "TB" => return Err(UnitError::SizeDecimal(count, "TiB")),
            _ => return Err(UnitError::SizeGrammar),
        };
        count.checked_mul(unit).map(Bytes).ok_or(UnitError::SizeTooLarge)
    }
}

impl fmt::Display for Bytes {
    /// Whole GiB, else MiB, KiB or bytes, rounded down, with a decimal only below ten: `1GiB`, `1092MiB`, `3.5MiB`,
    /// `300B`. So amounts of one line, most of them whole MiB, add up as they are shown, and most of them can be typed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= GIB && self.0.is_multiple_of(GIB) {
            return write!(f, "{}GiB", self.0 / GIB);
        }
        for (unit, name) in [(MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit {
                let (whole, rest) = (self.0 / unit, self.0 % unit);
                return match rest * 10 / unit {
                    tenth @ 1.. if whole < 10 => write!(f, "{whole}.{tenth}{name}"),
                    _ => write!(f, "{whole}{name}"),
                };
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// A slice's weight among the slices that want the GPU, 1..=1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// The default weight.
    pub const ONE: Weight = Weight(1);

    /// # Errors
    /// [`UnitError::Weight`] outside 1..=1000.
    pub const fn new(weight: u32) -> Result<Weight, UnitError> {
        if weight >= 1 && weight <= WEIGHT_MAX {
            Ok(Weight(weight))
        } else {
            Err(UnitError::Weight)
        }
    }
    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Weight {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Weight, UnitError> {
        text.parse().map_err(|_| UnitError::Weight).and_then(Weight::new)
    }
}

/// A part of a GPU's time in percent, 1..=100: a share, or the limit of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// All of it.
    pub const ALL: Percent = Percent(100);
    /// # Errors
    /// [`UnitError::Percent`] outside 1..=100.
    pub const fn new(percent: u32) -> Result<Percent, UnitError> {
        if percent >= 1 && percent <= 100 { Ok(Percent(percent)) } else { Err(UnitError::Percent) }
    }
    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Percent, UnitError> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        digits.parse().map_err(|_| UnitError::Percent).and_then(Percent::new)
    }
}

/// A point of CLOCK_MONOTONIC in ns. The engine has no clock: instants are passed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

/// A length of time in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

impl Instant {
    /// Time since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
    /// The instant `after` later.
    #[must_use]
    pub const fn plus(self, after: Duration) -> Instant {
        Instant(self.0.saturating_add(after.0))
    }
}

impl Duration {
    /// Whole microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Duration {
        Duration(us * 1_000)
    }
    /// Whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Duration {
        Duration(ms * 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn sizes_are_binary_and_total() {
        let ok = [("1", 1), ("0", 0), ("512Mi", 512 * MIB), ("8GiB", 8 * GIB), ("7B", 7)];
        for (text, bytes) in ok {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        let bad = [
            ("", UnitError::SizeGrammar),
            ("-1", UnitError::SizeGrammar),
            ("1e30", UnitError::SizeGrammar),
            ("1.5GiB", UnitError::SizeGrammar),
            ("0x10", UnitError::SizeGrammar),
            (" 1", UnitError::SizeGrammar),
            ("8GB", UnitError::SizeDecimal(8, "GiB")),
            ("8G", UnitError::SizeDecimal(8, "GiB")),
            ("18446744073709551616", UnitError::SizeTooLarge),
            ("18446744073709551615GiB", UnitError::SizeTooLarge),
            ("000000000000000000001", UnitError::SizeGrammar),
        ];
        for (text, error) in bad {
            assert_eq!(text.parse::<Bytes>(), Err(error), "{text}");
        }
    }

    #[test]
    fn sizes_print_short() {
        for (bytes, text) in [
            (GIB, "1GiB"),
            (GIB + GIB / 2, "1536MiB"),
            (80 * GIB - MIB, "81919MiB"),
            (3 * MIB + MIB / 2, "3.5MiB"),
            (32 * MIB + MIB / 2, "32MiB"),
            (1000 * KIB, "1000KiB"),
            (300, "300B"),
            (0, "0B"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    /// The shown sizes add up: the memory held is the cap and the part above the cap.
    #[test]
    fn sizes_of_a_line_add_up() {
        let mib = |bytes: u64| {
            let text = Bytes(bytes).to_string();
            let (number, unit) = text.split_at(text.find(char::is_alphabetic).expect("a unit"));
            let unit = if unit == "GiB" { 1024 } else { 1 };
            number.parse::<u64>().expect("whole MiB") * unit
        };
        for above in [580 * MIB, 580 * MIB + 65536, 12_345_678, 20 * GIB, 7 * GIB + 77 * MIB] {
            for cap in [512 * MIB, GIB, 1500 * MIB] {
                assert_eq!(mib(cap + above), mib(cap) + mib(above), "{above} above {cap}");
            }
        }
    }

    #[test]
    fn weights_and_percents_have_bounds() {
        assert!(Weight::new(0).is_err() && Weight::new(1_000_000_000).is_err());
        assert!("1000".parse::<Weight>().is_ok());
        assert!("101".parse::<Percent>().is_err() && "0".parse::<Percent>().is_err());
        assert_eq!("25%".parse::<Percent>().map(Percent::get), Ok(25));
    }
}
