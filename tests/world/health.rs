//! GPUs that fail and recover while containers come and go.

use std::collections::BTreeSet;

use gpuslice_engine::{Config, Event, NoSlices};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::snapshot::Snapshot;

use crate::world::{Mood, World, gpu};

fn slices(world: &World) -> BTreeSet<(ContainerId, GpuUuid)> {
    let rows = world.snapshot().into_iter();
    let slices = rows.filter_map(|row| match row {
        Snapshot::Slice { container, gpu, .. } => Some((container, gpu)),
        _ => None,
    });
    slices.collect()
}

/// No slice begins on a GPU that has failed. Those that it has go on, and every checker watches them.
#[test]
fn a_gpu_that_has_failed_gets_no_new_slice() {
    let (mut beside, mut kept, mut again) = (0, 0, 0);
    for seed in 0..20 {
        let mood = Mood { trouble: false, fate: true, few: false, limits: false };
        let mut world = World::new(seed, Config::default(), 2, mood);
        let uuid = gpu((seed % 2) as u8);
        let on_it = |all: &BTreeSet<_>| all.iter().filter(|(_, gpu)| *gpu == uuid).count();
        for _ in 0..20 {
            world.tell(Event::GpuWithoutSlices { uuid, why: NoSlices::Xid(79) });
            let before = slices(&world);
            world.run_steps(100);
            let failed = slices(&world);
            let new: BTreeSet<_> = failed.difference(&before).copied().collect();
            assert_eq!(on_it(&new), 0, "seed {seed}: {new:?}");
            (beside, kept) = (beside + new.len(), kept + on_it(&failed));
            world.tell(Event::GpuWithSlices { uuid });
            world.run_steps(100);
            again += on_it(&slices(&world).difference(&failed).copied().collect());
            world.agree();
        }
        world.end();
    }
    eprintln!("slices: {beside} on the other GPU, {kept} kept, {again} after a recovery");
    assert!(beside > 20 && kept > 20 && again > 20);
}
