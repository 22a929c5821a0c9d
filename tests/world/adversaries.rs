//! Adversaries: containers that change their rhythm, their claims and their processes at will, alone or in
//! collusion, beside one honest container that always wants the GPU.
//!
//! # Bound
//! Start-time fair queueing bounds each adversary `j`, however it behaves, while the honest container `h` is always
//! runnable: `W_j / w_j <= W_h / w_h + l_j / w_j + l_h / w_h`. W is GPU time, w a weight, l the longest turn with
//! its drain, at most a turn and `drain_max`. All W together are the time `T`, less what hand-overs take. So
//! ```text
//! W_h  >=  due * (T - sum(l_j)) - l_h                due = w_h / sum of all weights
//! ```
//! Over any 10 s the honest container has its due, less its part of one longest turn of each adversary, and one
//! turn of its own. A twentieth is left for hand-overs. The longest turn of an adversary is measured by what it
//! did: the longest kernel or claim of work that it began in the window or just before it. An adversary that claims
//! that its work has drained while it runs is not here: its kernels run beside others' turns, which a clock cannot
//! show.

use gpuslice_engine::Config;
use gpuslice_wire::policy::Gangs;

use crate::rng::Rng;
use crate::shares::{Tenant, calm, joins, weighs};
use crate::tenant::{Honesty, Kernels, Process};
use crate::world::{World, container};

const MS: u64 = 1_000_000;
/// Samples are this far apart, ns.
const SAMPLE: u64 = 100 * MS;
/// Samples in a window of 10 s.
const WINDOW: usize = 100;
/// Longest kernel of the honest container, ns.
const HONEST: u64 = 5 * MS;

/// What an adversary does for a while.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Kernels of this length, back to back.
    Busy(u64),
    /// A kernel, then a pause.
    Pulses(u64, u64),
    /// Claims of work of this length without any, and pauses.
    Hollow(u64, u64),
    /// It lies.
    Lies(Honesty),
    /// It ends, and comes back when the plan changes.
    Away,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Plan {
        let longest = rng.pick(&[30 * MS, 300 * MS, 1_900 * MS]);
        let kernel = rng.magnitude(20_000, longest);
        // around the time after which turns end without contention, 20 ms
        let pause = if rng.per_mille(700) {
            rng.range(15 * MS, 35 * MS)
        } else {
            rng.magnitude(20_000, 300 * MS)
        };
        let lies = [
            Honesty::NeverDrained,
            Honesty::AlwaysWants,
            Honesty::Modest,
            Honesty::Proud,
            Honesty::Garbage,
        ];
        match rng.below(6) {
            0 => Plan::Busy(rng.magnitude(20_000, 30 * MS)),
            1 | 2 => Plan::Pulses(kernel, pause),
            3 => Plan::Hollow(kernel, pause),
            4 => Plan::Lies(rng.pick(&lies)),
            _ => Plan::Away,
        }
    }

    /// The longest turn that it can cause, with its drain, ns.
    fn longest(self, config: &Config) -> u64 {
        let turn = config.turn_max.0 + config.turn_min.0 + 2 * MS;
        match self {
            Plan::Busy(kernel) | Plan::Pulses(kernel, _) | Plan::Hollow(kernel, _) => turn + kernel,
            // it has not drained until it is waited for no longer
            Plan::Lies(_) => turn + config.drain_max.0,
            Plan::Away => turn,
        }
    }
}

/// An adversary: its container, its process, its plan.
struct Adversary {
    n: u64,
    gpus: usize,
    process: usize,
    plan: Plan,
    /// When the plan changes.
    until: u64,
    /// The longest turn of the present and the last plan, by when each ended, ns.
    longest: Vec<(u64, u64)>,
}

impl Adversary {
    /// Takes up a plan.
    fn takes(&mut self, world: &mut World, plan: Plan, until: u64, processes: &mut usize) {
        if let Plan::Away = self.plan {
            let mut next = Process::new(container(self.n), self.gpus, &mut Rng::new(until));
            (next.honesty, next.collective) = (Honesty::Honest, None);
            self.process = *processes;
            *processes += 1;
            world.add(next);
        }
        let honesty = match plan {
            Plan::Hollow(..) => Honesty::Hollow,
            Plan::Lies(honesty) => honesty,
            _ => Honesty::Honest,
        };
        world.becomes(self.process, honesty);
        match plan {
            Plan::Busy(kernel) => world.pulses(self.process, kernel, 0),
            Plan::Pulses(kernel, pause) | Plan::Hollow(kernel, pause) => {
                world.pulses(self.process, kernel, pause);
            }
            Plan::Lies(_) => world.pulses(self.process, MS, 20 * MS),
            Plan::Away => world.crash(self.process),
        }
        self.longest.push((world.now, self.plan.longest(&Config::default())));
        (self.plan, self.until) = (plan, until);
    }

