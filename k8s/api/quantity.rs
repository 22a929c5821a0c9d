//! Amounts of resources: `3`, `500m`, `80Gi`, `1e3`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A number of thousandths, at least 0. Amounts beyond the type saturate, since a node has no more anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(u128);

/// A text that is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no amount: one is a number of at most 40 characters with a unit such as Ki, Mi, Gi, k, M, G or m"
)]
pub struct BadQuantity(String);

/// Units and their thousandths.
const UNITS: [(&str, u128); 14] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("", 1000),
];
/// Characters of an amount, at most.
const LENGTH_MAX: usize = 40;

impl Quantity {
    /// An amount without a fraction.
    #[must_use]
    pub fn of(value: u64) -> Quantity {
        Quantity(u128::from(value) * 1000)
    }

    /// The amount, rounded up.
    #[must_use]
    pub fn value(self) -> u64 {
        u64::try_from(self.0.div_ceil(1000)).unwrap_or(u64::MAX)
    }
}

impl FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Quantity, BadQuantity> {
        parse(text)
            .map(Quantity)
            .ok_or_else(|| BadQuantity(text.chars().take(LENGTH_MAX).collect()))
    }
}

fn parse(text: &str) -> Option<u128> {
    if text.len() > LENGTH_MAX {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let thousandths = UNITS.iter().find(|it| it.0 == unit).map(|it| it.1);
    let (thousandths, parts) = match thousandths {
        Some(thousandths) => (thousandths, 1),
        None => power(unit)?,
    };
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let mut sum = digits(whole)?.saturating_mul(thousandths);
    let mut place = thousandths;
    for digit in fraction.bytes() {
        // The last place rounds up, so that no amount is lost.
        let part = place.saturating_mul(u128::from(digit - b'0'));
        sum = sum.saturating_add(part.div_ceil(10));
        place = place.div_ceil(10);
    }
    Some(sum.div_ceil(parts))
}

/// The thousandths of a power of ten, `n` or `u`, and by how much they are divided.
fn power(unit: &str) -> Option<(u128, u128)> {
    let exponent: i32 = match unit {
        "n" => -9,
        "u" => -6,
        _ => unit.strip_prefix(['e', 'E'])?.parse().ok()?, // with a sign or without one
    };
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    if exponent < 0 { Some((1000, power)) } else { Some((power.checked_mul(1000)?, 1)) }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_multiple_of(1000) {
            return write!(f, "{}m", self.0);
        }
        let value = self.0 / 1000;
        let unit = UNITS[..6].iter().rev().find(|it| value > 0 && self.0.is_multiple_of(it.1));
        match unit {
            Some((unit, thousandths)) => write!(f, "{}{unit}", self.0 / thousandths),
            None => write!(f, "{value}"),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        let read = |text: &str| text.parse::<Quantity>().map(Quantity::value).ok();
        for (text, value) in [
            ("0", 0),
            ("15", 15),
            ("500m", 1),
            ("1500m", 2),
            ("1.5", 2),
            ("0.5Ki", 512),
            ("80Gi", 80 << 30),
            ("1k", 1000),
            ("1e3", 1000),
            ("12E", 12_000_000_000_000_000_000),
            ("16Ei", u64::MAX),
            ("+1Ki", 1024),
            ("100e-3", 1),
            ("2500E-3", 3),
            ("1e+3", 1000),
            ("3000000001n", 4),
            ("2000000u", 2),
            ("99999999999999999999999999999999", u64::MAX),
        ] {
            assert_eq!(read(text), Some(value), "{text}");
        }
        let long = "1".repeat(41);
        for text in [
            "", "-1", "++1", "+", "1e-99", "Gi", "1.2.3", "1 Gi", "1gi", "1e", "1e99", "0x10",
            "NaN", &long,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_written_short() {
        let written = |value| Quantity::of(value).to_string();
        assert_eq!(written(0), "0");
        assert_eq!(written(100), "100");
        assert_eq!(written(1 << 20), "1Mi");
        assert_eq!(written(15079 << 20), "15079Mi");
        assert_eq!(written(80 << 30), "80Gi");
        assert_eq!("250m".parse::<Quantity>().expect("an amount").to_string(), "250m");
        let json: Quantity = serde_json::from_str("3").expect("a number is an amount too");
        assert_eq!(json, Quantity::of(3));
    }
}
