//! Memory limits above caps with a real daemon: a container grows into what others leave unused, and gives it back,
//! by itself or because it is suspended, when another one asks for what its cap promises.

mod memory_file;

use super::{in_slice_of, program};
use crate::harness::agent::Agent;
use crate::harness::cli::{self, must, refused, shown};
use crate::harness::eventually;
use crate::harness::node::{Node, denied, faults, id};
use crate::harness::process::{KillOnDrop, put_in_slice};
use crate::harness::wire::{TenantClient, client_page, container_page, granted};
use gpuslice_sim_device::ContextId;
use gpuslice_wire::admin::{Answer, Command as Admin, Denial, MemoryAsk};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::page::SHARES_NOTHING;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
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

/// A claim comes after a restart of the daemon, before the borrower's process has reconnected: the move waits for that.
/// Only for 0.75 s, so a delayed round is not judged.
#[test]
fn a_claim_soon_after_a_restart_waits_for_processes_to_reconnect() {
    for _ in 0..10 {
        let mut node = node("reclaim_grace_s = 0");
        two_slices(&node);
        let mut burst = Program::start(&node, "burst", 3 << 10);
        burst.filled();
        node.end_daemon(Signal::SIGKILL);
        let pid = Pid::from_raw(burst.0.id().cast_signed());
        kill(pid, Signal::SIGSTOP).expect("ours");
        let since = Instant::now();
        node.start_configured("reclaim_grace_s = 0");
        let web = node.process("web");
        web.attach(Bytes::ZERO);
        ask(&web, 2 * GIB);
        let asked = shown(&node, "burst")["suspension"] == "suspending";
        kill(pid, Signal::SIGCONT).expect("ours");
        if since.elapsed() > Duration::from_millis(500) {
            continue;
        }
        assert!(asked, "it is refused, or granted before the move");
        assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
        return assert_eq!(shown(&node, "burst")["suspension"], "suspended");
    }
    panic!("each round was delayed");
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

/// The words of the only line of the container's memory file.
fn told(node: &Node) -> Vec<String> {
    let text = std::fs::read_to_string(node.inside("burst").join("memory")).expect("a file");
    text.split_whitespace().skip(1).map(str::to_owned).collect()
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

/// A file that is only written once a second tells of a quarter of the claims so soon.
const SOON: Duration = Duration::from_millis(250);
/// A claim's wait has five wakes of threads in a row. Where a sleep of a millisecond lasts so long, they may take more
/// than [`SOON`].
const PAUSE: Duration = Duration::from_millis(30);

/// When a thread woke that sleeps for a millisecond at a time; it ends when this is dropped.
struct Wakes(Arc<Mutex<Vec<Instant>>>);

impl Wakes {
    fn watch() -> Wakes {
        let wakes = Wakes(Arc::default());
        let seen = Arc::downgrade(&wakes.0);
        std::thread::spawn(move || {
            while let Some(seen) = seen.upgrade() {
                seen.lock().expect("no thread panics").push(Instant::now());
                drop(seen);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        wakes
    }

    /// The longest time without a wake between two instants; forgets all wakes so far.
    fn longest_pause(&self, from: Instant, to: Instant) -> Duration {
        let mut times = std::mem::take(&mut *self.0.lock().expect("no thread panics"));
        times.retain(|at| (from..to).contains(at));
        let times = [vec![from], times, vec![to]].concat();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

/// `RECLAIMS` makes a measurement of it.
#[test]
fn a_claim_waits_no_longer_than_the_bound() {
    let node = node("reclaim_grace_s = 20");
    two_slices(&node);
    let [burst, web] = attached(&node);
    let rounds = super::setting("RECLAIMS", 20);
    let (wakes, mut waits, mut judged) = (Wakes::watch(), Vec::new(), Vec::new());
    while (judged.len() as u64) < rounds {
        assert!((waits.len() as u64) < 10 * rounds, "only {judged:?} without a pause: {waits:?}");
        // The daemon may read this before what the other one gave back in the round before.
        eventually("it borrows", || granted(&burst.reserve(0, 3 * GIB, 3 * GIB)) == Some(3 * GIB));
        let since = Instant::now();
        ask(&web, 2 * GIB);
        eventually("it is told", || told(&node)[4] == "wanted=1073741824");
        burst.release(0, GIB);
        assert_eq!(granted(&web.0.message().expect("an answer").1), Some(2 * GIB));
        let end = Instant::now();
        waits.push(end - since);
        // Not by pauses behind it: a claim that is told late would be judged more seldom than one that is told soon.
        if wakes.longest_pause(since, end.min(since + SOON)) < PAUSE {
            judged.push(end - since);
        }
        web.release(0, 2 * GIB);
        burst.release(0, 2 * GIB);
    }
    let soon = judged.iter().filter(|it| **it < SOON).count();
    assert!(4 * soon >= 3 * judged.len(), "it is told late: {judged:?}");
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
