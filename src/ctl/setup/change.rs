//! Planned changes of files: shown first, then carried out.

use super::file;
use anyhow::{Context, Result, bail};
use similar::TextDiff;
use std::path::{Path, PathBuf};

/// A planned change of one file.
pub struct Edit {
    /// Its path.
    pub path: PathBuf,
    /// Its text now; `None` if it does not exist.
    pub before: Option<String>,
    /// Its new text; `None` removes it.
    pub after: Option<String>,
    /// The backup to keep; `Some(None)` removes the backup.
    pub backup: Option<Option<String>>,
}

/// The change as a unified diff.
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

/// Writes the files in order. A file is written after the files it refers to, so that an interruption
/// leaves every engine with a readable configuration. `undone_by` names the engine whose `--undo` restores a file.
///
/// # Errors
/// A file cannot be written, or has been changed meanwhile.
pub fn carry_out(edits: &[Edit], undone_by: impl Fn(&Path) -> &'static str) -> Result<()> {
    let mut done: Vec<String> = Vec::new();
    for edit in edits {
        let name = edit.path.display().to_string();
        carry_out_one(edit).with_context(|| match done.is_empty() {
            true => "nothing was changed".to_owned(),
            false => format!(
                "changed before that: {}; undo it with gpuslice setup {} --undo",
                done.join(", "),
                undone_by(&edits[0].path)
            ),
        })?;
        done.push(name);
    }
    Ok(())
}

fn carry_out_one(edit: &Edit) -> Result<()> {
    let Edit { path, before, after, backup } = edit;
    if file::read(path)? != *before {
        bail!("{} was changed meanwhile; inspect it and try again", path.display());
    }
    let kept = file::backup_of(path);
    if after.is_some() {
        file::make_dirs(path)?;
    }
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
