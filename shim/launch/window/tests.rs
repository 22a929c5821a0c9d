//! The window at its edges, and its counters under random use.

use super::*;

const US: u64 = 1_000;
const TASK: Task = Task::launch(Key(1));

fn launch(in_flight: &mut InFlight, now: u64, stream_index: StreamIndex, ns: u64) -> bool {
    in_flight.enter(ns);
    in_flight.leave(ns);
    in_flight.launched(now, stream_index, TASK, Estimate::measured(ns), None)
}

#[test]
fn deep_in_the_middle_and_shallow_at_the_end() {
    let mut in_flight = InFlight::default();
    for _ in 0..40 {
        launch(&mut in_flight, 0, 0, 50 * US);
    }
    let (window, est) = (500 * US, 50 * US);
    assert_eq!(in_flight.admit(0, Estimate::measured(est), window, 10_000 * US), Admission::Go);
    assert!(matches!(
        in_flight.admit(0, Estimate::measured(est), window, 1_000 * US),
        Admission::Full(_)
    ));
    assert!(matches!(in_flight.admit(0, Estimate::measured(est), window, 0), Admission::Full(_)));
}

#[test]
fn a_kernel_longer_than_a_turn_goes_alone() {
    let mut in_flight = InFlight::default();
    let long = 1_000_000 * US;
    assert_eq!(in_flight.admit(0, Estimate::measured(long), 500 * US, 1_000 * US), Admission::Go);
    launch(&mut in_flight, 0, 0, long);
    assert!(matches!(
        in_flight.admit(1, Estimate::measured(US), 500 * US, 1_000 * US),
        Admission::Full(_)
    ));
}

/// Kernels that were never measured may last a thousand times as long as is guessed.
#[test]
fn guesses_fill_the_window_and_not_the_rest_of_the_turn() {
    let mut in_flight = InFlight::default();
    let guess = Estimate { ns: 100 * US, known: false, tried: true };
    let (window, left) = (500 * US, 20_000 * US);
    let mut admitted = 0;
    while in_flight.admit(0, guess, window, left) == Admission::Go {
        in_flight.launched(0, 0, TASK, guess, None);
        in_flight.fence(0, Event(1));
        admitted += 1;
    }
    assert_eq!(admitted, 5);
    assert_eq!(in_flight.admit(0, Estimate::measured(100 * US), window, left), Admission::Go);
    // one is measured, and another one may be
    in_flight.retire(0, |_| Some(Progress::Done)).expect("done");
    assert_eq!(in_flight.admit(0, guess, window, left), Admission::Go);
    // a guess that is larger than the window goes, but not beside another one
    let large = Estimate { ns: 9_000 * US, ..guess };
    let mut alone = InFlight::default();
    launch(&mut alone, 0, 0, 900 * US);
    assert_eq!(alone.admit(0, large, window, left), Admission::Go);
    alone.launched(0, 1, TASK, large, None);
    assert!(matches!(alone.admit(0, large, window, left), Admission::Full(_)));
}

#[test]
fn next_to_nothing_in_flight_counts_as_nothing() {
    let (mut in_flight, long) = (InFlight::default(), 500 * US);
    launch(&mut in_flight, 0, 0, long);
    in_flight.fence(0, Event(1));
    // at the end of a turn, with room for much less than one more
    let admit = |in_flight: &InFlight, now: u64| {
        in_flight.admit(now * US, Estimate::measured(long), 150 * US, 0)
    };
    assert_eq!(admit(&in_flight, 300), Admission::Full(100 * US));
    assert_eq!(admit(&in_flight, 390), Admission::Full(20 * US), "a short nap");
    assert_eq!(admit(&in_flight, 400), Admission::Go);
    launch(&mut in_flight, 400 * US, 0, long);
    assert!(matches!(admit(&in_flight, 400), Admission::Full(_)), "one ahead");
}

#[test]
fn a_group_launched_after_idling_knows_when_the_idling_began() {
    let mut in_flight = InFlight::default();
    launch(&mut in_flight, 0, 7, 50 * US);
    in_flight.fence(7, Event(1));
    let first = in_flight.retire(60 * US, |_| Some(Progress::Done)).expect("done");
    assert_eq!((first.after, in_flight.ended()), (None, 50 * US));
    launch(&mut in_flight, 900 * US, 3, 50 * US);
    in_flight.fence(3, Event(2));
    launch(&mut in_flight, 901 * US, 3, 50 * US);
    in_flight.fence(3, Event(3));
    let mut next = || in_flight.retire(2_000 * US, |_| Some(Progress::Done)).expect("done");
    assert_eq!(next().after, Some((7, 50 * US)));
    assert_eq!(next().after, None, "others were in flight");
}

