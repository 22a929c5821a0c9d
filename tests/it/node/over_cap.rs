//! A container that takes memory behind the shim, above its cap: what the daemon does, and when it undoes it.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use super::stranger::Stranger;
use crate::harness::eventually;
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::units::GIB;
use nix::sys::signal::Signal;
use std::fs;

/// A node on which the container `web` is over its cap.
struct Scene {
    case: Case,
    group: Group,
    first: Option<Idle>,
    _stranger: Stranger,
}

impl Scene {
    fn start(test: &str, config: &str) -> Option<Scene> {
        let mount = mount(test)?;
        let config = format!("accounting_interval_ms = 20\nover_cap_warn_s = 1\n{config}");
        let case = Case::start("devices=1,mem=1GiB", &config);
        let group = Group::new(&mount);
        let idle = group.idle();
        case.must_admit("web", GIB / 2, idle.pid());
        // One with work could be frozen while it has the simulated driver's lock, which all programs on the GPU share;
        // no driver's library has such a lock.
        let stranger = Stranger::start_with(&case.node, &group, &["--idle"]);
        assert!(stranger.got > GIB / 2, "nothing limited it: {}", stranger.got);
        Some(Scene { case, group, first: Some(idle), _stranger: stranger })
    }

    /// The kinds of events of this container since the daemon's start, with its amounts.
    fn events(&self, wanted: EventKind) -> Vec<[u64; 2]> {
        let all = self.case.node.admin().events().into_iter();
        let of_it = |event| match event {
            History::Entry { kind, container, amounts, .. } => {
                (kind == wanted && container.as_str() == "web").then_some(amounts)
            }
            History::End { .. } => None,
        };
        all.filter_map(of_it).collect()
    }

    fn is_frozen(&self) -> bool {
        self.group.is_frozen()
    }

    fn freezes(&self, word: &str) {
        fs::write(self.group.dir.join("cgroup.freeze"), word).expect("ours");
    }

    fn processes(&self) -> usize {
        fs::read_to_string(self.group.dir.join("cgroup.procs")).expect("a group").lines().count()
    }
}

/// By default a container is told of, and left alone: it is over its cap for three times as long as the warning takes.
#[test]
fn by_default_an_event_tells_of_it_and_nothing_is_stopped() {
    let Some(scene) = Scene::start("over the cap", "") else {
        return;
    };
    eventually("the event", || !scene.events(EventKind::OverCap).is_empty());
    let told = scene.events(EventKind::OverCap);
    assert!(told.len() == 1 && told[0][0] > GIB / 2 && told[0][1] == GIB / 2, "{told:?}");
    assert!(
        scene.case.says(&["events"]).contains("above the 512MiB that it may have; it gets no more")
    );
    let log = scene.case.node.log();
    let told = log.lines().find(|line| line.contains("a container over its cap"));
    assert!(told.is_some_and(|line| line.contains("container=web")), "{log}");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(scene.events(EventKind::OverCap).len(), 1, "once");
    assert!(!scene.is_frozen() && scene.processes() > 1);
    assert!(scene.events(EventKind::Frozen).is_empty());
}

/// A frozen container goes on once it fits its cap, and a restarted daemon knows that it is frozen.
#[test]
fn a_frozen_container_goes_on_when_it_fits_its_cap() {
    let Some(mut scene) = Scene::start("over the cap", "over_cap_freeze_s = 5\n") else {
        return;
    };
    eventually("a frozen group", || scene.is_frozen());
    eventually("the event", || scene.events(EventKind::Frozen).len() == 1);
    let (told, stopped) = (scene.events(EventKind::OverCap), scene.events(EventKind::Frozen));
    assert_eq!((told.len(), stopped[0][1]), (1, GIB / 2), "told before");
    scene.case.node.end_daemon(Signal::SIGKILL);
    scene.case.start_again();
    assert!(scene.is_frozen(), "it is over its cap still");
    let told = scene.case.says(&["explain", "web"]);
    assert!(told.contains("is frozen: it holds") && told.contains("set web --memory"), "{told}");
    assert!(scene.case.says(&["ps"]).contains("  frozen"));
    scene.case.says(&["set", "web", "--memory", "1GiB"]);
    eventually("a group that runs", || !scene.is_frozen());
    eventually("the event", || scene.events(EventKind::Thawed).len() == 1);
    assert!(!scene.case.says(&["ps"]).contains("  frozen"));
    assert!(scene.processes() > 1, "none was killed");
}

