//! The daemon as a service: what it is handed, what it says, and what its units allow.
//!
//! No systemd runs where tests run, so each test plays its part: sockets under the numbers 3 and
//! 4, a datagram socket to be notified at. The units themselves are judged by systemd's own tools.

mod journal;
mod units;

use crate::daemon::descriptors::{meanwhile, send_lingering};
use crate::daemon::old_kernel::as_on_an_old_kernel;
use crate::harness::node::{Node, admit, denied, id};
use crate::harness::wire::{AdminClient, listen};
use crate::harness::{PATIENCE, eventually};
use crate::time::helpers::{Helper, Hung};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, Denial, MemoryAsk, RequestSource};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::CLAIMS_OF_CONTAINER_MAX;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{Change, Policy};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, GIB, Weight};
use nix::sys::signal::Signal;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Handed-over descriptors begin here (sd_listen_fds(3)).
const FIRST: RawFd = 3;

/// The daemon's command line as a service manager calls it: the variables that carry its process id are
/// set by a shell that becomes it.
fn as_service(node: &Node, given: &[(&OwnedFd, &str)]) -> Command {
    let daemon = node.daemon_command(&[]);
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\" \"$@\"";
    command.arg("-c").arg(script).arg(daemon.get_program());
    command.args(daemon.get_args()).stdin(Stdio::null());
    for (key, value) in daemon.get_envs() {
        command.env(key, value.expect("set, not removed"));
    }
    if given.is_empty() {
        return command;
    }
    let names: Vec<&str> = given.iter().map(|(_, name)| *name).collect();
    command.env("LISTEN_FDS", given.len().to_string());
    command.env("LISTEN_FDNAMES", names.join(":"));
    // Out of each other's way first, then to their places.
    let fds: Vec<RawFd> = given.iter().map(|(fd, _)| fd.as_raw_fd()).collect();
    let place = move || {
        let mut high = [0; 4];
        for (to, from) in high.iter_mut().zip(&fds) {
            *to = nix::fcntl::fcntl(from_raw(*from), nix::fcntl::FcntlArg::F_DUPFD(64))?;
        }
        for (at, from) in high.iter().take(fds.len()).enumerate() {
            // SAFETY: plain system call; both numbers are this child's own.
            if unsafe { nix::libc::dup2(*from, FIRST + at as RawFd) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: only system calls between fork and exec.
    unsafe { command.pre_exec(place) };
    command
}

/// A number as a descriptor to be duplicated.
fn from_raw(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the caller holds it open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

fn observer(node: &Node) -> AdminClient {
    AdminClient::connect(&node.runtime_dir().join("observe.sock")).expect("somebody listens")
}

#[test]
fn sockets_of_the_manager_outlive_the_daemon() {
    let mut node = Node::new();
    std::fs::create_dir(node.runtime_dir()).expect("a directory");
    let admin = listen(&node.runtime_dir().join("admin.sock"));
    // Asked before there is any daemon: the question waits.
    let early = node.admin();
    let wish = admit("web", "0", MemoryAsk::Exactly(Bytes(GIB)));
    early.0.send(7, &wish).expect("it waits");
    node.start_command(as_service(&node, &[(&admin, "admin")]));
    let (_, answer, _) = early.0.message::<Answer>().expect("an answer");
    assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");

    assert!(node.end_daemon(Signal::SIGTERM).success());
    let between = node.admin();
    between.0.send(8, &AdminCommand::List {}).expect("it waits again");
    node.start_command(as_service(&node, &[(&admin, "admin")]));
    let rows = std::iter::from_fn(|| between.0.message::<Snapshot>().map(|(_, row, _)| row));
    let slices = rows
        .take_while(|row| !matches!(row, Snapshot::End { .. }))
        .filter(|row| matches!(row, Snapshot::Slice { .. }));
    assert_eq!(slices.count(), 1, "the slice is still there");
}

/// Each command of administrators but the two that observers may send, with values that are valid.
fn all_but_looks() -> Vec<AdminCommand> {
    let (web, other) = (id("web"), admit("other", "0", MemoryAsk::Exactly(Bytes(GIB))));
    let AdminCommand::Admit { asked } = other else { panic!("an admission") };
    let memory = MemoryAsk::Exactly(Bytes(2 * GIB));
    let (lane, gpu) = (Lane(0), asked.gpus);
    vec![
        other,
        AdminCommand::AdmitFrom { source: RequestSource::Annotations, asked },
        AdminCommand::Dismiss { container: web },
        AdminCommand::Resize { container: web, lane, memory },
        AdminCommand::Relimit { container: web, lane, limit: Some(memory) },
        AdminCommand::SetPolicy { gpu, policy: Policy::Fair },
        AdminCommand::Retune {
            container: web,
            weight: Change::To(Weight::new(3).expect("a weight")),
            share: Change::Keep,
            share_limit: Change::Keep,
            class: None,
        },
        AdminCommand::Join {
            container: id("other"),
            claims: [None; CLAIMS_OF_CONTAINER_MAX],
            owner: Owner::default(),
            pid: std::process::id(),
        },
        AdminCommand::Suspend { container: web },
        AdminCommand::Resume { container: web },
        AdminCommand::Events { after: 0 },
        AdminCommand::Samples { after_ns: 0 },
        AdminCommand::Record { for_ns: 1_000_000, after: 0 },
        AdminCommand::Processes { container: web },
    ]
}

#[test]
fn an_observer_sees_and_changes_nothing() {
    let mut node = Node::new();
    std::fs::create_dir(node.runtime_dir()).expect("a directory");
    let admin = listen(&node.runtime_dir().join("admin.sock"));
    let observe = listen(&node.runtime_dir().join("observe.sock"));
    node.start_command(as_service(&node, &[(&admin, "admin"), (&observe, "observe")]));
    node.must_admit("web", Bytes(GIB));
    let slices = |rows: Vec<Snapshot>| {
        let slices = rows.iter().filter(|row| matches!(row, Snapshot::Slice { .. }));
        slices.count()
    };
    let looking = observer(&node);
    assert_eq!((slices(looking.list()), slices(looking.list())), (1, 1));

    for command in all_but_looks() {
        let looking = observer(&node);
        let (why, text) = denied(looking.ask(&command));
        let is_refused = why == Denial::Protocol && text.contains("only lists");
        assert!(is_refused, "{command:?}: {why:?}, {text}");
        looking.0.expect_end();
    }
    assert_eq!(node.slice("web"), Some((Bytes::ZERO, 0)));
    assert_eq!((node.containers().len(), node.cap("web")), (1, Some(Bytes(GIB))));

    // However many observers there are, an administrator is answered; and their connections are freed.
    let observers: Vec<AdminClient> = (0..100).map(|_| observer(&node)).collect();
    assert_eq!(node.containers().len(), 1);
    drop(observers);
    eventually("room for an observer", || {
        let looking = observer(&node);
        looking.0.send(8, &AdminCommand::List {}).is_ok()
            && looking.0.message::<Snapshot>().is_some()
    });
}

/// What the daemon's thread that gives turns has had of processors.
fn thread_time(node: &Node) -> Duration {
    let pid = node.pid();
    let path = format!("/proc/{pid}/task/{pid}/schedstat");
    let text = std::fs::read_to_string(path).expect("it lives");
    let had = text.split(' ').next().and_then(|it| it.parse().ok());
    Duration::from_nanos(had.expect("a number"))
}

/// Time on a processor is compared, which a busy machine does not make longer.
#[test]
fn an_observer_that_asks_without_a_pause_has_an_eighth_of_the_thread() {
    const TIME: Duration = Duration::from_secs(3);
    let mut node = Node::new();
    std::fs::create_dir(node.runtime_dir()).expect("a directory");
    let [admin, observe] =
        ["admin.sock", "observe.sock"].map(|name| listen(&node.runtime_dir().join(name)));
    node.start_command(as_service(&node, &[(&admin, "admin"), (&observe, "observe")]));
    // So many that an answer takes longer than what is done around it.
    (0..100).for_each(|number| node.must_admit(&format!("c{number}"), Bytes(64 << 20)));
    let had = |does: &dyn Fn()| {
        let (before, start) = (thread_time(&node), Instant::now());
        does();
        (thread_time(&node).saturating_sub(before), start.elapsed())
    };
    let (alone, time) = had(&|| std::thread::sleep(TIME / 3));
    let part_alone = alone.as_secs_f64() / time.as_secs_f64();
    let looking = observer(&node);
    let answers = AtomicUsize::new(0);
    let (took, time) = had(&|| {
        let start = Instant::now();
        while start.elapsed() < TIME {
            looking.list();
            answers.fetch_add(1, Relaxed);
        }
    });
    // An eighth, the 0.1 s that answers may take at once, and 0.1 s for the rest of the thread's work.
    let most = time.as_secs_f64() * (0.125 + part_alone) + 0.2;
    eprintln!("{answers:?} answers took {took:?} of {time:?}, {part_alone:.3} of it without them");
    assert!(took.as_secs_f64() <= most, "{answers:?} answers took {took:?}, at most {most:.3} s");
}

/// Descriptors that were sent to the manager's sockets before the daemon started could not be refused.
#[test]
fn descriptors_sent_to_the_managers_sockets_delay_no_client() {
    for old in [false, true] {
        let mut node = Node::new();
        std::fs::create_dir(node.runtime_dir()).expect("a directory");
        let admin = listen(&node.runtime_dir().join("admin.sock"));
        let observe = listen(&node.runtime_dir().join("observe.sock"));
        let early: Vec<_> = (0..12).map(|_| observer(&node)).collect();
        let unread = early.iter().map(|early| send_lingering(&early.0));
        let unread: Vec<_> = unread.collect();
        let mut command = as_service(&node, &[(&admin, "admin"), (&observe, "observe")]);
        if old {
            as_on_an_old_kernel(&mut command);
        }
        node.start_command(command);
        node.must_admit("web", Bytes(GIB));
        let late: Vec<_> = (0..4).map(|_| observer(&node)).collect();
        let more_unread = late.iter().map(|late| meanwhile(&node, || send_lingering(&late.0)));
        let more_unread: Vec<_> = more_unread.collect();
        drop((early, late));
        assert!(node.containers().contains("web"));
        eventually("an observer is answered", || {
            let looking = observer(&node);
            looking.0.send(8, &AdminCommand::List {}).is_ok()
                && looking.0.message::<Snapshot>().is_some()
        });
        drop((unread, more_unread));
    }
}

#[test]
fn what_cannot_be_served_is_refused_at_the_start() {
    let node = Node::new();
    std::fs::create_dir(node.runtime_dir()).expect("a directory");
    let right = listen(&node.runtime_dir().join("admin.sock"));
    let elsewhere = listen(&node.root().join("admin.sock"));
    let stream = std::os::unix::net::UnixListener::bind(node.runtime_dir().join("observe.sock"));
    let stream = OwnedFd::from(stream.expect("a socket"));
    let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("a file"));
    for (given, why) in [
        ((&right, "metrics"), "must be admin or observe"),
        ((&elsewhere, "admin"), "give both the same directory"),
        ((&stream, "observe"), "is not a ListenSequentialPacket="),
        ((&file, "admin"), "is not a ListenSequentialPacket="),
    ] {
        let ended = as_service(&node, &[given]).output().expect("it starts");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains(why), "{said}");
    }
}

/// What comes to a socket. It is read at once, as a manager does: the socket holds few datagrams, and the daemon drops
/// what does not fit.
fn all_datagrams(socket: UnixDatagram) -> Receiver<String> {
    let (to, heard) = channel();
    std::thread::spawn(move || {
        let mut words = [0; 512];
        while let Ok(len) = socket.recv(&mut words) {
            if to.send(String::from_utf8_lossy(&words[..len]).into_owned()).is_err() {
                return;
            }
        }
    });
    heard
}

#[test]
fn the_manager_hears_ready_and_the_loop_going_round() {
    let mut node = Node::new();
    let path = node.root().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    let mut command = as_service(&node, &[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "20000");
    node.start_command(command);
    let heard = all_datagrams(manager);
    let hear_within = |time| heard.recv_timeout(time).ok();
    let hear = || hear_within(PATIENCE).expect("the daemon says something");
    let first = hear();
    assert!(
        first.contains("READY=1") && first.contains("STATUS=2 simulated GPUs, 0 slices"),
        "{first}"
    );
    // No container has a slice and no event comes: the loop goes round all the same.
    for _ in 0..3 {
        assert!(hear().contains("WATCHDOG=1"));
    }
    // The loop's thread alone is held, and no other one says the word in twenty of the watchdog's periods.
    let held = Hung::new(Helper::Thread(node.pid().as_raw()));
    // Messages that the daemon sent before come first.
    let silent = || hear_within(Duration::from_millis(200)).is_none();
    assert!((0..1_000).any(|_| silent()), "it is not held");
    assert_eq!(hear_within(Duration::from_millis(400)), None);
    drop(held);
    assert!(hear().contains("WATCHDOG=1"));
    node.must_admit("web", Bytes(GIB));
    eventually("the status tells of the slice", || {
        hear().contains("STATUS=2 simulated GPUs, 1 slice\n")
    });
    assert!(node.end_daemon(Signal::SIGTERM).success());
    eventually("the end is told", || hear().contains("STOPPING=1"));
}
