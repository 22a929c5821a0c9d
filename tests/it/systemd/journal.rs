//! Where standard error is journald's, log lines and events go to it by its own protocol, with their fields.

use crate::harness::node::Node;
use crate::harness::{PATIENCE, is_root, skip};
use gpuslice_wire::units::{Bytes, GIB};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

type Fields = BTreeMap<String, String>;

/// The fields of an entry: `KEY=value`, or `KEY`, a length of eight bytes and the value, each with a newline.
fn fields(mut entry: &[u8]) -> Fields {
    let mut fields = Fields::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&entry[..end]).into_owned();
        entry = &entry[end + 1..];
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => {
                let (length, rest) = entry.split_at(8);
                let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
                let value = String::from_utf8_lossy(&rest[..length]).into_owned();
                entry = &rest[length + 1..];
                (line, value)
            }
        };
        fields.insert(key, value);
    }
    fields
}

/// A daemon whose standard error is said to be journald's stream, with `journal` as the directory of journald's socket.
fn start(node: &mut Node, journal: &Path, is_stream: bool) {
    let daemon = node.daemon_command(&[]);
    let mut command = Command::new("unshare");
    let script =
        "mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";
    command.args(["-m", "sh", "-c", script]).arg(journal).arg(daemon.get_program());
    command.args(daemon.get_args()).stdin(Stdio::null());
    for (key, value) in daemon.get_envs() {
        command.env(key, value.expect("set, not removed"));
    }
    let log = node.root().join("log");
    let log = File::options().append(true).create(true).open(log).and_then(|log| log.metadata());
    let log = log.expect("a log");
    let inode = if is_stream { log.ino() } else { log.ino() + 1 };
    command.env("JOURNAL_STREAM", format!("{}:{inode}", log.dev()));
    node.start_command(command);
}

#[test]
fn events_have_their_fields_in_the_journal() {
    let test = "events_have_their_fields_in_the_journal";
    if !is_root() {
        return skip(test, "another place for journald's socket needs root");
    }
    let mut node = Node::new();
    let place = tempfile::tempdir().expect("a directory");
    let journal = UnixDatagram::bind(place.path().join("socket")).expect("a socket");
    journal.set_read_timeout(Some(PATIENCE)).expect("a limit");
    start(&mut node, place.path(), true);
    node.must_admit("web", Bytes(GIB));
    let mut set = Command::new("sh");
    set.args([
        "-c",
        "echo 1234 > /proc/self/loginuid; exec \"$0\" set web --weight 3 --runtime-dir \"$1\"",
    ]);
    set.arg(env!("CARGO_BIN_EXE_gpuslice")).arg(node.runtime_dir());
    assert!(set.stdout(Stdio::null()).status().expect("it starts").success());
    let mut buffer = [0; 65_536];
    let mut entry = |event: &str| loop {
        let length = journal.recv(&mut buffer).unwrap_or_else(|why| panic!("{event}: {why}"));
        if length == 0 {
            continue; // the daemon's first one only asks whether journald is there
        }
        let fields = fields(&buffer[..length]);
        assert_eq!(fields["SYSLOG_IDENTIFIER"], "gpusliced", "{fields:?}");
        if fields.get("GPUSLICE_EVENT").is_some_and(|it| it == event) {
            return fields;
        }
    };
    let began = entry("slice-began");
    assert_eq!((&*began["GPUSLICE_SLICE"], &*began["GPUSLICE_CONTAINER"]), ("web", "web"));
    assert_eq!((&*began["PRIORITY"], &*began["GPUSLICE_UID"]), ("5", "0"), "{began:?}");
    let retuned = entry("retuned");
    assert!(retuned["MESSAGE"].starts_with("retuned web: weight 1 -> 3, "), "{retuned:?}");
    let known = std::fs::read_to_string("/proc/self/loginuid").is_ok();
    assert_eq!(
        retuned.get("GPUSLICE_LOGIN_UID").is_some_and(|it| it == "1234"),
        known,
        "{retuned:?}"
    );
    assert!(!node.log().contains("weight"), "the stream has nothing twice: {}", node.log());
    // a variable that a service manager's child has inherited, and whose file is another's
    node.end_daemon(nix::sys::signal::Signal::SIGTERM);
    journal.set_nonblocking(true).expect("a mode");
    while journal.recv(&mut buffer).is_ok() {}
    start(&mut node, place.path(), false);
    node.must_admit("other", Bytes(GIB));
    assert!(journal.recv(&mut buffer).is_err(), "nothing is sent");
    assert!(node.log().contains("other"), "{}", node.log());
}
