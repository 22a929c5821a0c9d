//! The daemon's beginning, end, sudden end and next life.

use crate::harness::node::{Node, admit, denied, id};
use crate::harness::{Random, eventually, setting, wire};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, Denial, MemoryAsk};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn run(command: &mut Command) -> Output {
    command.output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A daemon that was killed and started again restores containers and their processes' memory, and counts
/// both before it grants more.
#[test]
fn a_killed_daemon_comes_back_with_everything() {
    let mut node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let before = node.tenant("a");
    let attached = before.attach(Bytes::ZERO);
    let epoch = wire::container_page(&attached).epoch.load(SeqCst);
    let all = 900 * MIB;
    let granted = Reply::Reserved { lane: Lane(0), bytes: Bytes(all) };
    assert_eq!(before.reserve(0, all, all), granted);
    node.end_daemon(Signal::SIGKILL);
    before.0.expect_end();

    node.start_daemon(&[]);
    let after = node.tenant("a");
    let attached = after.attach(Bytes(all));
    assert!(wire::container_page(&attached).epoch.load(SeqCst) > epoch);
    eventually("the ledger", || node.slice("a") == Some((Bytes(all), 1)));
    let refused = Reply::Refused { lane: Lane(0), need: Bytes(200 * MIB), left: Bytes(GIB - all) };
    assert_eq!(after.reserve(0, 200 * MIB, 200 * MIB), refused);
    assert!(matches!(after.reserve(0, 100 * MIB, 100 * MIB), Reply::Reserved { .. }));
    assert_eq!(denied(node.admit("a", Bytes(GIB))).0, Denial::Exists);
    assert_eq!(node.dismiss("a"), Answer::Dismissed {});
}

#[test]
fn a_clean_end_keeps_records_and_removes_sockets() {
    let mut node = Node::start();
    node.must_admit("a", Bytes(GIB));
    assert!(node.end_daemon(Signal::SIGTERM).success());
    assert!(!node.runtime_dir().join("admin.sock").exists());
    let dir = node.container_dir("a");
    assert!(dir.join("record").exists() && !node.socket("a").exists());
    node.start_daemon(&[]);
    node.tenant("a").attach(Bytes::ZERO);
}

#[test]
fn an_ephemeral_daemon_leaves_nothing() {
    let mut node = Node::new();
    node.start_daemon(&["--ephemeral"]);
    node.must_admit("a", Bytes(GIB));
    assert!(node.end_daemon(Signal::SIGINT).success());
    assert!(!node.runtime_dir().exists());
}

#[test]
fn a_second_daemon_is_refused_and_harms_nothing() {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let given = tempfile::tempdir().expect("a directory");
    let mut second = node.daemon_command(&[]);
    second.arg("--ephemeral").arg("--remove").arg(given.path());
    let second = run(&mut second);
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("another gpusliced serves it"), "{said}");
    assert!(!given.path().exists(), "what it was given to remove is left");
    node.tenant("a").attach(Bytes::ZERO);
}

#[test]
fn a_record_that_cannot_be_read_is_kept_and_its_container_refused() {
    let mut node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node.must_admit("b", Bytes(GIB));
    node.end_daemon(Signal::SIGKILL);
    let record = node.container_dir("a").join("record");
    let mut bytes = fs::read(&record).expect("a record");
    bytes[20] ^= 1;
    fs::write(&record, &bytes).expect("damaged");
    node.start_daemon(&[]);
    assert!(node.log().contains("record not restored"), "{}", node.log());
    assert_eq!(fs::read(&record).expect("kept"), bytes);
    let (why, said) = denied(node.admit("a", Bytes(GIB)));
    assert_eq!(why, Denial::Host);
    assert!(said.contains("its record could not be restored"), "{said}");
    node.tenant("b").attach(Bytes::ZERO);
    assert_eq!(node.dismiss("a"), Answer::Dismissed {});
    node.must_admit("a", Bytes(GIB));
}

#[test]
fn a_stale_socket_is_replaced() {
    let mut node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node.end_daemon(Signal::SIGKILL);
    assert!(node.runtime_dir().join("admin.sock").exists());
    node.start_daemon(&[]);
    assert!(node.slice("a").is_some());
}

