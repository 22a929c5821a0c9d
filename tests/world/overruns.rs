//! Kernels longer than `drain_max`: the container overruns with each of them, and still gets its part and no more.
//!
//! Kernels run one after the other, each launched as soon as the gate admits it, in one process or in several. Liars
//! are judged by what they ran: a claim that work has not drained costs its container, for it is charged all the
//! while. A claim that running work has drained is not here: the GPU's own time slices divide that.

use gpuslice_wire::policy::Policy;

use crate::rng::Rng;
use crate::shares::{Tenant, governed, used, weighs};
use crate::tenant::{Honesty, Kernels, Process};
use crate::world::{World, container};

const MS: u64 = 1_000_000;
/// Long beside the longest kernel.
const SPAN: u64 = 400_000 * MS;

/// A world whose first tenant has so many processes with kernels of this length.
fn world(kernel: u64, processes: u64, tenants: &[Tenant], honesty: Honesty) -> World {
    let mut world = governed(8, Policy::Soft, Kernels::Medium, tenants);
    world.launches(0, Kernels::Exactly(kernel));
    world.becomes(0, honesty);
    for n in 1..processes {
        let process = Process::new(container(0), 1, &mut Rng::new(n));
        let kernels = Kernels::Exactly(kernel);
        world.add(Process { kernels, honesty, busy: true, collective: None, ..process });
    }
    world
}

/// The first tenant's GPU time as charged, and the longest that one of its processes ran, in thousandths of the time.
fn parts(mut world: World) -> (u64, u64) {
    let (start, before) = (world.now, used(&world)[0]);
    world.run_until(start + SPAN);
    let tenants = used(&world).len();
    let ran: Vec<u64> = world.ran().collect();
    // the others have one process each, which come after the first tenant's first
    let its = ran.iter().take(1).chain(&ran[tenants..]).max().copied().unwrap_or(0);
    ((used(&world)[0] - before) * 1_000 / SPAN, its * 1_000 / SPAN)
}

/// Lengths of kernels, ns.
const KERNELS: [u64; 4] = [700 * MS, 3_000 * MS, 6_000 * MS, 8_000 * MS];
const LIMITED: Tenant = Tenant { limit: 50, ..weighs(1) };

/// Alone, and beside a container that is always runnable: half of the time for a limit of 50, and a fifth for a weight
/// of 1 beside one of 4, of the time that both are charged.
#[test]
fn long_kernels_get_their_part() {
    for kernel in KERNELS {
        for processes in [1, 2, 3] {
            let part =
                |tenants: &[Tenant]| parts(world(kernel, processes, tenants, Honesty::Honest));
            let got =
                [part(&[LIMITED]), part(&[LIMITED, weighs(1)]), part(&[weighs(1), weighs(4)])];
            eprintln!("{processes} processes, kernels of {kernel} ns: {got:?}");
            assert!(got[..2].iter().all(|part| (470..=530).contains(&part.0)), "{got:?}");
            assert!((190..=250).contains(&got[2].0), "{got:?}");
            // kernels of one process do not overlap: what it ran is what it is charged
            let ran = got[..2].iter().all(|part| (470..=530).contains(&part.1));
            assert!(ran || processes > 1, "{got:?}");
        }
    }
}

/// Never to claim that work has drained gives no more than the truth does.
#[test]
fn to_deny_that_work_has_drained_gains_nothing() {
    for kernel in KERNELS {
        for processes in [1, 3] {
            for tenants in [&[LIMITED][..], &[LIMITED, weighs(1)], &[weighs(1), weighs(4)]] {
                let of = |honesty| parts(world(kernel, processes, tenants, honesty));
                let (honest, liar) = (of(Honesty::Honest), of(Honesty::NeverDrained));
                eprintln!("{processes} processes, kernels of {kernel} ns: {honest:?}, {liar:?}");
                assert!(liar.1 <= honest.1 && liar.0 >= honest.0, "{honest:?}, {liar:?}");
            }
        }
    }
}
