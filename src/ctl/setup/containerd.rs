//! containerd: a runtime handler in the CRI plugin's table of `config.toml`.
//!
//! The handler is a copy of the node's default handler under the name `gpuslice`, so that cgroup driver
//! and snapshotter match, with gpuslice-runtime as its binary. Two keys are added: without
//! `pod_annotations` and `container_annotations` a pod's annotations never reach its containers. The
//! patterns are Go's `path.Match`, in which `*` matches no slash.
//!
//! A trap: a file without a table of handlers has runc's by default, and a file with one has only its
//! entries. Our handler alone would remove runc's, and containerd's CRI with it, so runc's is written too.

use super::part::{NAME, Part, Wish, is_nvidia};
use super::toml::{Read, set, set_text, table_at};
use anyhow::{Result, bail};
use toml_edit::{Array, Item, Table, TableLike, value};

/// The annotations that reach a container.
const ANNOTATIONS: &str = "gpuslice.io/*";
/// The default handler of a configuration without handlers.
const RUNC: &str = "runc";
/// The keys that pass annotations on, of the pod and of the container.
const LISTS: [&str; 2] = ["pod_annotations", "container_annotations"];
/// The only kind of handler that has a `BinaryName`.
const KIND: &str = "io.containerd.runc.v2";
const DEFAULT: &str = "default_runtime_name";
/// The switch for CDI devices. containerd 1.7 has it off; from 2.0 on it is on unless a file says otherwise.
const CDI: &str = "enable_cdi";

/// The plugin in files of version 2.
const V2: &str = "io.containerd.grpc.v1.cri";

/// gpuslice's part of a containerd configuration file.
pub struct Containerd {
    plugin: &'static str,
}

impl Containerd {
    /// gpuslice's part for files of this format version.
    ///
    /// # Errors
    /// The version is not supported.
    pub fn of_version(version: i64) -> Result<Containerd> {
        let plugin = match version {
            2 => V2,
            3 => "io.containerd.cri.v1.runtime",
            1 => bail!(
                "it is of version 1, which containerd no longer reads from 2.0 on; \
                 containerd config migrate writes it anew"
            ),
            other => bail!("its version is {other}; gpuslice supports 2 and 3"),
        };
        Ok(Containerd { plugin })
    }

    /// Whether a file has the plugin's table, and so all of it where containerd is older than 2.1.
    ///
    /// # Errors
    /// It is not TOML, or the key is not a table.
    pub fn is_in(&self, text: &str) -> Result<bool> {
        Ok(Read::parse(text)?.table(&["plugins", self.plugin])?.is_some())
    }

    /// Whether the file disables the plugin, as the one of Docker's packages does.
    ///
    /// # Errors
    /// It is not TOML, or `disabled_plugins` is not a list.
    pub fn is_disabled_in(&self, text: &str) -> Result<bool> {
        let read = Read::parse(text)?;
        let list = read.list(&["disabled_plugins"])?.unwrap_or_default();
        let names = ["cri", "io.containerd.grpc.v1.cri", self.plugin];
        Ok(list.iter().any(|name| names.contains(name)))
    }

    /// The program that gpuslice-runtime takes the place of, if the handler to copy names one.
    ///
    /// # Errors
    /// It is not TOML, or no table is where one must be.
    pub fn replaced(&self, text: &str) -> Result<Vec<String>> {
        let read = Read::parse(text)?;
        let named = self.model(&read)?.and_then(program);
        let named = named.filter(|it| !it.is_empty() && !is_nvidia(it));
        Ok(named.map(str::to_owned).into_iter().collect())
    }

