//! Shares as figures: the GPU time of always busy tenants over every window of one second.

use gpuslice_engine::{Config, SliceRequest};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::policy::{Class, Gangs, Policy};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::{CgroupPath, Name};
use gpuslice_wire::units::{Bytes, MIB, Percent, Weight};

use crate::purse::Purse;
use crate::tenant::{Honesty, Kernels, Process, Work};
use crate::world::{Mood, World, container};

const MS: u64 = 1_000_000;

/// One tenant: weight, share and limit in percent, each 0 for none; class, always busy or in bursts.
#[derive(Clone, Copy)]
pub(crate) struct Tenant {
    pub(crate) weight: u32,
    pub(crate) share: u32,
    pub(crate) limit: u32,
    pub(crate) class: Class,
    pub(crate) busy: bool,
    /// It has a process.
    pub(crate) attached: bool,
    /// Number of its GPUs.
    pub(crate) gpus: usize,
    /// Whether it takes turns on them together.
    pub(crate) gang: Gangs,
}

pub(crate) const fn weighs(weight: u32) -> Tenant {
    Tenant {
        weight,
        share: 0,
        limit: 0,
        class: Class::Normal,
        busy: true,
        attached: true,
        gpus: 1,
        gang: Gangs::Auto,
    }
}

/// A share of so many percent, without a weight or a limit.
pub(crate) const fn reserves(share: u32) -> Tenant {
    Tenant { share, ..weighs(0) }
}

/// A calm world with these tenants on one GPU, one process each.
fn world(seed: u64, kernels: Kernels, tenants: &[Tenant]) -> World {
    governed(seed, Policy::Soft, kernels, tenants)
}

/// The same under another policy.
pub(crate) fn governed(seed: u64, policy: Policy, kernels: Kernels, tenants: &[Tenant]) -> World {
    let config = Config { policy, ..Config::default() };
    let mut world = calm(seed, config, 1);
    for (n, tenant) in tenants.iter().enumerate() {
        joins(&mut world, n as u64, tenant, kernels);
    }
    world
}

/// A world without random events.
pub(crate) fn calm(seed: u64, config: Config, gpus: u8) -> World {
    let mood = Mood { trouble: false, fate: false, few: false, limits: false };
    World::new(seed, config, gpus, mood)
}

/// Container `n` is one of these tenants, with one process, on its number of GPUs.
pub(crate) fn joins(world: &mut World, n: u64, tenant: &Tenant, kernels: Kernels) {
    let container = container(n);
    let (gpus, gang) = match tenant.gpus {
        1 => (GpuSelector::Any, Gangs::Auto),
        _ => (GpuSelector::All, tenant.gang),
    };
    world.admit(SliceRequest {
        container,
        name: Name::EMPTY,
        gpus,
        whole: None,
        memory: MemoryAsk::Exactly(Bytes(64 * MIB)),
        memory_limit: None,
        weight: Weight::new(tenant.weight).ok(),
        share: Percent::new(tenant.share).ok(),
        share_limit: Percent::new(tenant.limit).ok(),
        class: tenant.class,
        gang,
        pinned: None,
        bounds: None,
        cgroup: CgroupPath::EMPTY,
    });
    world.add(Process {
        container,
        alive: tenant.attached,
        asked: 0,
        client: None,
        account: None,
        kernels,
        busy: tenant.busy,
        pause: None,
        returns: false,
        collective: None,
        sibling: None,
        excused: 0,
        honesty: Honesty::Honest,
        broke: false,
        on_host: false,
        stalled: 0,
        sent: 0,
        ran: 0,
        work: vec![Work::default(); tenant.gpus],
        purses: vec![Purse::default(); tenant.gpus + 1],
    });
}

/// GPU time of each tenant so far, ns.
pub(crate) fn used(world: &World) -> Vec<u64> {
    let rows = world.snapshot();
    let time = |row: &Snapshot| match row {
        Snapshot::Slice { gpu_ns, .. } => Some(*gpu_ns),
        _ => None,
    };
    rows.iter().filter_map(time).collect()
}

/// The largest distance, in parts of a million, between a tenant's GPU time and its weight's part, over all
/// windows of one second that begin at a multiple of 5 ms.
fn worst_error(world: &mut World, weights: &[u32], seconds: u64) -> u64 {
    let start = world.now + 500 * MS;
    let mut samples: Vec<Vec<u64>> = Vec::new();
    for n in 0..=seconds * 200 {
        world.run_until(start + n * 5 * MS);
        samples.push(used(world));
    }
    let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let mut worst = 0;
    for (early, late) in samples.iter().zip(&samples[200..]) {
        let got: Vec<u64> = late.iter().zip(early).map(|(late, early)| late - early).collect();
        let all: u64 = got.iter().sum();
        for (got, weight) in got.iter().zip(weights) {
            let (share, due) = (got * 1_000_000 / all, u64::from(*weight) * 1_000_000 / sum);
            worst = worst.max(share.abs_diff(due));
        }
    }
    worst
}