    /// The longest turn that it can have had in the 10 s before `now`, and in the plan before these.
    fn longest_since(&self, since: u64) -> u64 {
        let old = self.longest.iter().filter(|(ended, _)| *ended + 3_000 * MS >= since);
        let now = self.plan.longest(&Config::default());
        old.map(|(_, longest)| *longest).fold(now, u64::max)
    }
}

/// Two to eight tenants for `seconds`. Returns the number of windows, and of those in which the bound is at least half
/// of what is due.
fn one(seed: u64, seconds: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let gangs = rng.per_mille(300);
    let config = Config { stop: rng.per_mille(300), ..Config::default() };
    let mut world = calm(seed, config, if gangs { 2 } else { 1 });
    let tenants = rng.pick(&[2, 2, 2, 3, 3, 4, 6, 8]);
    let weights: Vec<u32> = (0..tenants).map(|_| rng.pick(&[1, 1, 3, 10, 100])).collect();
    let colludes = rng.per_mille(500);
    let mut adversaries = Vec::new();
    for (n, weight) in weights.iter().enumerate() {
        let gpus = if gangs && n > 0 && rng.per_mille(400) { 2 } else { 1 };
        let tenant = Tenant { gpus, gang: Gangs::Auto, ..weighs(*weight) };
        joins(&mut world, n as u64, &tenant, Kernels::Medium);
        if n > 0 {
            let (n, process) = (n as u64, n);
            let plan = Plan::Busy(5 * MS);
            adversaries.push(Adversary { n, gpus, process, plan, until: 0, longest: Vec::new() });
        }
    }
    let mut processes = weights.len();
    let mut samples: Vec<u64> = Vec::new();
    let (mut windows, mut judged) = (0, 0);
    let due = |of: u64| {
        let all: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        of * u64::from(weights[0]) / all
    };
    while samples.len() < seconds as usize * 10 {
        let together = (Plan::draw(&mut rng), world.now + rng.magnitude(50 * MS, 5_000 * MS));
        let all_due = adversaries[0].until <= world.now;
        for adversary in &mut adversaries {
            let (plan, until) = match colludes {
                true if all_due => together,
                false if adversary.until <= world.now => {
                    (Plan::draw(&mut rng), world.now + rng.magnitude(50 * MS, 5_000 * MS))
                }
                _ => continue,
            };
            adversary.takes(&mut world, plan, until, &mut processes);
        }
        world.run_until(world.now + SAMPLE);
        samples.push(world.ran().next().expect("the honest one"));
        let Some(begin) = samples.len().checked_sub(1 + WINDOW) else { continue };
        let had = samples[begin + WINDOW] - samples[begin];
        let since = world.now - WINDOW as u64 * SAMPLE;
        let longest: u64 = adversaries.iter().map(|it| it.longest_since(since)).sum();
        let span = (WINDOW as u64 * SAMPLE).saturating_sub(longest);
        let own = config.turn_max.0 + config.turn_min.0 + HONEST;
        let least = (due(span) * 95 / 100).saturating_sub(own);
        windows += 1;
        judged += usize::from(2 * span >= WINDOW as u64 * SAMPLE);
        assert!(
            had >= least,
            "seed {seed}: {had} ns of at least {least} over 10 s; weights {weights:?}, plans {:?}",
            adversaries.iter().map(|it| it.plan).collect::<Vec<_>>()
        );
    }
    (windows, judged)
}

#[test]
fn the_honest_container_has_its_due_whatever_others_do() {
    let (mut windows, mut judged) = (0, 0);
    for seed in 0..40 {
        let (all, tight) = one(seed, 60);
        (windows, judged) = (windows + all, judged + tight);
    }
    eprintln!("{judged} of {windows} windows have a bound of at least half of what is due");
    assert!(3 * judged >= windows, "the bound says little: {judged} of {windows}");
}
