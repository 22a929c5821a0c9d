//! gpuslice's part of a configuration: added, found, removed. Pure: texts in, texts out.
//!
//! Undo keeps no record of the changes; a backup of the file lies beside it. If adding our part to the
//! backup gives exactly the current text, the file is otherwise unchanged, and undo restores the old
//! bytes. Otherwise undo removes only our part, and other changes stay.

use anyhow::Result;
use std::path::Path;

/// Name of gpuslice's runtime in every engine's configuration.
pub const NAME: &str = "gpuslice";
/// Name of the program behind it.
pub const PROGRAM: &str = "gpuslice-runtime";

/// The contents of gpuslice's part, wanted or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The program that the engine calls.
    pub program: String,
    /// Whether it is the default runtime.
    pub default: bool,
    /// Whether CDI devices are switched on; only containerd has such a switch.
    pub cdi: bool,
}

/// gpuslice's part of one file.
pub trait Part {
    /// The text with our part added. A matching part stays as it is written.
    ///
    /// # Errors
    /// The engine could not read the text; with the position.
    fn put(&self, text: &str, wish: &Wish) -> Result<String>;

    /// Our part as found in the text.
    ///
    /// # Errors
    /// As [`Part::put`].
    fn find(&self, text: &str) -> Result<Option<Wish>>;

    /// The text without our part, with the entries it replaced restored from `before`; `None` if the
    /// text contains only our part.
    ///
    /// # Errors
    /// As [`Part::put`].
    fn take_out(&self, text: &str, before: Option<&str>) -> Result<Option<String>>;

    /// NVIDIA's runtime, if it would call ours here.
    ///
    /// # Errors
    /// As [`Part::put`].
    fn behind(&self, _text: &str) -> Result<Option<String>> {
        Ok(None)
    }
}

/// A file without our part.
#[derive(Debug, PartialEq, Eq)]
pub struct Undone {
    /// Its new text; `None` removes the file.
    pub text: Option<String>,
    /// The text is restored to the byte.
    pub exact: bool,
}

/// Removes our part from a text; `backup` is the file's original text, `None` if it did not exist.
/// Returns `None` if the text does not contain our part.
///
/// # Errors
/// The engine could not read the text.
pub fn undo(part: &dyn Part, text: &str, backup: Option<&str>) -> Result<Option<Undone>> {
    let Some(wish) = part.find(text)? else {
        return Ok(None);
    };
    let again = part.put(backup.unwrap_or(""), &wish);
    if again.is_ok_and(|again| again == text) {
        let text = backup.map(str::to_owned);
        return Ok(Some(Undone { text, exact: true }));
    }
    let text = part.take_out(text, backup)?;
    Ok(Some(Undone { text, exact: false }))
}

/// Whether a path or name is that of NVIDIA's runtime.
pub fn is_nvidia(program: &str) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("nvidia-container-runtime")
}

/// A file that belongs to gpuslice as a whole, by its name.
pub struct Own {
    /// Its text.
    pub text: String,
}

impl Part for Own {
    fn put(&self, _: &str, _: &Wish) -> Result<String> {
        Ok(self.text.clone())
    }

    fn find(&self, _: &str) -> Result<Option<Wish>> {
        Ok(Some(Wish { program: String::new(), default: false, cdi: false }))
    }

    fn take_out(&self, _: &str, _: Option<&str>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Properties that every part must have for every text.
#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn wish(default: bool) -> Wish {
        let program = "/usr/bin/gpuslice-runtime".to_owned();
        Wish { program, default, cdi: default }
    }

    /// Adding is idempotent, and undo restores the bytes; as default runtime with CDI or not, and one after the
    /// other. Returns the text with our part.
    pub fn round_trip(part: &dyn Part, before: &str) -> String {
        let put = part.put(before, &wish(false)).expect("a good text");
        assert_eq!(part.put(&put, &wish(false)).expect("again"), put);
        let by_default = part.put(&put, &wish(true)).expect("by default");
        assert_eq!(part.put(before, &wish(true)).expect("at once"), by_default);
        // The default runtime stays the same.
        assert_eq!(part.put(&by_default, &wish(false)).expect("again"), by_default);
        for text in [&put, &by_default] {
            let undone = undo(part, text, Some(before)).expect("a good text");
            let (text, exact) = (Some(before.to_owned()), true);
            assert_eq!(undone, Some(Undone { text, exact }));
        }
        assert_eq!(undo(part, before, None).expect("a good text"), None);
        put
    }
}
