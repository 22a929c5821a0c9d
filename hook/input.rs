//! The two JSON inputs: the runtime's state on stdin, and the bundle's `config.json`.
//!
//! Both are capped, and of both only the fields we need are read. A key of ours that stands twice is
//! refused: two readers of one file must never come to different conclusions.

use crate::error::Error;
use gpuslice_wire::ids::ContainerId;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest state document, bytes.
const STATE_BYTES_MAX: u64 = 64 << 10;
/// Largest `config.json`, bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The container's state as the runtime tells it.
#[derive(Debug, Deserialize)]
pub struct State {
    id: String,
    #[serde(default)]
    pid: i64,
    /// Directory of `config.json`.
    pub bundle: String,
}

/// What we read of `config.json`.
#[derive(Debug, Default, Deserialize)]
pub struct Config {
    root: Option<Root>,
    process: Option<Process>,
    #[serde(default)]
    annotations: Option<Unique>,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: String,
}

#[derive(Debug, Deserialize)]
struct Process {
    #[serde(default)]
    env: Option<Vec<String>>,
}

/// A map of strings in which no key stands twice.
#[derive(Debug, Default)]
struct Unique(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Unique;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if all.contains_key(&key) {
                        return Err(A::Error::custom(format!("annotation {key:?} stands twice")));
                    }
                    all.insert(key, value);
                }
                Ok(Unique(all))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Reads at most `max` bytes; more is an error, not a cut.
fn read_capped(from: impl Read, max: u64, what: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = from.take(max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::Input(format!("{what}: {error}")))?;
    if bytes.len() as u64 > max {
        return Err(Error::Input(format!("{what} is larger than {max} bytes")));
    }
    Ok(bytes)
}

impl State {
    /// # Errors
    /// Too large, not JSON, or a field is missing.
    pub fn read(from: impl Read) -> Result<State, Error> {
        let bytes = read_capped(from, STATE_BYTES_MAX, "the state")?;
        let state: State = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Input(format!("the state: {error}")))?;
        if !Path::new(&state.bundle).is_absolute() {
            return Err(Error::Input(
                "the state's bundle is not an absolute path".into(),
            ));
        }
        Ok(state)
    }

    /// The container's id, fit to be a directory's name.
    ///
    /// # Errors
    /// It is not.
    pub fn container_id(&self) -> Result<ContainerId, Error> {
        ContainerId::new(&self.id)
            .map_err(|why| Error::Input(format!("container id {:?}: {why}", self.id)))
    }

    /// The container's first process as the host numbers it.
    ///
    /// # Errors
    /// There is none, or it is numbered by the container: then the hook was called in a stage in
    /// which it cannot work.
    pub fn host_pid(&self) -> Result<i32, Error> {
        match i32::try_from(self.pid) {
            Ok(pid) if pid > 1 => Ok(pid),
            _ => Err(Error::Input(format!(
                "pid {} is no host process; register the hook as createRuntime or prestart",
                self.pid
            ))),
        }
    }
}

impl Config {
    /// # Errors
    /// Missing, too large, not JSON, or one of our fields is of the wrong type.
    pub fn read(bundle: &Path) -> Result<Config, Error> {
        let path = bundle.join("config.json");
        let named = path.display().to_string();
        let file = File::open(&path).map_err(|error| Error::Input(format!("{named}: {error}")))?;
        Config::parse(&read_capped(file, CONFIG_BYTES_MAX, &named)?)
    }

    /// # Errors
    /// As [`Config::read`].
    pub fn parse(bytes: &[u8]) -> Result<Config, Error> {
        serde_json::from_slice(bytes).map_err(|error| Error::Input(format!("config.json: {error}")))
    }

    /// The root filesystem's path on the host.
    #[must_use]
    pub fn rootfs(&self, bundle: &str) -> PathBuf {
        let path = self
            .root
            .as_ref()
            .map_or("rootfs", |root| root.path.as_str());
        Path::new(bundle).join(path)
    }

    /// Annotations, in order of their keys.
    pub(crate) fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.annotations
            .iter()
            .flat_map(|map| &map.0)
            .map(|(key, value)| (&**key, &**value))
    }

    /// A variable of the container's environment; the last one of that name, as programs see it.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let all = self
            .process
            .as_ref()
            .and_then(|process| process.env.as_deref())
            .unwrap_or(&[]);
        let value = |entry: &'_ String| -> Option<usize> {
            entry
                .strip_prefix(name)?
                .strip_prefix('=')
                .map(|value| entry.len() - value.len())
        };
        all.iter()
            .rev()
            .find_map(|entry| value(entry).map(|at| &entry[at..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let good = br#"{"ociVersion":"1.0","id":"c1","pid":77,"bundle":"/b","status":"creating"}"#;
        let state = State::read(&good[..]).expect("valid");
        assert_eq!(
            (state.host_pid().ok(), state.bundle.as_str()),
            (Some(77), "/b")
        );
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            br#"{"id":"c","bundle":"b"}"#,
            br#"{"id":1,"bundle":"/b"}"#,
            br#"{"id":"c","id":"d","bundle":"/b"}"#,
            br#"{"bundle":"/b"}"#,
        ] {
            assert!(
                State::read(bad).is_err(),
                "{}",
                String::from_utf8_lossy(bad)
            );
        }
        assert!(State::read(std::io::repeat(b' ')).is_err());
        for pid in ["0", "1", "-5", "99999999999"] {
            let text = format!(r#"{{"id":"c","bundle":"/b","pid":{pid}}}"#);
            assert!(
                State::read(text.as_bytes())
                    .expect("valid")
                    .host_pid()
                    .is_err(),
                "{pid}"
            );
        }
        let dots = State::read(&br#"{"id":"../x","bundle":"/b","pid":7}"#[..]).expect("valid");
        assert!(dots.container_id().is_err());
    }

    #[test]
    fn configurations() {
        let text = br#"{"root":{"path":"r"},"process":{"env":["A=1","A=2","AB=3"]},
                        "annotations":{"x":"y"},"hooks":{}}"#;
        let config = Config::parse(text).expect("valid");
        assert_eq!(config.variable("A"), Some("2"));
        assert_eq!(config.variable("B"), None);
        assert_eq!(config.rootfs("/b"), Path::new("/b/r"));
        assert_eq!(config.annotations().collect::<Vec<_>>(), [("x", "y")]);
        assert!(Config::parse(b"{}").is_ok() && Config::parse(br#"{"annotations":null}"#).is_ok());
        for bad in [
            &br#"{"annotations":{"a":"1","a":"2"}}"#[..],
            br#"{"annotations":{"a":1}}"#,
            br#"{"process":{"env":"A"}}"#,
            br#"{"root":"r"}"#,
            b"nul",
        ] {
            assert!(
                Config::parse(bad).is_err(),
                "{}",
                String::from_utf8_lossy(bad)
            );
        }
    }
}
