//! High-water marks of slices, between real processes.

mod actors;

use actors::{Actor, DIR, Device, ROLE, heard, say};
use gpuslice_sim_device::limits::PAGE_BYTES;
use gpuslice_sim_device::{Machine, Role};
use std::path::Path;
use std::process::Command;

/// Not a test but what the started processes run. Told `take N`, `managed N`, `context` or `free`, it answers when it
/// has done so.
#[test]
fn actor() {
    let (Ok(_), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else {
        return;
    };
    let machine = Machine::open(Path::new(&dir), Role::Driver).unwrap();
    let mut blocks = Vec::new();
    say("ready");
    while let Some(line) = heard() {
        match line.split_once(' ') {
            Some(("take", pages)) => {
                let bytes = pages.parse::<u64>().unwrap() * PAGE_BYTES;
                blocks.extend(machine.mem_alloc(0, bytes).map(|memory| memory.key));
            }
            Some(("managed", pages)) => {
                let bytes = pages.parse::<u64>().unwrap() * PAGE_BYTES;
                blocks.push(machine.mem_alloc_managed(0, bytes).unwrap().key);
            }
            _ if line == "context" => drop(machine.context_create(0).unwrap()),
            _ => blocks.drain(..).for_each(|key| machine.mem_free(key).unwrap()),
        }
        say("done");
    }
}

fn member(device: &Device, slice: &str) -> Actor {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("GPUSLICE_SOCKET", format!("/nowhere/c/{slice}/inside/tenant.sock"));
    let mut actor = Actor::start_by(command, &device.0, "member");
    assert_eq!(actor.says(), "ready");
    actor
}

/// The marks of all slices on the first GPU, in pages.
fn marks(device: &Device) -> Vec<(String, u64)> {
    let marks = device.observe().slice_marks();
    marks.into_iter().map(|mark| (mark.slice, mark.most_bytes[0] / PAGE_BYTES)).collect()
}

fn is(pages: &[(&str, u64)]) -> Vec<(String, u64)> {
    pages.iter().map(|(slice, pages)| ((*slice).to_owned(), *pages)).collect()
}

#[test]
fn what_a_slice_held_together_for_a_moment_is_remembered() {
    let device = Device::new("marks", "mem=1GiB,context=8MiB");
    let (mut one, mut two) = (member(&device, "a"), member(&device, "a"));
    let mut other = member(&device, "b");
    one.ask("take 10");
    two.ask("take 20");
    other.ask("take 100");
    one.ask("managed 7");
    two.ask("context");
    one.ask("free");
    two.ask("take 3");
    assert_eq!(marks(&device), is(&[("a", 41), ("b", 100)]), "10 + 20 + 7 + 4 of a context");
    // What was refused, and what replaces freed memory, is no more than before.
    two.ask("take 100000");
    one.ask("take 14");
    assert_eq!(marks(&device), is(&[("a", 41), ("b", 100)]));
    one.ask("take 1");
    assert_eq!(marks(&device), is(&[("a", 42), ("b", 100)]));
}

#[test]
fn processes_outside_of_slices_have_no_mark() {
    let device = Device::new("no-marks", "mem=1GiB");
    let mut bare = Actor::start(&device.0, "member");
    assert_eq!(bare.says(), "ready");
    bare.ask("take 5");
    assert_eq!(marks(&device), is(&[]));
}

/// A device that frees at once has the memory back when the process has ended, one that is late does not.
#[test]
fn memory_of_the_dead_counts_until_it_is_free() {
    for (config, most) in [("mem=1GiB", 30), ("mem=1GiB,exit=20s", 50)] {
        let device = Device::new("marks-of-the-dead", config);
        let (mut one, mut two) = (member(&device, "a"), member(&device, "a"));
        one.ask("take 20");
        one.kill();
        two.ask("take 30");
        assert_eq!(marks(&device), is(&[("a", most)]), "{config}");
    }
}
