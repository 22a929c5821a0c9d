//! Adds the hook to a `config.json`; pure.
//!
//! The file's other content must survive: numbers beyond 2^53, unknown fields, their order. So the file
//! is not parsed and printed again. This code locates the hooks and inserts the few missing bytes; all
//! other bytes stay.

use crate::error::Error;
use crate::json::{Object, object};
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::ops::Range;
use std::path::Path;

/// The stage in which the hook is called.
const STAGE: &str = "createRuntime";

/// A hook entry of the file.
#[derive(Deserialize)]
struct Hook {
    #[serde(default)]
    path: String,
}

/// The file's hooks.
#[derive(Default)]
struct Top<'a> {
    hooks: Option<&'a RawValue>,
}

/// The hooks of the stage before the first process, by its two names.
#[derive(Default)]
struct Stages<'a> {
    prestart: Option<&'a RawValue>,
    create_runtime: Option<&'a RawValue>,
}

impl<'de> Object<'de> for Top<'de> {
    const NAMES: &'static [&'static str] = &["hooks"];
    fn take<A: MapAccess<'de>>(&mut self, _: usize, map: &mut A) -> Result<(), A::Error> {
        self.hooks = Some(map.next_value()?);
        Ok(())
    }
}

impl<'de> Object<'de> for Stages<'de> {
    const NAMES: &'static [&'static str] = &["prestart", "createRuntime"];
    fn take<A: MapAccess<'de>>(&mut self, at: usize, map: &mut A) -> Result<(), A::Error> {
        let place = match at {
            0 => &mut self.prestart,
            _ => &mut self.create_runtime,
        };
        *place = Some(map.next_value()?);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Top<'de>, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Stages<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stages<'de>, D::Error> {
        object(deserializer)
    }
}

/// The hook's entry, the same for every container.
pub(crate) struct Ours<'a> {
    /// The hook's program.
    pub hook: &'a Path,
    /// The daemon's runtime directory.
    pub runtime_dir: &'a Path,
    /// Whether containers may opt out.
    pub allow_cgpu_disable: bool,
    /// Whether containers without glibc may have a slice.
    pub allow_musl: bool,
}

impl Ours<'_> {
    /// One entry of a list of hooks.
    fn entry(&self) -> String {
        let mut args = vec!["gpuslice-hook".to_owned(), "--runtime-dir".to_owned()];
        args.push(self.runtime_dir.to_string_lossy().into_owned());
        let flags =
            [(self.allow_cgpu_disable, "--allow-cgpu-disable"), (self.allow_musl, "--allow-musl")];
        let given = flags.iter().filter(|(given, _)| *given);
        args.extend(given.map(|(_, flag)| (*flag).to_owned()));
        args.push(STAGE.to_owned());
        serde_json::json!({
            "path": self.hook.to_string_lossy(), "args": args, "env": ["PATH=/usr/bin:/bin"], "timeout": 10,
        })
        .to_string()
    }
}

/// A replacement of a byte range.
type Splice = (Range<usize>, String);

/// The file with the hook added last in its stage; `None` if the hook is there already.
///
/// # Errors
/// [`Error::Input`]: the file is not an object, its hooks are malformed, or two readers would disagree
/// on them.
pub(crate) fn with_hooks(file: &[u8], ours: &Ours) -> Result<Option<Vec<u8>>, Error> {
    let text = std::str::from_utf8(file).map_err(|_| bad(&"not UTF-8"))?;
    let top: Top = serde_json::from_str(text).map_err(|error| bad(&error))?;
    let given = top.hooks.filter(|hooks| hooks.get() != "null");
    let stages: Stages = match given {
        None => Stages::default(),
        Some(hooks) => serde_json::from_str(hooks.get()).map_err(|error| bad(&error))?,
    };
    if ours_among(stages.prestart)? || ours_among(stages.create_runtime)? {
        return Ok(None);
    }
    let entry = ours.entry();
    let member = format!("{STAGE:?}:[{entry}]");
    let (place, new) = match (stages.create_runtime, given, top.hooks) {
        (Some(list), ..) if list.get().starts_with('[') => at_end(text, list.get(), &entry),
        (Some(null), ..) => (range(text, null.get()), format!("[{entry}]")),
        (None, Some(hooks), _) => at_end(text, hooks.get(), &member),
        (None, None, Some(null)) => (range(text, null.get()), format!("{{{member}}}")),
        (None, None, None) => {
            let hooks = format!("\"hooks\":{{{member}}}");
            at_end(text, text.trim_ascii(), &hooks)
        }
    };
    let mut whole = Vec::with_capacity(file.len() + new.len());
    whole.extend_from_slice(&file[..place.start]);
    whole.extend_from_slice(new.as_bytes());
    whole.extend_from_slice(&file[place.end..]);
    Ok(Some(whole))
}

/// Whether a list has the hook, under any path: it must not be added twice.
fn ours_among(list: Option<&RawValue>) -> Result<bool, Error> {
    let Some(list) = list else { return Ok(false) };
    let hooks: Option<Vec<Hook>> = serde_json::from_str(list.get()).map_err(|error| bad(&error))?;
    let ours = |hook: &Hook| Path::new(&hook.path).ends_with("gpuslice-hook");
    Ok(hooks.unwrap_or_default().iter().any(ours))
}

/// The byte range of a part of the file.
fn range(file: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - file.as_ptr() as usize;
    start..start + part.len()
}

/// Inserts text before the closing bracket of an object or a list.
fn at_end(file: &str, part: &str, new: &str) -> Splice {
    let inner = part[1..part.len() - 1].trim_ascii_end();
    let end = range(file, inner).end;
    let comma = if inner.is_empty() { "" } else { "," };
    (end..end, format!("{comma}{new}"))
}

