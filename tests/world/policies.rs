//! Policies as figures: a test for each that fails if its meaning changes.

use gpuslice_engine::{Event, TimeChange, Token};
use gpuslice_wire::policy::{Change, Class, Policy};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Percent, Weight};

use crate::shares::{Tenant, governed, reserves, used, weighs};
use crate::tenant::Kernels;
use crate::world::{World, container};

const MS: u64 = 1_000_000;

/// A tenant with a slice that is never runnable.
const fn idles(weight: u32) -> Tenant {
    Tenant { busy: false, attached: false, ..weighs(weight) }
}

/// Per mille of the GPU's time that each gets from now on, over 10 s after a settling second. Where all of
/// it is in demand, switches are excluded.
fn parts(world: &mut World) -> Vec<u64> {
    world.run_until(world.now + 1_000 * MS);
    let before = used(world);
    world.run_until(world.now + 10_000 * MS);
    let after = used(world);
    let got = after.iter().zip(&before);
    let got: Vec<u64> = got.map(|(after, before)| after - before).collect();
    let sum: u64 = got.iter().sum();
    let all = if sum > 9_000 * MS { sum } else { 10_000 * MS };
    got.iter().map(|got| (got * 1_000 + all / 2) / all).collect()
}

/// Asserts parts per mille, each within 6.
fn gets(policy: Policy, tenants: &[Tenant], expected: &[u64]) {
    let mut world = governed(31, policy, Kernels::Short, tenants);
    let got = parts(&mut world);
    let close = got.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 6);
    assert!(close, "{policy}: {got:?}, not {expected:?}");
}

#[test]
fn fair_gives_a_fixed_part_even_alone() {
    gets(Policy::Fair, &[weighs(1)], &[62]);
    gets(Policy::Fair, &[weighs(1), weighs(5), idles(1)], &[62, 62, 0]);
}

#[test]
fn preemptive_gives_equal_parts_and_leaves_the_rest_idle() {
    gets(Policy::Preemptive, &[weighs(1)], &[1_000]);
    let three = [weighs(1), weighs(5), idles(1)];
    gets(Policy::Preemptive, &three, &[333, 333, 0]);
}

#[test]
fn weighted_gives_parts_by_weight_and_leaves_the_rest_idle() {
    gets(Policy::Weighted, &[weighs(7)], &[1_000]);
    let three = [weighs(1), weighs(2), idles(5)];
    gets(Policy::Weighted, &three, &[125, 250, 0]);
}

#[test]
fn fixed_gives_the_requested_part_beside_any_others() {
    let hard = reserves(30);
    gets(Policy::Fixed, &[hard], &[300]);
    gets(Policy::Fixed, &[hard, weighs(4), idles(8)], &[300, 250, 0]);
    let more = Tenant { limit: 60, ..hard };
    gets(Policy::Fixed, &[more, weighs(4), idles(8)], &[600, 250, 0]);
}

#[test]
fn soft_gives_all_to_the_runnable_containers() {
    let three = [weighs(1), weighs(1), idles(1)];
    gets(Policy::Soft, &three, &[500, 500, 0]);
    gets(Policy::Soft, &[weighs(1), weighs(3)], &[250, 750]);
    gets(Policy::Soft, &[reserves(30), weighs(1)], &[300, 700]);
}

/// A container gets its share under each policy that has turns, whatever others weigh; the policy divides
/// the rest.
#[test]
fn a_share_is_exact_beside_any_weights() {
    let share = reserves;
    let three = [share(50), weighs(1), weighs(3)];
    gets(Policy::Fair, &three, &[500, 62, 62]);
    gets(Policy::Preemptive, &three, &[500, 250, 250]);
    gets(Policy::Weighted, &three, &[500, 125, 375]);
    gets(Policy::Fixed, &three, &[500, 62, 187]);
    gets(Policy::Soft, &three, &[500, 125, 375]);
    let heavy = [share(50), weighs(1_000), weighs(1_000)];
    gets(Policy::Soft, &heavy, &[500, 250, 250]);
    gets(Policy::Weighted, &heavy, &[500, 250, 250]);
    let many = [share(20), share(30), weighs(1), weighs(4)];
    gets(Policy::Soft, &many, &[200, 300, 100, 400]);
    gets(Policy::Weighted, &many, &[200, 300, 100, 400]);
    // the time one does not use goes to the weights, and to the shares if no weight wants it
    let idle = Tenant { busy: false, attached: false, ..share(30) };
    gets(Policy::Soft, &[share(20), idle, weighs(1)], &[200, 0, 800]);
    gets(Policy::Soft, &[share(20), share(30)], &[400, 600]);
    gets(Policy::Soft, &[share(20), idle, idles(3)], &[1_000, 0, 0]);
    // shares of 100 % leave a hundredth
    let all = [share(60), share(40), weighs(7)];
    gets(Policy::Soft, &all, &[594, 396, 10]);
}

