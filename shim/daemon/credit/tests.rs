//! Credit against a minimal ledger of the daemon.

use super::*;
use gpuslice_wire::units::GIB;
use gpuslice_wire::usage::slot_bytes;
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
    if account.put(bytes).is_some_and(|(credit, _)| CreditAccount::has_surplus(credit, chunk)) {
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
        let _ = account.put(200 * MIB);
        let _ = account.take_or_request(400 * MIB, 0, siblings, |_| {
            assert_eq!(account.held(), 100 * MIB);
            reply
        });
        let held = if let CreditReply::Granted(_) = reply { 500 } else { 100 };
        assert_eq!(account.held(), held * MIB, "{siblings} {reply:?}");
        let _ = account.put(held * MIB);
        let _ = account.take_all();
    }
    assert_eq!((account.granted(), account.held()), (0, 0));
}

#[test]
fn small_amounts_stay_in_the_thread_s_cache() {
    let account = CreditAccount::default();
    let granted = account.take_or_request(4096, CHUNK_MIN, false, |asked| {
        assert_eq!((asked.need, asked.wish), (4096, 4096 + CHUNK_MIN));
        CreditReply::Granted(asked.wish)
    });
    assert_eq!(granted, TakeOutcome::Taken);
    assert!(matches!(account.take(4096), Some(Publish::Yes(_))));
    assert_eq!(account.balance.credit(), CHUNK_MIN - 4096 - REFILL_BYTES);
    for _ in 0..100 {
        assert_eq!(account.take(4096), Some(Publish::No));
        assert_eq!((account.put(4096), account.balance.held()), (None, 8192 + REFILL_BYTES));
    }
    assert_eq!(
        (account.held(), account.credit()),
        (8192, CHUNK_MIN - 4096),
        "common credit and caches together"
    );
    // Large ones pass the cache by, and an overfull cache keeps a refill.
    assert!(matches!(account.take(MIB), Some(Publish::Yes(_))));
    assert_eq!(account.balance.credit(), MIB - 4096 - REFILL_BYTES);
    let put = |bytes| account.put(bytes).map(|(credit, _)| credit);
    assert_eq!(put(MIB), Some(CHUNK_MIN - 4096 - REFILL_BYTES));
    assert_eq!(put(REFILL_BYTES), None);
    assert_eq!(put(4096), Some(CHUNK_MIN));
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
    assert_eq!((account.held(), account.take(MIB)), (0, None));
    let no_request = |_: CreditRequest| -> CreditReply { panic!("credit was enough") };
    assert_eq!(account.take_or_request(MIB, 0, true, no_request), TakeOutcome::Taken);
    assert_eq!(account.credit(), 0);
}

/// An account without a cap is granted whatever is asked for.
#[test]
fn what_does_not_fit_into_the_word_is_refused() {
    let account = CreditAccount::default();
    let take = |bytes| account.take_or_request(bytes, 0, false, |it| CreditReply::Granted(it.need));
    assert_eq!(take(GIB), TakeOutcome::Taken);
    let taken = (0..4).filter(|_| take(BYTES_MAX) == TakeOutcome::Taken).count();
    assert_eq!((taken, account.held()), (1, BYTES_MAX + GIB));
    let _ = account.put(BYTES_MAX);
    assert_eq!((account.held(), account.credit()), (GIB, BYTES_MAX));
    assert_eq!(account.take_all(), BYTES_MAX);
    assert_eq!((take(SLOT_BYTES - GIB + 1), account.held()), (TakeOutcome::Refused, GIB));
    assert_eq!((take(SLOT_BYTES - GIB), account.held()), (TakeOutcome::Taken, SLOT_BYTES));
}

/// Of absurd sizes too.
#[test]
fn all_credit_that_is_put_back_is_there() {
    let account = CreditAccount::default();
    let most = |asked: CreditRequest| CreditReply::Granted(asked.wish);
    assert_eq!(account.take_or_request(BYTES_MAX, 32 * MIB, false, most), TakeOutcome::Taken);
    let _ = account.put(BYTES_MAX);
    assert_eq!((account.held(), account.take_all()), (0, BYTES_MAX + 32 * MIB));
}

