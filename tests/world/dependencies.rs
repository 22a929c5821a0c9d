//! Kernels that wait for a launch of another process of their container.
//!
//! In the worlds of [`super::seeds`] few containers live for as long as such a kernel may last: here they stay. Now and
//! then one of the two processes is late, so that a turn ends between their launches.

use gpuslice_wire::policy::Policy;

use crate::rng::Rng;
use crate::shares::{Tenant, governed, weighs};
use crate::tenant::{Kernels, Process};
use crate::world::container;

const MS: u64 = 1_000_000;

/// What such a world met: a container with two processes whose kernels wait for each other, beside one to three busy
/// ones.
fn met(seed: u64) -> crate::checkers::Met {
    let mut rng = Rng::new(seed ^ 0xDE9E);
    let beside = rng.range(1, 3);
    let weights = (0..=beside).map(|_| weighs(rng.magnitude(1, 100) as u32));
    let mut tenants: Vec<Tenant> = weights.collect();
    tenants[0].attached = false;
    let mut world = governed(seed, Policy::Soft, Kernels::Medium, &tenants);
    let process = Process { kernels: Kernels::Medium, ..Process::new(container(0), 1, &mut rng) };
    let late = world.add_launch_dependency(process);
    for _ in 0..4 {
        for _ in 0..20 {
            world.run_until(world.now + rng.range(10 * MS, 500 * MS));
            world.stalls(late, rng.range(MS, 50 * MS));
        }
        // a kernel that does not end is seen by then
        world.run_until(world.now + 35_000 * MS);
    }
    world.checkers.met()
}

/// Each step of the world objects to one that lasts for more than 30 s.
#[test]
fn a_kernel_that_waits_for_a_launch_of_another_process_ends() {
    let met: Vec<_> = (0..8).map(met).collect();
    let sum = |what| met.iter().filter_map(|it| it.get(what)).sum::<u64>();
    let [pairs, overran] = ["pair", "pair overran"].map(sum);
    eprintln!("{pairs} pairs of kernels, and {overran} that overran");
    assert!(pairs > 10_000 && overran > 20, "{pairs} pairs, {overran} that overran");
}
