//! Short strings of bounded length that travel in frames: names, ids, paths, selectors.
//!
//! A `Text<N>` is UTF-8 of characters that are seen ([`is_seen`]), at most `N` bytes. It can be logged, compared with
//! a path or shown on a terminal without further checks.
//!
//! The name of a control group differs: the kernel accepts any bytes but NUL, `/` and a newline, and a container may
//! create groups below its own. A [`CgroupPath`] keeps the bytes, escapes the unprintable ones for display, and
//! compares bytes.

use crate::limits;
use core::fmt;

/// Characters without an appearance of their own, which direct, join or hide others: two names that differ only in
/// these look the same, and a right-to-left override shows the rest of a line in the wrong order. The categories
/// Cf, Zl and Zp of Unicode 16.0 (UnicodeData.txt).
const UNSEEN: [(char, char); 20] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0001}', '\u{e0001}'),
    ('\u{e0020}', '\u{e007f}'),
];

/// Whether a character shows on a terminal as itself: it is no control character, and not invisible.
#[must_use]
pub fn is_seen(c: char) -> bool {
    !c.is_control() && !UNSEEN.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// A bounded piece of text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

/// The name of a slice, given by its user.
pub type Name = Text<{ limits::NAME_BYTES_MAX }>;
/// An absolute path on the host.
pub type HostPath = Text<{ limits::PATH_BYTES_MAX }>;
/// A GPU selector as written by a person; [`crate::select`] parses it.
pub type Selector = Text<{ limits::SELECTOR_BYTES_MAX }>;

/// Why a text or a path was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// Longer than the bound, given in bytes.
    TooLong(usize),
    /// Not UTF-8, or with a control character or an invisible one in it.
    NotPlain,
    /// Not the path of a control group: empty, relative, or with a byte that no such path has.
    NotAPath,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::TooLong(max) => write!(f, "longer than {max} bytes"),
            TextError::NotPlain => {
                f.write_str("has a control or an invisible character, or is not UTF-8")
            }
            TextError::NotAPath => f.write_str("is not an absolute path of one line"),
        }
    }
}

impl core::error::Error for TextError {}

impl<const N: usize> Text<N> {
    /// The empty text.
    pub const EMPTY: Text<N> = Text { len: 0, bytes: [0; N] };

    /// # Errors
    /// [`TextError`] when too long or not plain.
    pub fn new(text: &str) -> Result<Text<N>, TextError> {
        if text.len() > N {
            return Err(TextError::TooLong(N));
        }
        if !text.chars().all(is_seen) {
            return Err(TextError::NotPlain);
        }
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Text { len: text.len() as u16, bytes })
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

impl<const N: usize> Default for Text<N> {
    fn default() -> Text<N> {
        Text::EMPTY
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

/// The path of a control group below the mount of its hierarchy, as `/proc/PID/cgroup` shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath {
    len: u16,
    bytes: [u8; limits::PATH_BYTES_MAX],
}

impl CgroupPath {
    /// No group.
    pub const EMPTY: CgroupPath = CgroupPath { len: 0, bytes: [0; limits::PATH_BYTES_MAX] };

    /// # Errors
    /// [`TextError`] when too long or not a path.
    pub fn new(path: &[u8]) -> Result<CgroupPath, TextError> {
        let mut bytes = [0; limits::PATH_BYTES_MAX];
        let Some(place) = bytes.get_mut(..path.len()) else {
            return Err(TextError::TooLong(limits::PATH_BYTES_MAX));
        };
        if path.first() != Some(&b'/') || path.iter().any(|byte| matches!(byte, 0 | b'\n')) {
            return Err(TextError::NotAPath);
        }
        place.copy_from_slice(path);
        let len = path.len() as u16;
        Ok(CgroupPath { len, bytes })
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Whether there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Printable ASCII as it is, every other byte and the backslash escaped.
impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl fmt::Debug for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_text_shows_on_a_terminal_as_it_is() {
        for fine in ["web-1", "gr\u{fc}n", "\u{1f680}", "\u{5d0}"] {
            assert_eq!(Text::<32>::new(fine).map(|it| it.as_str().len()), Ok(fine.len()));
        }
        for c in [
            '\0',
            '\n',
            '\u{1b}',
            '\u{7f}',
            '\u{9b}',
            '\u{ad}',
            '\u{200b}',
            '\u{202e}',
            '\u{2028}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            let text = ["a", c.encode_utf8(&mut [0; 4]), "b"].concat();
            assert_eq!(Text::<32>::new(&text), Err(TextError::NotPlain), "{c:?}");
        }
    }

    #[test]
    fn the_path_of_a_group_keeps_every_byte_and_escapes_unprintable_ones() {
        for (bytes, shown) in [
            (&b"/pods/web"[..], "/pods/web"),
            (b"/pods/\xff\x1b[2J", "/pods/\\xff\\x1b[2J"),
            (b"/a\\x2db (deleted)", "/a\\\\x2db (deleted)"),
            ("/\u{202e}".as_bytes(), "/\\xe2\\x80\\xae"),
        ] {
            let path = CgroupPath::new(bytes).expect("a path");
            assert_eq!((path.as_bytes(), path.is_empty()), (bytes, false));
            assert_eq!(path.to_string(), shown);
        }
        for bad in [&b""[..], b"pods", b"/a\n0::/b", b"/a\0b"] {
            assert_eq!(CgroupPath::new(bad), Err(TextError::NotAPath), "{bad:?}");
        }
        let mut long = [b'x'; limits::PATH_BYTES_MAX + 1];
        long[0] = b'/';
        let most = TextError::TooLong(limits::PATH_BYTES_MAX);
        assert_eq!(CgroupPath::new(&long), Err(most));
        assert!(CgroupPath::new(&long[1..]).is_err() && CgroupPath::EMPTY.is_empty());
        assert!(CgroupPath::new(&long[..limits::PATH_BYTES_MAX]).is_ok());
    }
}
