//! The driver's memory limits on real control groups: made for the test where that is allowed,
//! entered by processes of the test, and removed.

mod actors;

use actors::{Actor, DIR, Device, ROLE, heard, say, skip};
use gpuslice_sim_device::limits::{MAX_QUOTAS, PAGE_BYTES};
use gpuslice_sim_device::{LimitError, Machine, Role, UNLIMITED};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A control group, removed at the end; its processes must have ended before.
struct Group(PathBuf);

/// A group under the root; `None` where this test may not make one, with the reason printed.
fn group() -> Option<Group> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("gpuslice-sim-{}-{number}", std::process::id());
    let Some(mount) = gpuslice_host::cgroup::mount() else {
        skip("there is no unified hierarchy of control groups here");
        return None;
    };
    let dir = mount.join(&name);
    match std::fs::create_dir(&dir) {
        Ok(()) => Some(Group(dir)),
        Err(error) => {
            skip(&format!("no control group can be made: {error}"));
            None
        }
    }
}

impl Group {
    fn below(&self, name: &str) -> Group {
        let dir = self.0.join(name);
        std::fs::create_dir(&dir).unwrap();
        Group(dir)
    }

    /// Moves a living process here.
    fn enter(&self, actor: &Actor) {
        let pid = actor.child.id().to_string();
        std::fs::write(self.0.join("cgroup.procs"), pid).unwrap();
    }

    /// Starts a process here.
    fn start(&self, device: &Path, role: &str) -> Actor {
        self.start_by(&[], device, role)
    }

