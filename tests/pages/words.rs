//! The word of the fast path while turns begin.

use crate::atomic::Ordering::Relaxed;
use crate::atomic::{AtomicU32, Fence};
use crate::in_every_order;
use crate::word::{self, CLOSED, METERED, OPEN};
use loom::sync::Arc;
use loom::thread;

struct Shared {
    word: AtomicU32,
    gated: AtomicU32,
}

fn shared(word: u32, gated: u32) -> Arc<Shared> {
    let new = |value| AtomicU32::new(value, Fence::BehindStores);
    Arc::new(Shared { word: new(word), gated: new(gated) })
}

/// Turns begin and the gate thread looks, while two launches open the word: it is not left open.
#[test]
fn the_word_is_not_left_open_under_turns() {
    for before in [CLOSED, OPEN, METERED] {
        in_every_order(2, move || {
            let it = shared(before, 0);
            let launches = [0, 1].map(|_| {
                let it = Arc::clone(&it);
                thread::spawn(move || word::open(&it.word, &it.gated))
            });
            it.gated.store(1, Relaxed);
            assert_eq!(word::close_for_turns(&it.word, &it.gated), 1);
            launches.into_iter().for_each(|it| it.join().expect("a launch"));
            assert_eq!(it.word.load(Relaxed), before & METERED);
        });
    }
}

/// Under turns no launch opens the word, not even for a moment.
#[test]
fn the_word_is_never_open_under_turns() {
    in_every_order(3, || {
        let it = shared(CLOSED, 1);
        let launch = {
            let it = Arc::clone(&it);
            thread::spawn(move || word::open(&it.word, &it.gated))
        };
        assert!(!word::is_open(&it.word));
        launch.join().expect("a launch");
    });
}

/// Without turns a launch opens the word, and the gate thread's look leaves it open.
#[test]
fn the_word_is_open_without_turns() {
    in_every_order(3, || {
        for (before, open_to_graphs) in [(CLOSED, true), (METERED, false)] {
            let it = shared(before, 0);
            assert!(!word::is_open(&it.word) && !word::is_open_to_graphs(&it.word));
            word::open(&it.word, &it.gated);
            assert_eq!(word::close_for_turns(&it.word, &it.gated), 0);
            assert!(word::is_open(&it.word));
            assert_eq!(word::is_open_to_graphs(&it.word), open_to_graphs);
            word::close(&it.word);
            assert_eq!(it.word.load(Relaxed), before);
        }
    });
}
