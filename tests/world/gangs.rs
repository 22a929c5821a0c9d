//! Gangs as figures: the GPU time of containers with several GPUs beside those with one.

use gpuslice_engine::Config;
use gpuslice_wire::policy::Gangs;

use crate::shares::{Tenant, calm, joins, used, weighs};
use crate::tenant::Kernels;

const MS: u64 = 1_000_000;

/// A container whose turns drain for long on each GPU, at different times, is not served in the gaps until
/// the gang beside it, which needs both GPUs at once, has had its part.
#[test]
fn long_drains_by_turns_do_not_starve_a_gang() {
    for stop in [false, true] {
        let config = Config { stop, ..Config::default() };
        let mut world = calm(1, config, 2);
        let both = Tenant { gpus: 2, ..weighs(20) };
        let apart = Tenant { gang: Gangs::Never, ..Tenant { weight: 1, ..both } };
        joins(&mut world, 0, &both, Kernels::Short);
        joins(&mut world, 1, &apart, Kernels::Exactly(130 * MS));
        world.run_until(world.now + 1_000 * MS);
        let before = used(&world);
        world.run_until(world.now + 20_000 * MS);
        let had: Vec<u64> =
            used(&world).iter().zip(before).map(|(after, before)| (after - before) / MS).collect();
        eprintln!("with stops {stop}: ms on each GPU {had:?}");
        let part = (had[0] + had[1]) * 1_000 / had.iter().sum::<u64>();
        assert!(part >= 800, "{part} thousandths of 952: {had:?}");
    }
}
