//! What is to become of files: shown first, then done.

use super::file;
use anyhow::{Context, Result, bail};
use similar::TextDiff;
use std::path::PathBuf;

/// What is to become of one file.
pub struct Edit {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub before: Option<String>,
    /// What it is to say.
    pub after: Option<String>,
    /// What is to be kept as the file from before; `Some(None)`: nothing any more.
    pub backup: Option<Option<String>>,
}

/// The change as everybody reads changes.
pub fn diff(edit: &Edit) -> String {
    let name = edit.path.display().to_string();
    let side = |text: &Option<String>| match text {
        Some(_) => name.clone(),
        None => "/dev/null".to_owned(),
    };
    let (old, new) = (side(&edit.before), side(&edit.after));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (before, after) = (text(&edit.before), text(&edit.after));
    let diff = TextDiff::from_lines(&before, &after);
    diff.unified_diff().header(&old, &new).to_string()
}

/// Writes the files, in order. What one refers to has been written before it, so that an end in the
/// middle leaves every engine with a configuration that it can read.
///
/// # Errors
/// A file cannot be written, or somebody else has changed it meanwhile.
pub fn carry_out(engine: &str, edits: &[Edit]) -> Result<()> {
    let mut done: Vec<String> = Vec::new();
    for edit in edits {
        let name = edit.path.display().to_string();
        carry_out_one(edit).with_context(|| match done.is_empty() {
            true => "nothing was changed".to_owned(),
            false => format!(
                "changed before that: {}; gpuslice setup {} --undo takes it back",
                done.join(", "),
                engine
            ),
        })?;
        done.push(name);
    }
    Ok(())
}

fn carry_out_one(edit: &Edit) -> Result<()> {
    let Edit {
        path,
        before,
        after,
        backup,
    } = edit;
    if file::read(path)? != *before {
        bail!(
            "{} was changed this very moment; look at it and try again",
            path.display()
        );
    }
    let kept = file::backup_of(path);
    if let Some(Some(text)) = backup {
        file::write_like(path, &kept, text)?;
    }
    match after {
        Some(text) => file::write(path, text)?,
        None => file::remove(path)?,
    }
    if let Some(None) = backup
        && file::read(&kept)?.is_some()
    {
        file::remove(&kept)?;
    }
    Ok(())
}
