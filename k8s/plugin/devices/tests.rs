//! Ids, sizes, caps.

use super::*;
use crate::testing::{gpu, uuid};
use gpuslice_wire::node::Numa;

const GIB: u64 = 1 << 30;

fn inventory(totals_mib: &[u64], unit: &str) -> Inventory {
    let gpus: Vec<GpuFacts> =
        (0..).zip(totals_mib).map(|(n, mib)| gpu(n, Bytes(mib << 20))).collect();
    Inventory::of(&gpus, unit.parse().expect("a unit"))
}

fn ids(card: u8, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("{}::{n}", uuid(card))).collect()
}

#[test]
fn units_are_sizes() {
    let unit = |text: &str| text.parse::<Unit>().map(|unit| unit.to_string());
    assert_eq!(unit("GiB").as_deref(), Ok("GiB"));
    assert_eq!(unit("MiB").as_deref(), Ok("MiB"));
    assert_eq!(unit("256MiB").as_deref(), Ok("256MiB"));
    for bad in ["", "GB", "1KiB", "0", "-1"] {
        assert!(unit(bad).is_err(), "{bad}");
    }
}

#[test]
fn ids_name_their_gpu() {
    let all = inventory(&[15079, 16130], "GiB");
    let memory = all.list(Resource::Memory);
    assert_eq!(memory.devices.len(), 14 + 15);
    assert_eq!(memory.devices[14].id, format!("{}::0", uuid(1)));
    assert!(memory.devices.iter().all(|it| it.id.len() <= 63 && it.health == HEALTHY));
    assert_eq!(all.list(Resource::Cores).devices.len(), 200);
    let mut mixed = ids(1, 14..15);
    mixed.extend(ids(0, 0..2));
    assert_eq!(all.cards_of(Resource::Memory, &mixed), Ok(vec![1, 0, 0]));
    assert!(all.cards_of(Resource::Cores, &ids(0, 99..100)).is_ok());
}

#[test]
fn ids_of_no_device_are_refused() {
    let all = inventory(&[15079], "GiB");
    let check = |ids: &[String]| all.cards_of(Resource::Memory, ids).unwrap_err();
    assert_eq!(check(&[]), BadId::None);
    assert_eq!(check(&ids(0, 14..15)), BadId::Unknown(ids(0, 14..15).remove(0)));
    assert_eq!(check(&ids(7, 0..1)), BadId::Foreign(ids(7, 0..1).remove(0)));
    let twice = [ids(0, 3..4), ids(0, 3..4)].concat();
    assert_eq!(check(&twice), BadId::Repeated(twice[0].clone()));
    let many: Vec<String> = (0..70_001).map(|n| format!("{}::{n}", uuid(0))).collect();
    assert_eq!(check(&many), BadId::TooMany(70_001));
    for text in ["", "x", "::", "GPU-1::0"] {
        assert_eq!(check(&[text.to_owned()]), BadId::Unknown(text.to_owned()));
    }
    for number in ["+1", "01", "1 ", "-1", "99999999999999999999"] {
        let id = format!("{}::{number}", uuid(0));
        assert_eq!(check(std::slice::from_ref(&id)), BadId::Unknown(id));
    }
}

/// 8 GPUs of 80 GiB in MiB are 655,360 devices, which no kubelet reads.
#[test]
fn a_list_that_no_kubelet_reads_is_refused_with_the_unit_that_fits() {
    let too_many = inventory(&[80 * 1024; 8], "MiB").check_size().expect_err("655,360 devices");
    let text = too_many.to_string();
    assert!(text.contains("655360") && text.contains("--memory-unit"), "{text}");
    assert!(text.contains("16MiB is the smallest"), "{text}");
    inventory(&[80 * 1024; 8], "16MiB").check_size().expect("the suggested unit");
    inventory(&[80 * 1024; 8], "8MiB").check_size().expect_err("half of it");
}

/// What eight H200 with 143,771 MiB each take at most: all of them sick, each with its NUMA node.
#[test]
fn a_list_of_eight_h200_has_at_most_128_kib() {
    let mut gpus: Vec<GpuFacts> = (0..8).map(|number| gpu(number, Bytes(143_771 << 20))).collect();
    for gpu in &mut gpus {
        gpu.numa = Numa(Some(1));
        gpu.health.state = HealthState::Xid;
    }
    let all = Inventory::of(&gpus, Unit(Bytes(GIB)));
    let bytes = [Resource::Memory, Resource::Cores].map(|it| all.list(it).encoded_len());
    assert_eq!(bytes, [73_040, 51_920], "SPECIFICATION K35 states these");
    assert!(bytes.iter().all(|bytes| *bytes <= 128 << 10));
}

#[test]
fn a_sick_gpu_keeps_its_devices() {
    let mut gpus = vec![gpu(0, Bytes(4 * GIB)), gpu(1, Bytes(4 * GIB))];
    gpus[1].health.state = HealthState::Xid;
    let all = Inventory::of(&gpus, Unit(Bytes(GIB)));
    let list = all.list(Resource::Memory);
    let health: Vec<&str> = list.devices.iter().map(|it| it.health.as_str()).collect();
    assert_eq!(health, [[HEALTHY; 4], [UNHEALTHY; 4]].concat());
}

/// The three caps that cGPU's documents show.
#[test]
fn a_cap_is_the_same_part_of_the_memory() {
    let cap = |mib, units| inventory(&[mib], "GiB").cards[0].cap(units).0 >> 20;
    assert_eq!(cap(16130, 4), 4301);
    assert_eq!(cap(16130, 2), 2150);
    assert_eq!(cap(15079, 3), 3231);
    assert_eq!(cap(15079, 14), 15079, "all units are all of the memory");
}

/// However a GPU is divided, the units that are left are the ones that were not given.
#[test]
fn free_units_and_caps_agree() {
    for total in [15079, 16130, 24_258, 81_559, 143_771] {
        let card = &inventory(&[total], "GiB").cards[0];
        for each in 1..=card.units {
            let shares = (card.units / each).min(20);
            let mut left = card.total;
            for given in 1..=shares {
                left = left.saturating_sub(card.cap(each));
                assert_eq!(
                    card.free_units(left),
                    card.units - given * each,
                    "{total}: {given} x {each}"
                );
            }
        }
    }
}

#[test]
fn preferred_ids_are_of_the_decided_gpus() {
    let all = inventory(&[4096, 4096, 4096], "GiB");
    let available: Vec<String> =
        all.list(Resource::Memory).devices.into_iter().map(|it| it.id).collect();
    assert_eq!(all.prefer(&available, &[1], 3), ids(1, 0..3));
    assert_eq!(all.prefer(&available, &[2, 0], 4), [ids(2, 0..2), ids(0, 0..2)].concat());
    assert_eq!(all.prefer(&available[..2], &[0], 4), ids(0, 0..2), "no more are available");
    assert!(all.prefer(&available, &[], 4).is_empty());
}
