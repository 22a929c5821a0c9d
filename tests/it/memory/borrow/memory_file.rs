//! The memory file of a container with a limit above its cap: a program reads there what it may have, has, can get and
//! should give back.

use super::{Program, ask, attached, node, told, two_slices};
use crate::harness::cli::must;
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::process::KillOnDrop;
use crate::harness::wire::{granted, own_slot};
use gpuslice_wire::admin::Answer;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::errno::Errno;
use nix::libc::{F_RDLCK, F_SETLEASE, F_WRLCK, fcntl};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A Python program in the container, of the examples in the documents.
fn example(node: &Node, words: &[&str], modules: &std::path::Path) -> Program {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples");
    let mut command = Command::new("python3");
    let paths = [modules, &examples].map(|path| path.to_str().expect("plain").to_owned());
    command
        .args(words)
        .current_dir(&examples)
        .env("PYTHONPATH", paths.join(":"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GPUSLICE_SOCKET", node.socket("burst"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Program(KillOnDrop(command.spawn().expect("python3 starts")))
}

#[test]
fn a_program_is_told_what_is_wanted_back() {
    let node = node("reclaim_grace_s = 20");
    two_slices(&node);
    let first =
        ["cap=1073741824", "limit=4294967296", "used=0", "free=4294967296", "wanted=0", "over=0"];
    eventually("the memory file", || told(&node) == first);
    let modules = node.root().join("modules");
    std::fs::create_dir(&modules).expect("made");
    let torch = "class cuda:\n    @staticmethod\n    def empty_cache():\n        print('emptied', flush=True)\n";
    std::fs::write(modules.join("torch.py"), torch).expect("written");
    let [burst, web] = attached(&node);
    let program = "import give_back_torch; print('watches', flush=True); input()";
    let mut watcher = example(&node, &["-c", program], &modules);
    let mut lines = BufReader::new(watcher.0.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "watches");
    assert_eq!(granted(&burst.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    ask(&web, 2 * GIB);
    assert_eq!(line(), "emptied");
    assert_eq!(told(&node)[3..], ["free=0", "wanted=1073741824", "over=0"]);
    burst.release(0, GIB);
    assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
    eventually("it is wanted no more", || told(&node)[4] == "wanted=0");
}

/// A program that reads the file as soon as its slice is given finds its cap on each of its GPUs there, and later what
/// it has of each.
#[test]
fn the_file_is_right_from_the_beginning() {
    let node = Node::start_with("devices=2,mem=4GiB");
    let is = |name: &str, figures: [&str; 2]| {
        let text = std::fs::read_to_string(node.inside(name).join("memory")).expect("a file");
        let lines = text.lines().map(|line| line.split_once(" cap=536870912 limit=536870912 "));
        let (gpus, rest): (BTreeSet<&str>, Vec<&str>) = lines.flatten().unzip();
        gpus.len() == 2 && rest.iter().zip(figures).all(|(line, it)| line.starts_with(it))
    };
    let unused = "used=0 free=536870912 wanted=0 over=0 ";
    for number in 0..50 {
        let name = format!("c{number}");
        node.must_admit_with(&name, "0,1", Bytes(GIB / 2), |_| ());
        assert!(is(&name, [unused; 2]), "{name}");
        node.dismiss(&name);
    }
    node.must_admit_with("web", "0,1", Bytes(GIB / 2), |_| ());
    let web = node.process("web");
    own_slot(&web.attach(Bytes::ZERO)).held[1].store(MIB, SeqCst);
    assert_eq!(granted(&web.reserve(1, MIB, MIB)), Some(MIB));
    let used = "used=1048576 free=535822336 wanted=0 over=0 ";
    eventually("what it has of each", || is("web", [unused, used]));
}

/// What a container writes there changes no figure, and is there no more when a figure changes.
#[test]
fn nothing_reads_the_file_back() {
    let node = node("");
    two_slices(&node);
    let file = node.inside("burst").join("memory");
    let text = std::fs::read_to_string(&file).expect("a file");
    let less = text.replace("cap=1073741824", "cap=1").replace("limit=4294967296", "limit=2");
    assert_ne!(less, text);
    std::fs::write(&file, less.replace("used=0", "used=1")).expect("written");
    let [burst, _web] = attached(&node);
    assert_eq!(granted(&burst.reserve(0, 4 * GIB, 4 * GIB)), Some(4 * GIB));
    let right = ["cap=1073741824", "limit=4294967296"];
    eventually("the daemon's figures", || told(&node)[..2] == right && told(&node)[2] != "used=1");
}

/// Time for which a process waits that opens a file with a lease (`/proc/sys/fs/lease-break-time`).
const LEASE: Duration = Duration::from_secs(45);
/// Sets the signal that the break of a lease sends. SIGIO would end this process; SIGURG is ignored by default.
const F_SETSIG: i32 = 10;

/// A container's root may own what it sees, and takes leases on it: a process that opens such a file waits.
#[test]
fn a_lease_on_the_file_holds_up_no_daemon() {
    let mut node = node("");
    two_slices(&node);
    let path = node.inside("burst").join("memory");
    let lease = |kind: i32| {
        let file = std::fs::File::open(&path).expect("a file");
        for (request, word) in [(F_SETSIG, Signal::SIGURG as i32), (F_SETLEASE, kind)] {
            // SAFETY: numbers, and a descriptor of ours.
            Errno::result(unsafe { fcntl(file.as_raw_fd(), request, word) })?;
        }
        Ok(file)
    };
    for kind in [F_RDLCK, F_WRLCK] {
        assert_eq!(lease(kind).map(drop), Err(Errno::EAGAIN), "the daemon has it open");
    }
    node.dismiss("web");
    for (kind, limit) in [(F_RDLCK, 3), (F_WRLCK, 2)] {
        node.end_daemon(Signal::SIGKILL);
        let mut held = None;
        // A process that another test starts may have it for a moment.
        eventually("no process has it open", || {
            held = lease(kind).ok();
            held.is_some()
        });
        let begin = Instant::now();
        node.start_configured("");
        must(&node, &["set", "burst", "--memory-limit", &format!("{limit}GiB")]);
        node.must_admit("web", Bytes(GIB));
        node.process("web").attach(Bytes::ZERO);
        eventually("the new limit", || told(&node)[1] == format!("limit={}", limit * GIB));
        let took = begin.elapsed();
        assert!(took < LEASE / 3 * 2, "{took:?} with a lease of kind {kind}");
        drop(held);
        assert_eq!(node.dismiss("web"), Answer::Dismissed {});
    }
}

/// The command that lowers a limit tells of the memory held above it, and so does the file, which is kept up without a
/// limit above the cap too.
#[test]
fn a_lowered_limit_is_told() {
    let node = node("");
    two_slices(&node);
    let burst = node.process("burst");
    let held = &own_slot(&burst.attach(Bytes::ZERO)).held[0];
    assert_eq!(granted(&burst.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    held.store(3 * GIB, SeqCst);
    let set = |limit| must(&node, &["set", "burst", "--memory-limit", limit]);
    let said = set("2GiB");
    assert!(said.contains("4GiB -> 2GiB; 3GiB are held, 1GiB above it"), "{said}");
    let over = ["cap=1073741824", "limit=2147483648", "used=3221225472", "free=0", "wanted=0"];
    let is = |over: &[&str]| eventually("the memory file", || told(&node) == over);
    is(&[&over[..], &["over=1073741824"]].concat());
    let said = set("none");
    assert!(said.contains("2GiB -> 1GiB; 3GiB are held, 2GiB above it"), "{said}");
    held.store(GIB / 2, SeqCst);
    burst.release(0, 5 * GIB / 2);
    is(&[
        "cap=1073741824",
        "limit=1073741824",
        "used=536870912",
        "free=536870912",
        "wanted=0",
        "over=0",
    ]);
}

/// The lines of requests to a server that answers each with success.
fn server() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (said, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).expect("a request");
            let line = String::from_utf8_lossy(&request[..length]);
            let line = line.lines().next().unwrap_or_default().to_owned();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("answered");
            if said.send(line).is_err() {
                return;
            }
        }
    });
    (port, asked)
}

#[test]
fn a_server_sleeps_while_its_memory_is_wanted() {
    let node = node("reclaim_grace_s = 20");
    two_slices(&node);
    let [burst, web] = attached(&node);
    let (port, asked) = server();
    let line = || asked.recv_timeout(crate::harness::PATIENCE).expect("a request");
    let url = format!("http://127.0.0.1:{port}");
    let _watcher = example(&node, &["give_back_vllm.py", &url], node.root());
    assert_eq!(granted(&burst.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    ask(&web, 2 * GIB);
    assert_eq!(line(), "POST /sleep?level=1 HTTP/1.1");
    burst.release(0, 3 * GIB);
    assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
    eventually("it is wanted no more", || told(&node)[4] == "wanted=0");
    web.release(0, 2 * GIB);
    assert_eq!(line(), "POST /wake_up HTTP/1.1");
}
