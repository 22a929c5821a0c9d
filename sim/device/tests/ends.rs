//! The end of a process on a strict driver: its memory is free late, and later still while a forked child has its
//! descriptors. NVML's figures are late, too.

mod actors;

use actors::{Actor, DIR, Device, ROLE, listen, say};
use gpuslice_sim_device::{DeviceError, Kind, Machine, Role, Work, now_ns};
use std::path::Path;
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
const FOR_EVER: Work = Work::new(Kind::Kernel, u64::MAX);

/// Not a test but what the started processes run; does nothing in an ordinary test run.
#[test]
fn actor() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else {
        return;
    };
    let machine = Machine::open(Path::new(&dir), Role::Driver).unwrap();
    let context = machine.context_create(0).unwrap();
    machine.mem_alloc(0, GIB).unwrap();
    machine.submit(context, FOR_EVER).unwrap();
    let mut child = 0;
    if role == "parent" {
        // SAFETY: the child makes system calls only, until it is killed.
        child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
    }
    say(&child.to_string());
    listen();
}

/// Waits until it is so; a minute is enough on any machine.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn used(machine: &Machine) -> u64 {
    machine.mem_info(0).unwrap().used
}

#[test]
fn memory_of_the_dead_is_free_late_and_belongs_to_nobody_until_then() {
    let device = Device::new("late-end", "mem=2GiB,context=64MiB,exit=2s..3s");
    let machine = device.observe();
    let heir = Machine::open(&device.0, Role::Driver).unwrap();
    let mut dead = Actor::start(&device.0, "alone");
    dead.says();
    assert_eq!(machine.processes(0).unwrap().len(), 1);
    dead.kill();
    let died = now_ns();
    let (gone, took) = (|| used(&machine) == 0, || now_ns() - died);
    let mut seen = 0;
    while !gone() {
        // Two looks with the moment between them cannot tell free memory from held memory.
        let (named, refused) = (machine.processes(0).unwrap(), heir.mem_alloc(0, GIB));
        if took() < 2_000_000_000 {
            assert_eq!(named, vec![]);
            assert_eq!(refused, Err(DeviceError::OutOfMemory));
            seen += 1;
        }
        if refused.is_ok() {
            break;
        }
        assert!(took() < 60_000_000_000, "it is never free");
    }
    assert!(seen > 0 && took() >= 2_000_000_000, "free after {} ns", took());
    // Its work ended with it.
    assert_eq!(machine.contexts(0).unwrap(), vec![]);
    let busy = machine.busy_ns(0).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(machine.busy_ns(0).unwrap(), busy);
}

/// A process that begins while another one's memory is still held must not get that one's place.
#[test]
fn a_newcomer_leaves_the_memory_of_the_dead_alone() {
    let device = Device::new("late-newcomer", "mem=4GiB,context=0B,exit=60s");
    let machine = device.observe();
    let mut dead = Actor::start(&device.0, "alone");
    dead.says();
    dead.kill();
    for _ in 0..3 {
        let newcomer = Machine::open(&device.0, Role::Driver).unwrap();
        newcomer.context_create(0).unwrap();
        assert_eq!(used(&machine), GIB);
    }
}

#[test]
fn a_forked_child_keeps_its_parents_memory_and_work() {
    let device = Device::new("held-end", "mem=2GiB,context=64MiB,held=on");
    let machine = device.observe();
    let mut parent = Actor::start(&device.0, "parent");
    let child: i32 = parent.says().parse().unwrap();
    parent.kill();
    std::thread::sleep(Duration::from_millis(50));
    // NVML names neither the dead parent nor the child, which has no context.
    assert_eq!(machine.processes(0).unwrap(), vec![]);
    assert_eq!(used(&machine), GIB + (64 << 20));
    let busy = machine.busy_ns(0).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(machine.busy_ns(0).unwrap() > busy, "the work goes on");
    // SAFETY: the child that the actor named, which nothing has waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    eventually("the memory is free", || used(&machine) == 0);
}

#[test]
fn a_kind_driver_does_not_wait_for_the_child() {
    let device = Device::new("kind-end", "mem=2GiB");
    let machine = device.observe();
    let mut parent = Actor::start(&device.0, "parent");
    let child: i32 = parent.says().parse().unwrap();
    parent.kill();
    eventually("the memory is free", || used(&machine) == 0);
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[test]
fn nvml_sees_what_was_at_the_last_sample() {
    let device = Device::new("late-figures", "mem=4GiB,context=0B,late=1s");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let sampled = || machine.sampled_mem_info(0).unwrap().used;
    assert_eq!(sampled(), 0);
    let began = now_ns();
    machine.context_create(0).unwrap();
    let memory = machine.mem_alloc(0, GIB).unwrap();
    let (early, listed) = (sampled(), machine.sampled_processes(0).unwrap()[0].used_bytes);
    if now_ns() - began < 900_000_000 {
        assert_eq!((early, listed), (0, 0));
    }
    assert_eq!((used(&machine), machine.processes(0).unwrap()[0].used_bytes), (GIB, GIB));
    eventually("it is sampled", || sampled() == GIB);
    assert_eq!(machine.sampled_processes(0).unwrap()[0].used_bytes, GIB);
    machine.mem_free(memory.key).unwrap();
    assert_eq!(used(&machine), 0);
    eventually("it is sampled again", || sampled() == 0);
}
