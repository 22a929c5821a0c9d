//! The device between real processes: they are this test program started again, told by the
//! environment what to do, and killed where that is the point.

mod actors;

use actors::{Actor, DIR, Device, ROLE, listen, say};
use gpuslice_sim_device::limits::PAGE_BYTES;
use gpuslice_sim_device::{
    Config, DeviceError, Error, Kind, Machine, MemoryKey, Role, Status, Work, create, destroy,
    now_ns,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FOR_EVER: Work = Work::new(Kind::Kernel, u64::MAX);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 12] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// Not a test but what the started processes run; does nothing in an ordinary test run.
#[test]
fn actor() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else {
        return;
    };
    let driver = || Machine::open(Path::new(&dir), Role::Driver).unwrap();
    match role.as_str() {
        "hog" => {
            let machine = driver();
            let context = machine.context_create(0).unwrap();
            machine.mem_alloc(0, 1 << 30).unwrap();
            machine.submit(context, FOR_EVER).unwrap();
            say("ready");
            listen();
        }
        "grab" => {
            let machine = driver();
            say("ready");
            listen();
            let mut pages = 0;
            while machine.mem_alloc(0, PAGE_BYTES).is_ok() {
                pages += 1;
            }
            say(&pages.to_string());
            listen();
        }
        "export" => {
            let machine = driver();
            let memory = machine.mem_alloc(0, 4 << 20).unwrap();
            let file = machine.vram(0).unwrap();
            file.write_all_at(b"from the exporter", memory.extents[0].offset).unwrap();
            say(&hex(&memory.key.to_bytes()));
            listen();
        }
        "churn" => {
            let machine = driver();
            say("ready");
            loop {
                let context = machine.context_create(0).unwrap();
                let memory = machine.mem_alloc(0, 6 << 20).unwrap();
                for _ in 0..20 {
                    machine.submit(context, Work::new(Kind::Copy, 500)).unwrap();
                }
                machine.mem_free(memory.key).unwrap();
                machine.context_destroy(context).unwrap();
            }
        }
        "open" => {
            let machine = driver();
            say(&machine.gpus().len().to_string());
            listen();
        }
        "look" => {
            let machine = Machine::open(Path::new(&dir), Role::Observer).unwrap();
            say(&machine.processes(0).unwrap().len().to_string());
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_killed_process_leaves_nothing() {
    let device = Device::new("killed", "mem=4GiB,context=64MiB");
    let machine = device.observe();
    let mut hog = Actor::start(&device.0, "hog");
    hog.says();
    let processes = machine.processes(0).unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, hog.child.id());
    assert_eq!(processes[0].used_bytes, (1 << 30) + (64 << 20));
    assert_eq!(machine.mem_info(0).unwrap().used, (1 << 30) + (64 << 20));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(machine.utilisation(0).unwrap(), 100);
    hog.kill();
    assert_eq!(machine.processes(0).unwrap(), vec![]);
    assert_eq!(machine.contexts(0).unwrap(), vec![]);
    assert_eq!(machine.mem_info(0).unwrap().used, 0);
}

#[test]
fn memory_of_the_dead_is_had_at_once() {
    let device = Device::new("heir", "mem=2GiB,context=0B");
    let heir = Machine::open(&device.0, Role::Driver).unwrap();
    let mut hog = Actor::start(&device.0, "hog");
    hog.says();
    assert_eq!(heir.mem_alloc(0, 2 << 30), Err(DeviceError::OutOfMemory));
    hog.kill();
    assert_eq!(heir.mem_alloc(0, 2 << 30).unwrap().bytes(), 2 << 30);
}

#[test]
fn two_processes_share_the_device_equally() {
    let device = Device::new("share", "mem=4GiB");
    let machine = device.observe();
    let mut hogs = [Actor::start(&device.0, "hog"), Actor::start(&device.0, "hog")];
    hogs.iter_mut().for_each(|hog| assert_eq!(hog.says(), "ready"));
    let busy = || -> Vec<u64> {
        machine.processes(0).unwrap().iter().map(|process| process.busy_ns).collect()
    };
    let outside = now_ns();
    let before = busy();
    let inside = now_ns();
    std::thread::sleep(Duration::from_millis(500));
    let inside = now_ns() - inside;
    let after = busy();
    let outside = now_ns() - outside;
    let used: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    assert_eq!(used.len(), 2);
    assert!(used[0].abs_diff(used[1]) <= 2_000_000, "{used:?}");
    // Of each 2.05 ms the switch takes 0.05.
    let sum = used[0] + used[1];
    assert!(sum + 4_000_000 >= inside / 41 * 40, "{sum} of {inside}");
    assert!(sum <= outside / 41 * 40 + 4_000_000, "{sum} of {outside}");
}

#[test]
fn capacity_is_exact_among_racing_processes() {
    let device = Device::new("race", "mem=512MiB");
    let mut actors: Vec<_> = (0..4).map(|_| Actor::start(&device.0, "grab")).collect();
    actors.iter_mut().for_each(|actor| assert_eq!(actor.says(), "ready"));
    actors.iter_mut().for_each(Actor::tell);
    let pages: u64 = actors.iter_mut().map(|actor| actor.says().parse::<u64>().unwrap()).sum();
    assert_eq!(pages * PAGE_BYTES, 512 << 20);
    let info = device.observe().mem_info(0).unwrap();
    assert_eq!((info.used, info.free), (512 << 20, 0));
}

#[test]
fn imported_memory_outlives_its_exporter() {
    let device = Device::new("import", "mem=64MiB,context=2MiB");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let mut exporter = Actor::start(&device.0, "export");
    let key = MemoryKey::from_bytes(unhex(&exporter.says()));
    let memory = machine.mem_import(key).unwrap();
    let context = machine.context_create(0).unwrap();
    let shown = || machine.processes(0).unwrap()[0].used_bytes;
    assert_eq!(shown(), 2 << 20, "the exporter pays");
    exporter.kill();
    assert_eq!(shown(), 6 << 20, "the importer pays");
    let mut bytes = [0; 17];
    machine.vram(0).unwrap().read_exact_at(&mut bytes, memory.extents[0].offset).unwrap();
    assert_eq!(&bytes, b"from the exporter");
    assert_eq!(machine.mem_info(0).unwrap().used, 6 << 20);
    machine.mem_free(key).unwrap();
    machine.context_destroy(context).unwrap();
    assert_eq!(machine.mem_free(key), Err(DeviceError::StaleMemory));
    assert_eq!(machine.mem_import(key), Err(DeviceError::StaleMemory));
    assert_eq!(machine.mem_info(0).unwrap().used, 0);
    // What comes next reads as zeros.
    let again = machine.mem_alloc(0, 64 << 20).unwrap();
    machine.vram(0).unwrap().read_exact_at(&mut bytes, again.extents[0].offset).unwrap();
    assert_eq!(bytes, [0; 17]);
}

#[test]
fn an_exporter_nobody_imports_from_takes_its_memory_along() {
    let device = Device::new("export", "mem=64MiB");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let mut exporter = Actor::start(&device.0, "export");
    let key = MemoryKey::from_bytes(unhex(&exporter.says()));
    exporter.kill();
    machine.processes(0).unwrap();
    assert_eq!(machine.mem_import(key), Err(DeviceError::StaleMemory));
}

/// Processes killed at any moment, the middle of a change under the lock included, leave a device
/// that works and has all its memory.
#[test]
fn killed_at_any_moment() {
    let device = Device::new("churn", "mem=256MiB,context=2MiB");
    let machine = device.observe();
    for round in 0..40 {
        let mut actors = [Actor::start(&device.0, "churn"), Actor::start(&device.0, "churn")];
        actors.iter_mut().for_each(|actor| assert_eq!(actor.says(), "ready"));
        std::thread::sleep(Duration::from_micros(777 * round % 5000));
        actors.iter_mut().for_each(Actor::kill);
        let began = Instant::now();
        assert_eq!(machine.processes(0).unwrap(), vec![]);
        assert_eq!(machine.mem_info(0).unwrap().used, 0, "round {round}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let driver = Machine::open(&device.0, Role::Driver).unwrap();
    let whole = driver.mem_alloc(0, 256 << 20).unwrap();
    assert_eq!(whole.bytes(), 256 << 20);
}

#[test]
fn many_first_openers_make_one_device() {
    let device = Device::absent("first");
    let actors = (0..8).map(|_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("GPUSLICE_SIM", "devices=3,mem=64MiB");
        Actor::start_by(command, &device.0, "open")
    });
    let mut actors: Vec<_> = actors.collect();
    actors.iter_mut().for_each(|actor| assert_eq!(actor.says(), "3"));
}

#[test]
fn processes_outside_the_pid_namespace_are_not_shown() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command
    };
    let possible = unshare().arg("true").status().is_ok_and(|status| status.success());
    if !possible {
        eprintln!("no pid namespaces here: nothing to see");
        return;
    }
    let device = Device::new("namespace", "mem=4GiB");
    let inside = || {
        let mut command = unshare();
        command.arg(std::env::current_exe().unwrap());
        command
    };
    let mut outer = Actor::start(&device.0, "hog");
    outer.says();
    assert_eq!(Actor::start_by(inside(), &device.0, "look").says(), "0");
    let mut inner = Actor::start_by(inside(), &device.0, "hog");
    inner.says();
    let machine = device.observe();
    let pids: Vec<u32> = machine.processes(0).unwrap().iter().map(|info| info.pid).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.contains(&outer.child.id()));
    assert_eq!(Actor::start_by(inside(), &device.0, "look").says(), "0");
}

