//! The runtime that gpuslice-runtime calls must be the one whose place it takes.
//!
//! An engine names its runtime by a path, and gpuslice-runtime takes the place of that path. It calls the first of
//! `runc` and `crun` that is in `PATH`, unless its own settings name another one. CRI-O's packages, for one, have a
//! `crun` in a directory of their own: with gpuslice-runtime in its place, containers would start with another runtime
//! than before, or none would start.

use super::part::PROGRAM;
use anyhow::{Result, bail};
use gpuslice_hook::runtime::{SETTINGS_FILE, Settings};
use std::path::{Path, PathBuf};

/// Checks that gpuslice-runtime calls the first of these programs that exists. `engine` calls it now.
///
/// # Errors
/// It would call another one, or its settings cannot be read.
pub fn check(engine: &str, programs: &[String]) -> Result<()> {
    check_by(Path::new(SETTINGS_FILE), engine, programs)
}

fn check_by(settings: &Path, engine: &str, programs: &[String]) -> Result<()> {
    let Some(now) = first(programs) else {
        return Ok(());
    };
    let next = Settings::at(settings, true)?.next().ok().and_then(|path| path.canonicalize().ok());
    if next.as_ref() == Some(&now) {
        return Ok(());
    }
    let next = next.map_or("no runtime".to_owned(), |path| path.display().to_string());
    let list = programs.iter().filter(|program| first(std::slice::from_ref(program)).is_some());
    bail!(
        "{engine} starts containers by {}, but {PROGRAM} would call {next}; set \"runtimes\" to {} in {} first, a JSON object",
        now.display(),
        serde_json::json!(list.collect::<Vec<_>>()),
        settings.display(),
    )
}

/// The real path of the first of these programs that exists, apart from gpuslice-runtime.
fn first(programs: &[String]) -> Option<PathBuf> {
    let others = programs.iter().map(PathBuf::from).filter(|it| !it.ends_with(PROGRAM));
    let settings = Settings { runtimes: others.collect(), ..Settings::default() };
    settings.next().ok()?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_runtime_that_would_not_be_called_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = dir.path().join("runtime.json");
        let place = dir.path().canonicalize().expect("there");
        let crun = place.join("crun").display().to_string();
        let check = |programs: &[&str]| {
            let programs: Vec<String> = programs.iter().map(|&name| name.to_owned()).collect();
            check_by(&settings, "crio", &programs).map_err(|why| format!("{why:#}"))
        };
        assert_eq!(check(&[&crun]), Ok(()), "it is not there");
        fs::write(&crun, "").expect("written");
        fs::set_permissions(&crun, Permissions::from_mode(0o755)).expect("a program");
        let why = check(&[&crun, "no-such-runtime"]).expect_err("it is not in PATH");
        assert!(why.starts_with(&format!("crio starts containers by {crun}, but ")), "{why}");
        let advice = format!("set \"runtimes\" to [\"{crun}\"] in {} first", settings.display());
        assert!(why.contains(&advice), "{why}");
        fs::write(&settings, format!("{{\"runtimes\":[\"gone\",\"{crun}\"],\"hook\":\"/h\"}}"))
            .expect("written");
        assert_eq!(check(&[&crun]), Ok(()));
        assert!(check(&["sh"]).is_err(), "sh would not be called");
        fs::write(&settings, "{").expect("written");
        assert!(check(&[&crun]).expect_err("not JSON").contains("runtime.json"));
        assert_eq!(check(&[]), Ok(()), "an engine that names none");
    }
}
