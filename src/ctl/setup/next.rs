//! The runtime that gpuslice-runtime calls must be the one whose place it takes.
//!
//! An engine names its runtime by a path, and gpuslice-runtime takes the place of that path. It calls the first of
//! `runc` and `crun` that is in `PATH`, unless its own settings name another one. CRI-O's packages, for one, have a
//! `crun` in a directory of their own: with gpuslice-runtime in its place, containers would start with another runtime
//! than before, or none would start.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The settings of gpuslice-runtime.
const SETTINGS: &str = "/etc/gpuslice/runtime.json";
/// Where programs are looked for besides `PATH`, as gpuslice-runtime does.
const USUAL_DIRS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The list in the settings.
#[derive(Deserialize)]
struct Settings {
    #[serde(default = "usual")]
    runtimes: Vec<String>,
}

fn usual() -> Vec<String> {
    ["runc", "crun"].map(str::to_owned).to_vec()
}

/// Checks that gpuslice-runtime calls the first of these programs that exists. `engine` calls it now.
///
/// # Errors
/// It would call another one, or its settings cannot be read.
pub fn check(engine: &str, programs: &[String]) -> Result<()> {
    check_by(Path::new(SETTINGS), engine, programs)
}

fn check_by(settings: &Path, engine: &str, programs: &[String]) -> Result<()> {
    let Some(now) = first(programs) else {
        return Ok(());
    };
    let next = first(&runtimes(settings)?);
    if next.as_ref() == Some(&now) {
        return Ok(());
    }
    let next = next.map_or("no runtime".to_owned(), |path| path.display().to_string());
    let mut list = programs.to_vec();
    list.retain(|program| first(std::slice::from_ref(program)).is_some());
    bail!(
        "{engine} starts containers by {}, but {} would call {next}; set \"runtimes\" to {} in {} first, a JSON object",
        now.display(),
        super::part::PROGRAM,
        serde_json::json!(list),
        settings.display(),
    )
}

fn runtimes(settings: &Path) -> Result<Vec<String>> {
    let named = || settings.display().to_string();
    match fs::read(settings) {
        Ok(text) => Ok(serde_json::from_slice::<Settings>(&text).with_context(named)?.runtimes),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(usual()),
        Err(error) => Err(error).with_context(named),
    }
}

/// The real path of the first of these programs that exists, apart from gpuslice-runtime.
fn first(programs: &[String]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = [path.as_os_str(), OsStr::new(USUAL_DIRS)];
    let dirs: Vec<PathBuf> = dirs.into_iter().flat_map(env::split_paths).collect();
    let places = |program: &String| match program.contains('/') {
        true => vec![PathBuf::from(program)],
        false => dirs.iter().map(|dir| dir.join(program)).collect(),
    };
    let found = programs.iter().flat_map(places).filter_map(|place| place.canonicalize().ok());
    let is_ours = |path: &PathBuf| path.ends_with(super::part::PROGRAM);
    found.into_iter().find(|path| path.is_file() && !is_ours(path))
}

#[cfg(test)]
mod tests {
    use super::*;

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