    fn at<'a>(&self, more: &[&'a str]) -> Vec<&'a str> {
        [&["plugins", self.plugin, "containerd"], more].concat()
    }

    /// Whether the file needs the switch for CDI devices.
    fn lacks_cdi(&self, read: &Read) -> Result<bool> {
        let now = read.flag(&["plugins", self.plugin, CDI])?;
        Ok(match self.plugin {
            V2 => now != Some(true),
            _ => now == Some(false),
        })
    }

    /// The handler to copy: NVIDIA's, else the default one, else runc's.
    fn model<'a>(&self, read: &'a Read) -> Result<Option<&'a dyn TableLike>> {
        let Some(all) = read.table(&self.at(&["runtimes"]))? else {
            return Ok(None);
        };
        let default = read.text(&self.at(&[DEFAULT]))?.unwrap_or(RUNC);
        let mut found = None;
        for (name, _) in all.iter().filter(|(name, _)| *name != NAME) {
            let Some(handler) = read.table(&self.at(&["runtimes", name]))? else {
                continue;
            };
            if handler.get("runtime_type").and_then(Item::as_str) != Some(KIND) {
                continue;
            }
            let rank = match read.text(&self.at(&["runtimes", name, "options", "BinaryName"]))? {
                Some(binary) if is_nvidia(binary) => 3,
                _ if name == default => 2,
                _ if name == RUNC => 1,
                _ => continue,
            };
            if found.as_ref().is_none_or(|(best, _)| *best < rank) {
                found = Some((rank, handler));
            }
        }
        Ok(found.map(|(_, handler)| handler))
    }
}

/// The version of a file, `None` if it has none; an empty file has the version that gpuslice writes.
///
/// # Errors
/// It is not TOML, or the version is not a number.
pub fn version_of(text: &str) -> Result<Option<i64>> {
    let read = Read::parse(text)?;
    let Some(item) = read.item(&["version"])? else {
        let empty = read.table(&[])?.is_none_or(|table| table.is_empty());
        return Ok(empty.then_some(2));
    };
    match item.as_integer() {
        Some(version) => Ok(Some(version)),
        None => bail!("its version is not a number; set version = 2 or 3"),
    }
}

impl Part for Containerd {
    fn put(&self, text: &str, wish: &Wish) -> Result<String> {
        let read = Read::parse(text)?;
        let is_new = read.table(&self.at(&["runtimes", NAME]))?.is_none();
        let model = self.model(&read)?.map(plain);
        let program = match self.behind(text)? {
            Some(nvidia) => nvidia,
            None => wish.program.clone(),
        };
        for list in LISTS {
            read.list(&self.at(&["runtimes", NAME, list]))?;
        }
        read.table(&self.at(&["runtimes", NAME, "options"]))?;
        let default = read.text(&self.at(&[DEFAULT]))?.map(str::to_owned);
        let to_default = wish.default && default.as_deref() != Some(NAME);
        let to_cdi = self.lacks_cdi(&read)? && wish.cdi;
        let mut document = read.into_mut();
        if document.is_empty() {
            document.insert("version", value(2));
        }
        let runtimes = table_at(&mut document, &self.at(&["runtimes"]))?;
        if !runtimes.contains_key(RUNC) && matches!(default.as_deref(), None | Some(RUNC)) {
            let mut runc = Table::new();
            runc.insert("runtime_type", value(KIND));
            runtimes.insert(RUNC, Item::Table(runc));
        }
        if is_new {
            runtimes.insert(NAME, Item::Table(model.unwrap_or_default()));
        }
        let ours = table_at(&mut document, &self.at(&["runtimes", NAME]))?;
        if !ours.contains_key("runtime_type") {
            ours.insert("runtime_type", value(KIND));
        }
        for list in LISTS {
            let all = ours.entry(list).or_insert(value(Array::new()));
            if let Some(all) = all.as_array_mut()
                && !all.iter().any(|entry| entry.as_str() == Some(ANNOTATIONS))
            {
                all.push(ANNOTATIONS);
            }
        }
        let options = table_at(&mut document, &self.at(&["runtimes", NAME, "options"]))?;
        if options.get("BinaryName").and_then(Item::as_str) != Some(&program) {
            set_text(options, "BinaryName", &program);
        }
        if to_default {
            set_text(table_at(&mut document, &self.at(&[]))?, DEFAULT, NAME);
        }
        if to_cdi {
            set(table_at(&mut document, &["plugins", self.plugin])?, CDI, true.into());
        }
        Ok(document.to_string())
    }

    fn find(&self, text: &str) -> Result<Option<Wish>> {
        let read = Read::parse(text)?;
        if read.table(&self.at(&["runtimes", NAME]))?.is_none() {
            return Ok(None);
        }
        let program = read.text(&self.at(&["runtimes", NAME, "options", "BinaryName"]))?;
        Ok(Some(Wish {
            program: program.unwrap_or_default().to_owned(),
            default: read.text(&self.at(&[DEFAULT]))? == Some(NAME),
            cdi: read.flag(&["plugins", self.plugin, CDI])? == Some(true),
        }))
    }

