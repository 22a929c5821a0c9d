//! Processes that give false information about their channel groups, to have others stopped or the daemon harmed.
//!
//! Each liar is this test's own process, so that the daemon finds its descriptors here. It never drains, so the engine
//! asks for its work to be stopped again and again. Beside it a high-priority container works, which no liar may stop.

use super::preempt::{node_of, number};
use super::{Tenant, shown, stopped_only_when_late};
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::{Attached, TenantClient, client_page, container_page};
use gpuslice_nvabi::control::{
    ALLOC, Alloc, CONTROL, Control, GroupParams, TimeSlice, class, command, status,
};
use gpuslice_sim_device::{ContextId, Machine, Role};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{CHANNELS_PER_GROUP_MAX, GROUPS_PER_CLIENT_MAX};
use gpuslice_wire::page::may_launch;
use gpuslice_wire::policy::Class;
use gpuslice_wire::tenant::{ObjectName, Rejection, Request};
use gpuslice_wire::units::Bytes;
use std::fs::File;
use std::io::Seek;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Best effort soon has its part, and the others do not wait for it long.
const CONFIG: &str = "preemption = \"probe\"\nhigh_cap = 50\nnormal_cap = 50\ndrain_max_ms = 200\n";
/// The names under which a group of this process's and its channel are made.
const GROUP: u32 = 0x77;
const CHANNEL: u32 = 0x78;

struct Scene {
    node: Node,
    machine: Machine,
    victim: Tenant,
    /// This process's part of the device.
    device: Machine,
    context: ContextId,
}

/// What a process says about a group.
#[derive(Clone, Copy)]
pub struct Named {
    pub fd: u32,
    pub client: u32,
    pub group: u32,
    pub channel: u32,
}

impl Scene {
    fn new() -> Scene {
        let containers = [("a", 1, Class::BestEffort), ("b", 1, Class::High)];
        let (node, machine) = node_of(CONFIG, "on", &containers);
        let victim = Tenant::start(&node, &machine, "b", 500);
        let device = node.machine_as(Role::Driver);
        let context = device.context_create(0).expect("a context");
        Scene { node, machine, victim, device, context }
    }

    /// A file of the driver's with a client and a group of this process's own.
    fn own(&self) -> (File, Named) {
        let file = self.device.open_control().expect("the driver's file");
        let client = alloc(&self.device, &file, [0, 0, 0, class::ROOTS[1]], None);
        let params = GroupParams {
            address_space: self.device.address_space(self.context),
            ..GroupParams::default()
        };
        alloc(&self.device, &file, [client, client, GROUP, class::GROUP], Some(&params));
        alloc(&self.device, &file, [client, GROUP, CHANNEL, class::CHANNELS[2]], None);
        let fd = file.as_raw_fd().cast_unsigned();
        (file, Named { fd, client, group: GROUP, channel: CHANNEL })
    }

    /// The names of the victim's client and group in its driver: read through the victim's own file, as only root can.
    fn victims(&self) -> Named {
        let pid = self.victim.child.id();
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("alive");
        let is_control = |path: &std::path::PathBuf| {
            std::fs::read_link(path).is_ok_and(|to| to.ends_with("device/node/control"))
        };
        let path = fds.flatten().map(|fd| fd.path()).find(is_control);
        let path = path.expect("the victim's driver has its file open");
        let fd: u32 = path.file_name().and_then(|it| it.to_str()?.parse().ok()).expect("a number");
        let file = duplicate(pid, fd);
        let slot = (&File::from(file.try_clone().expect("a descriptor")))
            .stream_position()
            .expect("a file") as u32
            & 0x3ff;
        let client = 0xc1d0_0000 | slot;
        let known = |group: &u32| {
            let mut slice = TimeSlice::default();
            let mut it = Control {
                client,
                object: *group,
                command: command::GET_TIME_SLICE,
                params: std::ptr::from_mut(&mut slice) as u64,
                params_bytes: size_of::<TimeSlice>() as u32,
                ..Control::default()
            };
            // SAFETY: the structure of this request and of this command.
            let done = unsafe {
                self.machine.ioctl(file.as_fd(), CONTROL, std::ptr::from_mut(&mut it).cast())
            };
            done.is_ok() && it.status == status::OK
        };
        let group = (0..64).map(|serial| 0x5c00_0002 + 8 * serial).find(known);
        let group = group.expect("the victim's group");
        // The simulated driver's library names a group's channel next.
        Named { fd, client, group, channel: group + 1 }
    }

    /// Attaches to `a` and says this.
    fn liar(&self, lies: &[Named]) -> (TenantClient, Attached) {
        let liar = self.node.tenant("a");
        let attached = liar.attach(Bytes::ZERO);
        lies.iter().for_each(|lie| tell(&liar, 0, *lie));
        (liar, attached)
    }

