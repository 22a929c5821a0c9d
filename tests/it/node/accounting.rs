//! Memory that NVML reports is charged; a driver that hangs delays the accounting and nothing else.

use super::cases::{Case, reply_within_patience};
use super::group::{Group, mount};
use super::stranger::Stranger;
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::TenantClient;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[test]
fn a_program_that_bypasses_the_shim_is_charged_and_blocks_growth() {
    let Some(mount) = mount("strangers") else {
        return;
    };
    let case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", GIB / 2, idle.pid());
    let agent = group.agent();
    let client = agent.tenant(&case.node.socket("web"));
    client.attach(Bytes::ZERO);
    let fits = |reply: Reply| matches!(reply, Reply::Reserved { .. });
    assert!(fits(client.reserve(0, MIB, MIB)));

    let stranger = Stranger::start(&case.node, &group);
    assert!(stranger.got > GIB / 2, "nothing limited it: {}", stranger.got);
    eventually("the stranger's memory in ps", || {
        let row = case.row("web");
        let reserved = row["memory_reserved"].as_u64().expect("a number");
        reserved > stranger.got && row["memory_over"] == true
    });
    let refused = client.reserve(0, MIB, MIB);
    assert!(matches!(refused, Reply::Refused { left: Bytes::ZERO, .. }), "{refused:?}");
    let row = case.row("web");
    // it was granted one before, and says of none that it holds it
    assert_eq!(
        (&row["denied_need"], &row["denied_left"]),
        (&(2 * MIB).into(), &MIB.into()),
        "{row}"
    );
    assert_eq!(row["memory_enforcement"], "accounted");

    drop(stranger);
    eventually("growth once it is gone", || fits(client.reserve(0, MIB, MIB)));
    assert_eq!(case.row("web")["memory_untracked"], 0);
}

/// Such a library stays resident, starts threads, and may crash or never return.
#[test]
fn the_daemon_loads_no_library_of_the_driver() {
    let case = Case::start("devices=2,mem=1GiB", "accounting_interval_ms = 20\n");
    case.must_admit("web", GIB / 2, 0);
    eventually("a sample", || case.row("web")["memory_enforcement"] == "accounted");
    let maps = fs::read_to_string(format!("/proc/{}/maps", case.node.pid())).expect("its maps");
    assert!(maps.contains("/libc.so.6"), "{maps}");
    assert!(!maps.contains("libgpuslice_sim") && !maps.contains("libnvidia"), "{maps}");
}

/// A process that uses CUDA and NVML has two connections. Its memory was once charged for each of them.
#[test]
fn the_memory_of_a_process_with_several_connections_is_charged_once() {
    const MIB_EACH: u64 = 64;
    for granted_to in [0, 1] {
        let case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
        case.must_admit("web", GIB / 2, 0);
        let kept = Mutex::new(None);
        let stranger = Stranger::attached_often(&case.node, "web", MIB_EACH, |both: [_; 2]| {
            let of_it: &TenantClient = &both[granted_to];
            let reply = of_it.reserve(0, GIB / 4, GIB / 4);
            assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
            *kept.lock().expect("ours") = Some(both);
        });
        eventually("samples", || case.row("web")["memory_enforcement"] == "accounted");
        // Two samples that must agree are 300 ms apart.
        std::thread::sleep(Duration::from_millis(1_000));
        let row = case.row("web");
        assert!(stranger.got > 0 && stranger.got < GIB / 4);
        assert_eq!(
            (&row["memory_reserved"], &row["memory_untracked"]),
            (&(GIB / 4).into(), &0.into()),
            "{row}"
        );
    }
}

/// Names that the kernel allows but that are not text, or resemble a suffix that the kernel adds.
fn strange_names() -> [&'static OsStr; 3] {
    let names: [&[u8]; 3] = [b"x\xff\xfe", b"\x1b[2J\\012 0::", b"leaf (deleted)"];
    names.map(OsStr::from_bytes)
}

fn named(name: &OsStr, end: &[u8]) -> OsString {
    OsString::from_vec([name.as_bytes(), end].concat())
}

/// A container may make groups below its own, with any names.
#[test]
fn a_program_in_a_group_of_any_name_is_attributed() {
    let Some(mount) = mount("names of groups") else {
        return;
    };
    let case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", GIB / 4, idle.pid());
    for name in strange_names() {
        let below = Group::within(&group.dir, name);
        let stranger = Stranger::start(&case.node, &below);
        eventually(&format!("the stranger of {name:?}"), || {
            case.row("web")["memory_reserved"].as_u64() > Some(stranger.got)
        });
        drop(stranger);
        eventually("its end", || case.row("web")["memory_reserved"] == 0);
    }
}

