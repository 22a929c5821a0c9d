//! A disk on which a claim's file is written late, or not at all. A named pipe in the place of the unfinished file is
//! such a disk: to open it takes until the test reads it, and to sync it fails.

use super::cases::Case;
use crate::harness::agent_client::{AgentClient, claim, words};
use crate::harness::eventually;
use crate::harness::wire::TenantClient;
use gpuslice_wire::node::{NodeAnswer, NodeDenial, NodeRequest, Reservation};
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

const SIMULATED: &str = "devices=1,mem=16GiB";

/// The file through which a claim's is written.
fn unfinished(case: &Case, id: &str) -> PathBuf {
    case.node.runtime_dir().join("state/claims").join(format!("+{id}"))
}

fn stored(case: &Case, id: &str) -> bool {
    case.node.runtime_dir().join("state/claims").join(id).exists()
}

/// A connection on which this was asked and not answered yet.
fn asking(case: &Case, request: &NodeRequest) -> AgentClient {
    let agent = AgentClient::of(&case.node);
    agent.0.send(5, request).expect("the daemon reads");
    agent
}

fn is_answered(agent: &AgentClient) -> bool {
    let mut fds = [PollFd::new(agent.0.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("polled") > 0
}

/// A node where `c-1` is reserved and the file of `c-2` cannot be written now; and the words of a claim by its id.
fn hanging() -> (Case, impl Fn(&str) -> Reservation) {
    let case = Case::start(SIMULATED, "");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    let words = move |id: &str| Reservation { share: None, ..words(id, &gpus) };
    agent.reserve(words("c-1")).expect("it fits");
    mkfifo(&unfinished(&case, "c-2"), Mode::S_IRWXU).expect("made");
    (case, words)
}

/// While the disk hangs, the daemon gives memory and answers all that needs no disk.
#[test]
fn a_disk_that_hangs_delays_only_what_has_to_be_written() {
    let (case, words) = hanging();
    let reserve = |id| asking(&case, &NodeRequest::Reserve { words: words(id) });
    let second = reserve("c-2");
    let third = reserve("c-3");
    let again = reserve("c-2");
    let released = asking(&case, &NodeRequest::Release { claim: claim("c-1") });
    let after = reserve("c-1");
    // The daemon has heard all of them.
    let observer = AgentClient::of(&case.node);
    assert!(["c-1", "c-2", "c-3"].iter().all(|id| observer.slice(id).is_some()));
    case.node.must_admit("web", Bytes(GIB));
    let tenant = TenantClient::connect(&case.node.socket("web")).expect("the daemon listens");
    tenant.attach(Bytes::ZERO);
    assert!(matches!(tenant.reserve(0, 1, 1), Reply::Reserved { .. }));
    for waiting in [&second, &third, &again, &released, &after] {
        assert!(!is_answered(waiting));
    }
    // What is read cannot be synced.
    drop(fs::read(unfinished(&case, "c-2")).expect("read"));
    for one in [second, again] {
        let NodeAnswer::Denied { why: NodeDenial::Host, text } = one.next() else {
            panic!("a claim that is not on the disk was promised")
        };
        assert!(text.as_str().contains("claims/c-2: "), "{text}");
        assert!(text.as_str().contains("free disk space"), "{text}");
    }
    assert!(matches!(third.next(), NodeAnswer::Reserved { .. }));
    assert_eq!(released.next(), NodeAnswer::Released { members: 0 });
    assert!(matches!(after.next(), NodeAnswer::Reserved { .. }));
    assert!(stored(&case, "c-1") && !stored(&case, "c-2") && stored(&case, "c-3"));
    assert!(observer.slice("c-2").is_none(), "what was refused is not promised");
    // The disk is well again.
    observer.reserve(words("c-2")).expect("it fits");
    assert!(stored(&case, "c-2"));
}

/// While an answer waits for the disk, the next request of its connection is not read.
#[test]
fn a_connection_has_one_change_on_its_way_to_the_disk() {
    let (case, words) = hanging();
    let agent = asking(&case, &NodeRequest::Reserve { words: words("c-2") });
    agent.0.send(5, &NodeRequest::Reserve { words: words("c-3") }).expect("the socket has room");
    let observer = AgentClient::of(&case.node);
    eventually("the first one is not read", || observer.slice("c-2").is_some());
    (0..10).for_each(|_| drop(observer.facts()));
    assert!(observer.slice("c-3").is_none(), "the second one was read");
    drop(fs::read(unfinished(&case, "c-2")).expect("read"));
    assert!(matches!(agent.next(), NodeAnswer::Denied { .. }), "what is read cannot be synced");
    assert!(matches!(agent.next(), NodeAnswer::Reserved { .. }));
}

/// Agents that do not wait for their answers, and connect again: what waits for the disk is bounded.
#[test]
fn changes_that_wait_for_the_disk_are_bounded() {
    let (case, words) = hanging();
    let _second = asking(&case, &NodeRequest::Reserve { words: words("c-2") });
    let observer = AgentClient::of(&case.node);
    let refused = (0..100).find_map(|round| {
        let is_released = round % 2 == 0;
        let agent = asking(
            &case,
            &match is_released {
                true => NodeRequest::Release { claim: claim("c-1") },
                false => NodeRequest::Reserve { words: words("c-1") },
            },
        );
        let is_done = || observer.slice("c-1").is_none() == is_released;
        eventually("it is not read", || is_done() || is_answered(&agent));
        is_answered(&agent).then(|| (round, agent.next()))
    });
    let (round, answer) = refused.expect("all waited for the disk");
    let NodeAnswer::Denied { why: NodeDenial::Host, text } = answer else { panic!("{answer:?}") };
    assert!(text.as_str().starts_with("64 changes of claims are not on the disk yet"), "{text}");
    assert_eq!(round, 63, "beside that of c-2");
    assert!(observer.facts().len() == 1, "all else is answered");
}

/// A daemon that is killed while the disk hangs has told no agent what its successor does not know.
#[test]
fn a_daemon_killed_while_it_writes_has_promised_nothing_that_is_lost() {
    let (mut case, words) = hanging();
    let reserve = |id| asking(&case, &NodeRequest::Reserve { words: words(id) });
    let waiting = [reserve("c-2"), reserve("c-3")];
    let released = asking(&case, &NodeRequest::Release { claim: claim("c-1") });
    assert!(AgentClient::of(&case.node).slice("c-1").is_none());
    assert!(!waiting.iter().chain([&released]).any(is_answered));
    case.node.end_daemon(Signal::SIGKILL);
    fs::remove_file(unfinished(&case, "c-2")).expect("there");
    case.start_again();
    let agent = AgentClient::of(&case.node);
    assert!(agent.slice("c-1").is_some(), "its release was not answered");
    assert!(agent.slice("c-2").is_none() && agent.slice("c-3").is_none());
    assert_eq!(agent.release("c-1"), 0);
    for id in ["c-2", "c-3"] {
        agent.reserve(words(id)).expect("it fits");
    }
    assert!(!stored(&case, "c-1") && stored(&case, "c-2") && stored(&case, "c-3"));
}