/// Threads change the credit and publish, one more publishes all the time: after each change the copy is at least as
/// new as that, and the last one has the held bytes.
#[test]
fn the_last_number_published_is_the_held_memory() {
    for _ in 0..50 {
        let (account, copy) = (CreditAccount::default(), AtomicU64::new(0));
        let (account, copy) = (&account, &copy);
        let _ = account.take_or_request(GIB, 0, false, |asked| CreditReply::Granted(asked.need));
        std::thread::scope(|scope| {
            for thread in 1..5 {
                scope.spawn(move || {
                    let put = || {
                        let (_, change) = account.put(thread * MIB).expect("it is in no cache");
                        account.publish_change(copy, change);
                    };
                    for _ in 0..500 {
                        put();
                        let Some(Publish::Yes(change)) = account.take(thread * MIB) else {
                            panic!("it was put back");
                        };
                        account.publish_change(copy, change);
                    }
                    put();
                });
            }
            scope.spawn(|| (0..500).for_each(|_| account.publish(copy)));
        });
        let published = slot_bytes(copy.load(Ordering::SeqCst));
        assert_eq!((published, account.held()), (GIB - 10 * MIB, GIB - 10 * MIB));
    }
}

/// A number that another process writes into the copy lasts until the next publication, also with the version of a
/// later change.
#[test]
fn a_copy_is_mended() {
    let (account, copy) = (CreditAccount::default(), AtomicU64::new(0));
    let _ = account.take_or_request(8 * MIB, 0, false, |asked| CreditReply::Granted(asked.need));
    for nonsense in [0, 1, u64::MAX, SLOT_BYTES, !SLOT_BYTES] {
        copy.store(nonsense, Ordering::SeqCst);
        account.publish(&copy);
        assert_eq!(slot_bytes(copy.load(Ordering::SeqCst)), 8 * MIB);
        copy.store(nonsense, Ordering::SeqCst);
        let (_, change) = account.put(MIB).expect("it is in no cache");
        account.publish_change(&copy, change);
        assert_eq!(slot_bytes(copy.load(Ordering::SeqCst)), 7 * MIB);
        assert!(matches!(account.take(MIB), Some(Publish::Yes(_))));
    }
}

/// The first of two changes is published after the second one.
#[test]
fn an_older_change_does_not_replace_a_newer_one() {
    let (account, copy) = (CreditAccount::default(), AtomicU64::new(0));
    let _ = account.take_or_request(8 * MIB, 0, false, |asked| CreditReply::Granted(asked.need));
    account.publish(&copy);
    let changes = [2, 3].map(|mib| account.put(mib * MIB).expect("it is in no cache").1);
    for change in changes.into_iter().rev() {
        account.publish_change(&copy, change);
        assert_eq!(slot_bytes(copy.load(Ordering::SeqCst)), 3 * MIB);
    }
}

/// The version begins anew after as many changes as it has room for.
#[test]
fn versions_end() {
    let account = CreditAccount::default();
    let _ = account.take_or_request(MIB, 0, false, |_| CreditReply::Granted(2 * MIB));
    let first = account.balance.held.load(Ordering::SeqCst);
    let all = u64::MAX / (SLOT_BYTES + 1) + 1;
    for _ in 0..all / 2 {
        assert!(matches!(account.put(MIB), Some((credit, _)) if credit == 2 * MIB));
        assert!(matches!(account.take(MIB), Some(Publish::Yes(_))));
    }
    assert_eq!((account.held(), account.balance.held.load(Ordering::SeqCst)), (MIB, first));
}

/// A thread takes credit that it has seen before another one's request, in which that credit was taken out. loom does
/// not come upon this order of steps.
#[test]
fn credit_that_was_seen_before_a_request() {
    const ROUNDS: u64 = 50_000;
    let (balance, round) = (Balance::default(), AtomicU64::new(0));
    let (balance, round) = (&balance, &round);
    let meet = |number: u64| {
        round.fetch_add(1, Ordering::SeqCst);
        for looks in 1_u64.. {
            if round.load(Ordering::SeqCst) >= 2 * number {
                return;
            }
            if looks.is_multiple_of(1_000) {
                std::thread::yield_now();
            }
        }
    };
    let pause = |number: u64, most: u64| {
        let steps = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (0..steps % most).for_each(|_| std::hint::spin_loop());
    };
    balance.raise(100, 50);
    let mut most = 0;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 1..=ROUNDS {
                meet(2 * number - 1);
                pause(number, 5);
                let taken = balance.take(|credit| (credit >= 20).then_some(20));
                meet(2 * number);
                let _ = balance.put(taken.map_or(0, |(bytes, _)| bytes));
            }
        });
        for number in 1..=ROUNDS {
            meet(2 * number - 1);
            pause(number, 7);
            let kept = balance.lower(|credit| credit);
            balance.raise(kept + 5, kept + 5);
            meet(2 * number);
            most = most.max(balance.held());
            let _ = balance.put(kept + 5);
            while balance.lower(|credit| credit.min(5)) < 5 {}
        }
    });
    assert!(most <= 105, "{most} held");
}

