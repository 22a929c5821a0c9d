//! A slice request: pure, from annotations or from the hook's registration.
//!
//! A malformed or unknown key under gpuslice's prefix is refused: a mistyped cap must never become
//! "no cap".

use crate::config::PREFIX;
use crate::error::Error;
use gpuslice_wire::admin::{Admission, Command, MemoryAsk, RequestSource};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{BadClass, BadGangs, Class, Gangs};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::{Bytes, Percent, UnitError, Weight, plausible};

/// A well-formed slice request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Cap per GPU.
    pub memory: MemoryAsk,
    /// Memory limit per GPU, if it is not the cap.
    pub memory_limit: Option<MemoryAsk>,
    /// Weight for the time that shares leave, if named.
    pub weight: Option<Weight>,
    /// Share of each GPU's time.
    pub share: Option<Percent>,
    /// The most that it may get of each GPU's time.
    pub share_limit: Option<Percent>,
    /// Priority class.
    pub class: Class,
    /// Whether its GPUs may take turns as a gang.
    pub gang: Gangs,
    /// The slice's GPUs.
    pub gpus: Selector,
    /// Additional whole GPUs.
    pub whole: Selector,
    /// Display name.
    pub name: Name,
    /// Pinned host memory cap.
    pub pinned: Option<Bytes>,
    /// Its source in the container's configuration; `None` for the registration's own request.
    pub source: Option<RequestSource>,
}

impl Ask {
    /// A request for memory alone: all that a container's environment may ask for.
    pub(crate) fn of_memory(memory: MemoryAsk, source: RequestSource) -> Ask {
        Ask {
            memory,
            memory_limit: None,
            weight: None,
            share: None,
            share_limit: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            gpus: Selector::EMPTY,
            whole: Selector::EMPTY,
            name: Name::EMPTY,
            pinned: None,
            source: Some(source),
        }
    }

    /// The request in the hook's registration, with the keys of annotations: `memory=1/4`, as for a CDI
    /// device.
    ///
    /// # Errors
    /// [`Error::Ask`] for the first malformed one.
    pub fn of_words(words: &[String]) -> Result<Ask, Error> {
        let mut asked: Vec<(String, &str)> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let key = format!("{PREFIX}{key}");
            if asked.iter().any(|(known, _)| *known == key) {
                return Err(Error::ask(&key, value, "is given twice"));
            }
            asked.push((key, value));
        }
        let asked: Vec<(&str, &str)> = asked.iter().map(|(key, value)| (&**key, *value)).collect();
        from_annotations(&asked)
    }

    /// The command that requests it from the daemon. `pid` is the host's pid of the container's first
    /// process, which identifies its control group.
    #[must_use]
    pub fn admit(&self, container: ContainerId, pid: u32, owner: Owner) -> Command {
        let Ask { memory, weight, share, share_limit, class, gang, .. } = *self;
        let Ask { gpus, whole, name, pinned, source, memory_limit, .. } = *self;
        let asked = Admission {
            container,
            name,
            gpus,
            whole,
            memory,
            memory_limit,
            weight,
            share,
            share_limit,
            class,
            gang,
            pinned,
            pid,
            owner,
        };
        match source {
            None => Command::Admit { asked },
            Some(source) => Command::AdmitFrom { source, asked },
        }
    }
}

