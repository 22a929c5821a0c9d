//! Whether containerd gives containers the CDI devices that they are started with.
//!
//! A pod of Kubernetes gets its claim by a CDI device. containerd before 1.7, and 1.7 with its default configuration,
//! ignores such devices without a word, and starts the container without its cap. So this is an error on a node whose
//! agent reserves claims. containerd itself prints the configuration that takes effect, all of its files merged.

use super::{Check, needed, there, wanted};
use std::path::Path;
use std::process::Command;
use toml_edit::{DocumentMut, Item};

/// The check's name.
const NAME: &str = "cdi";
/// The first version that can pass CDI devices on, and the first that does without being told to.
const ABLE: (u32, u32) = (1, 7);
const ON: (u32, u32) = (2, 0);
/// The plugin's names: up to 1.7, and from 2.0 on.
const PLUGINS: [&str; 2] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"];
/// How to switch it on.
const FIX: &str = "gpuslice setup containerd --cdi && systemctl restart containerd";

/// The check of this machine's containerd; `cdi_dir` is where the daemon writes its files.
pub fn of_containerd(config: Option<&Path>, cdi_dir: Option<&str>, is_needed: bool) -> Check {
    let said = |words: &[&str]| {
        let mut command = Command::new("containerd");
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        let output = command.args(words).output().ok().filter(|it| it.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let version = said(&["--version"]).unwrap_or_default();
    let dump = said(&["config", "dump"]);
    match judge(&version, dump.as_deref(), cdi_dir) {
        Ok(found) => there(NAME, found),
        Err((found, fix)) if is_needed => needed(NAME, found, fix),
        Err((found, fix)) => wanted(NAME, format!("{found}; claims of pods need it"), fix),
    }
}

/// What a containerd of this version does with CDI devices, by the configuration that it prints. The error has the
/// cure beside it.
fn judge(
    version: &str,
    dump: Option<&str>,
    cdi_dir: Option<&str>,
) -> Result<String, (String, &'static str)> {
    let newer = "install containerd from 1.7 on";
    let number = number(version).ok_or_else(|| {
        let line = version.lines().next().unwrap_or("nothing");
        (format!("containerd --version printed {line:?}, which has no version"), newer)
    })?;
    let (major, minor) = number;
    if number < ABLE {
        let found = format!(
            "containerd {major}.{minor} ignores CDI devices: containers run without their caps"
        );
        return Err((found, newer));
    }
    let read = "run containerd config dump and fix what it reports";
    let dump = dump.ok_or(("containerd cannot print its configuration".to_owned(), read))?;
    let document: DocumentMut =
        dump.parse().map_err(|_| ("containerd's configuration is not TOML".to_owned(), read))?;
    let plugin = |name: &&str| document.get("plugins").and_then(|it| it.get(name));
    let plugin = PLUGINS.iter().find_map(plugin);
    let disabled = document.get("disabled_plugins").and_then(Item::as_array);
    let names_cri = |name: &str| name == "cri" || PLUGINS.contains(&name);
    if disabled.into_iter().flatten().filter_map(|it| it.as_str()).any(names_cri) {
        let found =
            "the CRI plugin is in disabled_plugins: Kubernetes cannot use containerd".to_owned();
        return Err((found, "remove it from disabled_plugins and restart containerd"));
    }
    let switch = plugin.and_then(|it| it.get("enable_cdi")).and_then(Item::as_bool);
    if !switch.unwrap_or(number >= ON) {
        let found = format!(
            "containerd {major}.{minor} has enable_cdi = false and ignores CDI devices: containers run without \
             their caps"
        );
        return Err((found, FIX));
    }
    let dirs = plugin.and_then(|it| it.get("cdi_spec_dirs")).and_then(Item::as_array);
    let dirs: Option<Vec<&str>> = dirs.map(|all| all.iter().filter_map(|it| it.as_str()).collect());
    let same = |dir: &&str, wanted: &str| real(dir) == real(wanted);
    match (dirs, cdi_dir) {
        (Some(dirs), Some(wanted)) if !dirs.iter().any(|dir| same(dir, wanted)) => Err((
            format!("containerd does not read {wanted}, where gpusliced writes its CDI files"),
            "add the directory to cdi_spec_dirs, or set cdi_dir in gpuslice's configuration",
        )),
        _ => Ok(format!("containerd {major}.{minor} passes CDI devices to containers")),
    }
}

/// A directory without the link that `/var/run` is.
fn real(dir: &str) -> String {
    let dir = dir.trim_end_matches('/');
    dir.strip_prefix("/var/run/").map_or_else(|| dir.to_owned(), |rest| format!("/run/{rest}"))
}

/// Major and minor number in what `containerd --version` prints.
fn number(version: &str) -> Option<(u32, u32)> {
    version.split_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V17: &str = "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6\n";

    fn dump(plugin: &str, lines: &str) -> String {
        format!(
            "disabled_plugins = []\nversion = 2\n[plugins]\n  [plugins.\"{plugin}\"]\n{lines}\n"
        )
    }

    #[test]
    fn versions_and_switches() {
        let cri = |lines: &str| dump("io.containerd.grpc.v1.cri", lines);
        let judge = |version: &str, dump: &str| judge(version, Some(dump), Some("/var/run/cdi"));
        let dirs = "cdi_spec_dirs = [\"/etc/cdi\", \"/run/cdi/\"]";
        assert!(judge(V17, &cri(&format!("enable_cdi = true\n{dirs}"))).is_ok());
        let (found, fix) = judge(V17, &cri("enable_cdi = false")).expect_err("off");
        assert!(found.contains("1.7 has enable_cdi = false") && fix.contains("--cdi"), "{found}");
        assert!(judge(V17, &cri("")).is_err(), "off by default");
        let (found, _) =
            judge(V17, &cri("enable_cdi = true\ncdi_spec_dirs = [\"/x\"]")).expect_err("elsewhere");
        assert!(found.contains("does not read /var/run/cdi"), "{found}");
        for old in ["containerd x 1.6.20~ds1 1.6.20", "containerd v1.4.3 1"] {
            let (found, fix) = judge(old, &cri("enable_cdi = true")).expect_err("too old");
            assert!(found.contains("ignores CDI devices") && fix.contains("1.7"), "{found}");
        }
        let v2 = "containerd github.com/containerd/containerd/v2 v2.1.9 abc";
        let new = |lines: &str| dump("io.containerd.cri.v1.runtime", lines);
        assert!(judge(v2, &new("")).is_ok(), "on by default");
        assert!(judge(v2, &new("enable_cdi = false")).is_err());
        let off = "disabled_plugins = [\"cri\"]\n";
        assert!(judge(V17, off).expect_err("disabled").0.contains("disabled_plugins"));
        assert!(judge("", "").expect_err("no version").0.contains("no version"));
        assert!(judge(V17, "[").expect_err("broken").0.contains("not TOML"));
        assert!(super::judge(V17, None, None).is_err());
    }
}
