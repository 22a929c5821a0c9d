//! Memory limits above caps with a real daemon: a container grows into what others leave unused, and gives it back,
//! by itself or because it is suspended, when another one asks for what its cap promises.

use super::{in_slice_of, program};
use crate::harness::agent::Agent;
use crate::harness::cli::{self, must, refused, shown};
use crate::harness::eventually;
use crate::harness::node::{Node, denied, faults, id};
use crate::harness::process::{KillOnDrop, put_in_slice};
use crate::harness::wire::{TenantClient, client_page, container_page, granted, own_slot};
use gpuslice_sim_device::ContextId;
use gpuslice_wire::admin::{Answer, Command as Admin, Denial, MemoryAsk};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::page::SHARES_NOTHING;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A node with one GPU of 4 GiB and this configuration.
fn node(configuration: &str) -> Node {
    let mut node = Node::new();
    node.set_gpus("devices=1,mem=4GiB");
    node.start_configured(configuration);
    node
}

/// Gives `burst` 1 GiB and a limit of all, and `web` 3 GiB.
fn two_slices(node: &Node) {
    node.must_admit("burst", Bytes(GIB));
    assert!(
        matches!(relimit(node, Some(4 * GIB)), Answer::Resized { cap: Bytes(cap), .. } if cap == 4 * GIB)
    );
    node.must_admit("web", Bytes(3 * GIB));
}

/// A process in each of the two.
fn attached(node: &Node) -> [TenantClient; 2] {
    ["burst", "web"].map(|container| {
        let process = node.process(container);
        process.attach(Bytes::ZERO);
        process
    })
}

fn relimit(node: &Node, limit: Option<u64>) -> Answer {
    let limit = limit.map(|bytes| MemoryAsk::Exactly(Bytes(bytes)));
    node.admin().ask(&Admin::Relimit { container: id("burst"), lane: Lane(0), limit })
}

/// The kinds of a container's events.
fn events(node: &Node, container: &str) -> Vec<String> {
    let all = cli::events(node, &["--slice", container]).into_iter();
    all.map(|event| event["event"].as_str().expect("a kind").to_owned()).collect()
}

/// Asks for memory, and does not wait for the answer.
fn ask(tenant: &TenantClient, bytes: u64) {
    let (need, wish) = (Bytes(bytes), Bytes(bytes));
    let request = gpuslice_wire::tenant::Request::Reserve { lane: Lane(0), need, wish };
    tenant.0.send(2, &request).expect("the daemon reads");
}