#[test]
fn fences_follow_work_not_launches() {
    let mut in_flight = InFlight::default();
    let fences = (0..100).filter(|_| {
        let due = launch(&mut in_flight, 0, 3, 10 * US);
        if due {
            assert_eq!(in_flight.fence(3, Event(9)), None);
        }
        due
    });
    assert_eq!(fences.count(), 10);
    let mut in_flight = InFlight::default();
    assert!(launch(&mut in_flight, 0, 3, 5_000 * US));
}

#[test]
fn an_overdue_group_keeps_counting() {
    let mut in_flight = InFlight::default();
    launch(&mut in_flight, 0, 0, 800 * US);
    in_flight.fence(0, Event(1));
    assert_eq!(in_flight.outstanding(400 * US), 400 * US);
    assert_eq!(in_flight.outstanding(9_000 * US), 100 * US);
}

/// No event is behind it, and its stream cannot be queried: twice its expected time after its last launch, and 5 ms.
#[test]
fn a_group_whose_end_is_not_seen_is_given_up() {
    let (mut in_flight, mut given_up) = (InFlight::default(), None);
    launch(&mut in_flight, 100 * US, 0, 400 * US);
    launch(&mut in_flight, 200 * US, 0, 600 * US);
    let kept = in_flight.retire(300 * US, |group| {
        given_up = Some(group.given_up());
        None
    });
    assert!(kept.is_none());
    assert_eq!(given_up, Some((200 + 2 * 1_000 + 5_000) * US));
}

/// Before, a query is not worth its cost.
#[test]
fn work_is_asked_about_when_it_may_be_over() {
    let mut in_flight = InFlight::default();
    assert!(!in_flight.may_be_over(9_000 * US), "there is none");
    launch(&mut in_flight, 0, 0, 400 * US);
    launch(&mut in_flight, 0, 1, 400 * US);
    assert_eq!([599, 600].map(|us| in_flight.may_be_over(us * US)), [false, true]);
    in_flight.enter(US);
    assert!(!in_flight.may_be_over(9_000 * US), "a launch is inside the driver");
}

#[test]
fn a_thread_that_waited_knows_the_end_of_the_work() {
    let mut in_flight = InFlight::default();
    launch(&mut in_flight, 0, 0, 400 * US);
    in_flight.retire(500 * US, |_| Some(Progress::Done)).expect("done");
    assert_eq!(in_flight.ended(), 400 * US, "as expected");
    in_flight.ended_at(450 * US);
    in_flight.ended_at(420 * US);
    assert_eq!(in_flight.ended(), 450 * US);
}

/// Its run time is counted from the fence before it.
#[test]
fn a_group_follows_another_one_of_its_stream() {
    let mut in_flight = InFlight::default();
    for (stream_index, event) in [(0, 1), (1, 2), (1, 3), (0, 4)] {
        launch(&mut in_flight, 0, stream_index, 200 * US);
        in_flight.fence(stream_index, Event(event));
    }
    let mut next = || in_flight.retire(0, |_| Some(Progress::Done)).expect("done");
    assert_eq!([(); 4].map(|()| next().follows), [false, false, true, true]);
}

#[test]
fn retires_in_order_within_a_stream_and_freely_between() {
    let mut in_flight = InFlight::default();
    for (stream_index, event) in [(0, 1), (0, 2), (1, 3)] {
        launch(&mut in_flight, 0, stream_index, 200 * US);
        in_flight.fence(stream_index, Event(event));
    }
    let mut asked = Vec::new();
    let done = in_flight.retire(5, |group| {
        let event = group.fence.expect("fenced");
        asked.push(event.0);
        Some(match event.0 {
            1 => Progress::Pending,
            _ => Progress::Done,
        })
    });
    assert_eq!(done.map(|group| group.fence), Some(Some(Event(3))));
    assert_eq!(asked, [1, 3]);
    assert_eq!(in_flight.outstanding(0), 400 * US);
}