/// A share with a weight: the share, and a part of the time that shares leave.
#[test]
fn a_weight_beside_a_share_divides_the_rest() {
    let both = Tenant { weight: 1, ..reserves(50) };
    let three = [both, weighs(1), weighs(3)];
    gets(Policy::Soft, &three, &[600, 100, 300]);
    gets(Policy::Weighted, &three, &[600, 100, 300]);
    gets(Policy::Preemptive, &three, &[667, 167, 167]);
    gets(Policy::Fair, &three, &[562, 62, 62]);
    gets(Policy::Fixed, &three, &[500, 62, 187]);
    // one that is idle leaves its share too: 80 % for weights 1 and 3
    let idle = Tenant { busy: false, attached: false, ..reserves(30) };
    let twenty = Tenant { weight: 1, ..reserves(20) };
    gets(Policy::Soft, &[idle, twenty, weighs(3)], &[0, 400, 600]);
    gets(Policy::Soft, &[reserves(30), twenty, weighs(3)], &[300, 325, 375]);
}

/// A limit caps its container under each policy; what it leaves goes to the others by weight, and shares
/// keep what they reserve.
#[test]
fn a_limit_caps_and_others_divide_what_it_leaves() {
    let limited = |tenant: Tenant, limit| Tenant { limit, ..tenant };
    let light = limited(weighs(3), 10);
    for policy in [Policy::Soft, Policy::Preemptive, Policy::Weighted, Policy::Fixed] {
        gets(policy, &[light], &[100]);
    }
    gets(Policy::Soft, &[light, weighs(1), weighs(3)], &[100, 225, 675]);
    gets(Policy::Weighted, &[light, weighs(1), weighs(3)], &[100, 143, 429]);
    gets(Policy::Soft, &[light, reserves(50), weighs(1)], &[100, 500, 400]);
    gets(Policy::Soft, &[light, reserves(50)], &[100, 900]);
    let both = Tenant { weight: 2, ..reserves(30) };
    gets(Policy::Soft, &[limited(both, 40), weighs(1)], &[400, 600]);
    gets(Policy::Soft, &[limited(both, 40), both, weighs(2)], &[400, 450, 150]);
    gets(Policy::Soft, &[limited(reserves(30), 60)], &[600]);
    gets(Policy::Soft, &[limited(reserves(30), 60), reserves(20)], &[600, 400]);
    gets(Policy::Native, &[light, weighs(1)], &[500, 500]);
}

#[test]
fn native_takes_no_turns() {
    let hard = Tenant { limit: 30, ..reserves(30) };
    let high = Tenant { class: Class::High, ..weighs(9) };
    let mut world = governed(31, Policy::Native, Kernels::Short, &[hard, high]);
    world.run_until(world.now + 5_000 * MS);
    let free = |row: &Snapshot| {
        !matches!(row, Snapshot::Slice { turns, gated, cap_ppm, .. }
            if (*turns, *gated, *cap_ppm) != (0, 0, 1_000_000))
    };
    assert!(world.snapshot().iter().all(free), "{:?}", world.snapshot());
}

#[test]
fn best_effort_gets_a_hundredth_of_busy_time_and_all_idle_time() {
    let least = Tenant { class: Class::BestEffort, ..weighs(1_000) };
    gets(Policy::Soft, &[least, weighs(1)], &[10, 990]);
    gets(Policy::Soft, &[least, idles(1)], &[1_000, 0]);
    let high = Tenant { class: Class::High, ..weighs(1) };
    // a guard turn is as long as the shortest turn, of which switches take a fifth in this world
    gets(Policy::Soft, &[least, weighs(1), high], &[8, 39, 953]);
}

/// Policies and weights change while all run: from the next turn on, without past debts.
#[test]
fn changes_count_at_once() {
    let tenants = [weighs(1), weighs(1), weighs(1)];
    let mut world = governed(37, Policy::Soft, Kernels::Short, &tenants);
    let mut expect = |event: Option<Event>, expected: [u64; 3]| {
        event.into_iter().for_each(|event| world.tell(event));
        let got = parts(&mut world);
        let close = got.iter().zip(expected).all(|(a, b)| a.abs_diff(b) <= 6);
        assert!(close, "{got:?}, not {expected:?}");
    };
    let policy =
        |policy| Some(Event::SetPolicy { token: Token(0), gpus: GpuSelector::All.into(), policy });
    let retune = |who, weight, share, class| {
        Some(Event::Retune {
            token: Token(0),
            container: container(who),
            change: TimeChange {
                weight: Weight::new(weight).map_or(Change::Keep, Change::To),
                share,
                share_limit: Change::Keep,
                class,
            },
            undoes: false,
        })
    };
    let ten = Change::to(Percent::new(10).ok());
    expect(None, [333, 333, 333]);
    expect(retune(1, 1000, Change::Keep, None), [1, 998, 1]);
    expect(retune(1, 2, Change::Keep, None), [250, 500, 250]);
    // it keeps its weight beside the share
    expect(retune(2, 0, ten, None), [225, 450, 325]);
    expect(policy(Policy::Weighted), [225, 450, 325]);
    expect(retune(2, 0, Change::None, None), [250, 500, 250]);
    expect(policy(Policy::Fair), [62, 62, 62]);
    expect(policy(Policy::Native), [333, 333, 333]);
    expect(policy(Policy::Soft), [250, 500, 250]);
    let last = Some(Class::BestEffort);
    expect(retune(1, 0, Change::Keep, last), [495, 10, 495]);
}