pub(crate) fn from_annotations(ours: &[(&str, &str)]) -> Result<Ask, Error> {
    let (mut memory, mut pinned, mut weight) = (None, None, None);
    let mut memory_limit = None;
    let (mut share, mut share_limit) = (None, None);
    let (mut class, mut gang, mut name) = (Class::Normal, Gangs::Auto, Name::EMPTY);
    let (mut gpus, mut whole) = (Selector::EMPTY, Selector::EMPTY);
    for &(key, value) in ours {
        let bad = |why: &dyn ToString| Error::ask(key, value, why.to_string());
        match key.strip_prefix(PREFIX).unwrap_or_default() {
            "memory" => memory = Some(cap(value).map_err(|why| bad(&why))?),
            "memory-limit" => memory_limit = Some(cap(value).map_err(|why| bad(&why))?),
            "pinned-memory" => pinned = Some(size(value).map_err(|why| bad(&why))?),
            "weight" => weight = Some(value.parse().map_err(|why: UnitError| bad(&why))?),
            "share" => share = Some(value.parse().map_err(|why: UnitError| bad(&why))?),
            "share-limit" => share_limit = Some(value.parse().map_err(|why: UnitError| bad(&why))?),
            "priority" => class = value.parse().map_err(|why: BadClass| bad(&why))?,
            "gang" => gang = value.parse().map_err(|why: BadGangs| bad(&why))?,
            "gpus" => gpus = selector(value).map_err(|why| bad(&why))?,
            "whole-gpus" => whole = selector(value).map_err(|why| bad(&why))?,
            "name" => name = Name::new(value).map_err(|why| bad(&why))?,
            _ => {
                return Err(bad(
                    &"unknown annotation; the known ones are memory, memory-limit, pinned-memory, weight, share, share-limit, priority, gang, gpus, whole-gpus and name",
                ));
            }
        }
    }
    if let (Some(share), Some(limit)) = (share, share_limit)
        && limit < share
    {
        let why = format!("is below the share of {} %", Percent::get(share));
        return Err(Error::ask("gpuslice.io/share-limit", &Percent::get(limit).to_string(), why));
    }
    if !whole.is_empty() && gpus.is_empty() {
        let why = "with whole-gpus, the slice's own GPUs must be named too; add gpuslice.io/gpus";
        return Err(Error::ask("gpuslice.io/whole-gpus", whole.as_str(), why));
    }
    let why = "a slice needs a memory cap; add gpuslice.io/memory";
    let memory = memory.ok_or_else(|| Error::ask("gpuslice.io/memory", "", why))?;
    Ok(Ask {
        memory,
        memory_limit,
        pinned,
        weight,
        share,
        share_limit,
        class,
        gang,
        gpus,
        whole,
        name,
        source: None,
    })
}

/// A size of 1 MiB or more: less is one whose unit was forgotten.
fn size(text: &str) -> Result<Bytes, UnitError> {
    plausible(text, text.parse()?)
}

/// A size of 1 MiB or more, or a part of the GPU's memory.
fn cap(text: &str) -> Result<MemoryAsk, UnitError> {
    match text.parse()? {
        MemoryAsk::Exactly(bytes) => plausible(text, bytes).map(MemoryAsk::Exactly),
        part => Ok(part),
    }
}