    /// Other devices may need CDI by now, so it stays on.
    fn take_out(&self, text: &str, before: Option<&str>) -> Result<Option<String>> {
        let read = Read::parse(text)?;
        let is_default = read.text(&self.at(&[DEFAULT]))? == Some(NAME);
        let old = before.and_then(|before| {
            let before = Read::parse(before).ok()?;
            let old = before.text(&self.at(&[DEFAULT])).ok()??;
            (old != NAME).then(|| old.to_owned())
        });
        let mut document = read.into_mut();
        table_at(&mut document, &self.at(&["runtimes"]))?.remove(NAME);
        if is_default {
            let containerd = table_at(&mut document, &self.at(&[]))?;
            match old {
                Some(old) => set_text(containerd, DEFAULT, &old),
                None => drop(containerd.remove(DEFAULT)),
            }
        }
        Ok(Some(document.to_string()))
    }

    fn behind(&self, text: &str) -> Result<Option<String>> {
        let read = Read::parse(text)?;
        let binary = self.model(&read)?.and_then(program);
        Ok(binary.filter(|binary| is_nvidia(binary)).map(str::to_owned))
    }
}

/// The program of a handler, if it names one.
fn program(handler: &dyn TableLike) -> Option<&str> {
    handler.get("options")?.as_table_like()?.get("BinaryName")?.as_str()
}