/// For random operations in random order, the counter equals the sum of the groups, `admit` never holds an
/// empty lane, and all groups retire in the end.
#[test]
fn counters_agree_under_random_use() {
    let mut seed = 0x9e37_79b9_u64;
    let mut random = |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let mut in_flight = InFlight::default();
    let (mut now, mut next) = (0, 1);
    for _ in 0..20_000 {
        now += random(100 * US);
        let stream_index = random(5) as StreamIndex;
        match random(4) {
            0 | 1 => {
                let ns = random(300 * US) + 1;
                let verdict =
                    in_flight.admit(now, Estimate::measured(ns), 500 * US, random(20_000 * US));
                assert!(!in_flight.empty() || verdict == Admission::Go);
                if verdict == Admission::Go && launch(&mut in_flight, now, stream_index, ns) {
                    next += 1;
                    assert_eq!(in_flight.fence(stream_index, Event(next)), None);
                }
            }
            2 => {
                let coin = random(2) == 0;
                let answer = if coin { Progress::Done } else { Progress::Pending };
                while in_flight.retire(now, |_| Some(answer)).is_some() {}
            }
            _ => {
                if in_flight.is_open(stream_index) {
                    next += 1;
                    assert_eq!(in_flight.fence(stream_index, Event(next)), None);
                } else {
                    assert_eq!(in_flight.fence(stream_index, Event(0)), Some(Event(0)));
                }
            }
        }
        let sum: u64 = in_flight.groups.iter().map(|group| group.expected).sum();
        assert_eq!(sum, in_flight.expected);
        assert!(in_flight.outstanding(now) <= sum && in_flight.groups.len() <= GROUPS_MAX);
    }
    while in_flight.retire(now, |_| Some(Progress::Done)).is_some() {}
    assert!(in_flight.empty() && in_flight.outstanding(now) == 0);
}

#[test]
fn a_launch_inside_the_driver_runs() {
    let mut in_flight = InFlight::default();
    let running = |it: &InFlight| it.blocked(|_| Progress::Pending).running;
    assert_eq!(running(&in_flight), None);
    in_flight.enter(70 * US);
    in_flight.enter(5 * US);
    assert_eq!(running(&in_flight), Some(75 * US));
}

/// Work is late after twice its estimate and a tenth of a second, from when it could begin.
#[test]
fn work_is_stuck_when_it_is_late() {
    let mut in_flight = InFlight::default();
    launch(&mut in_flight, 0, 0, 50 * US);
    let late = 100 * US + STUCK_NS;
    let stuck = |it: &InFlight, now: u64| (it.stuck(now, 0), it.stuck(2 * now, 1));
    assert_eq!(stuck(&in_flight, late), (false, false));
    assert_eq!(stuck(&in_flight, late + 1), (true, true));
    in_flight.resumed(US);
    assert_eq!(stuck(&in_flight, late + 1), (false, false), "gates were closed until 1 us");
}

/// A group has so many launches at most, and so many keys.
#[test]
fn a_fence_follows_many_launches_or_keys() {
    let until = |keys: u64| {
        let mut in_flight = InFlight::default();
        let mut fenced = |n: u64| {
            let task = Task::launch(Key(1 + n % keys));
            in_flight.launched(0, 0, task, Estimate::measured(1), None)
        };
        (0..).find(|n| fenced(*n)).map(|n| n + 1)
    };
    assert_eq!(until(1), Some(u64::from(FENCE_LAUNCHES)));
    assert_eq!(until(1_000), Some(GROUP_KEYS as u64));
}

#[test]
fn the_oldest_group_names_its_stream() {
    let mut in_flight = InFlight::default();
    assert_eq!(in_flight.oldest(), None);
    launch(&mut in_flight, 0, 3, US);
    launch(&mut in_flight, 0, 1, US);
    assert_eq!(in_flight.oldest(), Some(3));
}

/// The first group ends between two looks at it, and not before the later of its expected end and the last look that
/// saw it run. The second one begins then.
#[test]
fn work_begins_when_what_was_before_it_ended() {
    for (seen, begins) in [(true, 50 * US), (false, 10 * US)] {
        let mut in_flight = InFlight::default();
        for stream_index in [0, 1] {
            launch(&mut in_flight, 0, stream_index, 10 * US);
            in_flight.fence(stream_index, Event(1 + usize::from(stream_index)));
        }
        let first = |group: &LaunchGroup| group.stream_index == 0;
        let none =
            in_flight.retire(50 * US, |it| (seen || !first(it)).then_some(Progress::Pending));
        assert!(none.is_none());
        in_flight.retire(70 * US, |it| first(it).then_some(Progress::Done)).expect("it has ended");
        let due = [begins + 10 * US - 1, begins + 10 * US].map(|now| in_flight.due(now));
        assert_eq!(due, [false, true], "seen: {seen}");
    }
}
