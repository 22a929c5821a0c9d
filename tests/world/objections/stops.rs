//! Stories about work that is stopped on the GPU.

use super::*;

const US: u64 = 1_000;

fn stop() -> Action {
    let (container, lane) = (container(0), Lane(0));
    Action::Stop { container, lane, order: 1 }
}

fn resume() -> Action {
    let (container, lane) = (container(0), Lane(0));
    Action::Resume { container, lane }
}

/// A best-effort container has lost its turn to a high-priority one, and has not drained.
fn late() -> Story {
    let config = Config { stop: true, ..Config::default() };
    let mut story = Story::under(config, &[(1, 0, Class::BestEffort), (1, 0, Class::High)]);
    let begins = story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]);
    let ends = begins.and_then(|()| story.says(1, runnable(0, 0), &[turn(0, 2, 0)]));
    ends.expect("fine");
    story
}

/// The same, but it is stopped, and the high-priority one has its turn.
fn stopped() -> Story {
    let mut story = late();
    story.then(100 * US, &[stop()]).expect("fine");
    let done = Event::Stopped { container: container(0), lane: Lane(0), order: 1, ok: true };
    let told = story.tell(300 * US, done, &[turn(1, 1, 8 * MS)]);
    told.expect("fine");
    story
}

/// The high-priority container has no more work.
fn ends(story: &mut Story, actions: &[Action]) -> Result<(), Objection> {
    let nothing = Claims { runnable: false, ..runnable(1, 1) };
    story.says(1, nothing, &[turn(1, 2, 0)])?;
    story.says(1, nothing, actions) // read after the close
}

#[test]
fn to_a_stop_before_an_honest_drain() {
    objects(late().then(99 * US, &[stop()]), "is stopped after");
    assert_eq!(late().then(100 * US, &[stop()]), Ok(()));
}

#[test]
fn to_a_stop_without_a_reason() {
    assert_eq!(late().then(99 * US, &[]), Ok(()));
    objects(late().then(100 * US, &[]), "is to be stopped since");
}

#[test]
fn to_a_stop_of_a_drained_container() {
    let mut story = late();
    let given = story.says(0, runnable(1, 1), &[turn(1, 1, 8 * MS)]);
    given.expect("drained by itself");
    objects(story.then(MS, &[stop()]), "nothing to drain");
}

#[test]
fn to_a_holder_that_stays_stopped() {
    assert_eq!(ends(&mut stopped(), &[turn(0, 3, 8 * MS), resume()]), Ok(()));
    objects(ends(&mut stopped(), &[turn(0, 3, 8 * MS)]), "stays stopped");
}

#[test]
fn to_work_that_goes_on_out_of_turn() {
    objects(stopped().then(MS, &[resume()]), "out of turn");
    objects(late().then(US, &[resume()]), "goes on and was");
}

/// A process that attaches after the order to stop launches in a turn that begins before the answer.
#[test]
fn to_a_turn_beside_one_that_the_order_to_stop_did_not_reach() {
    let newer = ClientId { slot: 7, generation: 0 };
    let (container, lane, ok) = (container(0), Lane(0), true);
    let says = |story: &mut Story, claims: Claims, actions: &[Action]| {
        let client = newer;
        let event = Event::Claims { client, lane, claims };
        story.tell(0, event, actions)
    };
    let told = |drained: bool| -> Result<(), Objection> {
        let mut story = late();
        story.then(100 * US, &[stop()])?;
        story.says(0, runnable(1, 1), &[turn(1, 1, 8 * MS)])?;
        ends(&mut story, &[turn(0, 3, 8 * MS)])?;
        let (token, process, held) = (Token(0), None, [Bytes::ZERO; ACCOUNTS_MAX]);
        let attach = Event::Attach { token, container, process, held };
        let attached = Action::Attached { token, client: newer, container, lanes: 1 };
        story.tell(0, attach, &[attached])?;
        says(&mut story, runnable(3, 1), &[])?;
        story.says(1, runnable(1, 1), &[turn(0, 4, 0)])?;
        says(&mut story, runnable(3, if drained { 3 } else { 1 }), &[])?;
        let done = Event::Stopped { container, lane, order: 1, ok };
        story.tell(0, done, &[turn(1, 3, 8 * MS)])
    };
    assert_eq!(told(true), Ok(()));
    objects(told(false), "at once");
}
