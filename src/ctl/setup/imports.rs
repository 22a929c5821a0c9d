//! containerd's configuration is several files; this finds the one that takes effect.
//!
//! `imports` names files that are read after the main one. Up to containerd 2.0 a plugin's table in one of
//! them replaces the table read before and is not merged with it. A handler in the main file then has no
//! effect once a drop-in, such as NVIDIA's toolkit's, has a table of the same plugin. So the handler goes
//! into the last file with such a table, or into the main file if no file has one.

use super::containerd::{Containerd, version_of};
use super::file;
use super::toml::Read;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Largest number of files that are followed.
const FILES_MAX: usize = 64;

/// One file that containerd reads.
pub struct Source {
    /// Its path, links followed.
    pub path: PathBuf,
    /// Its text; empty if it does not exist.
    pub text: String,
    /// Its version, or that of the file that imports it.
    version: i64,
}

impl Source {
    /// gpuslice's part of it.
    ///
    /// # Errors
    /// Its version is not supported.
    pub fn part(&self) -> Result<Containerd> {
        Containerd::of_version(self.version).with_context(|| self.path.display().to_string())
    }
}

/// All files that containerd reads, in its order, the main one first.
///
/// # Errors
/// containerd could not read one of them.
pub fn all(main: &Path) -> Result<Vec<Source>> {
    let main = file::real(main)?;
    let text = file::read(&main)?.unwrap_or_default();
    let named = || main.display().to_string();
    let version = version_of(&text).with_context(named)?.unwrap_or(1);
    let mut sources = vec![Source { path: main, text, version }];
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
            sources.push(Source { path, text, version });
        }
        next += 1;
    }
    Ok(sources)
}

/// The last file with the plugin's table, or the main one.
///
/// # Errors
/// containerd could not read a file.
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
            path.strip_prefix(dir.path().canonicalize().expect("there")).expect("below").to_owned()
        };
        assert_eq!(counts(), Path::new("config.toml"), "made by us");
        let table = "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"x\"\n";
        fs::write(&main, format!("version = 2\nimports = [\"conf.d/*.toml\"]\n{table}"))
            .expect("written");
        fs::write(drop_ins.join("10-x.toml"), "version = 2\nroot = \"/x\"\n").expect("written");
        assert_eq!(counts(), Path::new("config.toml"));
        fs::write(drop_ins.join("20-nvidia.toml"), table).expect("written");
        fs::write(drop_ins.join("30-y.toml"), "").expect("written");
        assert_eq!(counts(), Path::new("conf.d/20-nvidia.toml"));
        // An import cycle, and a broken file.
        fs::write(drop_ins.join("30-y.toml"), "version = 2\nimports = [\"../*.toml\"]\n")
            .expect("written");
        assert_eq!(all(&main).expect("good").len(), 4);
        fs::write(drop_ins.join("40-z.toml"), "a = \n").expect("written");
        let said = format!("{:#}", all(&main).err().expect("refused"));
        assert!(said.contains("40-z.toml") && said.contains("line 1"), "{said}");
    }
}
