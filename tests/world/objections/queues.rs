//! Stories about shares beside containers without one.

use gpuslice_engine::TimeChange;
use gpuslice_wire::policy::Change;

use super::*;

/// Container 0 has a share of a half and keeps its turn, which is extended every `ms`; container 1 waits.
fn keeps(ms: u64) -> Result<(), Objection> {
    let mut story = Story::of(&[(1, 50, Class::Normal), (1, 0, Class::Normal)]);
    story.says(0, runnable(0, 0), &[turn(0, 1, ms * MS)])?;
    story.says(1, runnable(0, 0), &[])?;
    for _ in 0..3 {
        let end = story.now + 2 * ms * MS;
        story.then(ms * MS, &[turn(0, 1, end)])?;
    }
    Ok(())
}

#[test]
fn to_a_waiter_left_behind_by_a_share() {
    objects(keeps(10), "waits while");
}

/// Container 0, of `class`, has a long turn; container 1, with a share of 43, is runnable. In the middle of
/// that turn container 0 changes to the normal class. After it container 2 has a long turn, and then
/// container 1 none yet.
fn comes_into_the_class(class: Class) -> Result<(), Objection> {
    let others = [(1, 43, Class::Normal), (1, 0, Class::Normal)];
    let mut story = Story::of(&[&[(1, 0, class)], &others[..]].concat());
    story.says(0, runnable(0, 0), &[turn(0, 1, 0)])?;
    story.says(1, runnable(0, 0), &[])?;
    let Action::Admitted { token, record } = admitted(0, 1, 0, Class::Normal) else {
        unreachable!("it is what it makes");
    };
    let (weight, share) = (Change::Keep, Change::Keep);
    let was = TimeChange { weight, share, share_limit: Change::Keep, class: Some(class) };
    story.then(20 * MS, &[Action::Retuned { token, record, was }])?;
    story.long()?;
    story.then(0, &[turn(0, 2, 0)])?;
    story.says(2, runnable(0, 0), &[])?;
    story.says(0, runnable(1, 1), &[turn(2, 1, 0)])?;
    story.long()
}

impl Story {
    /// 400 ms pass, in steps: the daemon is always alive.
    fn long(&mut self) -> Result<(), Objection> {
        (0..4).try_for_each(|_| self.then(100 * MS, &[]))
    }
}

#[test]
fn to_a_share_that_waits_for_two_turns_of_its_own_class() {
    assert_eq!(comes_into_the_class(Class::High), Ok(()));
    objects(comes_into_the_class(Class::Normal), "has a share of 43");
}

/// Container 0 has a share of a quarter, and `limit`. It waits, while container 1 keeps its turn, which is extended
/// `times` after 10 ms.
fn waits_for_its_share(limit: u32, times: u32) -> Result<(), Objection> {
    let both = [limited(0, 0, 25, limit), limited(1, 1, 0, 0)];
    let mut story = Story::admits(Config::default(), both.into_iter());
    story.says(1, runnable(0, 0), &[turn(1, 1, 10 * MS)])?;
    story.says(0, runnable(0, 0), &[])?;
    (0..times).try_for_each(|_| {
        let end = story.now + 20 * MS;
        story.then(10 * MS, &[turn(1, 1, end)])
    })
}

/// It may be owed its part of the other one's turn and of a round, 2.5 and 4 ms, and 2 ms.
#[test]
fn to_a_share_that_waits_for_more_than_its_part_of_a_round() {
    for limit in [0, 50] {
        assert_eq!(waits_for_its_share(limit, 3), Ok(()));
        objects(waits_for_its_share(limit, 4), "has a share of 25 and is owed 10000000 ns");
    }
}

/// The second container has `times` 20 ms of untracked work in flight as turns begin, none of which it
/// waited for in a queue, and turns end in between. Then both are runnable, and the first one has the GPU
/// for `ms`.
fn after_untracked_work(times: u32, ms: u64) -> Result<(), Objection> {
    let mut story = Story::of(&[(1, 0, Class::Normal), (1, 0, Class::Normal)]);
    let both = |mode, word| [0, 1].map(|n| page(n, mode, word, 0, 0));
    let idle = |active, drained| Claims { runnable: false, ..runnable(active, drained) };
    let busy = u32::MAX;
    story.says(1, runnable(0, busy), &both(Mode::Open, 0))?;
    for time in 0..times {
        let word = 2 * time;
        story.says(0, runnable(word, word), &both(Mode::Turns, word + 2))?;
        story.says(0, idle(word, word), &[])?;
        story.says(1, idle(word, busy), &[])?;
        story.then(20 * MS, &[])?;
        if time + 1 < times {
            story.then(0, &both(Mode::Open, word + 2))?;
        }
    }
    let word = 2 * times;
    story.says(0, runnable(word, word), &[])?;
    let begins = [turn(0, word + 1, story.now + MS)];
    story.says(1, runnable(word, word), &begins)?;
    (0..ms).try_for_each(|_| {
        let end = story.now + 2 * MS;
        story.then(MS, &[turn(0, word + 1, end)])
    })
}

