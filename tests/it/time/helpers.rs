//! Each helper of the daemon hangs in turn: its threads beside the one that gives turns, and its child processes.
//!
//! Two containers share the GPU 1:3 meanwhile. They must go on so; new containers get slices and memory, and the
//! heartbeat goes on. A thread is held by ptrace, because SIGSTOP would stop all threads of the daemon. The daemon
//! runs as on a kernel before Linux 6.16, where it has one helper more, which closes sockets. What hangs the log,
//! journald and the service manager is in `tests/it/daemon/unread_log.rs`, `src/daemon/journal.rs` and
//! `src/daemon/service.rs`.

use super::hangs::{LONG_US, Scene};
use super::{Tenant, must};
use crate::daemon::old_kernel::as_on_an_old_kernel;
use crate::daemon::privileges::{DAC_OVERRIDE, SYS_ADMIN, SYS_PTRACE, expect_lowered};
use crate::harness::cli::command;
use crate::harness::node::{Node, admit_first};
use crate::harness::wire::container_page;
use crate::harness::{eventually, is_root, skip, within};
use crate::node::group::{Group, Idle, mount};
use crate::node::stranger::Stranger;
use gpuslice_wire::admin::{Answer, MemoryAsk};
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, MIB};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Has the thread that freezes control groups, within seconds.
const CONFIG: &str = "accounting_interval_ms = 100\nover_cap_warn_s = 1\nover_cap_freeze_s = 2\n";
const TEST: &str = "a_helper_that_hangs_stops_nothing";
/// A heartbeat, and a slice with its memory, come within this beside a helper that hangs.
const SOON: Duration = Duration::from_secs(5);

/// A thread or child of the daemon.
#[derive(Clone, Copy, Debug)]
pub enum Helper {
    Thread(i32),
    Child(i32),
}

/// A helper that is held until this is dropped.
pub struct Hung(Helper);

impl Hung {
    pub fn new(helper: Helper) -> Hung {
        match helper {
            Helper::Thread(id) => {
                trace(libc::PTRACE_SEIZE, id);
                trace(libc::PTRACE_INTERRUPT, id);
            }
            Helper::Child(id) => return Hung::child(Pid::from_raw(id)),
        }
        eventually("it hangs", || is_held(helper));
        Hung(helper)
    }

    /// A stopped process keeps the locks that it has. The simulated NVML has one in memory that all programs on the GPU
    /// share, as no driver's library has: they would all stand. So the child is stopped where it waits without a lock.
    fn child(id: Pid) -> Hung {
        let helper = Helper::Child(id.as_raw());
        eventually("it hangs where it waits", || {
            kill(id, Signal::SIGSTOP).expect("it lives");
            eventually("it is stopped", || is_held(helper));
            let waits = waits_in(id).is_some_and(|call| WAITS.contains(&call));
            waits || kill(id, Signal::SIGCONT).is_err()
        });
        Hung(helper)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        match self.0 {
            Helper::Thread(id) => trace(libc::PTRACE_DETACH, id),
            // The daemon may have ended it.
            Helper::Child(id) => drop(kill(Pid::from_raw(id), Signal::SIGCONT)),
        }
    }
}

/// A request about a thread that has no argument.
fn trace(request: libc::c_uint, id: i32) {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests read and write no memory.
    let done = unsafe { libc::ptrace(request, id, none, none) };
    assert_eq!(done, 0, "{request:#x}: {}", std::io::Error::last_os_error());
}

/// The system calls in which a child waits for its next task, for an event, or for a lock that another process has.
const WAITS: [i64; 8] = [
    libc::SYS_futex,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_read,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
];

/// The system call in which a process that does not run is, if it is in one.
pub fn waits_in(id: Pid) -> Option<i64> {
    let call = fs::read_to_string(format!("/proc/{id}/syscall")).ok()?;
    call.split_whitespace().next()?.parse().ok().filter(|call| *call >= 0)
}

fn is_held(helper: Helper) -> bool {
    state(helper).is_some_and(|state| matches!(state, 't' | 'T'))
}

/// The letter of its state, as long as there is such a task.
fn state(helper: Helper) -> Option<char> {
    let (Helper::Thread(id) | Helper::Child(id)) = helper;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The daemon's helpers by name: a thread's own, or the word that tells a child what to do.
pub fn helpers(node: &Node) -> BTreeMap<String, Helper> {
    let children = node.children().into_iter();
    let mut found: BTreeMap<_, _> =
        children.map(|(duty, pid)| (duty, Helper::Child(pid.as_raw()))).collect();
    let daemon = node.pid().as_raw();
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).expect("it lives");
    for task in tasks.map_while(Result::ok).map(|task| task.path()) {
        let id: i32 = task.file_name().and_then(|id| id.to_str()?.parse().ok()).expect("a number");
        if id != daemon {
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            found.insert(name.trim().to_owned(), Helper::Thread(id));
        }
    }
    found
}

/// One of them, as soon as it is there.
fn helper(node: &Node, name: &str) -> Helper {
    let mut found = None;
    eventually(name, || {
        found = helpers(node).remove(name);
        found.is_some()
    });
    found.expect("just seen")
}

/// Whether it is held, or, of a child, ended by the daemon: it has not gone on.
fn does_not_run(helper: Helper) -> bool {
    match helper {
        Helper::Thread(_) => is_held(helper),
        Helper::Child(_) => state(helper).is_none_or(|state| "tTZX".contains(state)),
    }
}