#[test]
fn one_two_four_over_every_second() {
    let limits = [(1, Kernels::Short, 5_000), (2, Kernels::Tailed, 7_000)];
    for (seed, kernels, limit) in limits {
        let weights = [1, 2, 4];
        let mut world = world(seed, kernels, &weights.map(weighs));
        let error = worst_error(&mut world, &weights, 10);
        assert!(error <= limit, "{kernels:?}, seed {seed}: {error} millionths off");
    }
}

/// The error of the kernels' time in ten seconds, not only of the charged time, against the weights, in
/// parts of a million.
fn work_error(world: &mut World, weights: &[u32]) -> u64 {
    world.run_until(world.now + 1_000 * MS);
    let before: Vec<u64> = world.ran().collect();
    world.run_until(world.now + 10_000 * MS);
    let got: Vec<u64> = world.ran().zip(before).map(|(now, then)| now - then).collect();
    let all: u64 = got.iter().sum();
    let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let off = |(got, weight): (&u64, &u32)| {
        let (share, due) = (got * 1_000_000 / all, u64::from(*weight) * 1_000_000 / sum);
        share.abs_diff(due)
    };
    got.iter().zip(weights).map(off).max().unwrap_or(0)
}

/// A switch costs the lightest tenant no more of its part than the heaviest.
#[test]
fn work_goes_by_weight() {
    for weights in [&[1, 1][..], &[1, 3], &[1, 2, 4], &[1, 2, 4, 8]] {
        let tenants: Vec<Tenant> = weights.iter().map(|weight| weighs(*weight)).collect();
        let error = work_error(&mut world(5, Kernels::Short, &tenants), weights);
        eprintln!("{weights:?}: {error} millionths");
        assert!(error <= 2_000, "{weights:?}: {error} millionths off");
    }
}

/// A false report of idle time by one of three tenants changes nothing, and by one of two no more than
/// without any report.
#[test]
fn work_goes_by_weight_despite_false_reports() {
    for honesty in [Honesty::Modest, Honesty::Proud] {
        for liar in 0..3 {
            let weights = [1, 1, 2];
            let mut world = world(6, Kernels::Short, &weights.map(weighs));
            world.becomes(liar, honesty);
            let error = work_error(&mut world, &weights);
            eprintln!("{honesty:?} {liar}: {error} millionths");
            assert!(error <= 2_000, "{honesty:?} {liar}: {error} millionths off");
        }
    }
}

#[test]
fn equals_and_many_over_every_second() {
    let sixteen = [1; 16];
    for weights in [&[1, 1][..], &[1, 3], &[1, 2, 4, 8], &sixteen] {
        let tenants: Vec<Tenant> = weights.iter().map(|weight| weighs(*weight)).collect();
        let mut world = world(7, Kernels::Short, &tenants);
        let error = worst_error(&mut world, weights, 6);
        // the overhead of switches is charged and not in the queue: more of a light tenant's time
        assert!(error <= 6_000, "{weights:?}: {error} millionths off");
    }
}

/// Shares and the rest they leave: each as exact as weights alone, whatever tenant the round began with.
#[test]
fn shares_and_weights_over_every_second() {
    let share = reserves;
    let cases: [(&[Tenant], &[u32]); 5] = [
        (&[share(50), weighs(1), weighs(3)], &[4, 1, 3]),
        (&[weighs(1), weighs(3), share(20)], &[1, 3, 1]),
        (&[share(30), share(70)], &[3, 7]),
        (&[share(50), weighs(1)], &[1, 1]),
        (&[share(20), share(30), weighs(1), weighs(2), weighs(4)], &[14, 21, 5, 10, 20]),
    ];
    for (tenants, dues) in cases {
        for seed in 20..24 {
            let mut world = world(seed, Kernels::Short, tenants);
            let error = worst_error(&mut world, dues, 6);
            let work = work_error(&mut world, dues);
            eprintln!("{dues:?}, seed {seed}: {error} millionths, of the work {work}");
            assert!(
                error <= 6_000 && work <= 2_000,
                "{dues:?}, seed {seed}: {error} and {work} millionths off"
            );
        }
    }
}

