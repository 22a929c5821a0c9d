//! Daemons that are absent, hang, or answer nonsense. A container that asks for a slice is refused with
//! the reason before the hook's own alarm; a container that asks for nothing starts as usual.

use super::callers::{Created, refusal};
use super::snapshot::{snapshot, touched};
use crate::harness::bundle::{Bundle, hook, printed};
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::process::private_mounts;
use crate::harness::wire::listen;
use gpuslice_host::seqpacket::unconnected;
use gpuslice_wire::admin::Answer;
use gpuslice_wire::frame::{RequestId, encode};
use gpuslice_wire::limits::{FRAME_BYTES_MAX, HOOK_DEADLINE_NS};
use gpuslice_wire::units::Bytes;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, SockFlag, UnixAddr, accept, connect, recv, send};
use serde_json::json;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;

fn asking(test: &str, root: &Path, runtime_dir: &Path) -> Option<Created> {
    let wish = json!({ "gpuslice.io/memory": "64MiB" });
    Created::new(test, root, "asks", runtime_dir, &wish)
}

fn frame(answer: &Answer) -> Vec<u8> {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = encode(RequestId(1), answer, &mut buffer).expect("fits");
    buffer[..len].to_vec()
}

/// A daemon that receives one question, answers with these packets, then closes.
fn answers(listener: OwnedFd, packets: Vec<Vec<u8>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let peer = accept(listener.as_raw_fd()).expect("a hook connects");
        // SAFETY: accept made this descriptor for us.
        let peer = unsafe { OwnedFd::from_raw_fd(peer) };
        let mut question = [0; FRAME_BYTES_MAX];
        recv(peer.as_raw_fd(), &mut question, MsgFlags::empty()).expect("a question");
        for packet in packets {
            // The hook may have ended already.
            let _ = send(peer.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL);
        }
    })
}

#[test]
fn nonsense_is_no_answer() {
    let whole = frame(&Answer::Dismissed {});
    let cases: [(&str, Vec<Vec<u8>>); 7] = [
        ("nothing", vec![]),
        ("an empty packet", vec![vec![]]),
        ("half a frame", vec![whole[..whole.len() / 2].to_vec()]),
        ("a frame and more", vec![[&whole[..], b"x"].concat()]),
        ("no frame", vec![(0..=255).collect()]),
        ("a packet too long", vec![vec![7; FRAME_BYTES_MAX + 1]]),
        ("something else", vec![whole]),
    ];
    for (name, packets) in cases {
        let root = tempfile::tempdir().expect("a directory");
        let Some(container) = asking("nonsense_is_no_answer", root.path(), root.path()) else {
            return;
        };
        let daemon = answers(listen(&root.path().join("admin.sock")), packets);
        let said = refusal(&container.called("createRuntime"));
        assert!(said.contains("is gpusliced running?"), "{name}: {said}");
        assert_eq!(container.mounts(), [""; 0], "{name}");
        daemon.join().expect("no panic");
    }
}

#[test]
fn silence_ends_within_the_budget() {
    let root = tempfile::tempdir().expect("a directory");
    let test = "silence_ends_within_the_budget";
    let Some(container) = asking(test, root.path(), root.path()) else {
        return;
    };
    let said = refusal(&container.called("createRuntime"));
    assert!(said.contains("No such file") && said.contains("is gpusliced running?"), "{said}");
    let path = root.path().join("admin.sock");
    drop(listen(&path));
    let said = refusal(&container.called("createRuntime"));
    assert!(said.contains("refused"), "{said}");
    std::fs::remove_file(&path).expect("the socket");
    let _listener = listen(&path);
    let said = refusal(&container.called("createRuntime"));
    assert!(said.contains("waiting for") && said.contains("no answer in time"), "{said}");
    // With a full backlog not even the connection succeeds.
    let mut waiting = Vec::new();
    loop {
        let fd = unconnected(SockFlag::SOCK_NONBLOCK).expect("a socket");
        let address = UnixAddr::new(&path).expect("a path");
        if connect(fd.as_raw_fd(), &address).is_err() {
            break;
        }
        waiting.push(fd);
    }
    let said = refusal(&container.called("createRuntime"));
    assert!(said.contains("connecting to") && said.contains("no answer in time"), "{said}");
    assert_eq!(container.mounts(), [""; 0]);
}