    /// The same, through another program.
    fn start_by(&self, through: &[&str], device: &Path, role: &str) -> Actor {
        let mut shell = Command::new("sh");
        let program = std::env::current_exe().unwrap();
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        shell.arg(self.0.join("cgroup.procs"));
        shell.args(through).arg(program);
        Actor::start_by(shell, device, role)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process killed just now may be in it for a moment yet.
        for _ in 0..500 {
            match std::fs::remove_dir(&self.0) {
                Err(error) if error.raw_os_error() == Some(16) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// Not a test but what the started processes run; does nothing in an ordinary test run.
#[test]
fn actor() {
    let (Ok(role), Ok(dir)) = (std::env::var(ROLE), std::env::var(DIR)) else {
        return;
    };
    let machine = Machine::open(Path::new(&dir), Role::Driver).unwrap();
    match role.as_str() {
        "tenant" => tenant(&machine),
        "churn" => {
            say("ready");
            loop {
                let context = machine.context_create(0);
                let memory = machine.mem_alloc(0, 6 * MIB);
                if let Ok(memory) = memory {
                    machine.mem_free(memory.key).unwrap();
                }
                if let Ok(context) = context {
                    machine.context_destroy(context).unwrap();
                }
            }
        }
        "set" => {
            let group = PathBuf::from(heard().unwrap());
            say("ready");
            for round in 0.. {
                let hard = if round % 3 == 0 { UNLIMITED } else { 64 * MIB };
                let soft = round % 2 * MIB;
                machine.set_limits(0, &group, soft, hard).unwrap();
            }
        }
        other => panic!("no role {other}"),
    }
}

/// Obeys its test's commands until the test ends.
fn tenant(machine: &Machine) {
    say("ready");
    while let Some(line) = heard() {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("grab", _) => {
                let taken = || machine.mem_alloc(0, PAGE_BYTES).ok();
                say(&std::iter::from_fn(taken).count().to_string());
            }
            ("take", mib) => {
                let bytes = mib.parse::<u64>().unwrap() * MIB;
                say(&format!("{:?}", machine.mem_alloc(0, bytes).is_ok()));
            }
            ("managed", mib) => {
                let bytes = mib.parse::<u64>().unwrap() * MIB;
                say(&format!("{:?}", machine.mem_alloc_managed(0, bytes).is_ok()));
            }
            ("context", _) => say(&format!("{:?}", machine.context_create(0).is_ok())),
            ("info", _) => {
                let info = machine.mem_info(0).unwrap();
                say(&format!("{} {}", info.total / MIB, info.free / MIB));
            }
            ("set", group) => {
                let set = machine.set_limits(0, Path::new(group), 0, PAGE_BYTES);
                let get = machine.limits_of(0, Path::new(group));
                say(&format!("{set:?} {get:?}"));
            }
            // SAFETY: the argument is a number, and nothing here depends on who the user is.
            ("common", _) => say(&unsafe { libc::setuid(65_534) }.to_string()),
            other => panic!("cannot {other:?}"),
        }
    }
}

fn ready(mut actor: Actor) -> Actor {
    assert_eq!(actor.says(), "ready");
    actor
}

fn used(machine: &Machine, group: &Group) -> u64 {
    machine.limits_of(0, &group.0).unwrap().used / MIB
}

#[test]
fn every_group_has_its_wall_and_so_have_those_above() {
    let Some(slice) = group() else { return };
    let (left, right) = (slice.below("left"), slice.below("right"));
    let device = Device::new("limits", "mem=256MiB,context=2MiB,limits=dmem");
    let machine = device.observe();
    machine.set_limits(0, &slice.0, 0, 100 * MIB).unwrap();
    let detour = slice.0.join("right/../left");
    machine.set_limits(0, &detour, 0, 40 * MIB).unwrap();
    let mut actors =
        [&left, &left, &right, &slice].map(|group| ready(group.start(&device.0, "tenant")));
    assert_eq!(actors[0].ask("info"), "40 40");
    assert_eq!(actors[2].ask("info"), "256 256", "a limit above does not show");
    assert_eq!(actors[0].ask("context"), "true");
    assert_eq!(actors[1].ask("info"), "40 38", "contexts count");
    assert_eq!(actors[0].ask("take 30"), "true");
    assert_eq!(actors[1].ask("take 10"), "false");
    assert_eq!(actors[1].ask("grab"), "4");
    assert_eq!(actors[1].ask("context"), "false");
    assert_eq!(used(&machine, &left), 40);
    assert_eq!(actors[2].ask("grab"), "30", "the limit above holds");
    assert_eq!(actors[3].ask("take 2"), "false");
    assert_eq!(used(&machine, &slice), 100);
    let outside = Machine::open(&device.0, Role::Driver).unwrap();
    assert_eq!(outside.mem_info(0).unwrap().free, 156 * MIB);
    outside.mem_alloc(0, 156 * MIB).unwrap();
    actors[0].kill();
    assert_eq!(actors[1].ask("grab"), "16", "a death makes room at once");
    assert_eq!(used(&machine, &left), 40);
    // Clearing a limit: the one above still holds.
    machine.set_limits(0, &left.0, 0, UNLIMITED).unwrap();
    assert_eq!(machine.limits_of(0, &left.0), Err(LimitError::NotFound));
    assert_eq!(actors[1].ask("take 2"), "false");
}

#[test]
fn limits_do_not_follow_who_moves_away() {
    let Some(group) = group() else { return };
    let device = Device::new("moves", "mem=64MiB,limits=misc");
    let machine = device.observe();
    machine.set_limits(0, &group.0, 0, 8 * MIB).unwrap();
    let mut mover = ready(Actor::start(&device.0, "tenant"));
    assert_eq!(mover.ask("take 4"), "true");
    group.enter(&mover);
    assert_eq!(mover.ask("grab"), "2", "its earlier memory counts as well");
    assert_eq!(used(&machine, &group), 8);
    let root = group.0.parent().unwrap().join("cgroup.procs");
    std::fs::write(root, mover.child.id().to_string()).unwrap();
    assert_eq!(mover.ask("info"), "64 56");
    assert_eq!(used(&machine, &group), 0);
    assert_eq!(mover.ask("grab"), "28");
}

/// A container takes its own group for the root of all.
#[test]
fn who_sees_no_groups_is_held_all_the_same() {
    let unshare = ["unshare", "--cgroup"];
    let tried = Command::new(unshare[0]).args([unshare[1], "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return skip("no cgroup namespace can be made here");
    }
    let Some(slice) = group() else { return };
    let leaf = slice.below("leaf");
    let device = Device::new("inside", "mem=64MiB,limits=misc");
    let machine = device.observe();
    machine.set_limits(0, &slice.0, 0, 20 * MIB).unwrap();
    machine.set_limits(0, &leaf.0, 0, 8 * MIB).unwrap();
    let mut tenant = ready(leaf.start_by(&unshare, &device.0, "tenant"));
    assert_eq!(tenant.ask("info"), "8 8");
    assert_eq!(tenant.ask("grab"), "4");
    assert_eq!((used(&machine, &leaf), used(&machine, &slice)), (8, 8));
    machine.set_limits(0, &leaf.0, 0, 60 * MIB).unwrap();
    assert_eq!(tenant.ask("grab"), "6", "the limit above holds");
}

#[test]
fn managed_memory_is_not_covered() {
    let Some(group) = group() else { return };
    let device = Device::new("managed", "mem=64MiB,limits=dmem");
    let machine = device.observe();
    machine.set_limits(0, &group.0, 0, 8 * MIB).unwrap();
    let mut tenant = ready(group.start(&device.0, "tenant"));
    assert_eq!(tenant.ask("managed 32"), "true");
    assert_eq!(used(&machine, &group), 0);
    assert_eq!(machine.mem_info(0).unwrap().used, 32 * MIB);
    assert_eq!(tenant.ask("grab"), "4");
    assert_eq!(tenant.ask("managed 100"), "false", "there is no more");
}

/// Whether this process has the capability that a driver takes for root's, CAP_SYS_ADMIN.
fn may_set() -> bool {
    caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap()
}

#[test]
fn what_is_wrong_is_refused() {
    let off = Device::new("off", "mem=64MiB");
    let anywhere = Path::new("/sys/fs/cgroup");
    let machine = off.observe();
    let set = machine.set_limits(0, anywhere, 0, UNLIMITED);
    assert_eq!(set, Err(LimitError::NotSupported));
    assert_eq!(machine.limits_of(0, anywhere), Err(LimitError::NotSupported));

    let device = Device::new("wrong", "devices=2,mem=64MiB/32MiB,limits=dmem");
    let machine = device.observe();
    // The driver asks for the right to set before it looks at the arguments; to read needs none.
    let wrong = match may_set() {
        true => LimitError::NoGroup,
        false => LimitError::NotPermitted,
    };
    for path in ["/proc", "/sys/fs/cgroup/no such group", "", "relative"] {
        let path = Path::new(path);
        let set = machine.set_limits(0, path, 0, UNLIMITED);
        assert_eq!(set, Err(wrong), "{}", path.display());
        assert_eq!(machine.limits_of(0, path), Err(LimitError::NoGroup));
    }
    let Some(group) = group() else { return };
    let root = group.0.parent().unwrap();
    let set = |gpu, soft, hard| machine.set_limits(gpu, &group.0, soft, hard);
    assert_eq!(machine.limits_of(0, &group.0), Err(LimitError::NotFound));
    assert_eq!(machine.limits_of(0, root), Err(LimitError::NotFound));
    let on_root = machine.set_limits(0, root, 0, MIB);
    assert_eq!(on_root, Err(LimitError::NotFound), "the root has no limits");
    assert_eq!(set(0, 2 * MIB, MIB), Err(LimitError::Invalid), "soft above hard");
    assert_eq!(set(1, 0, 33 * MIB), Err(LimitError::Invalid), "more than it has");
    assert_eq!(set(1, 33 * MIB, UNLIMITED), Err(LimitError::Invalid));
    assert_eq!(set(2, 0, MIB), Err(LimitError::NoSuchGpu));
    let file = group.0.join("cgroup.procs");
    let on_file = machine.set_limits(0, &file, 0, MIB);
    assert_eq!(on_file, Err(LimitError::NoGroup), "a file is no group");
    set(0, 0, 64 * MIB).unwrap();
    let limits = machine.limits_of(0, &group.0).unwrap();
    assert_eq!((limits.soft, limits.hard, limits.used), (0, 64 * MIB, 0));
    assert_eq!(machine.limits_of(1, &group.0), Err(LimitError::NotFound));
}

/// A container's process may be root there and is not for the driver.
#[test]
fn only_root_may_set() {
    let Some(group) = group() else { return };
    let device = Device::new("root", "mem=64MiB,limits=misc");
    device.observe().set_limits(0, &group.0, 0, 8 * MIB).unwrap();
    let mut actor = ready(Actor::start(&device.0, "tenant"));
    assert_eq!(actor.ask("common"), "0", "it may become a common user");
    let said = actor.ask(&format!("set {}", group.0.display()));
    let expected = "Err(NotPermitted) Ok(MemoryLimits { soft: 0, hard: 8388608, used: 0 })";
    assert_eq!(said, expected);
}

/// A guarantee left behind by a group that was deleted: the trap of real drivers.
#[test]
fn a_guarantee_outlives_its_group() {
    let Some(slice) = group() else { return };
    let device = Device::new("trap", "mem=64MiB,limits=dmem");
    let machine = device.observe();
    let first = slice.below("first");
    machine.set_limits(0, &first.0, 40 * MIB, 40 * MIB).unwrap();
    drop(first);
    let second = slice.below("second");
    let set = |soft| machine.set_limits(0, &second.0, soft, 40 * MIB);
    assert_eq!(set(40 * MIB), Err(LimitError::Invalid));
    assert_eq!(machine.limits_of(0, &slice.0).unwrap().soft, 40 * MIB);
    set(24 * MIB).unwrap();
    // The careful way.
    machine.set_limits(0, &second.0, 0, UNLIMITED).unwrap();
    drop(second);
    let third = slice.below("third");
    machine.set_limits(0, &third.0, 24 * MIB, 24 * MIB).unwrap();
}

#[test]
fn groups_come_and_go() {
    let Some(slice) = group() else { return };
    let device = Device::new("many", "mem=64MiB,limits=misc");
    let machine = device.observe();
    for round in 0..2 * MAX_QUOTAS {
        let group = slice.below(&round.to_string());
        machine.set_limits(0, &group.0, 0, MIB).unwrap();
    }
    let living: Vec<_> =
        (0..MAX_QUOTAS).map(|round| slice.below(&format!("living-{round}"))).collect();
    for group in &living {
        machine.set_limits(0, &group.0, 0, MIB).unwrap();
    }
    let full = machine.set_limits(0, &slice.0, 0, MIB);
    assert_eq!(full, Err(LimitError::TooMany));
}

/// Processes are killed at any moment while a limit is set and removed all the time: in the end the
/// counts equal the existing memory.
#[test]
fn killed_at_any_moment() {
    let Some(group) = group() else { return };
    let device = Device::new("kill", "mem=128MiB,context=2MiB,limits=dmem");
    let machine = device.observe();
    for round in 0..20 {
        let mut setter = Actor::start(&device.0, "set");
        setter.ask(&group.0.display().to_string());
        let churners = [0, 1].map(|_| ready(group.start(&device.0, "churn")));
        std::thread::sleep(Duration::from_micros(777 * round % 5000));
        let mut all = churners.into_iter().chain([setter]).collect::<Vec<_>>();
        all.iter_mut().for_each(Actor::kill);
        machine.set_limits(0, &group.0, 0, 20 * MIB).unwrap();
        assert_eq!(used(&machine, &group), 0, "round {round}");
        assert_eq!(machine.mem_info(0).unwrap().used, 0, "round {round}");
        let mut tenant = ready(group.start(&device.0, "tenant"));
        assert_eq!(tenant.ask("grab"), "10", "round {round}");
    }
}

#[test]
fn two_hundred_processes_in_four_groups() {
    let Some(slice) = group() else { return };
    let device = Device::new("groups", "mem=1GiB,context=0B,limits=dmem");
    let machine = device.observe();
    let groups = ["a", "b", "c", "d"].map(|name| slice.below(name));
    for (index, group) in groups.iter().enumerate() {
        let hard = (index as u64 + 1) * 50 * MIB;
        machine.set_limits(0, &group.0, 0, hard).unwrap();
    }
    let start = |index: usize| groups[index % 4].start(&device.0, "tenant");
    let mut actors: Vec<_> = (0..200).map(start).collect();
    for actor in &mut actors {
        assert_eq!(actor.says(), "ready");
        assert_eq!(actor.ask("context"), "true");
    }
    let got = std::thread::scope(|scope| {
        let asked: Vec<_> = actors
            .iter_mut()
            .map(|actor| scope.spawn(|| actor.ask("grab").parse::<u64>().unwrap()))
            .collect();
        let got = asked.into_iter().map(|one| one.join().unwrap());
        got.collect::<Vec<_>>()
    });
    let listed = machine.processes(0).unwrap();
    assert_eq!(listed.len(), 200);
    for (index, group) in groups.iter().enumerate() {
        let pages: u64 = got.iter().skip(index).step_by(4).sum();
        assert_eq!(pages * 2, (index as u64 + 1) * 50);
        assert_eq!(used(&machine, group), pages * 2);
    }
    let sum: u64 = listed.iter().map(|process| process.used_bytes).sum();
    assert_eq!(sum, machine.mem_info(0).unwrap().used);
    drop(actors);
    assert_eq!(machine.processes(0).unwrap(), vec![]);
    assert_eq!(used(&machine, &groups[3]), 0);
}
