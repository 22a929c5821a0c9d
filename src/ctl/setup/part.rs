//! What of a configuration is ours: put in, found again, taken out. Pure: texts in, texts out.
//!
//! Undoing needs no memory of what was done. The file as it was is kept beside it; if putting our part
//! into that gives exactly what is there now, nobody else has changed anything since, and the old bytes
//! come back. Otherwise only our part is taken out, and what others wrote stays.

use anyhow::Result;
use std::path::Path;

/// Name of our runtime in every engine's configuration.
pub const NAME: &str = "gpuslice";
/// Name of the program behind it.
pub const PROGRAM: &str = "gpuslice-runtime";

/// What a configuration is to say, or says, of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// What the engine calls.
    pub program: String,
    /// Whether for every container.
    pub default: bool,
}

/// Our part of one file.
pub trait Part {
    /// The text with our part in it. What is as wished already stays as it is written.
    ///
    /// # Errors
    /// The text is not what the engine would read, with the place.
    fn put(&self, text: &str, wish: &Wish) -> Result<String>;

    /// What the text says of us.
    ///
    /// # Errors
    /// As [`Part::put`].
    fn find(&self, text: &str) -> Result<Option<Wish>>;

    /// The text without our part, and with what ours took the place of, as `before` had it; `None` if
    /// nothing but our part is in it.
    ///
    /// # Errors
    /// As [`Part::put`].
    fn take_out(&self, text: &str, before: Option<&str>) -> Result<Option<String>>;

    /// NVIDIA's runtime, if ours would be called by it here.
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
    /// What it then says; `None`: it goes.
    pub text: Option<String>,
    /// It is what it was, to the byte.
    pub exact: bool,
}

/// Takes our part out of a text; `backup` is the file as it was before us, `None` if there was none.
/// `None` if nothing of ours is in it.
///
/// # Errors
/// The text is not what the engine would read.
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
    name.to_string_lossy()
        .starts_with("nvidia-container-runtime")
}

/// A file that is ours altogether, by its name.
pub struct Own {
    /// What it says.
    pub text: String,
}

impl Part for Own {
    fn put(&self, _: &str, _: &Wish) -> Result<String> {
        Ok(self.text.clone())
    }

    fn find(&self, _: &str) -> Result<Option<Wish>> {
        let (program, default) = (String::new(), false);
        Ok(Some(Wish { program, default }))
    }

    fn take_out(&self, _: &str, _: Option<&str>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// What every part must do with every text.
#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn wish(default: bool) -> Wish {
        let program = "/usr/bin/gpuslice-runtime".to_owned();
        Wish { program, default }
    }

    /// Put in twice is put in once; taken out gives the bytes back; default or not, and one after the
    /// other. The text with our part in it.
    pub fn round_trip(part: &dyn Part, before: &str) -> String {
        let put = part.put(before, &wish(false)).expect("a good text");
        assert_eq!(part.put(&put, &wish(false)).expect("again"), put);
        let by_default = part.put(&put, &wish(true)).expect("by default");
        assert_eq!(part.put(before, &wish(true)).expect("at once"), by_default);
        // Who is the default stays it.
        assert_eq!(
            part.put(&by_default, &wish(false)).expect("again"),
            by_default
        );
        for text in [&put, &by_default] {
            let undone = undo(part, text, Some(before)).expect("a good text");
            let (text, exact) = (Some(before.to_owned()), true);
            assert_eq!(undone, Some(Undone { text, exact }));
        }
        assert_eq!(undo(part, before, None).expect("a good text"), None);
        put
    }
}
