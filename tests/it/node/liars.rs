//! Programs that lie to the accounting: they claim memory that they were not granted, have it granted for a moment
//! only, or ask for a measurement when it is small.

use super::cases::{Case, reply_within_patience};
use super::stranger::Stranger;
use crate::harness::agent::Agent;
use crate::harness::eventually;
use crate::harness::wire::{Attached, TenantClient, container_page};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, KIB, MIB};
use nix::sys::signal::Signal;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Reserved { .. })
}

/// The process connects again and claims to hold this much.
fn claims(agent: &Agent, case: &Case, holds: u64) -> (TenantClient, Reply) {
    let tenant = agent.tenant(&case.node.socket("web"));
    tenant.ask_to_attach(Bytes(holds));
    let reply = tenant.0.message().expect("an answer").1;
    (tenant, reply)
}

/// A process that connects again is believed what it was granted, whether more would fit or not.
#[test]
fn a_process_that_attaches_again_with_a_larger_claim_is_rejected() {
    const CAP: u64 = GIB;
    const HELD: u64 = 256 * MIB;
    let case = Case::start("devices=1,mem=16GiB", "accounting_interval_ms = 20\n");
    case.must_admit("web", CAP, 0);
    let agent = Agent::start();
    let (first, attached) = claims(&agent, &case, 0);
    assert!(matches!(attached, Reply::Attached { .. }), "{attached:?}");
    assert!(granted(&first.reserve(0, HELD, HELD)));
    drop(first);
    let rejected = Reply::Rejected { why: Rejection::Overdrawn };
    for _ in 0..20 {
        for says in [HELD + 1, 2 * HELD, CAP, 12 * GIB, u64::MAX] {
            assert_eq!(claims(&agent, &case, says).1, rejected, "{says}");
            assert_eq!(case.row("web")["memory_reserved"], HELD, "{says}");
        }
    }
    // A claim cost the honest ones nothing.
    let honest = Agent::start();
    let (other, attached) = claims(&honest, &case, 0);
    assert!(matches!(attached, Reply::Attached { .. }), "{attached:?}");
    assert!(granted(&other.reserve(0, CAP - HELD, CAP - HELD)));
    let (_again, attached) = claims(&agent, &case, HELD);
    assert!(matches!(attached, Reply::Attached { .. }), "{attached:?}");
}

/// A restarted daemon whose record of grants is lost has only claims. All together are believed up to the cap.
#[test]
fn claims_to_a_daemon_that_lost_its_record_end_at_the_cap() {
    const CAP: u64 = GIB;
    let mut case = Case::start("devices=1,mem=16GiB", "accounting_interval_ms = 20\n");
    case.must_admit("web", CAP, 0);
    case.node.end_daemon(Signal::SIGKILL);
    fs::write(case.node.container_dir("web").join("granted"), "damaged").expect("written");
    case.start_again();
    let rejected = Reply::Rejected { why: Rejection::Overdrawn };
    let (one, two) = (Agent::start(), Agent::start());
    for says in [CAP + 1, 12 * GIB, u64::MAX] {
        assert_eq!(claims(&one, &case, says).1, rejected, "{says}");
    }
    let (_kept, attached) = claims(&one, &case, CAP - MIB);
    assert!(matches!(attached, Reply::Attached { .. }), "{attached:?}");
    assert_eq!(claims(&two, &case, MIB + 1).1, rejected);
    assert_eq!(case.row("web")["memory_reserved"], CAP - MIB);
}

/// Processes of a container that bypass the shim, and how much each holds.
const HOLDERS: usize = 4;
const EACH: u64 = 512 * MIB;
const HIDDEN: u64 = HOLDERS as u64 * EACH;
/// What all of them hold is nearly that.
const CAP: u64 = 2_304 * MIB;

/// What NVML shows of the container beyond its grants.
fn untracked(case: &Case) -> u64 {
    let rows = case.node.admin().list();
    let of_web = rows.iter().find_map(|row| match row {
        Snapshot::Slice { untracked, .. } => Some(untracked.0),
        _ => None,
    });
    of_web.expect("a slice")
}

/// The process is granted all that is left, at least `need`, and gives it back unused.
fn pulse(client: &TenantClient, need: u64) {
    if let Reply::Reserved { bytes, .. } = client.reserve(0, need, CAP) {
        client.release(0, bytes.0);
    }
}