/// The container's own group may have any name; a group beside it is not the container's.
#[test]
fn a_container_whose_group_has_any_name_is_charged() {
    let Some(mount) = mount("names of groups") else {
        return;
    };
    let mut case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
    let around = Group::new(&mount);
    for name in strange_names() {
        let (group, beside) = (
            Group::within(around.parent(), named(name, b"1")),
            Group::within(around.parent(), named(name, b"1 (deleted)")),
        );
        let idle = group.idle();
        case.must_admit("web", GIB / 4, idle.pid());
        // The record holds the name as well.
        case.node.end_daemon(Signal::SIGKILL);
        case.start_again();
        let stranger = Stranger::start(&case.node, &group);
        eventually(&format!("the stranger of {name:?}"), || {
            case.row("web")["memory_reserved"].as_u64() > Some(stranger.got)
        });
        drop(stranger);
        eventually("its end", || case.row("web")["memory_reserved"] == 0);
        let known = case.node.log().len();
        let _elsewhere = Stranger::start(&case.node, &beside);
        let other = beside.idle();
        case.must_admit("other", GIB / 4, other.pid());
        eventually("the other one's", || case.row("other")["memory_over"] == true);
        assert_eq!(case.row("web")["memory_reserved"], 0);
        assert!(!case.node.log()[known..].contains("no cgroup of its own"));
        for container in ["web", "other"] {
            case.node.dismiss(container);
        }
    }
}

/// The same program in another group is not charged to the container.
#[test]
fn programs_in_other_groups_are_not_charged() {
    let Some(mount) = mount("other groups") else {
        return;
    };
    let case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
    let (group, other) = (Group::new(&mount), Group::new(&mount));
    let (idle, seen) = (group.idle(), other.idle());
    case.must_admit("web", GIB / 4, idle.pid());
    case.must_admit("other", GIB / 4, seen.pid());
    let _stranger = Stranger::start(&case.node, &other);
    eventually("the stranger with its own container", || case.row("other")["memory_over"] == true);
    assert_eq!(case.row("web")["memory_reserved"], 0);
}

