//! A session against a daemon that the test plays.

use super::*;
use crate::daemon::fake::{Daemon, Fake, LANE, OTHER, Socket, rung, welcome};
use crate::daemon::golden::memfd;
use core::sync::atomic::AtomicBool;
use gpuslice_wire::units::{GIB, MIB};
use gpuslice_wire::usage::{NO_SLOT, slot_bytes};

#[test]
fn the_number_of_the_doorbell_stays_and_rings_for_the_new_daemon() {
    let fake = Fake::new();
    let number = fake.session.doorbell.get();
    fake.session.ring();
    assert_eq!(rung(&fake.doorbell), 1);
    let (again, _) = welcome();
    let fresh = again.doorbell.try_clone().expect("a descriptor");
    fake.session.take_over(again).expect("taken over");
    assert_eq!(fake.session.doorbell.get(), number);
    fake.session.ring();
    fake.session.ring();
    assert_eq!(rung(&fresh), 2);
}

/// The number of its slot may be another process's in the new daemon's table.
#[test]
fn a_thread_that_has_the_old_slot_writes_into_no_table() {
    let session = Fake::new().session;
    let table = || session.usage.get().expect("a table").table;
    let (before, old) = (table(), session.own.get());
    let (again, _) = welcome();
    session.take_over(again).expect("taken over");
    let (now, own) = (table(), session.own.get());
    old.expect("a slot").held[0].store(7, SeqCst);
    own.expect("a slot").held[0].store(5, SeqCst);
    assert!(!std::ptr::eq(before, now) && before.magic.load(SeqCst) == 0);
    assert_eq!(now.magic.load(SeqCst), USAGE_TABLE_MAGIC);
    now.slots.store(u32::MAX, SeqCst);
    assert_eq!(now.others(0, NO_SLOT), 5);
}

#[test]
fn a_child_closes_its_copy_of_the_doorbell() {
    let (session, doorbell) = (Fake::new().session, memfd(&[]));
    sys::tag(&doorbell);
    session.doorbell.set(doorbell.into_raw_fd());
    assert!(session.doorbell.get().is_some());
    session.close_in_child();
    assert_eq!(session.doorbell.get(), None);
}

/// If the application has closed the old one, the new one may have its number.
#[test]
fn a_doorbell_with_the_number_of_the_old_one_rings_for_the_new_daemon() {
    let session = Fake::new().session;
    let number = session.doorbell.get().expect("a doorbell");
    let (mut again, _) = welcome();
    let fresh = again.doorbell.try_clone().expect("a descriptor");
    sys::replace(&fresh, number).expect("the old one is closed");
    // SAFETY: the session has given the number to nothing that would close it.
    again.doorbell = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
    session.take_over(again).expect("taken over");
    assert_eq!(session.doorbell.get(), Some(number));
    session.ring();
    assert_eq!(rung(&fresh), 1);
}

#[test]
fn a_request_has_time_for_its_reply_and_a_failed_one_ends_the_connection() {
    let (session, before) = (Fake::new().session, sys::now());
    let left = session.request(|_, deadline| Ok(deadline.since(before).0));
    assert!(left >= Some(2 * HELLO_DEADLINE_NS), "{left:?}");
    let failed = session.request(|_, _| Err::<(), _>(std::io::ErrorKind::TimedOut.into()));
    assert_eq!(failed, None);
    assert_eq!(session.request(|_, _| Ok(())), None, "there is no connection");
}

#[test]
fn a_background_thread_learns_whether_there_is_a_connection() {
    let Fake { session, daemon, .. } = Fake::new();
    assert!(session.tend());
    let busy = session.lock();
    assert!(session.tend(), "a request is under way");
    drop((busy, daemon));
    assert!(!session.tend(), "nor is there a socket to attach to");
}

#[test]
fn a_connection_that_is_there_is_not_made_anew() {
    let Fake { session, daemon, .. } = Fake::new();
    assert!(session.reconnect());
    drop(daemon);
    assert!(!session.tend() && !session.reconnect(), "there is no socket");
    assert_eq!(session.generation(), 1);
}

/// On a busy machine an attempt may end before the answer.
#[test]
fn a_background_thread_attaches_to_a_restarted_daemon() {
    let socket = Socket::new(Daemon::attaches);
    let Fake { session, daemon, .. } = Fake::at(&socket.0);
    drop(daemon);
    assert!((0..60).any(|_| session.tend()));
    assert_eq!((session.generation(), session.request(|_, _| Ok(()))), (2, Some(())));
}

#[test]
fn a_heartbeat_is_stale_after_a_while() {
    let Fake { session, container, .. } = Fake::new();
    let beats = [0, sys::now().0 + 3_600_000_000_000].map(|beat| {
        container.heartbeat_ns.store(beat, SeqCst);
        session.is_stale()
    });
    assert_eq!(beats, [true, false]);
}

