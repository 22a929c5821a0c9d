//! Credit against a minimal ledger of the daemon.

use super::*;
use gpuslice_wire::units::GIB;
use std::sync::Mutex;

/// A minimal ledger of the daemon for one cap.
struct Ledger {
    cap: u64,
    reserved: u64,
}

impl Ledger {
    fn reserve(&mut self, need: u64, wish: u64) -> CreditReply {
        let left = self.cap - self.reserved;
        if need > left {
            return CreditReply::Refused;
        }
        let granted = wish.min(left);
        self.reserved += granted;
        CreditReply::Granted(granted)
    }
}

fn reserve(account: &CreditAccount, ledger: &Mutex<Ledger>, bytes: u64, chunk: u64) -> bool {
    if account.take(bytes).is_some() {
        return true;
    }
    let mut ledger = ledger.lock().expect("no panic under it");
    account.take_or_request(bytes, chunk, chunk.is_multiple_of(2), |asked| {
        ledger.reserved -= asked.returned;
        ledger.reserve(asked.need, asked.wish)
    }) == TakeOutcome::Taken
}

fn release(account: &CreditAccount, ledger: &Mutex<Ledger>, bytes: u64, chunk: u64) {
    if let CreditSource::Common { left, .. } = account.put(bytes)
        && CreditAccount::has_surplus(left, chunk)
    {
        let mut ledger = ledger.lock().expect("no panic under it");
        ledger.reserved -= account.take_surplus(chunk);
    }
}

#[test]
fn the_last_byte_under_the_cap_can_be_had() {
    let (account, ledger) =
        (CreditAccount::default(), Mutex::new(Ledger { cap: 100, reserved: 0 }));
    assert!(reserve(&account, &ledger, 60, 30));
    assert!(reserve(&account, &ledger, 40, 30), "credit of 30 and 10 left make 40");
    assert!(!reserve(&account, &ledger, 1, 30));
    assert_eq!((account.held(), account.credit()), (100, 0));
}

/// The daemon may have received the return that precedes a request.
#[test]
fn returned_credit_is_never_counted_again() {
    let account = CreditAccount::default();
    let _ = account.take_or_request(10, 5, true, |asked| CreditReply::Granted(asked.wish));
    assert_eq!((account.granted(), account.credit()), (15, 5));
    let gone = account.take_or_request(10, 5, true, |asked| {
        assert_eq!(asked.returned, 5);
        CreditReply::Gone
    });
    assert_eq!(gone, TakeOutcome::Gone);
    assert_eq!((account.granted(), account.credit()), (10, 0));
}

#[test]
fn a_daemon_that_is_away_loses_no_credit() {
    let account = CreditAccount::default();
    assert_eq!(
        account.take_or_request(10, 5, false, |_| CreditReply::Granted(15)),
        TakeOutcome::Taken
    );
    assert_eq!(account.take_or_request(10, 5, false, |_| CreditReply::Gone), TakeOutcome::Gone);
    assert_eq!(
        account.take_or_request(10, 5, false, |_| CreditReply::Granted(1)),
        TakeOutcome::Refused
    );
    assert_eq!((account.granted(), account.credit()), (16, 6));
}

/// A process that is alone keeps what it frees, and takes it out of its account for the next request.
#[test]
fn freed_memory_is_not_held_while_a_request_waits_for_its_answer() {
    let account = CreditAccount::default();
    for (siblings, reply) in [
        (false, CreditReply::Refused),
        (true, CreditReply::Refused),
        (false, CreditReply::Gone),
        (false, CreditReply::Granted(400 * MIB)),
    ] {
        let _ = account.take_or_request(300 * MIB, 0, false, |_| CreditReply::Granted(300 * MIB));
        account.put(200 * MIB);
        let _ = account.take_or_request(400 * MIB, 0, siblings, |_| {
            assert_eq!(account.held(), 100 * MIB);
            reply
        });
        let held = if let CreditReply::Granted(_) = reply { 500 } else { 100 };
        assert_eq!(account.held(), held * MIB, "{siblings} {reply:?}");
        account.put(held * MIB);
        let _ = account.take_all();
    }
    assert_eq!((account.granted(), account.held()), (0, 0));
}

