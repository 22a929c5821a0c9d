//! Identities that Kubernetes gives: the container that owns a slice, and the claim that reserved it.
//!
//! A slice is named by its container's id, which only the runtime knows. A cluster names the same container by
//! namespace, pod and name. These names inform; no limit and no permission depends on them.

use crate::frame::{Field, FrameError, Reader, Writer};
use crate::ids::ContainerId;
use crate::limits::CLAIM_ID_BYTES_MAX;
use crate::text::Text;
use core::fmt;

/// A container as Kubernetes names it. All fields are empty without Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of the pod.
    pub namespace: Text<63>,
    /// Name of the pod.
    pub pod: Text<253>,
    /// UID of the pod.
    pub uid: Text<64>,
    /// Name of the container in the pod.
    pub container: Text<63>,
}

impl Owner {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Owner::default()
    }
}

impl Field for Owner {
    const BYTES: usize =
        2 * <Text<63>>::BYTES + <Text<253> as Field>::BYTES + <Text<64> as Field>::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.namespace.put(w)?;
        self.pod.put(w)?;
        self.uid.put(w)?;
        self.container.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Owner, FrameError> {
        Ok(Owner {
            namespace: Field::get(r)?,
            pod: Field::get(r)?,
            uid: Field::get(r)?,
            container: Field::get(r)?,
        })
    }
}

/// A claim's id, chosen by the agent that reserves it: 1 to 64 of `[A-Za-z0-9_.-]`, a letter or digit at both ends.
/// So it can be the name of a file, of a CDI device, and a part of a [`ContainerId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(Text<CLAIM_ID_BYTES_MAX>);

/// A text is not a claim id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadClaimId;

impl fmt::Display for BadClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a claim id is 1 to {CLAIM_ID_BYTES_MAX} of A-Z a-z 0-9 _ . - with a letter or digit at both ends"
        )
    }
}

impl core::error::Error for BadClaimId {}

/// How the slice ids of claims begin. No runtime's container may have such an id.
const PREFIX: &str = "claim.";

impl ClaimId {
    /// # Errors
    /// [`BadClaimId`] on any other form.
    pub fn new(text: &str) -> Result<ClaimId, BadClaimId> {
        let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        if !end(bytes.first()) || !end(bytes.last()) || !text.bytes().all(inner) {
            return Err(BadClaimId);
        }
        Text::new(text).map(ClaimId).map_err(|_| BadClaimId)
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The id of the claim's slice: `claim.` and the claim's id.
    #[must_use]
    pub fn slice(&self) -> ContainerId {
        let mut bytes = [0; PREFIX.len() + CLAIM_ID_BYTES_MAX];
        let (id, len) = (self.as_str().as_bytes(), PREFIX.len() + self.as_str().len());
        bytes[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        bytes[PREFIX.len()..len].copy_from_slice(id);
        // Both parts are ASCII of the form that a container id has, and short enough.
        let text = core::str::from_utf8(&bytes[..len]).unwrap_or(PREFIX);
        ContainerId::new(text).unwrap_or_else(|_| unreachable!())
    }

    /// The claim whose slice has this id, if it is a claim's.
    #[must_use]
    pub fn of_slice(slice: &ContainerId) -> Option<ClaimId> {
        slice.as_str().strip_prefix(PREFIX).and_then(|id| ClaimId::new(id).ok())
    }

    /// Whether only a claim's slice may have this id.
    #[must_use]
    pub fn is_reserved(slice: &ContainerId) -> bool {
        slice.as_str().starts_with(PREFIX)
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Field for ClaimId {
    const BYTES: usize = <Text<CLAIM_ID_BYTES_MAX> as Field>::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.0.put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<ClaimId, FrameError> {
        let text = Text::<CLAIM_ID_BYTES_MAX>::get(r)?;
        ClaimId::new(text.as_str()).map_err(|_| FrameError::Field)
    }
}

impl Field for Option<ClaimId> {
    const BYTES: usize = ClaimId::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.map_or(Text::EMPTY, |claim| claim.0).put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<Option<ClaimId>, FrameError> {
        let text = Text::<CLAIM_ID_BYTES_MAX>::get(r)?;
        let claim = |text: &str| ClaimId::new(text).map_err(|_| FrameError::Field);
        Some(text.as_str()).filter(|text| !text.is_empty()).map(claim).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_ids_name_files_devices_and_slices() {
        let longest = "a".repeat(CLAIM_ID_BYTES_MAX);
        for good in ["a", "1", "0b3f-4c_d.0", "6f1c9c1e-1111-4222-8333-944455566677-0", &longest] {
            let claim = ClaimId::new(good).expect(good);
            assert_eq!(ClaimId::of_slice(&claim.slice()), Some(claim));
            assert!(ClaimId::is_reserved(&claim.slice()));
        }
        let (long, huge) = ("a".repeat(CLAIM_ID_BYTES_MAX + 1), "a".repeat(10_240));
        for bad in ["", ".", "..", "a/b", "../a", "-a", "a-", "a.", "a b", "a\n", "é", &long, &huge]
        {
            assert_eq!(ClaimId::new(bad), Err(BadClaimId), "{bad:?}");
        }
        for other in ["web", "claim", "claim.-", "claimx"] {
            let other = ContainerId::new(other).expect("a container id");
            assert_eq!(ClaimId::of_slice(&other), None);
        }
    }
}
