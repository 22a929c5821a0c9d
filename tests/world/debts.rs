//! Debts: containers that pause to get rid of their debt, and the time that leaves to the other one.
//!
//! One container is always runnable. The other, the attacker, runs in *pulses*: a kernel, then a pause that
//! may be long enough for turns to end. Whatever the pulses look like, the attacker's time per weight is at
//! most the other's time per weight and a turn of each. That is the one-sided half of the bound of
//! start-time fair queueing, which needs only one of the two to be always runnable.

use gpuslice_engine::Config;
use gpuslice_wire::policy::Policy;

use crate::rng::Rng;
use crate::shares::{Tenant, governed, used, weighs};
use crate::tenant::{Honesty, Kernels, Process};
use crate::world::{World, container};

const MS: u64 = 1_000_000;

/// An attacker of weight 1 with pulses of `kernel` and `pause` ns beside one of `weight`.
fn attack(seed: u64, weight: u32, kernel: u64, pause: u64) -> World {
    let tenants: [Tenant; 2] = [weighs(1), weighs(weight)];
    let mut world = governed(seed, Policy::Soft, Kernels::Medium, &tenants);
    world.pulses(0, kernel, pause);
    world
}

/// Runs for `seconds`, and asserts that the attacker never has more than its part and a turn of each.
fn in_bounds(world: &mut World, weight: u32, kernel: u64, seconds: u64) {
    let config = Config::default();
    world.run_until(world.now + 100 * MS);
    let before = used(world);
    // a turn, the kernel that began at its end, the delay of each message there and back
    let turn = |kernel: u64| config.turn_max.0 + config.turn_min.0 + kernel + 2 * MS;
    let bound = turn(kernel) + turn(5 * MS) / u64::from(weight);
    for _ in 0..seconds * 10 {
        world.run_until(world.now + 100 * MS);
        let after = used(world);
        let (had, other) = (after[0] - before[0], after[1] - before[1]);
        assert!(
            had <= other / u64::from(weight) + bound,
            "{had} ns, and {other} ns of weight {weight} for the other one"
        );
    }
}

/// Kernels just shorter than the longest wait, and pauses just longer than turns last without contention.
#[test]
fn pauses_after_long_kernels_buy_nothing() {
    let (kernel, pause) = (1_900 * MS, 30 * MS);
    in_bounds(&mut attack(1, 100, kernel, pause), 100, kernel, 300);
    let mut world = attack(2, 100, kernel, pause);
    world.run_until(world.now + 400_000 * MS);
    let had = used(&world);
    let part = had[1] * 1_000 / (had[0] + had[1]);
    assert!(part >= 980, "{part} thousandths of 990 for weight 100 of 101");
}

/// The same with claims of work alone: there is no kernel.
#[test]
fn pauses_after_claims_of_work_buy_nothing() {
    let (kernel, pause) = (1_950 * MS, 30 * MS);
    let mut world = attack(3, 100, kernel, pause);
    world.becomes(0, Honesty::Hollow);
    in_bounds(&mut world, 100, kernel, 300);
    assert_eq!(world.ran().next(), Some(0), "nothing was launched");
}

/// Pulses of all lengths around the thresholds that end turns and begin them, and around the length of a
/// turn.
#[test]
fn no_rhythm_buys_anything() {
    let mut rng = Rng::new(4);
    for seed in 0..40 {
        let kernel = rng.magnitude(MS / 10, 1_500 * MS);
        let pause = rng.range(15 * MS, 35 * MS);
        let weight = rng.pick(&[1, 4, 100]);
        eprintln!("weight {weight}: kernels of {kernel} ns, pauses of {pause} ns");
        in_bounds(&mut attack(seed, weight, kernel, pause), weight, kernel, 30);
    }
}

/// Kernels of 0.7 s, of which two are queued, beside steps of 1 ms: with equal weights each gets half, over stretches
/// that are long beside the kernels.
#[test]
fn long_kernels_of_an_equal_weight_get_their_part() {
    for two in [700 * MS, 1_400 * MS] {
        let mut world = governed(8, Policy::Soft, Kernels::Medium, &[weighs(1), weighs(1)]);
        world.launches(0, Kernels::Exactly(two));
        world.launches(1, Kernels::Exactly(MS));
        world.run_until(world.now + 1_000 * MS);
        let before = used(&world);
        world.run_until(world.now + 60_000 * MS);
        let after = used(&world);
        let [long, short] = [0, 1].map(|who| after[who] - before[who]);
        let part = long * 1_000 / (long + short);
        assert!((450..=550).contains(&part), "{part} thousandths for kernels of {two} ns");
    }
}

/// Processes that claim random work, each as short as its claim: turns end when one is gone, and begin with
/// the next one, which has launched nothing yet, whatever it claims.
#[test]
fn coming_back_with_lies_buys_nothing() {
    let mut world = attack(7, 100, 100 * MS, 30 * MS);
    world.becomes(0, Honesty::Garbage);
    let begun = used(&world);
    for who in 2..200 {
        world.run_until(world.now + 500 * MS);
        world.crash(if who == 2 { 0 } else { who - 1 });
        world.run_until(world.now + 50 * MS);
        let mut next = Process::new(container(0), 1, &mut Rng::new(who as u64));
        (next.honesty, next.kernels) = (Honesty::Garbage, Kernels::Exactly(100 * MS));
        world.add(next);
    }
    let after = used(&world);
    let (had, other) = (after[0] - begun[0], after[1] - begun[1]);
    let bound = other / 100 + 2_100 * MS; // a turn, and the longest wait for the work it claims
    assert!(had <= bound, "{had} ns, and {other} ns of weight 100");
}

/// Turns that a debt keeps going end when it is paid, and at once when the debtor is gone.
#[test]
fn a_debt_does_not_keep_turns_for_ever() {
    let mut world = attack(5, 1, 500 * MS, 400 * MS);
    world.run_until(world.now + 700 * MS);
    let debt = used(&world)[0];
    assert!((450 * MS..600 * MS).contains(&debt), "{debt} ns");
    assert!(world.takes_turns(), "a debt of half a second");
    world.crash(0);
    world.run_until(world.now + 30 * MS);
    assert!(!world.takes_turns(), "the debtor is gone");

    let mut world = attack(6, 1, 500 * MS, 10_000 * MS);
    world.run_until(world.now + 1_200 * MS);
    assert!(!world.takes_turns(), "as much for the other one, it is paid");
}
