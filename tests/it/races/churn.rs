//! Random allocations of every kind in four processes of eight threads, with deaths in between.

use super::{MIB, PAGE, Tenant, Truth, WHO, Watcher, node, numbers, setting};
use crate::harness::node::Node;
use crate::harness::{Random, eventually};
use gpuslice_wire::units::Bytes;
use std::time::Duration;

const CAP: u64 = 1024 * MIB;
const PROCESSES: usize = 4;
const THREADS: u64 = 8;
/// Steps of a thread between two looks at the books.
const STEPS: u64 = 100;

/// What the processes said they hold.
struct Said {
    held: u64,
    managed: u64,
    refused: u64,
}

/// One stretch of work, in which one process may be killed; what the others said at its end.
fn stretch(node: &Node, tenants: &mut [Tenant], random: &mut Random) -> Said {
    let order = format!("go {STEPS}");
    tenants.iter_mut().for_each(|tenant| tenant.order(&order));
    let victim = random.below(2 * tenants.len() as u64) as usize;
    if victim < tenants.len() {
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        tenants[victim].kill();
        tenants[victim] = Tenant::start(node, random.next() >> 16, THREADS, 8);
    }
    let mut said = Said {
        held: 0,
        managed: 0,
        refused: 0,
    };
    for (index, tenant) in tenants.iter_mut().enumerate() {
        if index == victim {
            continue; // it has nothing yet
        }
        let answer = tenant.answer().expect("alive");
        let [_, refused, held, managed] = numbers(&answer)[..] else {
            panic!("{answer}")
        };
        said.refused += refused;
        said.held += held;
        said.managed += managed;
    }
    said
}

/// Waits until the books and the device say the same.
fn agree(node: &Node, truth: &Truth, said: &Said) {
    let look = || {
        (
            node.slice(WHO).expect("a slice").0.0,
            truth.shown() + said.managed,
        )
    };
    let start = std::time::Instant::now();
    loop {
        let (booked, real) = look();
        if booked == real {
            return;
        }
        assert!(
            start.elapsed() < crate::harness::PATIENCE,
            "booked {booked}, the device says {real} ({} by the processes' own count, {} of it managed)",
            said.held,
            said.managed
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_books_agree_with_the_device() {
    let seed = setting("SEED", 7);
    let operations = setting("CHURN_OPERATIONS", 40_000);
    eprintln!("SEED={seed} CHURN_OPERATIONS={operations}");
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let node = node(CAP);
    let (truth, watcher) = (Truth::of(&node), Watcher::start(&node));
    let mut tenants: Vec<Tenant> = (0..PROCESSES)
        .map(|index| Tenant::start(&node, seed + index as u64, THREADS, 8))
        .collect();
    let mut refused = 0;
    for _ in 0..operations.div_ceil(STEPS * THREADS * PROCESSES as u64) {
        let said = stretch(&node, &mut tenants, &mut random);
        agree(&node, &truth, &said);
        refused += said.refused;
        assert!(
            watcher.most() <= CAP,
            "{} of {CAP} bytes were used",
            watcher.most()
        );
    }
    assert!(refused > 0, "nothing was ever refused: the cap was not met");
    assert!(watcher.most() > CAP / 2, "the slice was not used");
    for mut tenant in tenants {
        assert_eq!(tenant.ask("drop"), "dropped");
        tenant.end();
    }
    node.wait_refunded(WHO);
    eventually("nothing is used", || truth.used() == 0);
    assert_eq!(node.cap(WHO), Some(Bytes(CAP)));
    assert_eq!(CAP % PAGE, 0);
}