#[test]
fn to_untracked_work_that_is_paid_twice() {
    for times in 1..4 {
        let owes = 20 * u64::from(times);
        assert_eq!(after_untracked_work(times, owes), Ok(()), "{times}");
        objects(after_untracked_work(times, owes + 10), "drift");
    }
}

/// Container `n` with these settings, 0 for none.
fn limited(n: usize, weight: u32, share: u32, limit: u32) -> Action {
    let Action::Admitted { token, mut record } = admitted(n, 1, share, Class::Normal) else {
        unreachable!("it is what it makes");
    };
    record.weight = Weight::new(weight).ok();
    record.share_limit = Percent::new(limit).ok();
    Action::Admitted { token, record }
}

/// Both containers are runnable for two seconds, in turns of so many ms each.
fn in_turns(who: [Action; 2], each: [u64; 2]) -> Result<(), Objection> {
    let mut story = Story::admits(Config::default(), who.into_iter());
    // turn words: odd while it has the turn
    let mut words = [1, 0];
    story.says(0, runnable(0, 0), &[turn(0, 1, each[0] * MS)])?;
    story.says(1, runnable(0, 0), &[])?;
    while story.now < 2_000 * MS {
        for (n, next) in [(0, 1), (1, 0)] {
            let word = words[n];
            words[n] += 1;
            story.then(each[n] * MS, &[turn(n, words[n], story.now)])?;
            words[next] += 1;
            let begins = turn(next, words[next], story.now + each[next] * MS);
            story.says(n, runnable(word, word), &[begins])?;
        }
    }
    Ok(())
}

#[test]
fn to_a_share_that_has_no_part_of_the_rest() {
    let both = |share| [limited(0, 1, share, 0), limited(1, 1, 0, 0)];
    assert_eq!(in_turns(both(50), [9, 3]), Ok(()));
    objects(in_turns(both(50), [6, 6]), "is due 75.00 %");
    objects(in_turns(both(50), [11, 1]), "is due 25.00 %");
}

/// The GPU drained for a container until that one was dismissed: the time was not lost by the engine.
#[test]
fn to_no_lead_of_a_dismissed_container() {
    let both = [limited(0, 1, 40, 0), limited(1, 1, 20, 0)];
    let mut story = Story::admits(Config::default(), both.into_iter());
    story.says(1, runnable(0, 0), &[turn(1, 1, MS)]).expect("fine");
    story.says(0, runnable(0, 0), &[]).expect("fine");
    story.then(MS, &[turn(1, 2, story.now + MS)]).expect("fine");
    let quiet = Claims { runnable: false, ..runnable(1, 0) };
    story.says(1, quiet, &[]).expect("fine");
    story.then(80 * MS, &[]).expect("fine");
    let gone = Action::Dismissed { token: Token(0), container: container(1), known: true };
    let begins = turn(0, 1, story.now + 8 * MS);
    assert_eq!(story.then(MS, &[gone, begins]), Ok(()));
    assert_eq!(story.then(MS, &[]), Ok(()));
}

#[test]
fn to_a_limit_that_leaves_time_to_the_wrong_container() {
    let alone = [limited(0, 0, 50, 0), limited(1, 3, 0, 10)];
    assert_eq!(in_turns(alone, [9, 1]), Ok(()));
    let both = [limited(0, 1, 20, 40), limited(1, 1, 0, 0)];
    assert_eq!(in_turns(both.clone(), [4, 6]), Ok(()));
    objects(in_turns(both, [6, 4]), "of cap 40/100 owes");
    let late = [limited(0, 1, 20, 0), limited(1, 1, 0, 70)];
    objects(in_turns(late, [4, 6]), "is due 60.00 %");
}

#[test]
fn to_a_container_above_its_limit() {
    let both = [limited(0, 1, 20, 40), limited(1, 1, 0, 60)];
    assert_eq!(in_turns(both.clone(), [4, 6]), Ok(()));
    objects(in_turns(both.clone(), [5, 5]), "of cap 40/100 owes");
    objects(in_turns(both, [3, 7]), "of cap 60/100 owes");
}