#[test]
fn waiting_takes_as_long_as_the_work() {
    let device = Device::new("wait", "mem=64MiB,context=0B");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let context = machine.context_create(0).unwrap();
    let began = now_ns();
    let work = Work::new(Kind::Kernel, 20_000_000);
    let first = machine.submit(context, work).unwrap();
    let second = machine.submit(context, work).unwrap();
    let Status::Done { start_ns, end_ns } = machine.wait(context, second).unwrap() else {
        panic!("not done")
    };
    assert!(now_ns() >= end_ns && start_ns >= began);
    assert_eq!(end_ns - start_ns, 20_000_000);
    let Ok(Status::Done { end_ns, .. }) = machine.poll(context, first) else { panic!() };
    assert_eq!(end_ns, start_ns);
}

#[test]
fn a_full_queue_says_so_and_has_room_again() {
    let device = Device::new("full", "mem=64MiB,context=0B");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let context = machine.context_create(0).unwrap();
    let work = Work::new(Kind::Kernel, 20_000);
    let full = (0..100_000).find_map(|_| machine.submit(context, work).err());
    assert_eq!(full, Some(DeviceError::QueueFull));
    machine.wait_for_room(context).unwrap();
    machine.submit(context, work).unwrap();
}

#[test]
fn a_context_pays_its_overhead() {
    let device = Device::new("overhead", "mem=96MiB,context=64MiB");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let context = machine.context_create(0).unwrap();
    assert_eq!(machine.context_create(0), Err(DeviceError::OutOfMemory));
    assert_eq!(machine.mem_info(0).unwrap().free, 32 << 20);
    machine.context_destroy(context).unwrap();
    assert_eq!(machine.mem_info(0).unwrap().free, 96 << 20);
    assert_eq!(machine.context_create(1), Err(DeviceError::NoSuchGpu));
}