/// A neighbour whose kernels are far longer than turns and than the capacity of a bucket.
#[test]
fn a_share_is_given_beside_kernels_of_a_second() {
    let half = reserves(50);
    for policy in [Policy::Soft, Policy::Weighted] {
        let mut world = governed(25, policy, Kernels::Short, &[half, weighs(1_000)]);
        world.launches(1, Kernels::Exactly(1_300 * MS));
        world.run_until(world.now + 1_000 * MS);
        let before = used(&world);
        world.run_until(world.now + 200_000 * MS);
        let got: Vec<u64> =
            used(&world).iter().zip(before).map(|(after, before)| after - before).collect();
        let part = got[0] * 1_000 / (got[0] + got[1]);
        assert!(part.abs_diff(500) <= 10, "{policy}: {part} thousandths");
    }
}

/// Kernels far longer than a turn: no window of a second can be even, but ten seconds are.
#[test]
fn long_kernels_even_out() {
    let mut world = world(11, Kernels::Medium, &[weighs(1), weighs(2), weighs(4)]);
    world.run_until(world.now + 500 * MS);
    let before = used(&world);
    world.run_until(world.now + 10_000 * MS);
    let got: Vec<u64> = used(&world).iter().zip(&before).map(|(now, then)| now - then).collect();
    let all: u64 = got.iter().sum();
    for (got, weight) in got.iter().zip([1u64, 2, 4]) {
        let off = (got * 1_000 / all).abs_diff(weight * 1_000 / 7);
        assert!(off <= 5, "weight {weight}: {off} thousandths off");
    }
}

/// A share with a limit that equals it is exact, alone and beside others.
#[test]
fn equal_shares_and_limits_hold() {
    for others in [&[][..], &[weighs(1)], &[weighs(1), weighs(1)]] {
        let capped = Tenant { limit: 25, ..reserves(25) };
        let tenants: Vec<Tenant> = [capped].iter().chain(others).copied().collect();
        let mut world = world(13, Kernels::Short, &tenants);
        world.run_until(world.now + 500 * MS);
        let before = used(&world);
        world.run_until(world.now + 10_000 * MS);
        let after = used(&world);
        let got: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        // beside others, of the time that all had: switches belong to no tenant
        let all = if others.is_empty() { 10_000 * MS } else { got.iter().sum() };
        let part = got[0] * 1_000 / all;
        assert!(part.abs_diff(250) <= 3, "{} others: {part}", others.len());
    }
}

/// A limit holds over every second, alone and beside others, with a share and without. The bucket may be
/// full when the second begins: a tenth of the limit.
#[test]
fn limits_hold_over_every_second() {
    let limited = [
        Tenant { limit: 20, ..weighs(9) },
        Tenant { limit: 20, ..reserves(20) },
        Tenant { limit: 40, ..reserves(10) },
        Tenant { limit: 40, weight: 9, ..reserves(10) },
    ];
    for tenant in limited {
        for others in [&[][..], &[weighs(1)], &[weighs(1), reserves(50)]] {
            let tenants = [&[tenant], others].concat();
            let mut world = world(26, Kernels::Short, &tenants);
            let start = world.now;
            let mut samples = Vec::new();
            for n in 0..=6 * 200 {
                world.run_until(start + n * 5 * MS);
                samples.push(used(&world)[0]);
            }
            let each = samples.iter().zip(&samples[200..]).map(|(early, late)| late - early);
            let most = each.max().unwrap_or(0) / MS;
            // thousandths: the limit, the bucket and a turn
            let bound = u64::from(tenant.limit) * 11 + 10;
            assert!(most <= bound, "{most} of {bound} thousandths");
        }
    }
}

/// A high-priority tenant in bursts waits for a fair one's window and switch, not for its turn.
#[test]
fn high_waits_little() {
    let high = Tenant { class: Class::High, busy: false, ..weighs(1) };
    let mut world = world(17, Kernels::Short, &[high, weighs(1)]);
    world.run_until(world.now + 20_000 * MS);
    let rows = world.snapshot();
    let found = rows.iter().find_map(|row| match row {
        Snapshot::Slice { class: Class::High, wait_ns, turns, gpu_ns, .. } => {
            Some((*wait_ns, *turns, *gpu_ns))
        }
        _ => None,
    });
    let (waited, turns, used) = found.expect("a high tenant");
    assert!(turns > 50 && used > 0, "{turns} turns");
    let each = waited / turns;
    assert!(each < MS, "{each} ns before a turn, on average of {turns}");
}

/// Alone, a tenant takes no turns at all.
#[test]
fn alone_is_free() {
    let mut world = world(19, Kernels::Short, &[weighs(1)]);
    world.run_until(world.now + 2_000 * MS);
    let rows = world.snapshot();
    let free = |row: &Snapshot| matches!(row, Snapshot::Slice { turns: 0, gated: 0, .. });
    assert!(rows.iter().any(free), "{rows:?}");
    assert!(used(&world)[0] > 1_990 * MS);
}