/// A valid selector, as bounded text.
pub(crate) fn selector(text: &str) -> Result<Selector, String> {
    GpuSelector::parse(text).map_err(|why| why.to_string())?;
    Selector::new(text).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use gpuslice_wire::units::GIB;

    fn ask(annotations: &str) -> Result<Option<Ask>, Error> {
        let text = format!(r#"{{"annotations":{{{annotations}}}}}"#);
        Ask::of(&Config::parse(text.as_bytes())?, false)
    }

    #[test]
    fn whole_wishes() {
        let full = ask(
            r#""gpuslice.io/memory":"4GiB","gpuslice.io/memory-limit":"1/2","gpuslice.io/weight":"3","gpuslice.io/gpus":"0,1","gpuslice.io/whole-gpus":"2",
               "gpuslice.io/priority":"high","gpuslice.io/name":"web","other/x":"y","gpuslice.io/gang":"never",
               "gpuslice.io/pinned-memory":"512MiB","gpuslice.io/share":"25","gpuslice.io/share-limit":"50%""#,
        );
        let full = full.expect("valid").expect("asks");
        assert_eq!(full.memory, MemoryAsk::Exactly(Bytes(4 * GIB)));
        assert_eq!(full.pinned, Some(Bytes(GIB / 2)));
        assert_eq!(full.memory_limit, Some(MemoryAsk::Ratio { part: 1, whole: 2 }));
        let web = ContainerId::new("web").expect("an id");
        let command = full.admit(web, 77, Owner::default());
        assert!(
            matches!(
                command,
                Command::AdmitFrom {
                    source: RequestSource::Annotations,
                    asked: Admission { pid: 77, pinned: Some(_), memory_limit: Some(_), .. },
                }
            ),
            "{command:?}"
        );
        let weight = Weight::new(3).ok();
        assert_eq!((full.weight, full.class, full.gpus.as_str()), (weight, Class::High, "0,1"));
        assert_eq!((full.share, full.share_limit), (Percent::new(25).ok(), Percent::new(50).ok()));
        assert_eq!((full.whole.as_str(), full.gang), ("2", Gangs::Never));
        let idle = r#""gpuslice.io/memory":"4GiB","gpuslice.io/priority":"best-effort""#;
        let idle = ask(idle).expect("valid").expect("asks");
        assert_eq!(idle.class, Class::BestEffort);
        assert_eq!(idle.gang, Gangs::Auto);
        assert_eq!(ask(r#""other/x":"y""#).expect("valid"), None);
    }

    #[test]
    fn a_registration_asks_in_the_same_words() {
        let words = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|&word| word.to_owned()).collect();
            Ask::of_words(&all).map_err(|error| error.to_string())
        };
        let ask = words(&["memory=1/4", "weight=2", "gpus=0,1"]).expect("valid");
        assert_eq!(ask.memory, MemoryAsk::Ratio { part: 1, whole: 4 });
        assert_eq!((ask.weight, ask.gpus.as_str()), (Weight::new(2).ok(), "0,1"));
        assert_eq!(ask.source, None, "the node's own");
        for (bad, why) in [
            (&["weight=2"][..], "needs a memory cap"),
            (&["memory=8"], "8B is less than 1MiB; did you mean 8GiB?"),
            (&["memory=8GiB", "memory-limit=16"], "did you mean 16GiB?"),
            (&["memory=8GiB", "pinned-memory=512KiB"], "did you mean 512GiB?"),
            (&["memory=5/4"], "a part of the GPU's memory"),
            (&["memory=1GiB", "memory=2GiB"], "is given twice"),
            (&["memroy=1GiB"], "unknown annotation"),
            (&["memory=1GiB", "share=30", "share-limit=20"], "is below the share of 30 %"),
            (&["memory=1GiB", "share-limit=0"], "1 to 100"),
        ] {
            assert!(words(bad).is_err_and(|said| said.contains(why)), "{bad:?}");
        }
    }

    #[test]
    fn malformed_wishes_name_the_key() {
        let bad = [
            r#""gpuslice.io/weight":"3""#,
            r#""gpuslice.io/memory":"0""#,
            r#""gpuslice.io/memory":"-1""#,
            r#""gpuslice.io/memory":"1e30""#,
            r#""gpuslice.io/memory":"8GB""#,
            r#""gpuslice.io/memory":"5/4""#,
            r#""gpuslice.io/memory":"1/""#,
            r#""gpuslice.io/memory":"18446744073709551615GiB""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/gang":"always""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/gang":"""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/pinned-memory":"0""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/pinned-memory":"all""#,
            r#""gpuslice.io/pinned-memory":"1GiB""#,
            r#""gpuslice.io/memory-limit":"1GiB""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/memory-limit":"0""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/memory-limit":"none""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/weight":"0""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/weight":"1000000000""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/share":"11","gpuslice.io/share-limit":"10""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/share-limit":"0""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/share-limit":"101""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/share-limit":"none""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/gpus":"x""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/whole-gpus":"0""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/priority":"1""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/priority":"Best-Effort""#,
            r#""gpuslice.io/memroy":"1GiB""#,
            r#""gpuslice.io/":"1GiB""#,
            r#""gpuslice.io":"1GiB""#,
            r#""GPUslice.io/memory":"1GiB""#,
            r#""\u0000gpuslice.io/memory":"1GiB""#,
            r#"" gpuslice.io/memory\t":"1GiB""#,
            r#""gpuslice.io/Memory":"1GiB""#,
            r#"" gpuslice.io/memory":"1GiB""#,
            r#""gpuslice\u002eio/memory":"""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/\u001b[2J\u202e\n":"1""#,
            r#""gpuslice.io/memory":"1GiB","gpuslice.io/name":"a\nb""#,
        ];
        for annotations in bad {
            let error = ask(annotations).expect_err(annotations).to_string();
            assert!(error.to_ascii_lowercase().contains("gpuslice.io"), "{error}");
            assert!(!error.contains(['\n', '\u{1b}', '\u{202e}']), "{error}");
        }
    }
}