#[test]
fn injected_faults() {
    let device = Device::new("injected", "mem=64MiB,context=2MiB,fault=oom-every=3");
    let machine = Machine::open(&device.0, Role::Driver).unwrap();
    let results: Vec<bool> = (0..6).map(|_| machine.mem_alloc(0, 1).is_ok()).collect();
    assert_eq!(results, [true, true, false, true, true, false]);
    let context = machine.context_create(0).unwrap();
    machine.set_faults(gpuslice_sim_device::Faults::parse("xid:31@launch=2").unwrap());
    let seen = machine.event_count();
    machine.submit(context, FOR_EVER).unwrap();
    machine.submit(context, Work::new(Kind::Copy, 1)).unwrap();
    let second = machine.submit(context, FOR_EVER);
    assert_eq!(second, Err(DeviceError::Faulted { xid: 31 }));
    let (event, _) = machine.next_event(seen, now_ns()).unwrap();
    assert_eq!((event.gpu, event.xid), (0, 31));
    assert_eq!(machine.context_info(context).unwrap().fault, Some(31));
    machine.context_destroy(context).unwrap();
    assert_eq!(machine.context_info(context), Err(DeviceError::StaleContext));
}

#[test]
fn a_foreign_directory_is_refused_and_kept() {
    let device = Device::new("foreign", "mem=64MiB");
    let state = device.0.join("node/state");
    for content in ["", "something else entirely, and long enough to be read"] {
        std::fs::write(&state, content).unwrap();
        let error = Machine::open(&device.0, Role::Driver).err().unwrap();
        assert!(matches!(error, Error::Layout { .. }), "{error}");
    }
    assert!(destroy(&device.0).is_err());
    assert!(state.exists());
    std::fs::remove_dir_all(&device.0).unwrap();
}

#[test]
fn another_version_is_refused() {
    let device = Device::new("version", "mem=64MiB");
    let state = device.0.join("node/state");
    let file = std::fs::OpenOptions::new().write(true).open(state).unwrap();
    file.write_all_at(&99_u32.to_le_bytes(), 8).unwrap();
    let error = Machine::open(&device.0, Role::Driver).err().unwrap().to_string();
    assert!(error.contains("version 99"), "{error}");
    assert!(create(&device.0, &Config::parse("").unwrap()).is_err());
}
