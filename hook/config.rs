//! The parts of the bundle's `config.json` that the hook reads: root path, environment, annotations, and the hooks
//! among which claims' CDI devices are.

use crate::args::CLAIM;
use crate::error::Error;
use crate::json::{Bytes, Object, object};
use crate::read::read_capped;
use crate::sys::file;
use gpuslice_wire::limits::CLAIMS_OF_CONTAINER_MAX;
use gpuslice_wire::owner::{BadClaimId, ClaimId, Owner};
use gpuslice_wire::text::Text;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// Prefix of gpuslice's annotations.
pub(crate) const PREFIX: &str = "gpuslice.io/";

/// Whether an annotation's key is gpuslice's or a probable misspelling: `GPUslice.io/memory`, or one that begins with
/// a space or a control character. A misspelled key is refused as unknown.
fn looks_ours(key: &[u8]) -> bool {
    let shows = |byte: &u8| *byte != b' ' && !byte.is_ascii_control();
    let end = key.iter().rposition(shows).map_or(0, |last| last + 1);
    let begin = key.iter().position(shows).unwrap_or(end);
    let key = &key[begin..end];
    let ours = PREFIX.as_bytes();
    let name = &ours[..ours.len() - 1];
    key.eq_ignore_ascii_case(name)
        || key.get(..ours.len()).is_some_and(|start| start.eq_ignore_ascii_case(ours))
}

/// Largest `config.json`, bytes. A container that asks for nothing starts with any file that the kernel could start
/// a program from: arguments and environment may have 6 MiB together (execve(2)), and six bytes of JSON each.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// Annotations that identify a pod's sandbox, its kind and its id, of containerd and of CRI-O.
const SANDBOX_KEYS: [[&str; 2]; 2] = [
    ["io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"],
    ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID"],
];

/// Annotations that name a container's namespace, pod, pod's UID and name, of containerd and of CRI-O.
const OWNER_KEYS: [[&str; 2]; 4] = [
    ["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"],
    ["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"],
    ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"],
    ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"],
];

/// The hook's file name, by which it is found among other hooks.
const HOOK: &[u8] = b"gpuslice-hook";

/// The parts of `config.json` that the hook reads.
#[derive(Debug, Default)]
pub struct Config {
    root: Option<Root>,
    process: Option<Process>,
    annotations: Option<Annotations>,
    hooks: Option<Hooks>,
}

/// The hooks of the stages for which this one is registered.
#[derive(Debug, Default)]
struct Hooks {
    create_runtime: Option<Vec<Hook>>,
    prestart: Option<Vec<Hook>>,
}

/// The command line of a hook.
#[derive(Debug, Default)]
struct Hook {
    path: Option<Bytes>,
    args: Option<Vec<Bytes>>,
}

#[derive(Debug, Default)]
struct Root {
    path: Option<String>,
}

#[derive(Debug, Default)]
struct Process {
    env: Option<Vec<Bytes>>,
}

/// The annotations that the hook reads; none is duplicate.
#[derive(Debug, Default)]
struct Annotations(Vec<(String, String)>);

impl<'de> Object<'de> for Config {
    const NAMES: &'static [&'static str] = &["root", "process", "annotations", "hooks"];
    fn take<A: MapAccess<'de>>(&mut self, at: usize, map: &mut A) -> Result<(), A::Error> {
        match at {
            0 => self.root = map.next_value()?,
            1 => self.process = map.next_value()?,
            3 => self.hooks = map.next_value()?,
            _ => self.annotations = map.next_value()?,
        }
        Ok(())
    }
}

impl<'de> Object<'de> for Hooks {
    const NAMES: &'static [&'static str] = &["createRuntime", "prestart"];
    fn take<A: MapAccess<'de>>(&mut self, at: usize, map: &mut A) -> Result<(), A::Error> {
        match at {
            0 => self.create_runtime = map.next_value()?,
            _ => self.prestart = map.next_value()?,
        }
        Ok(())
    }
}

impl<'de> Object<'de> for Hook {
    const NAMES: &'static [&'static str] = &["path", "args"];
    fn take<A: MapAccess<'de>>(&mut self, at: usize, map: &mut A) -> Result<(), A::Error> {
        match at {
            0 => self.path = map.next_value()?,
            _ => self.args = map.next_value()?,
        }
        Ok(())
    }
}