/// A reader that comes in the middle of a change sees the end of it.
#[test]
fn a_reader_never_sees_half_of_a_change() {
    let account = CreditAccount::default();
    let _ = account.take_or_request(7 * MIB, 0, false, |_| CreditReply::Granted(7 * MIB));
    for _ in 0..100 {
        let comes = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let reader = || {
                comes.wait();
                account.held()
            };
            let reader = account.change_both(|| {
                account.granted.fetch_add(GIB, Ordering::Relaxed);
                let reader = scope.spawn(reader);
                comes.wait();
                account.common.add(GIB);
                reader
            });
            assert_eq!(reader.join().expect("it reads"), 7 * MIB);
        });
        assert_eq!(account.take_all(), GIB);
    }
}

#[test]
fn small_amounts_stay_in_the_thread_s_cache() {
    let account = CreditAccount::default();
    let granted = account.take_or_request(4096, CHUNK_MIN, false, |asked| {
        assert_eq!((asked.need, asked.wish), (4096, 4096 + CHUNK_MIN));
        CreditReply::Granted(asked.wish)
    });
    assert_eq!(granted, TakeOutcome::Taken);
    let common = |left, first| CreditSource::Common { left, first };
    assert_eq!(account.take(4096), Some(common(CHUNK_MIN - 4096 - REFILL_BYTES, true)));
    let look = account.look();
    assert!(account.publication_ends(&look));
    for _ in 0..100 {
        assert_eq!(account.take(4096), Some(CreditSource::ThreadCache));
        assert_eq!(account.put(4096), CreditSource::ThreadCache);
    }
    assert_eq!(
        (account.held(), account.credit()),
        (8192, CHUNK_MIN - 4096),
        "common credit and caches together"
    );
    // Large ones pass the cache by, and an overfull cache keeps a refill.
    assert_eq!(account.take(MIB), Some(common(MIB - 4096 - REFILL_BYTES, true)));
    assert_eq!(account.put(MIB), common(CHUNK_MIN - 4096 - REFILL_BYTES, false));
    assert_eq!(account.put(REFILL_BYTES), CreditSource::ThreadCache);
    assert_eq!(account.put(4096), common(CHUNK_MIN, false));
    assert_eq!(
        account.caches[thread_index() % THREAD_CACHES].0.load(Ordering::Relaxed),
        REFILL_BYTES
    );
}

#[test]
fn thread_caches_are_collected_before_the_daemon_is_asked() {
    let account = CreditAccount::default();
    let _ = account.take_or_request(MIB, 0, false, |asked| CreditReply::Granted(asked.need));
    for cache in &account.caches {
        assert!(cache.add(THREAD_CACHE_BYTES) && !cache.add(1));
    }
    assert_eq!(account.held(), 0);
    assert_eq!(account.take(MIB), None);
    let no_request = |_: CreditRequest| -> CreditReply { panic!("credit was enough") };
    assert_eq!(account.take_or_request(MIB, 0, true, no_request), TakeOutcome::Taken);
    assert_eq!(account.credit(), 0);
}

/// One thread publishes for all that change the credit until it ends.
#[test]
fn a_change_is_published_by_one_thread() {
    let account = CreditAccount::default();
    let first = |source| matches!(source, CreditSource::Common { first: true, .. });
    let _ = account.take_or_request(8 * MIB, 0, false, |asked| CreditReply::Granted(asked.need));
    assert!(first(account.put(4 * MIB)));
    let look = account.look();
    assert!(!first(account.put(MIB)));
    assert!(!account.another_publishes(), "it takes too long");
    assert!(!account.publication_ends(&look), "less is held than it saw");
    let again = account.look();
    assert_eq!((look.held, again.held), (4 * MIB, 3 * MIB));
    // A grant that leaves the common credit unchanged changes the held memory.
    account.put_back(GIB, 0);
    assert!(!account.publication_ends(&again));
    let last = account.look();
    assert_eq!(last.held, GIB + 3 * MIB);
    assert!(account.publication_ends(&last) && account.another_publishes());
    // A thread that publishes in its place ends it, and the next change is the first one again.
    assert!(account.publication_ends(&last));
    assert!(account.take(MIB).is_some_and(first));
    assert!(!account.publication_ends(&last), "that was before this change");
    assert_eq!(account.take_all(), 4 * MIB);
    assert!(account.publication_ends(&account.look()));
    assert!(first(account.put(MIB)));
}