#[test]
fn a_claim_gets_what_the_borrower_gives_back() {
    let node = node("reclaim_grace_s = 20");
    two_slices(&node);
    let burst = node.process("burst");
    let page = container_page(&burst.attach(Bytes::ZERO));
    let web = node.process("web");
    web.attach(Bytes::ZERO);
    let total = || page.lane[0].cap.load(SeqCst);
    let free = || total() - page.lane[0].reserved.load(SeqCst);
    assert_eq!((total(), free()), (4 * GIB, 4 * GIB));
    assert_eq!(granted(&burst.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    eventually("what is left of the GPU", || free() == GIB);
    ask(&web, 2 * GIB);
    eventually("it is asked", || shown(&node, "burst")["memory_wanted"] == GIB);
    eventually("nothing is lent", || free() == 0);
    assert_eq!(granted(&burst.reserve(0, MIB, MIB)), None, "it grows no more");
    assert!(must(&node, &["ps"]).contains("1GiB wanted back"));
    let why = must(&node, &["explain", "web"]);
    assert!(why.contains("waits for 2GiB within its cap since "), "{why}");
    assert!(events(&node, "burst").contains(&"memory-wanted".to_owned()));
    burst.release(0, GIB);
    assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
    eventually("it is asked no more", || shown(&node, "burst")["memory_wanted"] == 0);
    assert_eq!(shown(&node, "burst")["memory_limit"], 4 * GIB);
    assert!(!events(&node, "burst").contains(&"suspended".to_owned()));
}

/// A program in a slice, which takes memory in steps until it is refused, and then waits.
struct Program(KillOnDrop);

impl Program {
    fn start(node: &Node, container: &str, most_mib: u64) -> Program {
        Program::with(node, container, most_mib, &["--idle"])
    }

    /// One that does as these words say when it has its memory.
    fn with(node: &Node, container: &str, most_mib: u64, words: &[&str]) -> Program {
        let mut command = Command::new(program("tenant"));
        put_in_slice(&mut command, node, container)
            .args(["--seconds", "100000", "--step-mib", "64", "--most-mib"])
            .arg(most_mib.to_string())
            .args(words)
            .stdout(Stdio::piped());
        Program(KillOnDrop(command.spawn().expect("it starts")))
    }

    /// What it says when it has taken its memory.
    fn filled(&mut self) -> Value {
        let out = self.0.stdout.as_mut().expect("piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

fn held(node: &Node, container: &str) -> u64 {
    shown(node, container)["memory_used"].as_u64().expect("bytes")
}

#[test]
fn a_borrower_that_keeps_it_is_suspended_and_resumed_when_there_is_room() {
    let mut node = node("reclaim_grace_s = 1");
    two_slices(&node);
    let mut burst = Program::start(&node, "burst", 3 << 10);
    let all = burst.filled();
    assert_eq!((&all["total"], &all["got"]), (&(4 * GIB).into(), &(3 * GIB).into()), "{all}");
    let mut web = Program::start(&node, "web", 2 << 10);
    let got = web.filled();
    assert_eq!((&got["got"], &got["refusal"]), (&(2 * GIB).into(), &0.into()), "{got}");
    assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    let kinds = events(&node, "burst");
    let order = ["memory-wanted", "suspended"].map(|kind| kinds.iter().position(|it| it == kind));
    assert!(order[0].is_some() && order[0] < order[1], "{kinds:?}");
    assert!(refused(&node, &["resume", "burst"]).contains("no room"));
    let by_itself = || {
        let why = must(&node, &["explain", "burst"]);
        why.contains("the daemon resumes it when there is room") && !why.contains("gpuslice resume")
    };
    assert!(by_itself());
    // The next daemon knows that it is to be resumed.
    node.end_daemon(Signal::SIGKILL);
    node.start_configured("reclaim_grace_s = 1");
    assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    drop(web);
    eventually("it is resumed", || shown(&node, "burst")["suspension"].is_null());
    eventually("it is attached again", || held(&node, "burst") >= 3 * GIB);
    assert_eq!(shown(&node, "burst")["memory_limit"], 4 * GIB, "its record has the limit");
}

/// The driver waits for work that runs, for 5 s of the 20 s that this kernel has.
#[test]
fn a_borrower_with_a_long_kernel_is_not_moved() {
    let node = node("reclaim_grace_s = 0");
    two_slices(&node);
    let words = ["--kernel-us", "20000000", "--batch", "1"];
    let mut burst = Program::with(&node, "burst", 3 << 10, &words);
    burst.filled();
    let device = node.machine();
    let works = |id: &ContextId| device.context_info(*id).is_ok_and(|it| it.busy_ns > 0);
    eventually("its kernel", || device.contexts(0).expect("a GPU").iter().any(works));
    is_refused_a_claim(&node);
    let told = must(&node, &["events", "--slice", "burst"]);
    assert!(told.contains("its work did not end within 5 s"), "{told}");
    assert!(held(&node, "burst") >= 3 * GIB);
}

/// Whether a process is answered within so much time.
fn is_answered(tenant: &TenantClient, within: Duration) -> bool {
    let mut answer = [PollFd::new(tenant.0.as_fd(), PollFlags::POLLIN)];
    let within = PollTimeout::try_from(within).expect("a short time");
    poll(&mut answer, within).expect("ours") > 0
}

/// The daemon is killed in the middle of a move: its memory is on the GPU until the next daemon has moved it.
#[test]
fn a_move_that_a_restart_cut_short_is_done_again() {
    let mut node = node("reclaim_grace_s = 0");
    two_slices(&node);
    let mut burst = Program::start(&node, "burst", 3 << 10);
    burst.filled();
    let device = node.machine();
    faults(&device, "hang=checkpoint");
    let claim = |node: &Node| {
        let web = node.process("web");
        web.attach(Bytes::ZERO);
        ask(&web, 2 * GIB);
        web
    };
    let _web = claim(&node);
    eventually("it is on the way", || shown(&node, "burst")["suspension"] == "suspending");
    node.end_daemon(Signal::SIGKILL);
    node.start_configured("reclaim_grace_s = 0");
    let web = claim(&node);
    assert!(!is_answered(&web, Duration::from_millis(1_500)), "the GPU has no room for it");
    assert_eq!(shown(&node, "burst")["suspension"], "suspending");
    faults(&device, "none");
    assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
    assert!(device.mem_info(0).expect("a GPU").used <= 2 * GIB);
    assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    web.release(0, 2 * GIB);
    eventually("it is resumed", || shown(&node, "burst")["suspension"].is_null());
    eventually("it has its memory", || held(&node, "burst") >= 3 * GIB);
}

/// A process ended, and a child that it forked has its connection, and with the driver's descriptors its memory. Here
/// the test has it. No driver moves that, and NVML has no figure for it.
#[test]
fn what_a_forked_child_keeps_is_not_granted_twice() {
    let node = node("reclaim_grace_s = 1");
    two_slices(&node);
    let agent = Agent::start();
    let inherited = agent.tenant(&node.socket("burst"));
    inherited.attach(Bytes::ZERO);
    assert_eq!(granted(&inherited.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    agent.end();
    let web = node.process("web");
    web.attach(Bytes::ZERO);
    assert_eq!(granted(&web.reserve(0, 2 * GIB, 2 * GIB)), None);
    assert!(must(&node, &["events", "--slice", "burst"]).contains("may still be on the GPU"));
    assert!(
        must(&node, &["events", "--slice", "web"]).contains(" of it, and did not give that back")
    );
    drop(inherited);
    eventually("it is free", || granted(&web.reserve(0, 2 * GIB, 2 * GIB)) == Some(2 * GIB));
}

/// A client that holds borrowed memory, and no CUDA state: it is suspended, and gives all back, while another container
/// borrows all that is free. What is promised to others is theirs. A new process of its container waits until there is
/// room for all that was moved: nothing shows that it is not on the host any more.
#[test]
fn a_suspended_borrower_takes_nothing_that_is_promised() {
    let node = node("reclaim_grace_s = 2");
    node.must_admit("burst", Bytes(GIB));
    relimit(&node, Some(4 * GIB));
    node.must_admit("web", Bytes(5 * GIB / 2));
    node.must_admit("third", Bytes(GIB / 2));
    must(&node, &["set", "third", "--memory-limit", "4GiB"]);
    let burst = node.process("burst");
    let page = client_page(&burst.attach(Bytes::ZERO));
    page.shared.store(SHARES_NOTHING, SeqCst);
    assert_eq!(granted(&burst.reserve(0, 3 * GIB, 3 * GIB)), Some(3 * GIB));
    let mut web = Program::start(&node, "web", 1024);
    assert_eq!(web.filled()["refusal"], 0);
    assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    let mut later = Program::start(&node, "burst", 256);
    burst.release(0, 3 * GIB - 128 * MIB);
    let mut third = Program::start(&node, "third", 4 << 10);
    assert!(third.filled()["got"].as_u64() > Some(GIB));
    let mut second = Program::start(&node, "web", 256);
    let got = second.filled();
    assert_eq!(got["refusal"], 0, "web has not what is promised: {got}");
    assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    drop((web, second, third));
    let got = later.filled();
    assert_eq!(got["refusal"], 0, "burst has not what is promised: {got}");
}

#[test]
fn a_node_may_refuse_the_claim() {
    let node = node("reclaim = \"refuse\"\nreclaim_grace_s = 1");
    two_slices(&node);
    let mut burst = Program::start(&node, "burst", 3 << 10);
    burst.filled();
    is_refused_a_claim(&node);
}

#[test]
fn a_borrower_with_managed_memory_is_not_moved() {
    let node = node("reclaim_grace_s = 1");
    two_slices(&node);
    let mut churn = in_slice_of(&node, "burst", program("churn"));
    // sizes up to 2 MiB of managed memory
    churn.args(["1", "1", "2097152", "1", "2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut burst = super::Tenant::of(churn.spawn().expect("it starts"));
    assert_eq!(burst.answer().as_deref(), Some("ready"));
    assert!(burst.numbers("go 20")[3] > 0, "managed bytes");
    assert_eq!(burst.numbers(&format!("take {}", 5 * GIB / 2))[0], 0);
    is_refused_a_claim(&node);
    assert!(events(&node, "burst").contains(&"not-moved".to_owned()));
    burst.end();
}

/// `web` is refused what its cap promises, because `burst` keeps it.
fn is_refused_a_claim(node: &Node) {
    let mut web = Program::start(node, "web", 2 << 10);
    let got = web.filled();
    assert_eq!(got["refusal"], 2, "out of memory: {got}");
    assert!(got["got"].as_u64() < Some(2 * GIB), "{got}");
    assert!(
        must(node, &["events", "--slice", "web"]).contains(" of it, and did not give that back")
    );
    assert!(shown(node, "burst")["suspension"].is_null());
}

#[test]
fn limits_are_set_and_refused_by_the_command() {
    let node = node("");
    two_slices(&node);
    let said = must(&node, &["set", "burst", "--memory-limit", "2GiB"]);
    assert!(said.contains("memory limit: 4GiB -> 2GiB"), "{said}");
    assert!(
        refused(&node, &["set", "burst", "--memory-limit", "512MiB"]).contains("below the cap")
    );
    assert!(refused(&node, &["set", "burst", "--memory-limit", "5GiB"]).contains("at most 4GiB"));
    assert!(refused(&node, &["set", "burst", "--gpu", "0"]).contains("nothing to set"));
    must(&node, &["set", "web", "--memory", "1GiB"]);
    // The larger of the two goes first, in either direction.
    must(&node, &["set", "burst", "--memory", "3GiB", "--memory-limit", "7/8"]);
    assert_eq!(shown(&node, "burst")["memory_limit"], 7 * GIB / 2);
    must(&node, &["set", "burst", "--memory", "512MiB", "--memory-limit", "1GiB"]);
    assert!(refused(&node, &["set", "burst", "--memory", "2GiB"]).contains("memory limit 1GiB"));
    must(&node, &["set", "burst", "--memory-limit", "none"]);
    assert_eq!(shown(&node, "burst")["memory_limit"], GIB / 2);
    assert!(events(&node, "burst").contains(&"limit-changed".to_owned()));
    let text = must(&node, &["ps", "-o", "NAME,MEM-LIMIT,WANTED"]);
    assert!(text.contains("512MiB"), "{text}");
}

#[test]
fn an_oversubscribed_node_lends_nothing() {
    let node = node("oversubscribe = true");
    node.must_admit("burst", Bytes(GIB));
    let (kind, why) = denied(relimit(&node, Some(2 * GIB)));
    assert!(kind == Denial::Invalid && why.contains("oversubscribe"), "{why}");
    node.must_admit("web", Bytes(4 * GIB));
    let [burst, web] = attached(&node);
    assert_eq!(granted(&burst.reserve(0, GIB, GIB)), Some(GIB));
    assert_eq!(granted(&web.reserve(0, 4 * GIB, 4 * GIB)), Some(4 * GIB), "caps alone count");
}

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

/// The words of the only line of the container's memory file.
fn told(node: &Node) -> Vec<String> {
    let text = std::fs::read_to_string(node.inside("burst").join("memory")).expect("a file");
    text.split_whitespace().skip(1).map(str::to_owned).collect()
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

/// A container's root may own what it sees, and takes leases on it: a process that opens such a file waits.
#[test]
fn a_lease_on_the_file_holds_up_no_daemon() {
    // SAFETY: no handler is set. A lease that is broken sends SIGIO.
    unsafe { signal(Signal::SIGIO, SigHandler::SigIgn).expect("ignored") };
    let mut node = node("");
    two_slices(&node);
    let path = node.inside("burst").join("memory");
    let lease = |kind: i32| {
        let file = std::fs::File::open(&path).expect("a file");
        // SAFETY: numbers, and a descriptor of ours.
        let done = unsafe { nix::libc::fcntl(file.as_raw_fd(), nix::libc::F_SETLEASE, kind) };
        nix::errno::Errno::result(done).map(|_| file)
    };
    for kind in [nix::libc::F_RDLCK, nix::libc::F_WRLCK] {
        assert_eq!(lease(kind).map(drop), Err(nix::errno::Errno::EAGAIN), "the daemon has it open");
    }
    node.dismiss("web");
    for (kind, limit) in [(nix::libc::F_RDLCK, 3), (nix::libc::F_WRLCK, 2)] {
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

/// Prints how long claims waited, and asserts the promised bound for each.
fn within_the_bound(what: &str, grace_s: u64, mut waits: Vec<Duration>) {
    waits.sort();
    let at = |part: usize| waits[(waits.len() - 1) * part / 100];
    let (median, p99, most) = (at(50), at(99), at(100));
    eprintln!(
        "{what}: a claim waited {median:?} (median), {p99:?} (p99), {most:?} (most of {})",
        waits.len()
    );
    assert!(most <= Duration::from_secs(grace_s + 30), "{most:?}");
}

/// `RECLAIMS` makes a measurement of it.
#[test]
fn a_claim_waits_no_longer_than_the_bound() {
    let node = node("reclaim_grace_s = 20");
    two_slices(&node);
    let [burst, web] = attached(&node);
    let mut waits = Vec::new();
    for _ in 0..super::setting("RECLAIMS", 20) {
        // The daemon may read this before what the other one gave back in the round before.
        eventually("it borrows", || granted(&burst.reserve(0, 3 * GIB, 3 * GIB)) == Some(3 * GIB));
        let since = Instant::now();
        ask(&web, 2 * GIB);
        eventually("it is told", || told(&node)[4] == "wanted=1073741824");
        burst.release(0, GIB);
        assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
        waits.push(since.elapsed());
        web.release(0, 2 * GIB);
        burst.release(0, 2 * GIB);
    }
    // A file that is only written once a second tells of a quarter of the claims so soon.
    let soon = waits.iter().filter(|it| **it < Duration::from_millis(250)).count();
    assert!(4 * soon >= 3 * waits.len(), "it is told late: {waits:?}");
    within_the_bound("given back when told", 20, waits);
}

#[test]
fn a_claim_waits_no_longer_than_the_bound_for_a_suspension() {
    let node = node("reclaim_grace_s = 0");
    two_slices(&node);
    let mut burst = Program::start(&node, "burst", 3 << 10);
    burst.filled();
    let web = node.process("web");
    web.attach(Bytes::ZERO);
    let mut waits = Vec::new();
    for _ in 0..super::setting("RECLAIMS", 20) / 5 {
        let since = Instant::now();
        assert_eq!(granted(&web.reserve(0, 2 * GIB, 2 * GIB)), Some(2 * GIB));
        waits.push(since.elapsed());
        web.release(0, 2 * GIB);
        eventually("it is resumed", || shown(&node, "burst")["suspension"].is_null());
        eventually("it has its memory", || held(&node, "burst") >= 3 * GIB);
    }
    within_the_bound("suspended at once", 0, waits);
}