/// The timeouts of a traced program's sockets, µs, in the order in which they were set.
fn timeouts(trace: &str) -> Vec<(&str, u64)> {
    let value = |line: &str| -> Option<u64> {
        // Newer versions of strace decode it, older ones print its 16 bytes.
        if let Some((_, rest)) = line.split_once("tv_sec=") {
            let mut numbers =
                rest.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
            let (seconds, micros): (u64, u64) = (numbers.next()?, numbers.next()?);
            return Some(seconds * 1_000_000 + micros);
        }
        let bytes = line.split('"').nth(1)?.split("\\x").skip(1);
        let bytes: Vec<u8> = bytes.filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        Some(word(0)? * 1_000_000 + word(8)?)
    };
    let kinds = ["SO_SNDTIMEO", "SO_RCVTIMEO"];
    let set = |line| {
        let kind = kinds.into_iter().find(|kind| str::contains(line, *kind))?;
        Some((kind, value(line)?))
    };
    trace.lines().filter_map(set).collect()
}

/// The hook's waits share one deadline: the time that one step takes is missing to the next.
#[test]
fn all_waits_share_one_deadline() {
    let root = tempfile::tempdir().expect("a directory");
    let test = "all_waits_share_one_deadline";
    let Some(container) = asking(test, root.path(), root.path()) else {
        return;
    };
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return crate::harness::skip(test, "strace is not installed");
    }
    let _silent = listen(&root.path().join("admin.sock"));
    let (budget, delay) = (500_000, 300_000);
    assert_eq!(HOOK_DEADLINE_NS, 1000 * budget);
    for (slow, expected) in [(None, 0), (Some("connect"), delay)] {
        let trace = root.path().join("trace");
        let delay = slow.map(|call| format!("inject={call}:delay_exit={delay}"));
        let output = container.traced("createRuntime", &trace, delay.as_deref());
        let said = refusal(&output);
        assert!(said.contains("no answer in time"), "{said}");
        let trace = std::fs::read_to_string(trace).expect("a trace");
        let all = timeouts(&trace);
        assert_eq!(all.first().map(|one| one.0), Some("SO_SNDTIMEO"), "{trace}");
        assert!(all[0].1 > 0 && all[0].1 <= budget, "{trace}");
        // On a busy machine no time may be left.
        for (kind, time) in &all[1..] {
            assert_eq!(*kind, "SO_RCVTIMEO", "{trace}");
            assert!(*time > 0 && time + expected <= budget, "{trace}");
        }
        assert!(all.len() <= 2, "{trace}");
    }
}

/// The hook also writes its refusal to the system's log, for engines that do not show a hook's output.
#[test]
fn the_log_has_it_too() {
    let root = tempfile::tempdir().expect("a directory");
    let Some(container) = asking("the_log_has_it_too", root.path(), root.path()) else {
        return;
    };
    // A `/dev` of the hook's own, with nothing but a log in it.
    let dev = tempfile::tempdir().expect("a directory");
    let log = UnixDatagram::bind(dev.path().join("log")).expect("a log");
    let mut hook = container.command("createRuntime");
    let dev = dev.path().to_owned();
    let alone = move || {
        private_mounts()?;
        let none = None::<&str>;
        Ok(mount(Some(&dev), "/dev", none, MsFlags::MS_BIND, none)?)
    };
    // SAFETY: three system calls on what was prepared before.
    let output = unsafe { hook.pre_exec(alone) }.output().expect("it starts");
    let said = refusal(&output);
    let mut line = [0; 1024];
    log.set_nonblocking(true).expect("a socket");
    let len = log.recv(&mut line).expect("a line");
    let line = String::from_utf8_lossy(&line[..len]);
    assert!(line.starts_with("<27>gpuslice-hook["), "{line}");
    let text = said.trim_start_matches("gpuslice: ").trim_end();
    assert!(line.ends_with(&format!("]: container asks: {text}")), "{line}");
}

