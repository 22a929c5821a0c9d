//! The allocator's vectors, and the orders.

use super::*;
use serde_json::Value;
use std::io::Read;

const GIB: u64 = 1 << 30;

fn vectors() -> Vec<Value> {
    let packed = include_bytes!("../tests/data/allocator-vectors.json.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).expect("gzip");
    serde_json::from_str(&text).expect("JSON")
}

fn gpus(sequence: &Value) -> (Vec<String>, Vec<Gpu>) {
    let gpu = |value: &Value| {
        let gpu = Gpu {
            island: Some(value["Island"].as_str().expect("island").to_owned()),
            unhealthy: value["Tainted"] == true,
            ..Gpu::new(Bytes(value["MemGi"].as_u64().expect("memory") * GIB))
        };
        (value["Name"].as_str().expect("name").to_owned(), gpu)
    };
    sequence["GPUs"].as_array().expect("GPUs").iter().map(gpu).unzip()
}

fn ask(value: &Value) -> Ask {
    let number = |name: &str| value[name].as_u64().expect("number");
    Ask {
        memory: Bytes(number("MemGi") * GIB),
        cores: number("Cores") as u32,
        count: number("Count") as usize,
        links: if value["Match"] == true { Links::Require } else { Links::Any },
    }
}

/// The chosen device as the allocator's log has it.
fn words(name: &str, value: &Value) -> String {
    format!("{name} mem={}Gi cores={} shares=1 shareID=true", value["MemGi"], value["Cores"])
}

#[test]
fn every_ask_of_the_schedulers_allocator_is_answered_alike() {
    let (mut asks, mut refused) = (0, 0);
    let vectors = vectors();
    assert_eq!(vectors.len(), 400);
    for (number, sequence) in vectors.iter().enumerate() {
        let (names, mut gpus) = gpus(sequence);
        let mut got: Vec<Option<(Vec<usize>, Ask)>> = Vec::new();
        for (at, step) in sequence["Steps"].as_array().expect("steps").iter().enumerate() {
            let Some(freed) = step["Free"].as_u64() else {
                let ask = ask(&step["Ask"]);
                let chosen = first_fit(&gpus, &ask);
                let told = chosen.as_ref().map(|chosen| {
                    chosen.iter().map(|&at| words(&names[at], &step["Ask"])).collect::<Vec<_>>()
                });
                let told = serde_json::to_value(told).expect("JSON");
                assert_eq!(told, step["Got"], "sequence {number}, step {at}: {ask:?}");
                asks += 1;
                refused += usize::from(chosen.is_none());
                chosen.iter().flatten().for_each(|&at| gpus[at].take(&ask));
                got.push(chosen.map(|chosen| (chosen, ask)));
                continue;
            };
            let (chosen, ask) = got[freed as usize].take().expect("a step that got GPUs");
            chosen.iter().for_each(|&at| gpus[at].free_share(&ask));
            got.push(None);
        }
    }
    assert_eq!(asks, 7126);
    assert!(refused > 1000 && asks - refused > 1000, "{refused} refused: both answers occur");
}

/// Positions after the GPUs are sorted as the driver would republish them.
fn republished(gpus: &[Gpu], placement: Placement, ask: &Ask) -> Option<Vec<usize>> {
    let order = order(gpus, placement);
    let slice: Vec<Gpu> = order.iter().map(|&at| gpus[at].clone()).collect();
    first_fit(&slice, ask).map(|chosen| chosen.iter().map(|&at| order[at]).collect())
}

/// The stock scheduler, given the slice in our order, places as the device plugin does.
#[test]
fn the_published_order_steers_the_scheduler() {
    let mut differing = 0;
    for sequence in vectors().iter().take(100) {
        for placement in [Placement::Binpack, Placement::Spread] {
            let (_, mut gpus) = gpus(sequence);
            for step in sequence["Steps"].as_array().expect("steps") {
                if step["Ask"].is_null() {
                    continue;
                }
                let ask = ask(&step["Ask"]);
                let chosen = choose(&gpus, placement, &ask);
                assert_eq!(republished(&gpus, placement, &ask), chosen);
                differing += usize::from(chosen != first_fit(&gpus, &ask));
                chosen.iter().flatten().for_each(|&at| gpus[at].take(&ask));
            }
        }
    }
    assert!(differing > 100, "the order matters in {differing} asks only");
}

fn gib(memory: u64) -> Ask {
    Ask { memory: Bytes(memory * GIB), cores: 0, count: 1, links: Links::Any }
}

fn node(rooms: &[(u64, u64)]) -> Vec<Gpu> {
    let gpu = |&(total, used): &(u64, u64)| {
        let mut gpu = Gpu::new(Bytes(total * GIB));
        if used > 0 {
            gpu.take(&gib(used));
        }
        gpu
    };
    rooms.iter().map(gpu).collect()
}

#[test]
fn binpack_takes_the_smallest_room_and_spread_the_largest() {
    let gpus = node(&[(80, 0), (80, 70), (80, 40), (24, 0)]);
    let ask = gib(8);
    assert_eq!(choose(&gpus, Placement::Binpack, &ask), Some(vec![1]));
    assert_eq!(choose(&gpus, Placement::Spread, &ask), Some(vec![0]));
    assert_eq!(choose(&gpus, Placement::Binpack, &gib(20)), Some(vec![3]));
    assert_eq!(choose(&gpus, Placement::Binpack, &gib(81)), None);
}

#[test]
fn memory_and_compute_are_decided_together() {
    let mut gpus = node(&[(16, 12), (16, 0)]);
    gpus[0].used.cores = 90;
    let both = Ask { cores: 50, ..gib(4) };
    assert_eq!(choose(&gpus, Placement::Binpack, &gib(4)), Some(vec![0]));
    assert_eq!(choose(&gpus, Placement::Binpack, &both), Some(vec![1]));
    gpus[1].used.cores = 51;
    assert_eq!(choose(&gpus, Placement::Binpack, &both), None);
    let huge = Ask { cores: u32::MAX, ..both };
    assert_eq!(choose(&gpus, Placement::Binpack, &huge), None);
}

#[test]
fn whole_islands_stay_free() {
    let mut gpus = node(&[(80, 0), (80, 0), (80, 0), (80, 10)]);
    for (at, gpu) in gpus.iter_mut().enumerate() {
        gpu.island = Some(format!("i{}", at / 2));
    }
    let whole = gib(80);
    assert_eq!(choose(&gpus, Placement::Binpack, &whole), Some(vec![2]));
    let two = Ask { count: 2, links: Links::Prefer, ..gib(5) };
    assert_eq!(choose(&gpus, Placement::Binpack, &two), Some(vec![3, 2]));
    assert_eq!(choose(&gpus, Placement::Spread, &two), Some(vec![0, 1]));
    let three = Ask { count: 3, ..two };
    assert_eq!(choose(&gpus, Placement::Binpack, &three), Some(vec![3, 2, 0]));
    let required = Ask { links: Links::Require, ..three };
    assert_eq!(choose(&gpus, Placement::Binpack, &required), None);
}

#[test]
fn limits_of_a_gpu_refuse() {
    let mut gpus = node(&[(80, 0)]);
    for _ in 0..SHARES {
        assert!(choose(&gpus, Placement::Binpack, &gib(1)).is_some());
        gpus[0].take(&gib(1));
    }
    assert_eq!(choose(&gpus, Placement::Binpack, &gib(1)), None, "share 21");
    let mut sick = node(&[(80, 0)]);
    sick[0].unhealthy = true;
    assert_eq!(choose(&sick, Placement::Binpack, &gib(1)), None);
    assert_eq!(choose(&sick, Placement::Binpack, &Ask { count: 0, ..gib(1) }), None);
    assert_eq!("spread".parse(), Ok(Placement::Spread));
    assert!("Spread".parse::<Placement>().is_err());
}
