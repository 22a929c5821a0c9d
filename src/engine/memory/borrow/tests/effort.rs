//! What a step settles: the loans of the GPU on which something changed, and of no other.

use std::format;

use super::*;

const GPUS: u64 = 16;
/// On each GPU but the last, containers may borrow.
const LIMITED: u64 = GPUS - 1;

/// How often loans of each GPU were settled.
fn settled(rig: &Rig) -> Vec<u64> {
    rig.engine.gpus.iter().map(|gpu| gpu.lending.settled).collect()
}

/// The GPUs that these events settle, each once for each of the events that does.
fn settle(rig: &mut Rig, events: &[Event]) -> Vec<(usize, u64)> {
    let before = settled(rig);
    for event in events {
        rig.now += MS;
        rig.step(event.clone());
    }
    let more = settled(rig).into_iter().zip(before).map(|(now, before)| now - before);
    more.enumerate().filter(|(_, times)| *times > 0).collect()
}

/// 50 containers with limits on 15 of 16 GPUs, and one without on the last. A process in each.
fn node() -> (Rig, Vec<ClientId>) {
    let mut rig = Rig::new(Config::default(), &[64; GPUS as usize]);
    let mut clients = Vec::new();
    for who in 0..50 {
        let gpu = format!("{}", who % LIMITED);
        let memory_limit = Some(MemoryAsk::Exactly(Bytes(32 * GIB)));
        let name = format!("{who}");
        rig.admit(SliceRequest { memory_limit, ..ask(&name, &gpu, 8 * GIB) }).expect("fits");
        clients.push(rig.attach(&name, 0).expect("attaches"));
    }
    rig.admit(ask("alone", "15", 8 * GIB)).expect("fits");
    clients.push(rig.attach("alone", 0).expect("attaches"));
    (rig, clients)
}

/// What one process and NVML tell the daemon all day.
fn day(container: &str, client: ClientId) -> [Event; 7] {
    let (container, lane, token, bytes) = (id(container), Lane(0), Token(3), Bytes(GIB));
    let claims = Claims { runnable: true, active: 1, held: bytes, ..Claims::default() };
    [
        Event::Reserve { client, token, lane, need: bytes, wish: bytes },
        Event::Claims { client, lane, claims },
        Event::Release { client, lane, bytes },
        Event::Looking { container, lane },
        Event::Measured { client, lane, used: Bytes::ZERO, requested: false },
        Event::Looked { container, lane },
        Event::Tick,
    ]
}

#[test]
fn a_step_settles_the_gpu_on_which_something_changed() {
    let (mut rig, clients) = node();
    // Claims and the passing of time change no memory.
    assert_eq!(settle(&mut rig, &day("3", clients[3])), [(3, 5)]);
    assert_eq!(settle(&mut rig, &day("18", clients[18])), [(3, 5)]);
}

#[test]
fn a_container_on_a_gpu_without_limits_settles_none() {
    let (mut rig, clients) = node();
    let alone = *clients.last().expect("the last");
    assert_eq!(settle(&mut rig, &day("alone", alone)), []);
    let before = settled(&rig);
    let other = rig.attach("alone", 0).expect("attaches");
    rig.reserve(other, GIB, GIB);
    rig.step(Event::Left { client: other });
    rig.step(Event::Gone { client: other });
    assert_eq!(settled(&rig), before);
}

/// While a claim waits on one GPU, other GPUs are settled when its next step is due, and not in between.
#[test]
fn a_claim_costs_other_gpus_its_own_steps_alone() {
    let mut rig = Rig::new(Config::default(), &[16; GPUS as usize]);
    let mut attach = |ask: SliceRequest| {
        let name = ask.container;
        rig.admit(ask).expect("fits");
        rig.attach(name.as_str(), 0).expect("attaches")
    };
    let memory_limit = Some(MemoryAsk::Exactly(Bytes(16 * GIB)));
    let burst = attach(limited("burst", 4, 16));
    let web = attach(ask("web", "0", 12 * GIB));
    let other = attach(SliceRequest { memory_limit, ..ask("other", "1", 4 * GIB) });
    take(&mut rig, burst, 12);
    take(&mut rig, web, 6);
    let due = rig.engine.next_deadline().expect("the claim").0;
    let before = settled(&rig);
    let mut steps = 0;
    while rig.now + 2 * MS < due {
        rig.now += MS;
        take(&mut rig, other, 1);
        give(&mut rig, other, 1);
        steps += 2;
    }
    let times: Vec<u64> = settled(&rig).iter().zip(before).map(|(now, was)| now - was).collect();
    assert!(steps > 100, "{steps}");
    assert_eq!((times[0], times[1]), (0, steps));
}

/// A resume that waited begins in a step that changes no memory: its GPU is settled. `check` finds it otherwise.
#[test]
fn a_resume_that_begins_is_settled() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, web, 10);
    let (token, container) = (Token(9), id("web"));
    rig.step(Event::Suspend { token, container });
    pass(&mut rig, 3_000 * MS);
    moved(&mut rig, "web", true);
    take(&mut rig, burst, 14);
    assert_eq!(wanted(&rig.step(Event::EndSuspension { token, container }), "burst"), Some(8));
    give(&mut rig, burst, 8);
    let answer = Event::Stopped { container: id("burst"), lane: Lane(0), order: 0, ok: false };
    rig.step(answer);
    assert_eq!(state(&rig), Some(SuspensionState::Resuming));
}

/// What a container left on its GPU is no longer charged, and no account tells that.
#[test]
fn what_a_container_left_behind_is_free_again() {
    let (mut rig, _, web) = rig(Config { sees_devices: true, ..Config::default() });
    take(&mut rig, web, 12);
    rig.step(Event::Dismiss { token: Token(4), container: id("web") });
    assert_eq!(seen(&rig, "burst"), (16, 4));
    pass(&mut rig, 6_000 * MS);
    assert_eq!(seen(&rig, "burst"), (16, 16));
}