fn bad(why: &dyn ToString) -> Error {
    Error::Input(format!("config.json: {}", why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn edit(file: &str) -> Result<Option<String>, Error> {
        let ours = Ours {
            hook: Path::new("/h/gpuslice-hook"),
            runtime_dir: Path::new("/r"),
            allow_cgpu_disable: false,
            allow_musl: false,
        };
        let edited = with_hooks(file.as_bytes(), &ours)?;
        Ok(edited.map(|bytes| String::from_utf8(bytes).expect("text")))
    }

    /// The edited file's hooks as runtimes read them, gpuslice's without its details.
    fn hooks(file: &str) -> Value {
        let edited = edit(file).expect("valid").expect("edited");
        let mut value: Value = serde_json::from_str(&edited).expect(&edited);
        let mut hooks = value["hooks"].take();
        for list in hooks.as_object_mut().expect("stages").values_mut() {
            for hook in list.as_array_mut().into_iter().flatten() {
                if hook["path"] == "/h/gpuslice-hook" {
                    assert_eq!(hook["env"], json!(["PATH=/usr/bin:/bin"]));
                    *hook = hook["args"][3].take();
                }
            }
        }
        hooks
    }

    #[test]
    fn ours_come_last_wherever_the_hooks_are() {
        for file in [
            "{}",
            " { } \n",
            r#"{"a":1}"#,
            r#"{"hooks":null}"#,
            r#"{"hooks":{}}"#,
            r#"{"hooks": { } }"#,
            r#"{"hooks":{"createRuntime":null},"z":{}}"#,
            r#"{"hooks":{"prestart":null,"createRuntime":[ ]}}"#,
            "{\n  \"hooks\": {\n    \"createRuntime\": [\n    ]\n  }\n}\n",
        ] {
            assert_eq!(hooks(file)["createRuntime"], json!(["createRuntime"]), "{file}");
        }
        let theirs = r#"{"hooks":{"prestart":[{"path":"/n"}],"createRuntime":[{"path":"/a","x":1} ],"poststop":[{"path":"/b"}]}}"#;
        let all = json!({
            "prestart": [{ "path": "/n" }],
            "createRuntime": [{ "path": "/a", "x": 1 }, "createRuntime"],
            "poststop": [{ "path": "/b" }],
        });
        assert_eq!(hooks(theirs), all);
    }

    #[test]
    fn nothing_else_changes() {
        let file = "{\"z\":18446744073709551615,\"a\":1e400,\"é\\u0000\":[ 1.0 ],\"z\":0,\n\"hooks\":{\"poststop\":[]},\"b\":{}}\n";
        let edited = edit(file).expect("valid").expect("edited");
        let ours = edited.find(",\"createRuntime").expect("ours");
        let end = edited.rfind("}]},\"b\"").expect("the hooks' end") + 2;
        assert_eq!(edited[..ours].to_owned() + &edited[end..], file);
    }

    #[test]
    fn twice_is_once() {
        let once = edit("{}").expect("valid").expect("edited");
        assert_eq!(edit(&once).expect("valid"), None);
        // Registered from another path and under the older stage name.
        let other = r#"{"hooks":{"prestart":[{"path":"/usr/libexec/gpuslice/gpuslice-hook"}]}}"#;
        assert_eq!(edit(other).expect("valid"), None);
        // Another program whose name only ends like the hook's.
        assert!(
            edit(r#"{"hooks":{"createRuntime":[{"path":"/x-gpuslice-hook"}]}}"#)
                .is_ok_and(|e| e.is_some())
        );
    }

    #[test]
    fn hooks_that_are_none() {
        for bad in [
            "",
            "[]",
            "nul",
            "{} {}",
            r#"{"hooks":[]}"#,
            r#"{"hooks":"x"}"#,
            r#"{"hooks":{"prestart":{}}}"#,
            r#"{"hooks":{"createRuntime":[1]}}"#,
            r#"{"hooks":{},"hooks":{}}"#,
            r#"{"Hooks":{}}"#,
            r#"{"hooks":{"prestart":[],"prestart":[]}}"#,
            r#"{"hooks":{"createruntime":[]}}"#,
            r#"{"hooks":{"prestart":[{"path":7}]}}"#,
        ] {
            assert!(edit(bad).is_err(), "{bad}");
        }
        let ours = Ours {
            hook: Path::new("/h"),
            runtime_dir: Path::new("/r"),
            allow_cgpu_disable: true,
            allow_musl: true,
        };
        let edited = with_hooks(b"{}", &ours).expect("valid").expect("edited");
        let edited: Value = serde_json::from_slice(&edited).expect("JSON");
        let args = &edited["hooks"]["createRuntime"][0]["args"];
        let flags = ["--allow-cgpu-disable", "--allow-musl", "createRuntime"];
        assert_eq!(args.as_array().expect("words")[3..], flags);
        assert!(with_hooks(b"{\"a\":\"\xff\"}", &ours).is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(with_hooks(deep.as_bytes(), &ours).is_ok_and(|edited| edited.is_some()));
    }

    /// Whatever a file has, all of it stays, and the edited file has the hook once.
    #[test]
    fn any_file_keeps_its_content() {
        gpuslice_fuzz::fuzz!("container-config", |bytes| {
            let Ok(file) = std::str::from_utf8(bytes) else { return };
            let Ok(Some(edited)) = edit(file) else { return };
            assert!(edited.len() > file.len());
            let mut rest = edited.bytes();
            assert!(file.bytes().all(|byte| rest.any(|other| other == byte)), "{edited}");
            assert!(edit(&edited).expect("valid").is_none(), "{edited}");
        });
    }
}