/// What gpuslice froze, its removal lets go on; a restarted daemon that may not freeze does the same.
#[test]
fn nothing_stays_frozen_that_no_daemon_would_thaw() {
    for removed in [true, false] {
        let Some(mut scene) = Scene::start("over the cap", "over_cap_freeze_s = 5\n") else {
            return;
        };
        eventually("a frozen group", || scene.is_frozen());
        if removed {
            scene.case.says(&["rm", "web"]);
        } else {
            scene.case.node.end_daemon(Signal::SIGKILL);
            let config = scene.case.node.root().join("config");
            fs::write(config, "accounting_interval_ms = 20\n").expect("written");
            scene.case.start_again();
        }
        eventually("a group that runs", || !scene.is_frozen());
    }
}

/// A slice that is not restored, since its GPU does not answer, is looked at no more: its processes go on.
#[test]
fn a_frozen_container_whose_slice_is_not_restored_goes_on() {
    let Some(mut scene) = Scene::start("over the cap", "over_cap_freeze_s = 5\n") else {
        return;
    };
    eventually("a frozen group", || scene.is_frozen());
    scene.case.node.end_daemon(Signal::SIGKILL);
    scene.case.start_beside("devices=1,mem=1GiB,mig=0", "other");
    eventually("a group that runs", || !scene.is_frozen());
    assert!(scene.case.node.log().contains("slice not restored"));
}

/// The container's first process ends while no daemon runs, and others of it live: the next daemon ends the slice.
#[test]
fn a_frozen_container_that_ended_while_no_daemon_ran_goes_on() {
    let Some(mut scene) = Scene::start("over the cap", "over_cap_freeze_s = 5\n") else {
        return;
    };
    eventually("a frozen group", || scene.is_frozen());
    scene.case.node.end_daemon(Signal::SIGKILL);
    drop(scene.first.take());
    scene.case.start_again();
    eventually("a group that runs", || !scene.is_frozen());
    assert!(scene.processes() > 0 && !scene.case.node.containers().contains("web"));
}

/// Another program has frozen the container when that is due, and lets it go on later: then it is frozen.
#[test]
fn a_freeze_that_fails_is_tried_again() {
    let Some(scene) = frozen_by_another() else {
        return;
    };
    let refused = "another program has frozen it already";
    eventually("a refused step", || scene.case.node.log().contains(refused));
    std::thread::sleep(std::time::Duration::from_secs(1)); // fifty looks
    assert_eq!(scene.case.node.log().matches(refused).count(), 1);
    scene.freezes("0");
    eventually("the event", || scene.events(EventKind::Frozen).len() == 1);
    eventually("a frozen group", || scene.is_frozen());
}

/// A container over its cap that is frozen, not by the daemon. On a busy machine the daemon may have been first.
fn frozen_by_another() -> Option<Scene> {
    for _ in 0..5 {
        let scene = Scene::start("over the cap", "over_cap_freeze_s = 5\n")?;
        scene.freezes("1");
        if scene.events(EventKind::Frozen).is_empty() {
            return Some(scene);
        }
        scene.freezes("0");
    }
    panic!("the daemon was first, five times");
}

#[test]
fn a_container_is_killed_only_where_the_configuration_says_so() {
    let Some(scene) = Scene::start("over the cap", "over_cap_kill_s = 5\n") else {
        return;
    };
    eventually("its processes' end", || scene.processes() == 0);
    let killed = scene.events(EventKind::Killed);
    assert!(killed.len() == 1 && killed[0][0] > GIB / 2, "{killed:?}");
    assert!(scene.events(EventKind::Frozen).is_empty(), "not configured");
}