#[test]
fn each_lane_has_words_of_its_own() {
    let Fake { session, container, .. } = Fake::new();
    let family = Family::ALL[0];
    container.lane[1].cap.store(700, SeqCst);
    container.lane[1].reserved.store(300, SeqCst);
    container.untracked[1].store(20, SeqCst);
    session.unseen(OTHER, 5);
    session.hold(OTHER, family, 512);
    session.hold_contexts(OTHER, 3);
    let claims = |lane: Lane| {
        let families = &session.client.families[usize::from(lane.0)];
        let claimed = session.client.lane[usize::from(lane.0)].unseen.load(Relaxed);
        (claimed, families.bytes[0].load(Relaxed), families.contexts.load(Relaxed))
    };
    assert_eq!([LANE, OTHER].map(claims), [(0, 0, 0), (5, 512, 3)]);
    assert_eq!([LANE, OTHER].map(|lane| session.left(lane)), [GIB, 400]);
    assert_eq!([LANE, OTHER].map(|lane| session.used(lane)), [0, 20]);
    assert_eq!(session.unseen_of(LANE), 0);
    // A number from elsewhere is in bounds.
    assert_eq!(session.used(Lane(ACCOUNTS_MAX as u8 + 1)), 20);
}

/// Another thread may ask at any moment of it.
#[test]
fn own_memory_is_counted_once_while_the_process_attaches_again() {
    let Fake { session, daemon, .. } = Fake::new();
    daemon.grants(1, MIB);
    session.reserve(LANE, MIB).expect("granted").commit();
    let attached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                session.usage.get().expect("a table").table.slots.store(1, SeqCst);
                session.settle();
                session.take_over(welcome().0).expect("taken over");
            }
            attached.store(true, SeqCst);
        });
        while !attached.load(SeqCst) {
            assert_eq!(session.used(LANE), MIB);
        }
    });
}

/// The slice has two of these GPUs.
#[test]
fn a_gpu_is_known_by_both_halves_of_its_identity() {
    let Fake { session, container, .. } = Fake::new();
    for (lane, low) in container.lane.iter().zip([2, 3, 4]) {
        lane.uuid_high.store(1, SeqCst);
        lane.uuid_low.store(low, SeqCst);
    }
    let lanes = [(1, 2), (1, 3), (1, 4), (0, 2)].map(|(high, low): (u128, u128)| {
        session.lane_of(GpuUuid((high << 64 | low).to_be_bytes()))
    });
    assert_eq!((session.lanes(), lanes), (2, [Some(LANE), Some(OTHER), None, None]));
}

#[test]
fn each_change_of_the_held_memory_is_published() {
    let Fake { session, daemon, .. } = Fake::new();
    let slot = session.own.get().expect("a slot");
    let published = || slot_bytes(slot.held[0].load(SeqCst));
    daemon.grants(1, 9 * MIB);
    session.reserve(LANE, MIB).expect("granted").commit();
    assert_eq!(published(), MIB);
    let more = session.reserve(LANE, 2 * MIB).expect("credit");
    assert_eq!(published(), 3 * MIB);
    drop(more);
    assert_eq!(published(), MIB);
}

#[test]
fn held_memory_is_claimed_by_use() {
    let (session, family) = (Fake::new().session, Family::ALL[1]);
    session.hold_contexts(LANE, 3);
    session.hold(LANE, family, 4096);
    session.hold(LANE, family, -512);
    let claims = &session.client.families[0];
    assert_eq!(claims.contexts.load(Relaxed), 3);
    assert_eq!(claims.bytes[family as usize].load(Relaxed), 3584);
    let (again, _) = welcome();
    session.take_over(again).expect("taken over");
    assert_eq!(claims.contexts.load(Relaxed), 0, "a new page");
    session.settle();
    assert_eq!(claims.contexts.load(Relaxed), 3);
    assert_eq!(claims.bytes[family as usize].load(Relaxed), 3584);
}

/// A new daemon reads it as soon as it has the process again; one that only looks counts nothing.
#[test]
fn what_is_shared_is_claimed_also_to_a_new_daemon() {
    let session = Fake::new().session;
    let claimed = || session.client.shared.load(SeqCst);
    assert_eq!(claimed(), SHARES_NOTHING);
    session.share(1);
    session.share(1);
    session.share(-1);
    assert_eq!(claimed(), SHARES_NOTHING + 1);
    let (again, _) = welcome();
    session.take_over(again).expect("taken over");
    assert_eq!(claimed(), 0, "a new page");
    session.settle();
    assert_eq!(claimed(), SHARES_NOTHING + 1);
}

#[test]
fn a_lock_in_which_a_thread_ended_is_free() {
    let mutex = Mutex::new(3);
    std::thread::scope(|scope| {
        let ends = || {
            let _inside = mutex.lock();
            std::panic::resume_unwind(Box::new(()));
        };
        assert!(scope.spawn(ends).join().is_err());
    });
    assert_eq!(free(&mutex).as_deref(), Some(&3));
    let _inside = free(&mutex);
    assert!(free(&mutex).is_none());
}
