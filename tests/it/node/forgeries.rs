//! Attempts to be taken for a process of another container, many and in random order.
//!
//! Each attempt connects to the socket of a container, `web`, by a process that is not one of its own, and asks to
//! attach. None may succeed, and `web` must be served as before. `FORGERIES` sets their number.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use crate::harness::agent::Agent;
use crate::harness::process::private_mounts;
use crate::harness::wire::Connection;
use crate::harness::{Random, setting};
use gpuslice_wire::frame::{RequestId, encode};
use gpuslice_wire::limits::{ACCOUNTS_MAX, FRAME_BYTES_MAX};
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg};
use std::fs;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// The kernel gives the next process the pid after this one.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Times that a pid is tried to be had again before another process has it.
const REUSES: usize = 50;

/// A way to be taken for a process of `web`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A process of another container has the socket's path.
    OtherContainer,
    /// A process of no container.
    Host,
    /// One in a control group of the other container's that is named like `web`'s.
    GroupOfThatName,
    /// A process of no container, in a mount namespace of its own.
    Namespace,
    /// A process of the other container, whose packet carries the credentials of one of `web`'s.
    Credentials,
    /// A process of the other container connects and ends while the connection waits; its pid is one of `web`'s then.
    ReusedPid,
}

const WAYS: [Way; 6] = [
    Way::OtherContainer,
    Way::Host,
    Way::GroupOfThatName,
    Way::Namespace,
    Way::Credentials,
    Way::ReusedPid,
];

/// Processes of `web`, of the other container and of none.
struct Actors {
    case: Case,
    socket: PathBuf,
    /// Removed before the group around it.
    alike: (Agent, Group),
    web: Group,
    other: Group,
    /// The first processes of both, and a process of `web`'s that does nothing.
    first: [Idle; 3],
    elsewhere: Agent,
    host: Agent,
    unshared: Agent,
}

impl Actors {
    fn new(mount: &Path) -> Actors {
        let case = Case::start("devices=1,mem=1GiB", "");
        let (web, other) = (Group::new(mount), Group::new(mount));
        let first = [web.idle(), other.idle(), web.idle()];
        case.must_admit("web", GIB / 4, first[0].pid());
        case.must_admit("other", GIB / 4, first[1].pid());
        let alike = Group::within(&other.dir, web.dir.file_name().expect("a name"));
        Actors {
            socket: case.node.socket("web"),
            elsewhere: other.agent(),
            host: Agent::start(),
            alike: (alike.agent(), alike),
            unshared: Agent::start_after(private_mounts),
            case,
            web,
            other,
            first,
        }
    }

    /// Asks to attach this way; none if the way could not be gone.
    fn answer(&self, way: Way) -> Option<Option<Reply>> {
        let connection = match way {
            Way::OtherContainer | Way::Credentials => self.elsewhere.connect(&self.socket),
            Way::Host => self.host.connect(&self.socket),
            Way::GroupOfThatName => self.alike.0.connect(&self.socket),
            Way::Namespace => self.unshared.connect(&self.socket),
            Way::ReusedPid => return self.reuse(),
        };
        let pid = (way == Way::Credentials).then(|| self.first[2].pid() as i32);
        ask(&connection, pid);
        Some(heard(&connection))
    }

    /// The daemon stands still while the process that connected is replaced by one of `web`'s with its pid.
    fn reuse(&self) -> Option<Option<Reply>> {
        let daemon = self.case.node.pid();
        kill(daemon, Signal::SIGSTOP).expect("it runs");
        let agent = self.other.agent();
        let (connection, pid) = (agent.connect(&self.socket), agent.pid());
        agent.end();
        let successor = (0..REUSES).find_map(|_| {
            fs::write(LAST_PID, (pid.as_raw() - 1).to_string()).ok()?;
            Some(self.web.agent()).filter(|it| it.pid() == pid)
        });
        ask(&connection, None);
        kill(daemon, Signal::SIGCONT).expect("it is there");
        let answer = heard(&connection);
        successor.map(|_| answer)
    }
}

/// Sends a request to attach, with these credentials if there are any. It may fail: the connection may have ended.
fn ask(connection: &Connection, pid: Option<i32>) {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let request = Request::Attach { held: [Bytes::ZERO; ACCOUNTS_MAX] };
    let len = encode(RequestId(1), &request, &mut buffer).expect("fits");
    let credentials = pid.map(|pid| UnixCredentials::from(libc::ucred { pid, uid: 0, gid: 0 }));
    let control: Vec<_> = credentials.iter().map(ControlMessage::ScmCredentials).collect();
    let (socket, parts) = (connection.as_fd().as_raw_fd(), [IoSlice::new(&buffer[..len])]);
    let _ = sendmsg::<()>(socket, &parts, &control, MsgFlags::MSG_NOSIGNAL, None);
}

/// The daemon's first answer; none if it closed the connection without one.
fn heard(connection: &Connection) -> Option<Reply> {
    connection.message::<Reply>().map(|(_, reply, _)| reply)
}

#[test]
fn no_forgery_is_accepted() {
    let Some(mount) = mount("forged members") else {
        return;
    };
    let actors = Actors::new(&mount);
    let agent = actors.web.agent();
    let own = agent.tenant(&actors.socket);
    own.attach(Bytes::ZERO);
    let (mut tried, mut random) = ([0u64; WAYS.len()], Random(setting("SEED", 8) | 1));
    for number in 0..setting("FORGERIES", 300) {
        let at = random.below(WAYS.len() as u64) as usize;
        let Some(answer) = actors.answer(WAYS[at]) else {
            continue;
        };
        let refused = matches!(answer, None | Some(Reply::Rejected { .. }));
        assert!(refused, "attempt {number}, {:?}: {answer:?}", WAYS[at]);
        tried[at] += 1;
        if number % 100 == 0 {
            let served = own.reserve(0, MIB, MIB);
            assert!(matches!(served, Reply::Reserved { .. }), "attempt {number}: {served:?}");
            own.release(0, MIB);
        }
    }
    let all: u64 = tried.iter().sum();
    eprintln!("{all} attempts, none accepted: {WAYS:?} {tried:?}");
    assert!(tried.iter().all(|&times| times > 0), "a way was never gone: {tried:?}");
}
