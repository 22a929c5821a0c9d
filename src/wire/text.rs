//! Short strings of bounded length that travel in frames: names, ids, paths, selectors.
//!
//! A `Text<N>` is UTF-8 without NUL or control characters, at most `N` bytes, so that it can be
//! logged, put in a path check or shown on a terminal without a second look.

use crate::limits;
use core::fmt;

/// A bounded piece of text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

/// A name a person gave a slice.
pub type Name = Text<{ limits::NAME_BYTES_MAX }>;
/// An absolute path on the host.
pub type HostPath = Text<{ limits::PATH_BYTES_MAX }>;
/// A GPU selector as written by a person; [`crate::select`] parses it.
pub type Selector = Text<{ limits::SELECTOR_BYTES_MAX }>;

/// Why a text was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// Longer than the bound, given in bytes.
    TooLong(usize),
    /// Not UTF-8, or with a control character in it.
    NotPlain,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::TooLong(max) => write!(f, "longer than {max} bytes"),
            TextError::NotPlain => f.write_str("has a control character or is not UTF-8"),
        }
    }
}

impl core::error::Error for TextError {}

impl<const N: usize> Text<N> {
    /// The empty text.
    pub const EMPTY: Text<N> = Text {
        len: 0,
        bytes: [0; N],
    };

    /// # Errors
    /// [`TextError`] when too long or not plain.
    pub fn new(text: &str) -> Result<Text<N>, TextError> {
        if text.len() > N {
            return Err(TextError::TooLong(N));
        }
        if text.chars().any(char::is_control) {
            return Err(TextError::NotPlain);
        }
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Text {
            len: text.len() as u16,
            bytes,
        })
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or("")
    }

    /// Whether there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