    /// Makes it late until it was tried to stop its work `times` more, and until the log says `why`.
    fn late(&self, attached: &Attached, why: &str) {
        let before = number(&self.node, "a", "stops_missed");
        let mut rested = Instant::now();
        eventually(why, || {
            // What has overrun is not stopped again before it has drained.
            if rested.elapsed() > Duration::from_secs(1) {
                rest(attached);
                rested = Instant::now();
            }
            drive(attached);
            let missed = number(&self.node, "a", "stops_missed") > before;
            missed && self.node.log().contains(why)
        });
    }

    /// The end of its connection ends the attempts to stop its work, but for one that is under way.
    fn tries_no_more(&self) {
        self.node.wait_disconnected("a");
        let missed = || number(&self.node, "a", "stops_missed");
        let before = missed();
        let mut now = before;
        eventually("no more tries", || {
            let then = now;
            self.victim.gets(&self.machine, Duration::from_millis(200));
            now = missed();
            now == then
        });
        assert!(now <= before + 1, "{} tries without a connection", now - before);
    }

    /// Only the liar is affected.
    fn unharmed(&self) {
        eventually("the victim may run", || {
            !self.machine.is_disabled(self.victim.context).expect("alive")
        });
        stopped_only_when_late(&self.node, "b");
        assert_eq!(number(&self.node, "b", "time_slice_changes"), 0);
        assert_eq!(number(&self.node, "a", "stops"), 0);
        self.victim.gets(&self.machine, Duration::from_millis(20));
        let log = self.node.log();
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    }
}

/// Claims to want the GPU and, in a turn, to work without end.
pub fn drive(attached: &Attached) {
    let (claims, page) = (client_page(attached), container_page(attached));
    let turn = page.lane[0].turn.load(SeqCst);
    claims.lane[0].runnable.store(1, SeqCst);
    if may_launch(turn) {
        claims.lane[0].active.store(turn, SeqCst);
    }
    nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
}

/// Claims to have drained, and to want nothing, for long enough that the daemon sees it.
fn rest(attached: &Attached) {
    let lane = &client_page(attached).lane[0];
    lane.runnable.store(0, SeqCst);
    lane.drained.store(lane.active.load(SeqCst), SeqCst);
    nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
    std::thread::sleep(Duration::from_millis(100));
}

/// Reports a group and its channel.
pub fn tell(liar: &TenantClient, lane: u8, lie: Named) {
    tell_group(liar, lane, lie);
    let mut channels = [ObjectName(0); CHANNELS_PER_GROUP_MAX];
    channels[0] = ObjectName(lie.channel);
    let (client, group) = (ObjectName(lie.client), ObjectName(lie.group));
    let _ = liar.0.send(9, &Request::Channels { client, group, channels });
}

fn tell_group(liar: &TenantClient, lane: u8, lie: Named) {
    let request = Request::Group {
        lane: Lane(lane),
        fd: lie.fd,
        client: ObjectName(lie.client),
        group: ObjectName(lie.group),
        subdevice: ObjectName(lie.group),
    };
    // A rejected liar has no connection any more.
    let _ = liar.0.send(9, &request);
}

fn alloc(
    device: &Machine,
    file: &File,
    [client, parent, object, class]: [u32; 4],
    params: Option<&GroupParams>,
) -> u32 {
    let mut it = Alloc {
        client,
        parent,
        object,
        class,
        params: params.map_or(0, |params| std::ptr::from_ref(params) as u64),
        ..Alloc::default()
    };
    // SAFETY: the structure of this request; the parameters live as long as the call.
    let done = unsafe { device.ioctl(file.as_fd(), ALLOC, std::ptr::from_mut(&mut it).cast()) };
    assert_eq!((done, it.status), (Ok(()), status::OK));
    it.object
}

fn duplicate(pid: u32, fd: u32) -> OwnedFd {
    // SAFETY: plain numbers; the descriptors that come back are fresh.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let process = OwnedFd::from_raw_fd(i32::try_from(process).expect("a descriptor"));
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        OwnedFd::from_raw_fd(i32::try_from(copy).expect("a descriptor"))
    }
}

/// A descriptor that does not exist or is not the driver's, another process's group or none at all, and any number:
/// each is refused and counted, and stops no work.
#[test]
fn names_of_foreign_groups_stop_no_work() {
    let scene = Scene::new();
    let file = File::open("/proc/self/exe").expect("a file");
    let plain = file.as_raw_fd().cast_unsigned();
    let (_own, own) = scene.own();
    let victims = scene.victims();
    let not_there = "the process named an object that does not exist";
    let lies = [
        (Named { fd: 1 << 20, ..own }, "Bad file descriptor"),
        (Named { fd: u32::MAX, client: u32::MAX, group: u32::MAX, ..own }, "Bad file descriptor"),
        (Named { fd: plain, ..own }, "the process named a file that is not the driver's"),
        (Named { fd: own.fd, ..victims }, "the process named an object of another process"),
        (Named { client: own.client + 1, ..own }, "the process named an object of another process"),
        (Named { group: victims.group, ..own }, not_there),
        (Named { group: u32::MAX, ..own }, not_there),
        (Named { group: 0, ..own }, not_there),
        (Named { channel: victims.channel, ..own }, not_there),
        (Named { channel: u32::MAX, ..own }, not_there),
    ];
    for (lie, why) in lies {
        let (liar, attached) = scene.liar(&[lie]);
        scene.late(&attached, why);
        drop((liar, attached));
        scene.tries_no_more();
        scene.unharmed();
        // So that it is tried again: eight in a row, and this container is not any more.
        scene.node.dismiss("a");
        scene.node.must_admit("a", Bytes(1 << 30));
    }
}

