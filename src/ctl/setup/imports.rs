//! containerd's configuration is several files, and which one counts is a trap.
//!
//! `imports` names files that are read after the main one. Up to containerd 2.0 a plugin's table in one of
//! them takes the place of the whole table read before, and is not merged with it: a handler in the main
//! file does nothing once a drop-in, such as the one NVIDIA's toolkit writes, has a table of the same
//! plugin. So ours goes into the last file that has one; where none has, into the main file.

use super::containerd::{Containerd, version_of};
use super::file;
use super::toml::Read;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Most files that are followed.
const FILES_MAX: usize = 64;

/// One file that containerd reads.
pub struct Source {
    /// Where it is, links followed.
    pub path: PathBuf,
    /// What it says; empty where there is none.
    pub text: String,
    /// Its version, or the one of who imports it.
    version: i64,
}

impl Source {
    /// What of it is ours.
    ///
    /// # Errors
    /// Its version is unknown to us.
    pub fn part(&self) -> Result<Containerd> {
        Containerd::of_version(self.version).with_context(|| self.path.display().to_string())
    }
}

/// All files that containerd reads, in its order, the main one first.
///
/// # Errors
/// One of them is not what containerd would read.
pub fn all(main: &Path) -> Result<Vec<Source>> {
    let main = file::real(main)?;
    let text = file::read(&main)?.unwrap_or_default();
    let named = || main.display().to_string();
    let version = version_of(&text).with_context(named)?.unwrap_or(1);
    let mut sources = vec![Source {
        path: main,
        text,
        version,
    }];
    let mut next = 0;
    while next < sources.len() {
        for path in imports(&sources[next])? {
            if sources.iter().any(|known| known.path == path) {
                continue;
            }
            if sources.len() == FILES_MAX {
                bail!(
                    "{} and its imports are more than {FILES_MAX} files",
                    sources[0].path.display()
                );
            }
            let text = file::read(&path)?.unwrap_or_default();
            let own = version_of(&text).with_context(|| path.display().to_string())?;
            let version = own.filter(|_| !text.is_empty()).unwrap_or(version);
            sources.push(Source {
                path,
                text,
                version,
            });
        }
        next += 1;
    }
    Ok(sources)
}

/// The last file with the plugin's table, or the main one.
///
/// # Errors
/// A file is not what containerd would read.
pub fn that_counts(sources: &[Source]) -> Result<&Source> {
    for source in sources.iter().rev() {
        let named = || source.path.display().to_string();
        if source.part()?.is_in(&source.text).with_context(named)? {
            return Ok(source);
        }
    }
    sources.first().context("a configuration")
}

fn imports(source: &Source) -> Result<Vec<PathBuf>> {
    let named = || source.path.display().to_string();
    let read = Read::parse(&source.text).with_context(named)?;
    let patterns = read.list(&["imports"]).with_context(named)?;
    let dir = source.path.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for pattern in patterns.unwrap_or_default() {
        let pattern = dir.join(pattern);
        let pattern = pattern.to_string_lossy();
        let paths = glob::glob(&pattern).with_context(|| format!("{}: imports", named()))?;
        for path in paths {
            found.push(file::real(&path.with_context(named)?)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn ours_goes_where_the_plugins_table_is_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let main = dir.path().join("config.toml");
        let drop_ins = dir.path().join("conf.d");
        fs::create_dir(&drop_ins).expect("a directory");
        let counts = || {
            let sources = all(&main).expect("good");
            let path = &that_counts(&sources).expect("good").path;
            path.strip_prefix(dir.path().canonicalize().expect("there"))
                .expect("below")
                .to_owned()
        };
        assert_eq!(counts(), Path::new("config.toml"), "made by us");
        let table = "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"x\"\n";
        fs::write(
            &main,
            format!("version = 2\nimports = [\"conf.d/*.toml\"]\n{table}"),
        )
        .expect("written");
        fs::write(drop_ins.join("10-x.toml"), "version = 2\nroot = \"/x\"\n").expect("written");
        assert_eq!(counts(), Path::new("config.toml"));
        fs::write(drop_ins.join("20-nvidia.toml"), table).expect("written");
        fs::write(drop_ins.join("30-y.toml"), "").expect("written");
        assert_eq!(counts(), Path::new("conf.d/20-nvidia.toml"));
        // Round in circles, and one that is broken.
        fs::write(
            drop_ins.join("30-y.toml"),
            "version = 2\nimports = [\"../*.toml\"]\n",
        )
        .expect("written");
        assert_eq!(all(&main).expect("good").len(), 4);
        fs::write(drop_ins.join("40-z.toml"), "a = \n").expect("written");
        let said = format!("{:#}", all(&main).err().expect("refused"));
        assert!(
            said.contains("40-z.toml") && said.contains("line 1"),
            "{said}"
        );
    }
}
