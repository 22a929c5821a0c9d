//! Identities as types, so that an ordinal is never mistaken for an index, or a reused slot for its former
//! owner. Everything about a GPU is keyed by its UUID.

use crate::limits::CONTAINER_ID_BYTES_MAX;
use crate::text::Text;
use core::fmt;
use core::str::FromStr;

/// A GPU's UUID: the 16 bytes behind `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(pub [u8; 16]);

/// A text is not `GPU-` and a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadUuid;

impl fmt::Display for BadUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a GPU UUID looks like GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")
    }
}

impl core::error::Error for BadUuid {}

/// How simulated GPUs' UUIDs begin, in the form of version 8: `GPU-67707573-696d-8…`.
const SIMULATED: [u8; 6] = *b"gpusim";

impl GpuUuid {
    /// Whether it belongs to a simulated GPU. The daemon reads it from its driver, which no tenant can change; a real
    /// GPU has such a UUID with a probability of 2^-52.
    #[must_use]
    pub const fn is_simulated(self) -> bool {
        let mut at = 0;
        while at < SIMULATED.len() {
            if self.0[at] != SIMULATED[at] {
                return false;
            }
            at += 1;
        }
        self.0[6] >> 4 == 8
    }

    /// The profile of a simulated GPU: how strict its driver is. It is a bit of the UUID, after the form's version.
    #[must_use]
    pub const fn profile(self) -> Option<&'static str> {
        match (self.is_simulated(), self.0[6] & 1) {
            (false, _) => None,
            (true, 0) => Some("kind"),
            (true, _) => Some("strict"),
        }
    }
}

impl FromStr for GpuUuid {
    type Err = BadUuid;
    fn from_str(text: &str) -> Result<GpuUuid, BadUuid> {
        let hex = text.strip_prefix("GPU-").ok_or(BadUuid)?.as_bytes();
        if hex.len() != 36 {
            return Err(BadUuid);
        }
        let (mut uuid, mut nibbles) = ([0u8; 16], 0usize);
        for (at, &byte) in hex.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return Err(BadUuid);
                }
                continue;
            }
            let digit = (byte as char).to_digit(16).ok_or(BadUuid)? as u8;
            uuid[nibbles / 2] = uuid[nibbles / 2] << 4 | digit;
            nibbles += 1;
        }
        Ok(GpuUuid(uuid))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A GPU's number in one CUDA process (what `cuDeviceGet` takes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaOrdinal(pub u32);

/// A GPU's number in NVML on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NvmlIndex(pub u32);

/// A GPU's number within a container's slice; the index into the shared pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u8);

impl Lane {
    /// Not a GPU: the host memory that a container has pinned for GPUs, with its own ledger account.
    pub const HOST: Lane = Lane(crate::limits::LANES_MAX as u8);
}

/// An attached process: a slot of the daemon's table and the slot's generation. Frames and pages of a former owner
/// of the slot have another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    /// Index into the daemon's client table.
    pub slot: u16,
    /// How often the slot has been used.
    pub generation: u16,
}

/// A container's id as its runtime names it; `[A-Za-z0-9][A-Za-z0-9_.-]*`, at most 128 bytes, so
/// that it can be a directory name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Text<CONTAINER_ID_BYTES_MAX>);

/// A text is not a container id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadContainerId;

impl fmt::Display for BadContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a container id is 1 to {CONTAINER_ID_BYTES_MAX} of A-Z a-z 0-9 _ . - and starts with a letter or digit"
        )
    }
}

impl core::error::Error for BadContainerId {}

impl ContainerId {
    /// # Errors
    /// [`BadContainerId`] on any other form.
    pub fn new(text: &str) -> Result<ContainerId, BadContainerId> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let first = text.bytes().next().ok_or(BadContainerId)?;
        if !first.is_ascii_alphanumeric() || !text.bytes().all(plain) {
            return Err(BadContainerId);
        }
        Text::new(text).map(ContainerId).map_err(|_| BadContainerId)
    }
    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
    /// The id as bounded text.
    #[must_use]
    pub fn text(&self) -> Text<CONTAINER_ID_BYTES_MAX> {
        self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn uuids_round_trip() {
        let simulated: GpuUuid = "GPU-67707573-696d-8d2c-a12f-20bd9faed9f6".parse().unwrap();
        assert!(simulated.is_simulated());
        assert_eq!(simulated.profile(), Some("strict"));
        let kind: GpuUuid = "GPU-67707573-696d-8c2c-a12f-20bd9faed9f6".parse().unwrap();
        assert_eq!((kind.profile(), GpuUuid([1; 16]).profile()), (Some("kind"), None));
        let text = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
        assert!(!text.parse::<GpuUuid>().unwrap().is_simulated());
        assert_eq!(text.parse::<GpuUuid>().map(|u| u.to_string()).as_deref(), Ok(text));
        for bad in [
            "",
            "GPU-",
            "8932f937-d72c-4106-c12f-20bd9faed9f6",
            "GPU-8932f937xd72c-4106-c12f-20bd9faed9f6",
        ] {
            assert_eq!(bad.parse::<GpuUuid>(), Err(BadUuid), "{bad}");
        }
    }

    #[test]
    fn container_ids_are_path_components() {
        for good in ["a", "web-1", "0123abc", "k8s.io_x"] {
            assert!(ContainerId::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "a b", "a\n", "é"] {
            assert!(ContainerId::new(bad).is_err(), "{bad}");
        }
        assert!(ContainerId::new(&"a".repeat(129)).is_err());
    }
}