/// One of two channels does not exist: the other one is not left disabled.
#[test]
fn a_channel_that_is_gone_leaves_no_other_disabled() {
    let scene = Scene::new();
    let (_own, own) = scene.own();
    let (liar, attached) = scene.liar(&[own]);
    let mut channels = [ObjectName(0); CHANNELS_PER_GROUP_MAX];
    channels[..2].copy_from_slice(&[ObjectName(own.channel), ObjectName(own.channel + 1)]);
    let (client, group) = (ObjectName(own.client), ObjectName(own.group));
    liar.0.send(9, &Request::Channels { client, group, channels }).expect("attached");
    scene.late(&attached, "the process named an object that does not exist");
    eventually("its own channel is enabled again", || {
        !scene.device.is_disabled(scene.context).expect("alive")
    });
    assert!(!scene.device.stops(scene.context).expect("alive").is_empty(), "it was disabled");
    scene.unharmed();
}

/// The descriptor becomes another file's after it was reported, or is closed.
#[test]
fn a_descriptor_that_changes_meanwhile() {
    let scene = Scene::new();
    let (file, own) = scene.own();
    let (_liar, attached) = scene.liar(&[own]);
    let other = File::open("/dev/zero").expect("a file");
    // SAFETY: both are this test's, which uses neither through its old meaning.
    let copied = unsafe { libc::dup3(other.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) };
    assert_eq!(copied, file.as_raw_fd());
    scene.late(&attached, "the process named a file that is not the driver's");
    drop(file);
    // by then perhaps a descriptor of another test's
    scene.late(&attached, "not stopped on the GPU");
    scene.unharmed();
}

/// Thousands of groups, lanes that do not exist, a group reported again and again: the list stays short, and then the
/// connection ends.
#[test]
fn more_than_there_is_room_for() {
    let scene = Scene::new();
    let (_own, own) = scene.own();
    let (liar, _attached) = scene.liar(&[]);
    (0..4_000).for_each(|_| tell(&liar, 0, own));
    assert!(matches!(liar.reserve(0, 1, 1), gpuslice_wire::tenant::Reply::Reserved { .. }));
    for n in 0..100 * GROUPS_PER_CLIENT_MAX as u32 {
        tell_group(&liar, 0, Named { group: GROUP + n, ..own });
    }
    liar.0.expect_rejected(Rejection::Overdrawn);
    for lane in [1, 15, 16, 17, 255] {
        let (liar, _attached) = scene.liar(&[]);
        // A frame that follows would be lost with the connection, and the answer with it.
        tell_group(&liar, lane, own);
        match lane {
            0..=16 => liar.0.expect_rejected(Rejection::NoSuchLane),
            _ => liar.0.expect_rejected(Rejection::Protocol),
        }
    }
    scene.node.wait_disconnected("a");
    scene.unharmed();
}

/// A process reports a group and executes another program: it is in no slice any more, and its report is not used.
#[test]
fn a_process_that_executes_another_program() {
    let scene = Scene::new();
    let socket = scene.node.socket("a");
    let mut command = Command::new("sleep");
    command.arg("1000");
    let tells = move || {
        let liar = TenantClient::connect(&socket)?;
        let attached = liar.attach(Bytes::ZERO);
        let lie = Named { fd: 1, client: 2, group: 3, channel: 4 };
        tell(&liar, 0, lie);
        let claims = client_page(&attached);
        claims.lane[0].runnable.store(1, SeqCst);
        nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes())?;
        std::mem::forget((liar, attached)); // what ends it is the exec
        Ok(())
    };
    // SAFETY: the child has one thread, and uses nothing that another thread of ours might hold but the allocator,
    // which the C library hands over at a fork.
    unsafe { command.pre_exec(tells) };
    let mut child = command.spawn().expect("sleep starts");
    scene.node.wait_refunded("a");
    assert!(child.try_wait().expect("ours").is_none(), "it lives");
    assert_eq!(shown(&scene.node, "a")["runnable"], false);
    scene.unharmed();
    child.kill().expect("ours");
    child.wait().expect("ours");
}
