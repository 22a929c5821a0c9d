//! Stories about containers with several GPUs.

use super::*;

/// Container `n`'s page of a lane.
fn on(n: usize, lane: u8, word: u32, end: u64) -> Action {
    match turn(n, word, end) {
        Action::SetLane { container, view, .. } => {
            Action::SetLane { container, lane: Lane(lane), view }
        }
        other => other,
    }
}

fn claims(n: usize, lane: u8, claims: Claims) -> Event {
    Event::Claims { client: client(n), lane: Lane(lane), claims }
}

/// Container 0 has a slice of GPUs 0 and 1, container 1 one of GPU 0. The first has a turn on GPU 0 and
/// becomes runnable on the other, too; the engine answers with `actions`.
fn gang(actions: &[Action]) -> (Story, Result<(), Objection>) {
    let (mut story, first) = beside(1, |_| {});
    first.expect("fine");
    let second = story.tell(0, claims(0, 1, runnable(0, 0)), actions);
    (story, second)
}

/// The same with `others` GPUs for container 1, as `such` makes it; before the first is runnable on the
/// other GPU.
fn beside(others: u8, such: impl Fn(&mut Record)) -> (Story, Result<(), Objection>) {
    let mut story = Story { checkers: Checkers::new(Config::default(), 0), now: 0 };
    for (n, gpus) in [(0, 2), (1, others)] {
        let mut record = match admitted(n, 1, 0, Class::Normal) {
            Action::Admitted { record, .. } => record,
            other => panic!("{other:?}"),
        };
        record.lanes = (0..gpus).map(|at| LaneRecord { gpu: gpu(at), ..record.lanes[0] }).collect();
        if n == 1 {
            such(&mut record);
        }
        let token = Token(0);
        let mut all = vec![Action::Admitted { token, record }];
        all.extend((0..gpus).map(|lane| on(n, lane, 0, 0)));
        story.then(0, &all).expect("a good beginning");
        let (attach, attached) = attach(n, client(n), gpus);
        story.tell(0, attach, &[attached]).expect("a good beginning");
    }
    let first = story.tell(0, claims(0, 0, runnable(0, 0)), &[on(0, 0, 1, 8 * MS)]);
    (story, first)
}

#[test]
fn to_half_a_gang() {
    assert_eq!(gang(&[on(0, 1, 1, 8 * MS)]).1, Ok(()));
    assert_eq!(gang(&[on(0, 0, 2, 0)]).1, Ok(()), "or none of it");
    objects(gang(&[]).1, "none on lane 1");
}

/// Its turn is over and it has drained; the other container is granted GPU 0 after `ms`.
fn waits(ms: u64) -> Result<(), Objection> {
    let (mut story, begun) = gang(&[on(0, 1, 1, 8 * MS)]);
    begun?;
    story.tell(0, claims(1, 0, runnable(0, 0)), &[])?;
    story.then(8 * MS, &[on(0, 0, 2, 0), on(0, 1, 2, 0)])?;
    story.tell(0, claims(0, 0, runnable(1, 1)), &[])?;
    story.tell(0, claims(0, 1, runnable(1, 1)), &[])?;
    for _ in 1..ms {
        story.then(MS, &[])?;
    }
    story.then(MS, &[on(1, 0, 1, story.now + 8 * MS)])
}

#[test]
fn to_a_gpu_that_is_kept_for_a_gang_for_too_long() {
    assert_eq!(waits(1), Ok(()));
    objects(waits(20), "idles for");
}

/// A GPU idles for a container that takes long to drain and is dismissed then: idling was right until that
/// moment.
#[test]
fn to_no_gpu_that_was_reserved_for_a_dismissed_container() {
    let run = |drains: u64| -> Result<(), Objection> {
        let (mut story, begun) = gang(&[on(0, 1, 1, 8 * MS)]);
        begun?;
        story.tell(0, claims(1, 0, runnable(0, 0)), &[])?;
        story.then(8 * MS, &[on(0, 0, 2, 0), on(0, 1, 2, 0)])?;
        story.tell(0, claims(0, 0, runnable(1, 1)), &[])?;
        let end = story.now + 8 * MS;
        story.tell(0, claims(0, 1, runnable(1, 1)), &[on(1, 0, 1, end)])?;
        story.then(8 * MS, &[on(1, 0, 2, 0)])?;
        story.tell(drains * MS, claims(1, 0, runnable(1, 1)), &[])?;
        let third = admitted(2, 1, 0, Class::Normal);
        story.then(0, &[third, on(2, 0, 0, 0)])?;
        let token = Token(0);
        let attached =
            Action::Attached { token, client: client(2), container: container(2), lanes: 1 };
        let (container, process) = (container(2), None);
        let held = [Bytes::ZERO; ACCOUNTS_MAX];
        let attach = Event::Attach { token, container, process, held };
        story.tell(0, attach, &[attached])?;
        story.tell(0, claims(2, 0, runnable(0, 0)), &[])?;
        (0..30).try_for_each(|_| story.then(MS, &[]))?;
        let gone = Action::Dismissed { token, container: crate::world::container(1), known: true };
        story.then(0, &[gone])
    };
    assert_eq!(run(20), Ok(()));
    objects(run(1), "idles for");
}