/// Everything that the two containers and new ones have of the daemon goes on, while the helper still `hangs`.
fn all_goes_on(scene: &Scene, hung: &str, mut hangs: impl FnMut() -> bool) {
    eprintln!("beside {hung}, which hangs");
    let node = &scene.node;
    let (tenant, cap) = (node.tenant("late"), Bytes(64 * MIB));
    let attached = tenant.attach(Bytes::ZERO);
    let page = container_page(&attached);
    let beat = || page.heartbeat_ns.load(SeqCst);
    let mut last = beat();
    for _ in 0..5 {
        within(SOON, &format!("a heartbeat: {hung}"), || {
            std::mem::replace(&mut last, beat()) < beat()
        });
    }
    for _ in 0..3 {
        let begin = Instant::now();
        node.must_admit("new", cap);
        let new = node.tenant("new");
        new.attach(Bytes::ZERO);
        let granted = Reply::Reserved { lane: Lane(0), bytes: cap };
        assert_eq!(new.reserve(0, cap.0, cap.0), granted, "{hung}");
        drop(new);
        assert_eq!(node.dismiss("new"), Answer::Dismissed {}, "{hung}");
        let took = begin.elapsed();
        assert!(took < SOON, "{hung}: a slice, its memory and its end took {took:?}");
    }
    // A helper that went on of itself would have hidden a wait for it.
    assert!(hangs(), "{hung} does not hang any more");
    scene.share(|| ());
    assert!(hangs(), "{hung} does not hang any more");
}

/// The container `over`, which has more than its cap behind the shim, in a group that the daemon has frozen.
struct OverCap {
    group: Group,
    _idle: Idle,
    _stranger: Stranger,
}

impl OverCap {
    /// None where no group can be made.
    fn start(node: &Node) -> Option<OverCap> {
        let group = Group::new(&mount(TEST)?);
        let idle = group.idle();
        let memory = MemoryAsk::Exactly(Bytes(64 * MIB));
        node.must_grant(&admit_first("over", "0", memory, idle.pid()));
        let stranger = Stranger::start_with(node, &group, &["--most-mib", "128", "--idle"]);
        let over = OverCap { group, _idle: idle, _stranger: stranger };
        eventually("a frozen group", || over.is_frozen());
        Some(over)
    }

    fn is_frozen(&self) -> bool {
        self.group.is_frozen()
    }
}

/// The thread that freezes groups hangs, and is asked to let a group go on: it does so when it does not hang any more.
fn the_thread_that_freezes_groups(scene: &Scene) {
    let Some(over) = OverCap::start(&scene.node) else { return };
    let helper = helper(&scene.node, "over-cap");
    let hung = Hung::new(helper);
    must(&scene.node, &["set", "over", "--memory", "1GiB"]);
    eventually("the thread is asked", || {
        let is_thawed =
            |event: &History| matches!(event, History::Entry { kind: EventKind::Thawed, .. });
        scene.node.admin().events().iter().any(is_thawed)
    });
    all_goes_on(scene, "over-cap", || does_not_run(helper));
    assert!(over.is_frozen(), "no other thread does it");
    drop(hung);
    eventually("a group that runs", || !over.is_frozen());
}

#[test]
fn a_helper_that_hangs_stops_nothing() {
    if !is_root() {
        return skip(TEST, "holding a thread needs root");
    }
    let scene = Scene::of(CONFIG, as_on_an_old_kernel);
    the_thread_that_freezes_groups(&scene);
    // The connections that end meanwhile wait for the child that closes sockets, which is killed and replaced.
    let known = [
        ("claims", 0),
        ("nvml", 0),
        ("--ask-nvml", SYS_ADMIN),
        ("--close-sockets", 0),
        ("--stop-work", SYS_PTRACE),
        ("--watch-nvml", 0),
    ];
    for (name, kept) in known {
        let long = (name == "--stop-work")
            .then(|| Tenant::start(&scene.node, &scene.machine, "a", LONG_US));
        let helper = helper(&scene.node, name);
        let hung = Hung::new(helper);
        if let Helper::Child(child) = helper {
            // The old kernel is a filter more.
            expect_lowered(name, child.cast_unsigned(), 3, (kept, kept));
        }
        all_goes_on(&scene, name, || does_not_run(helper));
        drop((hung, long));
    }
    // A worker that moves memory waits only after a move, and not for long, so it is the driver that hangs.
    let moved = Tenant::start(&scene.node, &scene.machine, "a", 500);
    scene.faults("hang=checkpoint");
    let mut suspend =
        command(&scene.node, &["suspend", "a"]).stderr(Stdio::null()).spawn().expect("it starts");
    let Helper::Child(mover) = helper(&scene.node, "--move-memory") else {
        panic!("a thread moves memory")
    };
    let kept = SYS_PTRACE | DAC_OVERRIDE;
    expect_lowered("--move-memory", mover.cast_unsigned(), 3, (kept, kept));
    // Its command succeeds once the memory is moved.
    all_goes_on(&scene, "--move-memory", || {
        suspend.try_wait().expect("ours").is_none_or(|status| !status.success())
    });
    scene.faults("none");
    drop(moved);
    suspend.wait().expect("ours");
    let mut others = helpers(&scene.node);
    others.retain(|name, _| !known.iter().any(|it| it.0 == name));
    others.retain(|name, _| !["over-cap", "--move-memory"].contains(&name.as_str()));
    assert!(others.is_empty(), "helpers that this test does not hang: {others:?}");
}