/// Four processes of a container bypass the shim; each holds 160 MiB and a context, under a cap of 256 MiB.
/// One after the other, again and again, each reserves the whole cap and releases it. So each was granted
/// more than it holds at some time; together they were not.
#[test]
fn processes_that_reserve_the_cap_in_turn_are_charged_together() {
    const EACH: u64 = 160;
    const CAP: u64 = 256 * MIB;
    let case = Case::start("devices=1,mem=2GiB", "accounting_interval_ms = 20\n");
    case.must_admit("web", CAP, 0);
    let reserved = || case.node.slice("web").map_or(0, |(Bytes(bytes), _)| bytes);
    let (over, one) = (AtomicBool::new(false), Mutex::new(()));
    let pulse = |client: TenantClient| {
        while !over.load(Relaxed) {
            let _alone = one.lock().expect("no thread panics");
            if let Reply::Reserved { bytes, .. } = client.reserve(0, CAP, CAP) {
                client.release(0, bytes.0);
                client.reserve(0, 2 * CAP, 2 * CAP); // refused, after the release was heard
            }
        }
    };
    // A grant of the whole cap explains at most one cap of the memory held.
    let hidden = 4 * EACH * MIB - CAP;
    let mut strangers = Vec::new();
    std::thread::scope(|scope| {
        let _end = Ended(&over);
        for _ in 0..4 {
            strangers.push(Stranger::attached(&case.node, "web", EACH, |client| {
                scope.spawn(|| pulse(client));
            }));
        }
        assert!(strangers.iter().all(|it| it.got == EACH * MIB));
        eventually("what all hold together", || {
            let _no_grant = one.lock().expect("no thread panics");
            reserved() >= hidden
        });
        let client = case.node.process("web");
        client.attach(Bytes::ZERO);
        for _ in 0..100 {
            assert!(reserved() >= hidden, "{} of {hidden}", reserved());
            let refused = client.reserve(0, MIB, MIB);
            assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    drop(strangers);
    eventually("the end of them", || reserved() == 0);
}

/// Sets the flag also when the test fails.
pub struct Ended<'a>(pub &'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_process_unknown_to_nvml_gets_no_measure() {
    let case = Case::start("devices=1,mem=1GiB", "");
    case.must_admit("web", GIB / 2, 0);
    let client = case.node.tenant("web");
    client.attach(Bytes::ZERO);
    for lane in [0, 5, Lane::HOST.0] {
        client.0.send(7, &Request::Measure { lane: Lane(lane) }).expect("sent");
        let reply: Reply = reply_within_patience(&client);
        let unknown = Reply::Measured { lane: Lane(lane), used: None };
        assert_eq!(reply, unknown);
    }
}

/// A node whose NVML is `stub/nvml.c`, and the directory with the files that control it.
fn stubbed() -> (Case, PathBuf) {
    let node = Node::new();
    let library = node.root().join("driver/libnvidia-ml.so.1");
    fs::remove_file(&library).expect("removed");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/stub/nvml.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    assert!(gcc.status().expect("gcc").success());
    let dir = node.root().to_owned();
    let quick = "accounting_interval_ms = 20\n";
    let case = Case::of(
        node,
        "devices=1,mem=1GiB",
        quick,
        &[
            ("STUB_DIR", dir.as_path()),
            ("STUB_UUID", Path::new("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")),
            ("STUB_PROCESSES", Path::new("0")),
        ],
    );
    (case, dir)
}

#[test]
fn a_driver_that_hangs_blocks_no_request() {
    let (mut case, files) = stubbed();
    case.must_admit("web", GIB / 2, 0);
    let client = case.node.tenant("web");
    client.attach(Bytes::ZERO);
    eventually("the first sample", || case.row("web")["memory_enforcement"] == "accounted");
    fs::write(files.join("hang"), "").expect("written");
    let measure = Request::Measure { lane: Lane(0) };
    client.0.send(7, &measure).expect("sent");
    let reply = client.reserve(0, MIB, MIB);
    assert!(matches!(reply, Reply::Reserved { .. }), "the answer to the second request: {reply:?}");
    case.must_admit("other", GIB / 4, 0);
    // Once the child that hangs is replaced.
    let reply: Reply = reply_within_patience(&client);
    assert!(matches!(reply, Reply::Measured { used: None, .. }), "{reply:?}");
    eventually("the lower level", || case.row("web")["memory_enforcement"] == "shim");
    fs::remove_file(files.join("hang")).expect("removed");
    eventually("the higher level again", || case.row("web")["memory_enforcement"] == "accounted");
    fs::write(files.join("hang"), "").expect("written");
    client.0.send(8, &measure).expect("sent");
    assert!(case.node.end_daemon(Signal::SIGTERM).success(), "it ends although NVML hangs");
    let log = case.node.log();
    assert_eq!(log.matches("NVML has not answered for").count(), 1, "{log}");
}

/// The daemon's child that asks NVML.
fn asker(case: &Case) -> Option<Pid> {
    case.node.children().remove("--ask-nvml")
}

/// The daemon replaces a child that never answers again, and one that crashes.
#[test]
fn a_child_that_hangs_or_dies_is_replaced() {
    let case = Case::start("devices=1,mem=1GiB", "accounting_interval_ms = 20\n");
    case.must_admit("web", GIB / 2, 0);
    eventually("the first sample", || case.row("web")["memory_enforcement"] == "accounted");
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        let first = asker(&case).expect("a child that asks");
        let before = case.node.log().len();
        kill(first, signal).expect("it lives");
        // The lower level lasts for a second only, which a look may miss; the log has it for good.
        eventually("the lower level", || {
            case.node.log()[before..].contains("NVML does not report the memory of processes")
        });
        eventually("another child", || asker(&case).is_some_and(|now| now != first));
        eventually("the higher level again", || {
            case.row("web")["memory_enforcement"] == "accounted"
        });
        assert!(!Path::new(&format!("/proc/{first}")).exists(), "the first child is not reaped");
    }
}

#[test]
fn a_lost_gpu_is_logged_once_and_sampled_again_when_it_is_back() {
    let (case, files) = stubbed();
    case.must_admit("web", GIB / 2, 0);
    eventually("the first sample", || case.row("web")["memory_enforcement"] == "accounted");
    fs::write(files.join("lost"), "").expect("written");
    eventually("the lower level", || case.row("web")["memory_enforcement"] == "shim");
    fs::remove_file(files.join("lost")).expect("removed");
    eventually("the higher level again", || case.row("web")["memory_enforcement"] == "accounted");
    let log = case.node.log();
    assert_eq!(log.matches("NVML_ERROR_GPU_IS_LOST").count(), 1, "{log}");
    assert_eq!(log.matches("NVML reports again").count(), 1, "{log}");
}