/// Of absurd sizes too.
#[test]
fn all_credit_that_is_put_back_is_there() {
    let account = CreditAccount::default();
    let most = |asked: CreditRequest| CreditReply::Granted(asked.wish);
    assert_eq!(account.take_or_request(BYTES_MAX, 32 * MIB, false, most), TakeOutcome::Taken);
    account.put(BYTES_MAX);
    assert_eq!((account.held(), account.take_all()), (0, BYTES_MAX + 32 * MIB));
}

/// Threads change the credit and publish as they are told, one more publishes unasked: the last number written is the
/// held memory.
#[test]
fn the_last_number_published_is_the_held_memory() {
    for _ in 0..50 {
        let (account, written) = (CreditAccount::default(), AtomicU64::new(0));
        let publish = || {
            loop {
                let look = account.look();
                written.store(look.held, Ordering::Relaxed);
                if account.publication_ends(&look) {
                    return;
                }
            }
        };
        let publish_change = |source| {
            let CreditSource::Common { first, .. } = source else { panic!("{source:?}") };
            if first || !account.another_publishes() {
                publish();
            }
        };
        let _ = account.take_or_request(GIB, 0, false, |asked| CreditReply::Granted(asked.need));
        std::thread::scope(|scope| {
            for thread in 1..5 {
                let (account, publish_change) = (&account, &publish_change);
                scope.spawn(move || {
                    for _ in 0..500 {
                        publish_change(account.put(thread * MIB));
                        account.take(thread * MIB).into_iter().for_each(publish_change);
                    }
                    publish_change(account.put(thread * MIB));
                });
            }
            scope.spawn(|| (0..500).for_each(|_| publish()));
        });
        assert_eq!(written.into_inner(), account.held());
        assert_eq!(account.held(), GIB - 10 * MIB);
    }
}

#[test]
fn a_recall_takes_all_credit() {
    let account = CreditAccount::default();
    assert_eq!(account.take_all(), 0);
    let _ = account.take_or_request(5 * MIB, MIB, false, |asked| CreditReply::Granted(asked.wish));
    assert_eq!(account.put(4096), CreditSource::ThreadCache);
    assert_eq!(account.take_all(), MIB + 4096);
    assert_eq!(
        (account.granted(), account.held(), account.credit()),
        (5 * MIB - 4096, 5 * MIB - 4096, 0)
    );
    assert_eq!(account.take(1), None);
}

#[test]
fn chunks_have_bounds() {
    for (cap, expect) in [(0, 2 * MIB), (1 << 30, 8 * MIB), (u64::MAX, 32 * MIB)] {
        assert_eq!(chunk(cap), expect);
    }
}

/// Two processes of four threads each take and return random sizes against one ledger, while their
/// credit is recalled repeatedly: the cap holds at every step, and in the end no byte is missing.
#[test]
fn racing_accounts_never_exceed_the_cap() {
    const CAP: u64 = 40 * MIB;
    const CHUNK: u64 = CHUNK_MIN;
    let ledger = Mutex::new(Ledger { cap: CAP, reserved: 0 });
    let in_use = AtomicU64::new(0);
    let accounts = [CreditAccount::default(), CreditAccount::default()];
    std::thread::scope(|scope| {
        for seed in 0..8u64 {
            let (ledger, in_use, account) = (&ledger, &in_use, &accounts[seed as usize % 2]);
            scope.spawn(move || {
                let (mut random, mut mine) = (seed * 2 + 1, Vec::new());
                for _ in 0..20_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let bytes = ((random >> 33) % 1500 + 1) << (random >> 50 & 12);
                    if random >> 63 == 0 && reserve(account, ledger, bytes, CHUNK) {
                        let now = in_use.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(now <= CAP, "{now} in use");
                        mine.push(bytes);
                    } else if let Some(bytes) = mine.pop() {
                        in_use.fetch_sub(bytes, Ordering::SeqCst);
                        release(account, ledger, bytes, CHUNK);
                    }
                }
                for bytes in mine {
                    in_use.fetch_sub(bytes, Ordering::SeqCst);
                    release(account, ledger, bytes, CHUNK);
                }
            });
        }
        for account in &accounts {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let mut ledger = ledger.lock().expect("no panic under it");
                    ledger.reserved -= account.take_all();
                    drop(ledger);
                    std::thread::yield_now();
                }
            });
        }
    });
    let granted: u64 = accounts.iter().map(CreditAccount::granted).sum();
    assert_eq!(ledger.lock().expect("threads are gone").reserved, granted);
    assert!(accounts.iter().all(|a| a.held() == 0 && a.credit() <= 2 * CHUNK));
}