#[test]
fn a_recall_takes_all_credit() {
    let account = CreditAccount::default();
    assert_eq!(account.take_all(), 0);
    let _ = account.take_or_request(5 * MIB, MIB, false, |asked| CreditReply::Granted(asked.wish));
    assert_eq!(account.put(4096), None);
    assert_eq!(account.take_all(), MIB + 4096);
    assert_eq!(
        (account.granted(), account.held(), account.credit()),
        (5 * MIB - 4096, 5 * MIB - 4096, 0)
    );
    assert_eq!(account.take(1), None);
}

/// Another thread takes the credit between the two looks at the bytes held.
#[test]
fn credit_that_is_in_use_is_not_returned() {
    let balance = Balance::default();
    balance.raise(20, 0);
    let taken = |credit| {
        let _ = balance.take(|left| (left > 0).then_some(left));
        credit
    };
    assert_eq!((balance.lower(taken), balance.granted(), balance.held()), (0, 20, 20));
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

#[test]
fn each_thread_has_an_index_of_its_own() {
    let here = thread_index();
    assert_eq!(thread_index(), here);
    let there = std::thread::spawn(|| (thread_index(), thread_index())).join().expect("it ends");
    assert!(there.0 == there.1 && there.0 != here, "{there:?} and {here}");
}

/// An account with `common` credit and `cached` in the calling thread's cache.
fn with_credit(common: u64, cached: u64) -> CreditAccount {
    let account = CreditAccount::default();
    account.balance.raise(common + cached, cached);
    assert!(account.cache().add(cached));
    account
}

/// A cache gives and takes as much as it holds.
#[test]
fn a_whole_cache_passes_no_credit_on() {
    let account = with_credit(0, THREAD_CACHE_BYTES);
    assert_eq!(account.take(THREAD_CACHE_BYTES), Some(Publish::No));
    assert_eq!((account.put(THREAD_CACHE_BYTES), account.cached()), (None, THREAD_CACHE_BYTES));
}

/// A refill is taken where the common credit has all of it, and put back where another thread has filled the cache.
#[test]
fn a_refill_is_whole_and_fits() {
    for (common, refilled) in [(REFILL_BYTES, REFILL_BYTES), (REFILL_BYTES - 1, 0)] {
        let account = with_credit(common + 8, 0);
        assert!(matches!(account.take(8), Some(Publish::Yes(_))));
        assert_eq!((account.cached(), account.credit(), account.held()), (refilled, common, 8));
    }
    let account = with_credit(MIB, THREAD_CACHE_BYTES);
    assert!(account.take_common(account.cache(), 8).is_some());
    assert_eq!((account.cached(), account.balance.credit()), (THREAD_CACHE_BYTES, MIB - 8));
}

/// What does not fit into a cache takes the cache's excess over a refill along, unless it is large itself.
#[test]
fn only_small_amounts_spill_a_cache() {
    let rows = [
        (8, THREAD_CACHE_BYTES, REFILL_BYTES),
        (8, REFILL_BYTES / 2, REFILL_BYTES / 2),
        (REFILL_BYTES + 8, THREAD_CACHE_BYTES, THREAD_CACHE_BYTES),
    ];
    for (bytes, cached, left) in rows {
        let account = with_credit(MIB, cached);
        let _ = account.take_large(bytes).expect("credit");
        let (common, _) = account.put_uncached(account.cache(), bytes);
        assert_eq!((account.cached(), common), (left, MIB + cached - left), "{bytes} and {cached}");
    }
}

/// Another thread puts back what it has while the daemon refuses.
#[test]
fn credit_that_comes_back_during_a_refusal_counts() {
    for (bytes, outcome) in [(2 * MIB, TakeOutcome::Taken), (2 * MIB + 1, TakeOutcome::Refused)] {
        let account = with_credit(3 * MIB, 0);
        let _ = account.take(2 * MIB).expect("credit");
        let refused = |asked: CreditRequest| {
            assert_eq!((asked.returned, asked.need), (MIB, bytes));
            let _ = account.put(2 * MIB);
            CreditReply::Refused
        };
        assert_eq!(account.take_or_request(bytes, 0, true, refused), outcome);
    }
}

/// With full caches a process keeps two chunks.
#[test]
fn what_exceeds_two_chunks_is_surplus() {
    let (chunk, full) = (CHUNK_MAX, THREAD_CACHES as u64 * THREAD_CACHE_BYTES);
    let surplus =
        [2 * chunk - full, 2 * chunk - full + 1].map(|it| CreditAccount::has_surplus(it, chunk));
    assert_eq!(surplus, [false, true]);
}