impl<'de> Object<'de> for Root {
    const NAMES: &'static [&'static str] = &["path"];
    fn take<A: MapAccess<'de>>(&mut self, _: usize, map: &mut A) -> Result<(), A::Error> {
        self.path = map.next_value()?;
        Ok(())
    }
}

impl<'de> Object<'de> for Process {
    const NAMES: &'static [&'static str] = &["env"];
    fn take<A: MapAccess<'de>>(&mut self, _: usize, map: &mut A) -> Result<(), A::Error> {
        self.env = map.next_value()?;
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Hooks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hooks, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Hook {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hook, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Root {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Root, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Process {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Process, D::Error> {
        object(deserializer)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Annotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut kept: Vec<(String, String)> = Vec::new();
                while let Some(Bytes(key)) = map.next_key()? {
                    if !looks_ours(&key) && !is_kubernetes(&key) {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let not_text = |_| A::Error::custom("a gpuslice annotation is not UTF-8");
                    let key = String::from_utf8(key).map_err(not_text)?;
                    if kept.iter().any(|(known, _)| *known == key) {
                        return Err(A::Error::custom(format!("annotation {key:?} is given twice")));
                    }
                    kept.push((key, map.next_value()?));
                }
                Ok(Annotations(kept))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Whether an annotation is one of Kubernetes' that the hook reads.
fn is_kubernetes(key: &[u8]) -> bool {
    let mut keys = SANDBOX_KEYS.as_flattened().iter().chain(OWNER_KEYS.as_flattened());
    keys.any(|known| known.as_bytes() == key)
}

impl Hook {
    /// Whether it is this program.
    fn is_ours(&self) -> bool {
        let name = |path: &Bytes| path.0.rsplit(|byte| *byte == b'/').next() == Some(HOOK);
        self.path.as_ref().is_some_and(name)
    }
}

impl Config {
    /// # Errors
    /// Missing, too large, not JSON, or one of our fields is of the wrong type.
    pub fn read(bundle: &Path) -> Result<Config, Error> {
        Config::parse(&Config::bytes(bundle)?)
    }

    /// The file itself.
    pub(crate) fn bytes(bundle: &Path) -> Result<Vec<u8>, Error> {
        let path = bundle.join("config.json");
        let named = path.display().to_string();
        let file =
            file::open_file(&path).map_err(|error| Error::Input(format!("{named}: {error}")))?;
        read_capped(file, CONFIG_BYTES_MAX, &named)
    }

    /// # Errors
    /// As [`Config::read`].
    pub fn parse(bytes: &[u8]) -> Result<Config, Error> {
        serde_json::from_slice(bytes).map_err(|error| Error::Input(format!("config.json: {error}")))
    }

    /// The root filesystem's path on the host.
    #[must_use]
    pub fn rootfs(&self, bundle: &str) -> PathBuf {
        let path = self.root.as_ref().and_then(|root| root.path.as_deref());
        Path::new(bundle).join(path.unwrap_or("rootfs"))
    }

    /// Whether container `id` is a pod's sandbox, which has the pod's annotations too and runs only a
    /// program that waits. Some engines copy an image's annotations, and an image must not evade its
    /// slice by them; but it cannot know its container's id.
    pub(crate) fn is_sandbox(&self, id: &str) -> bool {
        SANDBOX_KEYS.iter().any(|[kind, sandbox]| {
            self.annotation(kind) == Some("sandbox") && self.annotation(sandbox) == Some(id)
        })
    }

    /// The container as Kubernetes names it. The names only inform, so one that does not fit is left out.
    pub(crate) fn owner(&self) -> Owner {
        fn text<const N: usize>(config: &Config, keys: [&str; 2]) -> Text<N> {
            let value = keys.into_iter().find_map(|key| config.annotation(key));
            value.and_then(|value| Text::new(value).ok()).unwrap_or_default()
        }
        let [namespace, pod, uid, container] = OWNER_KEYS;
        Owner {
            namespace: text(self, namespace),
            pod: text(self, pod),
            uid: text(self, uid),
            container: text(self, container),
        }
    }

    /// The claims whose devices the container has, each once, in the order of their hooks. The engine wrote the hooks
    /// into the file; no image can.
    ///
    /// # Errors
    /// A malformed id, or more claims than a container may have.
    pub(crate) fn claims(&self) -> Result<Vec<ClaimId>, Error> {
        let stages = self.hooks.iter().flat_map(|hooks| [&hooks.create_runtime, &hooks.prestart]);
        let mut claims = Vec::new();
        for hook in stages.flatten().flatten().filter(|hook| hook.is_ours()) {
            let words = hook.args.as_deref().unwrap_or_default();
            let named = words.windows(2).filter(|pair| pair[0].0 == CLAIM.as_bytes());
            for Bytes(id) in named.map(|pair| &pair[1]) {
                let claim = std::str::from_utf8(id).map_err(|_| BadClaimId).and_then(ClaimId::new);
                let claim = claim.map_err(|why| Error::Input(format!("{CLAIM}: {why}")))?;
                if !claims.contains(&claim) {
                    claims.push(claim);
                }
            }
        }
        if claims.len() > CLAIMS_OF_CONTAINER_MAX {
            let count = claims.len();
            let why = format!(
                "the devices of {count} claims; a container may have {CLAIMS_OF_CONTAINER_MAX}"
            );
            return Err(Error::Input(why));
        }
        Ok(claims)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        let mut all = self.annotations.iter().flat_map(|kept| &kept.0);
        all.find_map(|(known, value)| (known == key).then_some(value.as_str()))
    }

    /// Annotations with gpuslice's prefix or a misspelling of it.
    pub(crate) fn annotations(&self) -> impl Iterator<Item = (&str, &str)> {
        let kept = self.annotations.iter().flat_map(|kept| &kept.0);
        kept.filter(|(key, _)| looks_ours(key.as_bytes())).map(|(key, value)| (&**key, &**value))
    }

    /// A variable of the container's environment.
    ///
    /// # Errors
    /// It is given twice with different values (C programs see the first, most others the last), or
    /// it is not UTF-8.
    pub(crate) fn variable(&self, name: &str) -> Result<Option<&str>, Error> {
        let process = self.process.as_ref();
        let all = process.and_then(|process| process.env.as_deref()).unwrap_or(&[]);
        let value = |entry: &'_ Bytes| {
            entry.0.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::len)
        };
        let mut found: Option<&[u8]> = None;
        for entry in all {
            let Some(len) = value(entry) else { continue };
            let value = &entry.0[entry.0.len() - len..];
            if found.is_some_and(|first| first != value) {
                let shown = String::from_utf8_lossy(value);
                return Err(Error::ask(
                    name,
                    &shown,
                    "is given twice with different values; remove one",
                ));
            }
            found = Some(value);
        }
        let text = |value| {
            let shown = String::from_utf8_lossy(value);
            std::str::from_utf8(value).map_err(|_| Error::ask(name, &shown, "is not UTF-8"))
        };
        found.map(text).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8]) -> Result<Config, Error> {
        Config::parse(text)
    }

    #[test]
    fn configurations() {
        let text = br#"{"root":{"path":"r"},"process":{"env":["A=1","AB=3"]},
                        "annotations":{"x":"y","gpuslice.io/a":"b"},"hooks":{}}"#;
        let config = parse(text).expect("valid");
        assert_eq!(config.variable("A").expect("plain"), Some("1"));
        assert_eq!(config.variable("B").expect("plain"), None);
        assert_eq!(config.rootfs("/b"), Path::new("/b/r"));
        let annotations: Vec<_> = config.annotations().collect();
        assert_eq!(annotations, [("gpuslice.io/a", "b")]);
        for plain in ["{}", r#"{"annotations":null,"process":null,"root":null}"#] {
            assert!(parse(plain.as_bytes()).is_ok(), "{plain}");
        }
    }

    #[test]
    fn what_two_readers_would_read_differently() {
        for bad in [
            &br#"{"annotations":{"gpuslice.io/a":"1","gpuslice.io/a":"2"}}"#[..],
            br#"{"annotations":{"gpuslice.io/a":"1"},"annotations":{}}"#,
            br#"{"annotations":{},"Annotations":{"gpuslice.io/a":"1"}}"#,
            b"{\"annotation\xc5\xbf\":{\"gpuslice.io/a\":\"1\"}}",
            br#"{"process":{"env":[]},"process":{}}"#,
            br#"{"process":{"env":[],"env":[]}}"#,
            br#"{"process":{"ENV":[]}}"#,
            br#"{"root":{"path":"a"},"root":{"path":"b"}}"#,
            br#"{"root":{"path":"a","path":"b"}}"#,
            br#"{"annotations":{"gpuslice.io/a":1}}"#,
            b"{\"annotations\":{\"gpuslice.io/\xff\":\"1\"}}",
            br#"{"process":{"env":"A"}}"#,
            br#"{"root":"r"}"#,
            b"{} {}",
            b"nul",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let twice = parse(br#"{"process":{"env":["A=1","B=1","A=2","B=1"]}}"#).expect("valid");
        assert!(twice.variable("A").is_err());
        assert_eq!(twice.variable("B").expect("the same"), Some("1"));
    }

    /// Input that runtimes tolerate is tolerated in a container without a request.
    #[test]
    fn what_is_not_ours_may_be_anything() {
        for odd in [
            &b"{\"process\":{\"env\":[\"LANG=\xff\",\"A=1\",\"X\"]}}"[..],
            br#"{"process":{"env":["X=\ud800","A=1"]}}"#,
            br#"{"process":{"env":["A=1"]},"annotations":{"a":"1","a":"2"}}"#,
            b"{\"process\":{\"env\":[\"A=1\"]},\"annotations\":{\"\xfe\":\"\xff\"}}",
        ] {
            let shown = String::from_utf8_lossy(odd);
            let config = parse(odd).unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert_eq!(config.variable("A").expect("plain"), Some("1"), "{shown}");
            assert_eq!(config.annotations().count(), 0, "{shown}");
        }
        let long = "x".repeat(2 << 20);
        assert!(parse(format!(r#"{{"process":{{"env":["X={long}"]}}}}"#).as_bytes()).is_ok());
    }

    #[test]
    fn claims_are_those_of_our_own_hooks() {
        let claims = |hooks: &str| {
            let config = parse(format!(r#"{{"hooks":{{{hooks}}}}}"#).as_bytes()).expect("valid");
            config.claims().map(|all| all.iter().map(ClaimId::to_string).collect::<Vec<_>>())
        };
        let hook = |path: &str, args: &str| format!(r#"{{"path":"{path}","args":[{args}]}}"#);
        let ours =
            |id: &str| hook("/usr/libexec/gpuslice-hook", &format!(r#""x","--claim","{id}""#));
        let list = |stage: &str, all: &[String]| format!(r#""{stage}":[{}]"#, all.join(","));
        assert_eq!(claims("").expect("none"), Vec::<String>::new());
        let other = hook("/usr/bin/other", r#""--claim","no""#);
        let plain = hook("/x/gpuslice-hook", r#""gpuslice-hook","createRuntime""#);
        let both = [
            list("createRuntime", &[other, ours("b"), ours("a"), ours("b"), plain]),
            list("prestart", &[ours("c")]),
            list("poststop", &[ours("d")]),
        ];
        assert_eq!(claims(&both.join(",")).expect("three"), ["b", "a", "c"]);
        let many: Vec<String> = ["a", "b", "c", "d", "e"].map(ours).into();
        for bad in [many, vec![ours("../x")], vec![ours("")], vec![ours(&"a".repeat(10_240))]] {
            assert!(claims(&list("createRuntime", &bad)).is_err());
        }
        for odd in [
            r#"{"hooks":{"createRuntime":[]},"Hooks":{}}"#,
            r#"{"hooks":{"prestart":[],"PreStart":[]}}"#,
        ] {
            assert!(parse(odd.as_bytes()).is_err(), "{odd}");
        }
    }

    #[test]
    fn owners_inform_and_never_fail() {
        let text = r#"{"annotations":{"io.kubernetes.cri.sandbox-namespace":"default",
            "io.kubernetes.pod.name":"web-0","io.kubernetes.cri.container-name":"a\nb"}}"#;
        let owner = parse(text.as_bytes()).expect("valid").owner();
        assert_eq!((owner.namespace.as_str(), owner.pod.as_str()), ("default", "web-0"));
        assert!(owner.uid.is_empty() && owner.container.is_empty());
    }

    #[test]
    fn sandboxes_prove_it_by_their_id() {
        let of = |kind: &str, kind_is: &str, id: &str, id_is: &str| {
            let text = format!(r#"{{"annotations":{{"{kind}":"{kind_is}","{id}":"{id_is}"}}}}"#);
            parse(text.as_bytes()).expect("valid").is_sandbox("abc")
        };
        for [kind, id] in SANDBOX_KEYS {
            assert!(of(kind, "sandbox", id, "abc"));
            assert!(!of(kind, "container", id, "abc"));
            assert!(!of(kind, "sandbox", id, "abd"));
            assert!(!of(kind, "sandbox", "x", "abc"));
        }
    }
}
