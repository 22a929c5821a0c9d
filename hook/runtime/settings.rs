//! The administrator's settings: the next runtime, and the paths of gpuslice's parts.
//!
//! Engines take a runtime by path or name and usually pass it no options of the administrator's. So the
//! settings are in a file, `/etc/gpuslice/runtime.json`; JSON, because the wrapper parses that anyway.

use crate::error::Error;
use crate::read::read_capped;
use serde::Deserialize;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Its path; an environment variable of the engine names another.
pub const FILE: &str = "/etc/gpuslice/runtime.json";
const FILE_VARIABLE: &str = "GPUSLICE_RUNTIME_CONFIG";
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Directories of runtimes without `PATH`: some engines clear their environment.
const USUAL_DIRS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Paths of the hook, relative to the wrapper's directory: as built, then as installed.
const HOOK_PLACES: [&str; 2] = ["gpuslice-hook", "../libexec/gpuslice/gpuslice-hook"];

/// The file's content.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Runtimes to call, by name or path: the first that exists.
    pub runtimes: Vec<PathBuf>,
    /// The hook [default: the one installed with the wrapper].
    pub hook: Option<PathBuf>,
    /// The daemon's runtime directory.
    pub runtime_dir: PathBuf,
    /// Whether a container may opt out by `CGPU_DISABLE`.
    pub allow_cgpu_disable: bool,
    /// Whether a container without glibc may have a slice, which only its static programs can use.
    pub allow_musl: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            runtimes: vec!["runc".into(), "crun".into()],
            hook: None,
            runtime_dir: "/run/gpuslice".into(),
            allow_cgpu_disable: false,
            allow_musl: false,
        }
    }
}

impl Settings {
    /// Reads the file; without one the defaults apply.
    ///
    /// # Errors
    /// [`Error::Wrapper`]: it contains unknown settings, which might choose the runtime.
    pub fn read() -> Result<Settings, Error> {
        let named = env::var_os(FILE_VARIABLE);
        let path = Path::new(named.as_deref().unwrap_or(OsStr::new(FILE)));
        Settings::at(path, named.is_none())
    }

    /// Reads a file; where it may be missing and is, the defaults apply.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn at(path: &Path, may_be_missing: bool) -> Result<Settings, Error> {
        let wrong =
            |why: &dyn ToString| Error::Wrapper(format!("{}: {}", path.display(), why.to_string()));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && may_be_missing => {
                return Ok(Settings::default());
            }
            Err(error) => return Err(wrong(&error)),
        };
        let text = read_capped(file, FILE_BYTES_MAX, &path.display().to_string())?;
        Settings::parse(&text).map_err(|why| wrong(&why))
    }

    fn parse(text: &[u8]) -> Result<Settings, String> {
        let settings: Settings = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let hook = settings.hook.as_deref().unwrap_or(&settings.runtime_dir);
        let relative = [hook, &settings.runtime_dir].into_iter().find(|path| !path.is_absolute());
        match relative.map(Path::to_owned) {
            Some(path) => Err(format!("{} is not an absolute path", path.display())),
            None => Ok(settings),
        }
    }

    /// The next runtime, which creates the containers.
    ///
    /// # Errors
    /// [`Error::Wrapper`]: none of them exists except the wrapper itself.
    pub fn next(&self) -> Result<PathBuf, Error> {
        let own = fs::metadata("/proc/self/exe").map(|meta| (meta.dev(), meta.ino())).ok();
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = [path.as_os_str(), OsStr::new(USUAL_DIRS)]
            .into_iter()
            .flat_map(env::split_paths)
            .filter(|dir| dir.is_absolute())
            .collect();
        let is_next = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|meta| {
                let runs = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
                runs && Some((meta.dev(), meta.ino())) != own
            })
        };
        let places = |name: &PathBuf| -> Vec<PathBuf> {
            match name.components().count() {
                1 if name.is_relative() => dirs.iter().map(|dir| dir.join(name)).collect(),
                _ => vec![name.clone()],
            }
        };
        let found = self.runtimes.iter().flat_map(places).find(is_next);
        found.ok_or_else(|| {
            let names: Vec<_> = self.runtimes.iter().map(|name| name.display().to_string()).collect();
            Error::Wrapper(format!(
                "no runtime to call: there is no {}; install one or name it as \"runtimes\" in {FILE}",
                names.join(" and no ")
            ))
        })
    }

    /// The hook's program.
    ///
    /// # Errors
    /// [`Error::Wrapper`]: it does not exist; a container would start without its requested slice.
    pub fn hook(&self) -> Result<PathBuf, Error> {
        let own = fs::read_link("/proc/self/exe").unwrap_or_default();
        let dir = own.parent().unwrap_or(Path::new("/"));
        let places = match &self.hook {
            Some(hook) => vec![hook.clone()],
            None => HOOK_PLACES.iter().map(|place| dir.join(place)).collect(),
        };
        let found = places.iter().find_map(|place| place.canonicalize().ok());
        found.ok_or_else(|| {
            let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            Error::Wrapper(format!(
                "this container requests a GPU slice, but the hook is not at {}; install it or name it as \
                 \"hook\" in {FILE}",
                places.join(" nor at ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        assert_eq!(Settings::parse(b"{}"), Ok(Settings::default()));
        let full =
            br#"{"runtimes":["crun"],"hook":"/h","runtime-dir":"/r","allow-cgpu-disable":true}"#;
        let full = Settings::parse(full).expect("valid");
        assert_eq!(
            (full.hook, full.allow_cgpu_disable, full.allow_musl),
            (Some("/h".into()), true, false)
        );
        assert!(Settings::parse(br#"{"allow-musl":true}"#).is_ok_and(|it| it.allow_musl));
        for bad in [
            "",
            r#"{"runtime":["crun"]}"#,
            r#"{"runtimes":"crun"}"#,
            r#"{"hook":"h"}"#,
            r#"{"runtime-dir":"r"}"#,
            r#"{"runtimes":["a"],"runtimes":["b"]}"#,
        ] {
            assert!(Settings::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_that_is_there_and_not_ourselves_is_next() {
        let with = |runtimes: &[&str]| Settings {
            runtimes: runtimes.iter().map(PathBuf::from).collect(),
            ..Settings::default()
        };
        let next = with(&["no-such-runtime", "/etc/passwd", "/proc/self/exe", "sh"]).next();
        assert!(next.is_ok_and(|path| path.is_absolute() && path.ends_with("sh")));
        let none =
            with(&["no-such-runtime", "/proc/self/exe"]).next().expect_err("none").to_string();
        assert!(none.contains("no no-such-runtime and no /proc/self/exe"), "{none}");
    }

    #[test]
    fn any_bytes_are_settings_or_an_error() {
        gpuslice_fuzz::fuzz!("runtime-settings", |bytes| {
            match Settings::parse(bytes) {
                Ok(settings) => assert!(settings.runtime_dir.is_absolute()),
                Err(why) => assert!(!why.is_empty()),
            }
        });
    }
}