/// A daemon that hung finds questions of hooks that gave up. It must not give slices to containers
/// that did not start.
#[test]
fn a_daemon_that_hung_gives_no_slice_to_containers_that_did_not_start() {
    let node = Node::start();
    let test = "a_daemon_that_hung_gives_no_slice_to_containers_that_did_not_start";
    let Some(container) = asking(test, &node.root().join("b"), node.runtime_dir()) else {
        return;
    };
    kill(node.pid(), Signal::SIGSTOP).expect("it lives");
    let said = refusal(&container.called("createRuntime"));
    kill(node.pid(), Signal::SIGCONT).expect("it lives");
    assert!(said.contains("no answer in time"), "{said}");
    eventually("it was taken back", || node.log().contains("the slice is removed"));
    eventually("no slice is left", || node.containers().is_empty());
    let again = container.served("createRuntime");
    assert!(again.status.success(), "{again:?}");
    assert!(node.slice("asks").is_some());
}

/// The `poststop` hook finds no daemon; the next daemon notices the container's end by itself.
#[test]
fn a_container_that_ends_without_a_daemon_keeps_nothing() {
    let mut node = Node::start();
    let test = "a_container_that_ends_without_a_daemon_keeps_nothing";
    let wish = json!({ "gpuslice.io/memory": "64MiB" });
    let dir = node.root().join("b");
    let new = |id: &str| Created::new(test, &dir, id, node.runtime_dir(), &wish);
    let (Some(ends), Some(lives)) = (new("ends"), new("lives")) else {
        return;
    };
    for one in [&ends, &lives] {
        assert!(one.served("createRuntime").status.success());
    }
    node.must_admit("command", Bytes(64 << 20));
    node.end_daemon(Signal::SIGKILL);
    let said = refusal(&ends.called("poststop"));
    assert!(said.contains("is gpusliced running?"), "{said}");
    drop(ends);
    node.start_daemon(&[]);
    let left = BTreeSet::from(["command".to_owned(), "lives".to_owned()]);
    eventually("only living containers have a slice", || node.containers() == left);
    assert!(!node.container_dir("ends").exists() && node.container_dir("lives").exists());
}

/// A container's mounts, environment and files, without the mount ids that the kernel counts up.
fn sights(output: &str) -> Vec<String> {
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    for line in lines.iter_mut().filter(|line| line.contains(" - ")) {
        let mut words = line.split(' ').skip(3);
        *line = words.by_ref().collect::<Vec<_>>().join(" ");
    }
    lines
}

#[test]
fn a_container_without_a_request_is_unchanged() {
    for runtime in ["runc", "crun"] {
        let Some(hook) = hook("a_container_without_a_request_is_unchanged", runtime) else {
            continue;
        };
        let (node, root) = (Node::start(), tempfile::tempdir().expect("a directory"));
        let hung = root.path().join("hung");
        std::fs::create_dir(&hung).expect("a directory");
        let _hung = listen(&hung.join("admin.sock"));
        let script =
            "cat /proc/self/mountinfo /proc/self/environ; echo; ls -1R /etc /run /dev /lib";
        let run = |hooked: bool, runtime_dir: &Path| {
            let bundle = Bundle::new(root.path(), "plain", runtime, runtime_dir)
                .annotation("example.com/x", "gpuslice")
                .variable("NVIDIA_VISIBLE_DEVICES=all")
                .command(&["/bin/sh", "-c", script])
                .edit(move |config| {
                    if !hooked {
                        config.as_object_mut().expect("an object").remove("hooks");
                    }
                });
            let rootfs = bundle.rootfs();
            let before = snapshot(&rootfs);
            let seen = sights(&printed(&bundle.run(&hook)));
            (seen, touched(&before, &snapshot(&rootfs)))
        };
        let absent = root.path().join("absent");
        let without = run(false, &absent);
        for runtime_dir in [node.runtime_dir(), &hung, &absent] {
            assert_eq!(run(true, runtime_dir), without, "{runtime}, {}", runtime_dir.display());
        }
        assert!(node.containers().is_empty());
    }
}
