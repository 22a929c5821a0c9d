//! Selectors of GPUs: `any`, `all`, or a list of NVML indices and UUIDs (`0,1`, `GPU-…`).

use crate::ids::{GpuUuid, NvmlIndex};
use crate::limits::GPUS_MAX;
use core::fmt;

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuRef {
    /// By NVML index on the node.
    Index(NvmlIndex),
    /// By UUID.
    Uuid(GpuUuid),
}

impl core::str::FromStr for GpuRef {
    type Err = SelectError;
    fn from_str(word: &str) -> Result<GpuRef, SelectError> {
        parse_ref(word)
    }
}

/// A parsed selector. Plain data of 320 bytes; one exists at a time.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSelector {
    /// One GPU chosen by the daemon: the one with the most memory not yet promised.
    Any,
    /// Every GPU of the node.
    All,
    /// These, in this order; lane 0 is the first.
    List([Option<GpuRef>; GPUS_MAX]),
}

/// Why a selector was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// An entry is neither an index nor a UUID.
    Entry,
    /// An entry begins as a UUID does, and is none.
    Uuid,
    /// More entries than a node can have GPUs.
    TooMany,
    /// The same entry twice.
    Twice,
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SelectError::Entry => {
                f.write_str("GPUs are any, all, or a list of indices and UUIDs such as 0,1")
            }
            SelectError::Uuid => f.write_str(
                "a GPU's UUID is GPU- and 32 hexadecimal digits in five groups, as nvidia-smi -L shows it",
            ),
            SelectError::TooMany => write!(f, "more than {GPUS_MAX} GPUs are named"),
            SelectError::Twice => f.write_str("a GPU is named twice"),
        }
    }
}

impl core::error::Error for SelectError {}

impl GpuSelector {
    /// Parses a written selector; the empty text is `any`.
    ///
    /// # Errors
    /// [`SelectError`]; no part of an invalid selector is used.
    pub fn parse(text: &str) -> Result<GpuSelector, SelectError> {
        match text {
            "" | "any" => return Ok(GpuSelector::Any),
            "all" => return Ok(GpuSelector::All),
            _ => {}
        }
        let mut list = [None; GPUS_MAX];
        for (at, word) in text.split(',').enumerate() {
            let entry = Some(parse_ref(word)?);
            if list.contains(&entry) {
                return Err(SelectError::Twice);
            }
            *list.get_mut(at).ok_or(SelectError::TooMany)? = entry;
        }
        Ok(GpuSelector::List(list))
    }
}

fn parse_ref(word: &str) -> Result<GpuRef, SelectError> {
    if word.starts_with("GPU-") {
        return word.parse().map(GpuRef::Uuid).map_err(|_| SelectError::Uuid);
    }
    let plain = !word.is_empty() && word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit());
    if !plain {
        return Err(SelectError::Entry);
    }
    word.parse().map(|index| GpuRef::Index(NvmlIndex(index))).map_err(|_| SelectError::Entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        assert_eq!(GpuSelector::parse("any"), Ok(GpuSelector::Any));
        assert_eq!(GpuSelector::parse("all"), Ok(GpuSelector::All));
        let Ok(GpuSelector::List(list)) = GpuSelector::parse("1,0") else { panic!("a list") };
        assert_eq!(list[0], Some(GpuRef::Index(NvmlIndex(1))));
        assert_eq!(list[1], Some(GpuRef::Index(NvmlIndex(0))));
        assert_eq!(GpuSelector::parse("0,0"), Err(SelectError::Twice));
        assert_eq!(GpuSelector::parse("0,GPU-1"), Err(SelectError::Uuid));
        for bad in ["x", ",", "0,", "-1", "1e3", "0;1", "+1"] {
            assert_eq!(GpuSelector::parse(bad), Err(SelectError::Entry), "{bad}");
        }
    }
}