#[test]
fn to_stopping_half_a_collective() {
    let (mut story, begun) = gang(&[on(0, 1, 1, 8 * MS)]);
    begun.expect("fine");
    let (container, lane) = (container(0), Lane(0));
    let closed = story.then(8 * MS, &[on(0, 0, 2, 0), on(0, 1, 2, 0)]);
    closed.expect("fine");
    let stop = Action::Stop { container, lane, order: 1 };
    objects(story.then(200 * MS, &[stop]), "gang true");
}

/// It waits while container 1, with a share, has 20 turns of 8 ms on both of its GPUs.
fn beside_a_share(percent: u32) -> Result<(), Objection> {
    let (mut story, begun) = beside(2, |record| {
        (record.share, record.share_limit) = (Percent::new(percent).ok(), None);
        record.weight = None;
        record.gang = Gangs::Never;
    });
    begun?;
    let both = |n, word, end| [on(n, 0, word, end), on(n, 1, word, end)];
    let says = |story: &mut Story, n, word, actions: &[Action]| {
        story.tell(0, claims(n, 0, runnable(word, word)), &[])?;
        story.tell(0, claims(n, 1, runnable(word, word)), actions)
    };
    says(&mut story, 0, 0, &[on(0, 1, 1, 8 * MS)])?;
    says(&mut story, 1, 0, &[])?;
    story.then(8 * MS, &both(0, 2, 0))?;
    says(&mut story, 0, 1, &both(1, 1, 16 * MS))?;
    for word in (1..41).step_by(2) {
        story.then(8 * MS, &both(1, word + 1, 0))?;
        let end = story.now + 8 * MS;
        says(&mut story, 1, word, &both(1, word + 2, end))?;
    }
    Ok(())
}

#[test]
fn to_a_gang_that_starves_beside_a_share() {
    assert_eq!(beside_a_share(97), Ok(()), "3 of 100 are left to it");
    objects(beside_a_share(60), "starves");
}

/// It waits while container 1 has 20 turns of 8 ms on GPU 1, and none on GPU 0. Then GPU 0 has no turns any
/// more, and container 1 has `more` turns.
fn until_a_gpu_has_no_turns(more: u32) -> Result<(), Objection> {
    let (mut story, begun) = beside(2, |record| record.gang = Gangs::Never);
    begun?;
    story.tell(0, claims(0, 1, runnable(0, 0)), &[on(0, 1, 1, 8 * MS)])?;
    story.tell(0, claims(1, 1, runnable(0, 0)), &[])?;
    story.then(8 * MS, &[on(0, 0, 2, 0), on(0, 1, 2, 0)])?;
    story.tell(0, claims(0, 0, runnable(1, 1)), &[])?;
    let begins = [on(1, 1, 1, 16 * MS)];
    story.tell(0, claims(0, 1, runnable(1, 1)), &begins)?;
    for turn in 0..20 + more {
        let (word, end) = (2 * turn + 1, story.now + 16 * MS);
        story.then(8 * MS, &[on(1, 1, word + 1, 0)])?;
        let begins = [on(1, 1, word + 2, end)];
        story.tell(0, claims(1, 1, runnable(word, word)), &begins)?;
        if turn == 19 {
            story.then(0, &[0, 1].map(|n| page(n, Mode::Open, 2, 0, 0)))?;
        }
    }
    Ok(())
}

/// On the GPU that has no turns any more, it did not wait for others' turns in vain.
#[test]
fn to_a_gang_that_starves_on_the_gpus_that_have_turns() {
    assert_eq!(until_a_gpu_has_no_turns(5), Ok(()));
    objects(until_a_gpu_has_no_turns(20), "starves");
}

/// A container takes 20 ms to drain after its turn. It is off the GPU when turns begin again: that is no
/// drain, and the last one stays the measure of how long a GPU may idle for a gang.
#[test]
fn to_no_gpu_that_idles_as_long_as_a_container_lately_drained() {
    let mut seen = crate::observer::Observer::new(Config::default(), 0);
    let attached =
        Action::Attached { token: Token(0), client: client(0), container: container(0), lanes: 1 };
    let begins = [admitted(0, 1, 0, Class::Normal), attached, turn(0, 1, 8 * MS)];
    begins.iter().for_each(|action| seen.action(action, None));
    seen.advance(8 * MS);
    seen.action(&turn(0, 2, 0), None);
    seen.advance(28 * MS);
    seen.event(&claims(0, 0, runnable(1, 1)));
    seen.event(&Event::Gone { client: client(0) });
    for mode in [Mode::Open, Mode::Turns] {
        seen.action(&page(0, mode, 4, 0, 0), None);
    }
    let state = seen.lanes.values().next().expect("a container");
    assert_eq!(state.tail, 20 * MS);
}