#[test]
fn without_a_driver_it_says_what_to_do() {
    let node = Node::new();
    let nothing = node.root().join("nothing");
    fs::create_dir(&nothing).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpusliced"));
    command.arg("--runtime-dir").arg(node.runtime_dir()).arg("--driver-dir").arg(&nothing);
    let said = run(&mut command);
    let error = text(&said.stderr);
    assert_eq!(said.status.code(), Some(69), "{error}");
    assert!(error.contains("driver_dir must hold libcuda.so.1"), "{error}");
}

#[test]
fn a_configuration_is_checked_with_its_line() {
    let node = Node::new();
    let file = node.root().join("c.toml");
    let check = |content: &str| {
        fs::write(&file, content).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpusliced"));
        let output = run(command.arg("--check").arg(&file));
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let packaged = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/gpusliced.toml");
    let packaged = fs::read_to_string(packaged).expect("packaged");
    assert_eq!(check(&packaged), (Some(0), "ok\n".to_owned(), String::new()));
    let (code, out, error) = check("\nperiod_ms = \"soon\"\n");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(error.starts_with(&format!("{}:2: ", file.display())), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let (code, _, error) = check("colour = 3");
    assert!(code == Some(1) && error.contains("unknown key `colour`"), "{error}");
}

/// Nothing to do is nothing done: an idle daemon sleeps, but for what its watcher of GPUs writes each second: a line
/// for each GPU and one more.
#[test]
fn an_idle_daemon_sleeps_and_is_small() {
    let node = Node::start();
    // On a busy machine it may be on its way to its first sleep for a while after it is ready.
    let mut before = 0;
    eventually("it sleeps", || {
        let was = std::mem::replace(&mut before, node.status("voluntary_ctxt_switches:"));
        std::thread::sleep(Duration::from_millis(50));
        was == before
    });
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let woken = node.status("voluntary_ctxt_switches:") - before;
    let (took, most) = (begin.elapsed(), 4 * begin.elapsed().as_secs() + 8);
    assert!(woken <= most, "woke up {woken} times in {took:?}");
    assert!(node.rss_kib() < 20 * 1024, "{} KiB in a build for tests", node.rss_kib());
}

/// Killed at random moments of a storm of admissions and dismissals: what was answered holds, and
/// what was in flight is there whole or not at all.
#[test]
fn a_kill_at_any_moment_loses_no_promise() {
    let seed = setting("SEED", 0xD1E);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let mut node = Node::start();
    let mut promised: BTreeSet<String> = BTreeSet::new();
    for round in 0..setting("DAEMON_KILLS", 30) {
        let daemon = node.pid();
        let patience = Duration::from_micros(random.below(8_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(patience);
            kill(daemon, Signal::SIGKILL).expect("it lives");
        });
        let mut in_flight = String::new();
        if let Ok(admin) = node.try_admin() {
            for n in 0.. {
                let name = format!("c{}", random.below(8));
                in_flight = name.clone();
                let command = match promised.contains(&name) {
                    true => AdminCommand::Dismiss { container: id(&name) },
                    false => admit(&name, "any", MemoryAsk::Exactly(Bytes(1 << 20))),
                };
                match admin.try_ask(&command) {
                    None => break,
                    Some(Answer::Admitted { .. }) => drop(promised.insert(name)),
                    Some(Answer::Dismissed {}) => drop(promised.remove(&name)),
                    Some(other) => panic!("round {round}, {n}: {other:?}"),
                }
                in_flight.clear();
            }
        }
        killer.join().expect("killed");
        node.end_daemon(Signal::SIGKILL);
        node.start_daemon(&[]);
        let mut listed = node.containers();
        // What was asked last and not answered may have happened or not.
        promised.remove(&in_flight);
        if listed.remove(&in_flight) {
            assert_eq!(node.dismiss(&in_flight), Answer::Dismissed {});
        }
        assert_eq!(listed, promised, "round {round}");
        listed.iter().for_each(|name| drop(node.tenant(name).attach(Bytes::ZERO)));
    }
}
