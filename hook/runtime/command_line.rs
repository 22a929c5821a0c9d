//! The command line of an OCI runtime, as containerd, docker, podman, CRI-O and users write it.
//!
//! There is no standard; all runtimes follow runc: global options, the command, its options, the
//! container's id. Options have the forms `--name value` and `--name=value`, also with one dash. The
//! wrapper looks for the three commands that create a container and does not change the line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Commands that create a container, and so use its configuration.
const MAKES: [&str; 3] = ["create", RESTORE, "run"];

/// The command that creates a container from a checkpoint.
const RESTORE: &str = "restore";

/// All other commands of runc, crun and youki. Any other word is the value of an unknown option, and
/// the command follows later.
const OTHERS: [&str; 16] = [
    "checkpoint",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "info",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "resume",
    "spec",
    "start",
    "state",
];

/// Options of runc, crun and youki that take a value: global ones, and those of commands that create a
/// container.
const VALUED: [&str; 23] = [
    "log",
    "l",
    "log-format",
    "root",
    "r",
    "criu",
    "rootless",
    "cgroup-manager",
    "bundle",
    "b",
    "config",
    "f",
    "console-socket",
    "pid-file",
    "preserve-fds",
    "image-path",
    "work-path",
    "parent-path",
    "manage-cgroups-mode",
    "status-fd",
    "empty-ns",
    "lsm-profile",
    "lsm-mount-context",
];

/// The relevant parts of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The container it creates, if any.
    pub creation: Option<Creation>,
    /// The log file that the caller reads errors from.
    pub log: Option<PathBuf>,
    /// Whether the log's lines are JSON.
    pub log_json: bool,
}

/// A container to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Creation {
    /// Directory of `config.json`.
    pub bundle: PathBuf,
    /// Its id: the last argument.
    pub id: OsString,
    /// Whether its processes come from a checkpoint.
    pub is_restored: bool,
}

impl CommandLine {
    /// Parses the arguments after the program's name.
    pub fn parse(words: &[OsString]) -> CommandLine {
        let (mut found, mut makes, mut bundle) =
            (CommandLine::default(), false, PathBuf::from("."));
        let (mut id, mut plain, mut is_restored) = (OsString::new(), false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let option = (!plain).then(|| option(word)).flatten();
            let Some((name, value)) = option else {
                match word.to_str() {
                    Some("--") => plain = true,
                    Some(verb) if !makes && MAKES.contains(&verb) => {
                        (makes, is_restored) = (true, verb == RESTORE);
                    }
                    Some(verb) if !makes && OTHERS.contains(&verb) => break,
                    _ => id.clone_from(word),
                }
                continue;
            };
            let mut value = || value.or_else(|| words.next().map(OsString::as_os_str));
            match name {
                b"bundle" | b"b" => bundle = value().unwrap_or_default().into(),
                b"log" | b"l" => found.log = value().and_then(log_file),
                b"log-format" => found.log_json = value() == Some(OsStr::new("json")),
                name if VALUED.iter().any(|known| known.as_bytes() == name) => drop(value()),
                _ => {}
            }
        }
        found.creation = makes.then_some(Creation { bundle, id, is_restored });
        found
    }
}

/// An option's name, and its value if given in the same argument.
fn option(word: &OsStr) -> Option<(&[u8], Option<&OsStr>)> {
    let bytes = word.as_bytes();
    let name = bytes.strip_prefix(b"-")?;
    let name = name.strip_prefix(b"-").unwrap_or(name);
    if name.is_empty() {
        return None;
    }
    // crun takes a path right after the letter.
    if bytes.starts_with(b"-b/") {
        return Some((b"b", Some(OsStr::from_bytes(&bytes[2..]))));
    }
    match name.iter().position(|&byte| byte == b'=') {
        Some(at) => Some((&name[..at], Some(OsStr::from_bytes(&name[at + 1..])))),
        None => Some((name, None)),
    }
}

/// The file of a `--log`: crun also accepts other destinations, and `file:` before a path.
fn log_file(value: &OsStr) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    let elsewhere =
        bytes.is_empty() || bytes.starts_with(b"journald:") || bytes.starts_with(b"syslog:");
    let path = bytes.strip_prefix(b"file:").unwrap_or(bytes);
    (!elsewhere).then(|| OsStr::from_bytes(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        CommandLine::parse(&words)
    }

    /// Command lines as observed from these callers.
    #[test]
    fn callers() {
        let containerd = "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json \
                          create --bundle /b --pid-file /b/init.pid abc";
        let docker = "--root /var/run/docker/runtime-runc/moby --log /b/log.json --log-format json \
                      --systemd-cgroup create --bundle /b --pid-file /b/init.pid --console-socket /s abc";
        let podman = "--log-format=json --log=/b/log.json --systemd-cgroup create --bundle /b --pid-file /p abc";
        let crio = "--systemd-cgroup --root=/run/runc create --bundle /b --pid-file /p abc";
        for line in [
            containerd,
            docker,
            podman,
            crio,
            "create -b /b abc",
            "run --bundle=/b abc",
            "run -b=/b --detach abc",
            "-root /x run -bundle /b abc",
            "run abc --bundle /b",
            "run -b/b abc",
            "create --bundle /c --bundle /b -- abc",
            "--new value create -b /b abc",
            "--root create create -b /b abc",
        ] {
            let made = Creation { bundle: "/b".into(), id: "abc".into(), is_restored: false };
            assert_eq!(parse(line).creation, Some(made), "{line}");
        }
        let here = parse("run abc").creation.map(|made| made.bundle);
        assert_eq!(here, Some(PathBuf::from(".")));
        let logs = parse(containerd);
        assert_eq!((logs.log, logs.log_json), (Some("/b/log.json".into()), true));
        assert_eq!(parse("--log file:/x run a").log, Some("/x".into()));
        assert_eq!(parse("--log journald:x run a").log, None);
    }

    /// A restored container is made from the bundle's configuration, too.
    #[test]
    fn a_restored_container() {
        let containerd = "--root /run/containerd/runc/moby --log /b/log.json --log-format json restore \
                          --bundle /b --image-path /run --work-path /w --detach --pid-file /b/init.pid abc";
        let podman =
            "restore --image-path create --work-path /w --bundle /b --console-socket /s abc";
        let runc = "restore --manage-cgroups-mode soft --status-fd 3 --empty-ns network --lsm-profile \
                    apparmor:a --lsm-mount-context c --parent-path /p --tcp-established -b /b abc";
        for line in [containerd, podman, runc, "restore --lazy-pages --bundle=/b abc"] {
            let made = Creation { bundle: "/b".into(), id: "abc".into(), is_restored: true };
            assert_eq!(parse(line).creation, Some(made), "{line}");
        }
        let made = parse("run --image-path restore abc").creation;
        assert!(made.is_some_and(|made| !made.is_restored));
    }

    #[test]
    fn what_makes_no_container() {
        for line in [
            "",
            "--version",
            "start abc",
            "delete --force abc",
            "kill abc create",
            "exec abc run",
            "--root /create state create",
            "--root create delete abc",
            "state create",
            "--",
            "--log",
            "list --format json",
            "--log-format json ps create",
        ] {
            assert_eq!(parse(line).creation, None, "{line}");
        }
    }
}
