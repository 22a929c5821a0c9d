//! Sizes (`16GiB`) and durations (`2ms`) as the configuration writes them: a whole number and a
//! unit, nothing else.

const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const DURATIONS: [(&str, u64); 4] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

pub(crate) const SIZE_FORM: &str = "a whole number and a unit of B, KiB, MiB, GiB or TiB";
pub(crate) const DURATION_FORM: &str = "a whole number and a unit of ns, us, ms or s";

/// Bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    quantity(text, &SIZES)
}

/// Nanoseconds.
pub(crate) fn duration(text: &str) -> Option<u64> {
    quantity(text, &DURATIONS)
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_with_a_unit() {
        assert_eq!(size("16GiB"), Some(16 << 30));
        assert_eq!(duration("50us"), Some(50_000));
        for bad in ["", "16", "GiB", "1.5GiB", "-1GiB", "16GB", "16 GiB", "99999999999TiB"] {
            assert_eq!(size(bad), None, "{bad}");
        }
        assert_eq!(duration("2m"), None);
    }
}
