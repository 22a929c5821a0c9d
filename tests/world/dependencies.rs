//! Kernels that wait for a launch of another process of their container, or for one on another GPU.
//!
//! In the worlds of [`super::seeds`] few containers live for as long as such a kernel may last: here they stay. Now and
//! then a process is late, so that a turn ends between launches that belong together.

use gpuslice_engine::Config;

use crate::checkers::Met;
use crate::rng::Rng;
use crate::shares::{Tenant, calm, joins, weighs};
use crate::tenant::{Kernels, Process};
use crate::world::container;

const MS: u64 = 1_000_000;

/// What such a world met: a container with kernels that wait for each other, of two processes on one GPU or of one on
/// two, beside one to three busy containers on each GPU.
fn met(seed: u64, gpus: usize) -> Met {
    let mut rng = Rng::new(seed ^ 0xDE9E);
    let mut world = calm(seed, Config::default(), gpus as u8);
    let mut weight = || weighs(rng.magnitude(1, 100) as u32);
    joins(&mut world, 0, &Tenant { attached: false, gpus, ..weight() }, Kernels::Medium);
    for n in 1..=gpus as u64 * (1 + seed % 3) {
        joins(&mut world, n, &weight(), Kernels::Medium);
    }
    let process = Process::new(container(0), gpus, &mut rng);
    let process = Process { kernels: Kernels::Medium, collective: Some(None), ..process };
    let late = world.begins_collectives(process);
    for _ in 0..4 {
        for _ in 0..20 {
            world.run_until(world.now + rng.range(10 * MS, 500 * MS));
            world.stalls(late, rng.range(MS, 50 * MS));
        }
        // a kernel that does not end is seen by then
        world.run_until(world.now + 35_000 * MS * gpus as u64);
    }
    world.checkers.met()
}

/// How often such worlds met these.
fn sums(gpus: usize, whats: [&str; 2]) -> [u64; 2] {
    let met: Vec<Met> = (0..8 / gpus as u64).map(|seed| met(seed, gpus)).collect();
    let sums = whats.map(|what| met.iter().filter_map(|it| it.get(what)).sum());
    eprintln!("{whats:?}: {sums:?}");
    sums
}

/// Each step of the world objects to one that lasts for more than 30 s.
#[test]
fn a_kernel_that_waits_for_a_launch_of_another_process_ends() {
    let [pairs, overran] = sums(1, ["pair", "pair overran"]);
    assert!(pairs > 10_000 && overran > 20, "{pairs} pairs, {overran} that overran");
}

/// The same for more than 60 s.
#[test]
fn a_collective_on_two_gpus_ends() {
    let [all, _] = sums(2, ["collective", "collective overran"]);
    assert!(all > 10_000, "{all} collectives");
}