/// A container in which all processes pulse. NVML takes some 20 ms to answer, and there is a grant in each such time,
/// unless growth waits for the answer. Between two grants there is none for most of the time, so that a question meets
/// none soon. `attack` has each process until the flag is set.
fn pulses(processes: usize, attack: impl Fn(&[TenantClient], &AtomicBool) + Send) {
    let case =
        Case::start("devices=1,mem=8GiB,context=2MiB,nvml=2ms", "accounting_interval_ms = 250\n");
    case.must_admit("web", CAP, 0);
    let (over, since) = (AtomicBool::new(false), Instant::now());
    let mut clients = Vec::new();
    for _ in HOLDERS..processes {
        let client = case.node.process("web");
        client.attach(Bytes::ZERO);
        clients.push(client);
    }
    let (sender, connected) = channel();
    let mut holders = Vec::new();
    std::thread::scope(|scope| {
        let _end = super::accounting::Ended(&over);
        let attacked = &mut clients;
        let over = &over;
        scope.spawn(move || {
            attacked.extend(connected);
            attack(attacked, over);
        });
        for _ in 0..HOLDERS {
            let sender = sender.clone();
            let holder = Stranger::attached(&case.node, "web", EACH / MIB, |client| {
                sender.send(client).expect("it is awaited");
            });
            assert_eq!(holder.got, EACH);
            holders.push(holder);
        }
        drop(sender);
        eventually("all that they hold", || untracked(&case) >= HIDDEN);
    });
    eprintln!(
        "{processes} processes: {} MiB are charged after {:?}",
        HIDDEN / MIB,
        since.elapsed()
    );
    let honest = case.node.process("web");
    honest.attach(Bytes::ZERO);
    let refused = honest.reserve(0, CAP - HIDDEN + MIB, CAP);
    assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
    drop((holders, clients));
    eventually("the end of them", || untracked(&case) == 0);
}

/// One after the other, without an end, each of all processes is granted all that is left. So each was granted at some
/// time what it holds, and all of them together were, too.
#[test]
fn processes_that_pulse_in_turn_are_charged_for_what_they_hold() {
    pulses(HOLDERS, |clients, over| {
        while !over.load(Relaxed) {
            clients.iter().for_each(|client| {
                pulse(client, MIB);
                sleep(Duration::from_micros(500));
            });
        }
    });
}

/// All ask at once, and wait for each other. Then none has a grant for three times as long, on a machine of any speed.
#[test]
fn sixty_four_processes_that_pulse_are_charged_for_what_they_hold() {
    pulses(64, |clients, over| {
        let (all, pulsed) = (clients.len(), AtomicUsize::new(0));
        // Not a barrier: where a thread panics, the others end with the test.
        let pulses_of = |client: &TenantClient| {
            for round in 1.. {
                let begin = Instant::now();
                pulse(client, CAP);
                pulsed.fetch_add(1, Relaxed);
                while pulsed.load(Relaxed) < round * all && !over.load(Relaxed) {
                    sleep(Duration::from_millis(1));
                }
                if over.load(Relaxed) {
                    return;
                }
                sleep((3 * begin.elapsed()).max(Duration::from_millis(50)));
            }
        };
        std::thread::scope(|scope| {
            for client in clients {
                scope.spawn(|| pulses_of(client));
            }
        });
    });
}

/// The cost of a context, as the container's page tells it, KiB.
fn context_kib(attached: &Attached) -> u64 {
    u64::from(container_page(attached).lane[0].context_kib.load(Relaxed))
}

/// A process of this container that holds so much and asks how much that is, and the container's estimate.
fn measured(case: &Case, container: &str, mib: u64) -> (Stranger, Attached) {
    let client = Mutex::new(None);
    let holder = Stranger::connected(&case.node, container, mib, |tenant| {
        let attached = tenant.attach(Bytes::ZERO);
        *client.lock().expect("ours") = Some((tenant, attached));
    });
    let (tenant, attached) = client.into_inner().expect("ours").expect("it is attached");
    // Where NVML does not answer in time, no use is known.
    eventually("a measure", || {
        tenant.0.send(7, &Request::Measure { lane: Lane(0) }).expect("sent");
        matches!(reply_within_patience(&tenant), Reply::Measured { used: Some(_), .. })
    });
    (holder, attached)
}

/// A context of one container takes 64 MiB. Processes of another one have smaller readings: that container alone
/// guesses less.
#[test]
fn a_small_reading_of_one_container_lowers_no_others_estimate() {
    let case = Case::start("devices=1,mem=4GiB,context=2MiB", "accounting_interval_ms = 0\n");
    ["web", "liar"].iter().for_each(|name| case.must_admit(name, GIB, 0));
    let (_one, page) = measured(&case, "web", 64);
    let before = context_kib(&page);
    assert!(before * KIB >= 64 * MIB, "{before}");
    for mib in [32, 1] {
        let (_small, liars) = measured(&case, "liar", mib);
        let told = context_kib(&liars);
        assert!(told > 0 && told < before, "{told} of {before}");
        assert_eq!(context_kib(&page), before);
    }
    let sibling = case.node.process("web");
    let attached = sibling.attach(Bytes::ZERO);
    assert_eq!(context_kib(&attached), before);
}