/// A copy of a table, without the original's comments.
pub fn plain(table: &dyn TableLike) -> Table {
    let mut copy = Table::new();
    for (key, item) in table.iter() {
        let item = match (item.as_value(), item.as_table_like()) {
            (_, Some(below)) => Item::Table(plain(below)),
            (Some(found), _) => {
                let mut found = found.clone();
                found.decor_mut().clear();
                Item::Value(found)
            }
            _ => continue,
        };
        copy.insert(key, item);
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::super::part::{tests::round_trip, tests::wish, undo};
    use super::*;

    fn v2() -> Containerd {
        Containerd::of_version(2).expect("known")
    }

    const NODE: &str = r#"version = 2
# the node's
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pause" # local
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc" # for now
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      # for all
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["x/*"]
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true # of the distribution
[plugins."io.containerd.internal.v1.opt"]
  path = "/opt"
"#;

    #[test]
    fn the_handler_is_like_the_default_one_and_nothing_else_changes() {
        let put = round_trip(&v2(), NODE);
        let rest: Vec<&str> = NODE.lines().filter(|line| !put.contains(line)).collect();
        assert_eq!(rest, [""; 0]);
        let read = Read::parse(&put).expect("TOML");
        let at = |more: &[&str]| v2().at(&[&["runtimes", NAME], more].concat()).join("\n");
        let text = |more: &[&str]| {
            let path = at(more);
            let path: Vec<&str> = path.split('\n').collect();
            read.item(&path).expect("good").expect("there").to_string()
        };
        assert_eq!(text(&["runtime_type"]).trim(), "\"io.containerd.runc.v2\"");
        assert_eq!(text(&["options", "SystemdCgroup"]).trim(), "true");
        let binary = text(&["options", "BinaryName"]);
        assert_eq!(binary.trim(), "\"/usr/bin/gpuslice-runtime\"");
        assert_eq!(text(&["pod_annotations"]).trim(), "[\"x/*\", \"gpuslice.io/*\"]");
        assert_eq!(text(&["container_annotations"]).trim(), "[\"gpuslice.io/*\"]");
    }

    #[test]
    fn files_of_every_kind() {
        let v3 = Containerd::of_version(3).expect("known");
        let put = round_trip(&v3, "version = 3\n");
        assert!(put.contains("containerd.runtimes.runc]\nruntime_type"), "{put}");
        assert!(put.contains("io.containerd.cri.v1.runtime"), "{put}");
        let put = round_trip(&v2(), "");
        assert!(put.starts_with("version = 2\n"), "{put}");
        let inline = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n\
                      containerd = { runtimes = { runc = { runtime_type = \"io.containerd.runc.v2\" } } }\n";
        round_trip(&v2(), inline);
        let dotted = "version = 2\nplugins.\"io.containerd.grpc.v1.cri\".sandbox_image = \"x\"\n";
        round_trip(&v2(), dotted);
        assert!(Containerd::of_version(1).is_err() && Containerd::of_version(4).is_err());
        for (text, version) in [
            ("", Some(2)),
            ("# nothing\n", Some(2)),
            ("version = 3\n", Some(3)),
            ("root = \"/x\"\n", None),
        ] {
            assert_eq!(version_of(text).expect("good"), version, "{text}");
        }
        assert!(version_of("version = \"2\"\n").is_err());
    }

    #[test]
    fn cdi_is_switched_on_where_it_is_off() {
        let put = |part: &Containerd, text: &str| {
            let put = part.put(text, &wish(true)).expect("good");
            let undone = undo(part, &put, Some(text)).expect("good").expect("ours");
            assert_eq!((undone.text.as_deref(), undone.exact), (Some(text), true));
            part.find(&put).expect("good").expect("ours").cdi
        };
        let v3 = Containerd::of_version(3).expect("known");
        let with = |plugin: &str, value: &str| {
            format!("[plugins.\"{plugin}\"]\nenable_cdi = {value} # x\n")
        };
        assert!(
            put(&v2(), NODE) && put(&v2(), &with(V2, "false")) && put(&v2(), &with(V2, "true"))
        );
        // From 2.0 on the switch is on by itself, and newer files lack it.
        assert!(!put(&v3, "version = 3\n"));
        assert!(put(
            &v3,
            &format!("version = 3\n{}", with("io.containerd.cri.v1.runtime", "false"))
        ));
        let said = v2().put(&with(V2, "1"), &wish(true)).expect_err("refused").to_string();
        assert!(said.contains("enable_cdi is integer, not true or false"), "{said}");
        let kept = v2().put(&with(V2, "false"), &wish(false)).expect("good");
        assert!(kept.contains("enable_cdi = false"), "it was not asked for: {kept}");
    }

    #[test]
    fn nvidias_handler_is_the_model_where_it_is_there() {
        let nvidia = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n\
                      runtime_type = \"io.containerd.runc.v2\"\n\
                      [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n\
                      BinaryName = \"/usr/bin/nvidia-container-runtime\"\nSystemdCgroup = true\n";
        let text = format!("{NODE}{nvidia}");
        let put = round_trip(&v2(), &text);
        let found = v2().find(&put).expect("good").expect("ours");
        assert_eq!(found.program, "/usr/bin/nvidia-container-runtime");
        assert!(v2().behind(&put).expect("good").is_some());
        assert_eq!(v2().behind(NODE).expect("good"), None);
    }

    #[test]
    fn what_others_wrote_since_stays() {
        for cdi in [false, true] {
            let put = v2().put(NODE, &Wish { cdi, ..wish(true) }).expect("good");
            let since = put.replace("\"pause\"", "\"other\"");
            let undone = undo(&v2(), &since, Some(NODE)).expect("good").expect("ours");
            assert!(!undone.exact);
            // CDI stays on: other devices may need it by now.
            let text = undone.text.expect("a file").replace("enable_cdi = true\n", "");
            assert_eq!(text, NODE.replace("\"pause\"", "\"other\""));
        }
    }

    #[test]
    fn bad_files_are_refused_with_the_place() {
        let in_runtimes = |what: &str| {
            format!("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n{what}\n")
        };
        for (bad, why) in [
            ("version = 2\nplugins = 1\n".to_owned(), "line 2, column 11: plugins is integer"),
            (in_runtimes("runtimes = []"), "line 3, column 12: runtimes is array"),
            (in_runtimes("default_runtime_name = 1"), "line 3, column 24"),
            (in_runtimes("runtimes.gpuslice.pod_annotations = \"x\""), "not a list of texts"),
            (in_runtimes("runtimes.gpuslice.options = 1"), "not a table"),
            (in_runtimes("runtimes.runc = 1"), "not a table"),
            ("version = 2\n[[".to_owned(), "line 2"),
        ] {
            let said = v2().put(&bad, &wish(true)).expect_err("refused").to_string();
            assert!(said.contains(why), "{bad}: {said}");
        }
        let off = "disabled_plugins = [\"cri\"]\nversion = 2\n";
        assert!(
            v2().is_disabled_in(off).expect("good") && !v2().is_disabled_in(NODE).expect("good")
        );
    }
}
