//! Programs that lie to the accounting: they claim memory that they were not granted, have it granted for a moment
//! only, or ask for a measurement when it is small.

use super::cases::{Case, reply_within_patience};
use super::stranger::Stranger;
use crate::harness::agent::Agent;
use crate::harness::eventually;
use crate::harness::wire::{Attached, TenantClient, container_page};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, KIB, MIB};
use nix::sys::signal::Signal;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

/// Four processes that bypass the shim hold nearly the cap. One after the other, without an end, each of all
/// processes reserves the cap and releases it unused. So each was granted at some time what it holds, and all of them
/// together were, too.
fn pulses(processes: u64) {
    const CAP: u64 = 2_304 * MIB;
    const HOLDERS: u64 = 4;
    const EACH: u64 = 512;
    let hidden = HOLDERS * EACH * MIB;
    let case = Case::start("devices=1,mem=8GiB,context=2MiB", "");
    case.must_admit("web", CAP, 0);
    let reserved = || case.node.slice("web").map_or(0, |(Bytes(bytes), _)| bytes);
    let (over, one) = (AtomicBool::new(false), Mutex::new(Vec::<TenantClient>::new()));
    let mut holders = Vec::new();
    std::thread::scope(|scope| {
        let _end = super::accounting::Ended(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                for at in 0.. {
                    let all = one.lock().expect("no thread panics");
                    let Some(client) = all.get(at) else { break };
                    if let Reply::Reserved { bytes, .. } = client.reserve(0, CAP, CAP) {
                        client.release(0, bytes.0);
                        client.reserve(0, 2 * CAP, 2 * CAP); // refused, after the release was heard
                    }
                    drop(all);
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        for _ in HOLDERS..processes {
            let client = case.node.process("web");
            client.attach(Bytes::ZERO);
            one.lock().expect("no thread panics").push(client);
        }
        for _ in 0..HOLDERS {
            let holder = Stranger::attached(&case.node, "web", EACH, |client| {
                one.lock().expect("no thread panics").push(client);
            });
            assert_eq!(holder.got, EACH * MIB);
            holders.push(holder);
        }
        let since = Instant::now();
        eventually("all that they hold", || {
            let _no_grant = one.lock().expect("no thread panics");
            reserved() >= hidden
        });
        eprintln!(
            "{processes} processes: {} MiB are charged after {:?}",
            hidden / MIB,
            since.elapsed()
        );
        let honest = case.node.process("web");
        honest.attach(Bytes::ZERO);
        let _no_grant = one.lock().expect("no thread panics");
        let refused = honest.reserve(0, CAP - hidden + MIB, CAP);
        assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
    });
    drop(holders);
    eventually("the end of them", || reserved() == 0);
}

#[test]
fn four_processes_that_pulse_are_charged_for_what_they_hold() {
    pulses(4);
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
    tenant.0.send(7, &Request::Measure { lane: Lane(0) }).expect("sent");
    let reply: Reply = reply_within_patience(&tenant);
    assert!(matches!(reply, Reply::Measured { used: Some(_), .. }), "{reply:?}");
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
