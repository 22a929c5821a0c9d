//! A whole node under load: processes of many containers take and give back memory, and processes and the daemon are
//! killed.
//!
//! In each container one process is a program with the shim on the simulated GPU. The others are processes that this
//! test lets ask the daemon for memory, so that it knows to the byte what each was granted. It works in rounds. In each
//! the daemon is killed once, with requests on their way, and processes are killed and replaced all the time. At the
//! end of a round all are idle, and the ledger must have what the processes have, to the byte.
//!
//! `NODE_SECONDS` makes a soak test of it, with 64 containers of 16 processes; `SEED` sets its choices.

use super::{DeviceView, MIB, PAGE, Tenant, in_slice_of, numbers, program};
use crate::harness::agent::Agent;
use crate::harness::node::{Node, id};
use crate::harness::wire::{AdminClient, TenantClient};
use crate::harness::{PATIENCE, Random, eventually, setting, skip};
use gpuslice_wire::admin::Command as AdminCommand;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::ACCOUNTS_MAX;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const TEST: &str = "a_node_under_load_breaks_no_promise";
/// Of each container.
const CAP: u64 = GIB;
/// More than a container's program can have: a context, its allocations, and what pools and the shim keep.
const PROGRAM: u64 = 320 * MIB;
/// Threads of this test that let processes ask.
const WORKERS: usize = 4;
/// Time for which the daemon reads nothing before it is killed, and between two looks at its ledger before that.
const UNREAD: Duration = Duration::from_millis(100);
/// Steps of a container's processes for each order to its program.
const STEPS: u64 = 200;

/// Lives of the daemon that have ended.
static LIFE: AtomicU64 = AtomicU64::new(0);

/// A process that asks for memory and uses none.
struct Peer {
    agent: Agent,
    /// None from the end of its connection until the next one.
    link: Option<TenantClient>,
    /// Bytes that it was granted and has not given back.
    holds: u64,
    /// The life of the daemon to which it attached last.
    life: u64,
    /// The most that it held since then.
    most: u64,
}

impl Peer {
    fn new() -> Peer {
        Peer { agent: Agent::start(), link: None, holds: 0, life: 0, most: 0 }
    }

    /// Attaches it again if its connection has ended, with what it holds; says why the daemon refuses that.
    fn attached(&mut self, socket: &Path) -> Result<&TenantClient, String> {
        let mut held = [Bytes::ZERO; ACCOUNTS_MAX];
        held[0] = Bytes(self.holds);
        let start = Instant::now();
        while self.link.is_none() {
            let life = LIFE.load(SeqCst);
            let tenant = self.agent.try_connect(socket).map(|to| TenantClient(to, None));
            let asked = tenant.filter(|it| it.0.send(1, &Request::Attach { held }).is_ok());
            let answer = asked.and_then(|it| Some((it.0.message::<Reply>()?.1, it)));
            match answer {
                Some((Reply::Attached { .. }, it)) => {
                    (self.link, self.life, self.most) = (Some(it), life, self.holds);
                }
                Some((reply, _)) => return Err(format!("with {held:?}: {reply:?}")),
                // The daemon is gone for a moment.
                None if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                None => return Err("no daemon".to_owned()),
            }
        }
        Ok(self.link.as_ref().expect("just attached"))
    }

    /// Sends a request and waits for its answer; none if the connection has ended.
    fn ask(&mut self, socket: &Path, request: &Request) -> Result<Option<Reply>, String> {
        let link = self.attached(socket)?;
        let sent = link.0.send(2, request).is_ok();
        let reply = if sent { link.0.message::<Reply>().map(|(_, reply, _)| reply) } else { None };
        if reply.is_none() {
            self.link = None;
        }
        Ok(reply)
    }

    /// The most that the daemon may have of it. What was given back just before a daemon was killed its successor does
    /// not know until this process attaches again.
    fn charged_at_most(&self) -> u64 {
        if self.life == LIFE.load(SeqCst) { self.holds } else { self.most }
    }

    fn give_back(&mut self, socket: &Path, bytes: u64) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let request = Request::Release { lane: Lane(0), bytes: Bytes(bytes) };
        match self.attached(socket)?.0.send(3, &request) {
            // If the daemon ends before it reads this, the next connection holds so much less.
            Ok(()) => self.holds -= bytes,
            Err(_) => self.link = None,
        }
        Ok(())
    }
}

/// What a container's processes did.
#[derive(Default)]
struct Counts {
    grants: u64,
    refusals: u64,
    replaced: u64,
}

struct Container {
    name: String,
    socket: PathBuf,
    peers: Vec<Peer>,
    /// Requests are for 1 to 16 times as much, so that in the long run the processes want more than the cap.
    unit: u64,
    /// None once it was killed, until the next round.
    program: Option<Tenant>,
    random: Random,
    counts: Counts,
    /// Promises that were not kept.
    broken: Vec<String>,
}

impl Container {
    fn new(node: &Node, number: u64, processes: u64, seed: u64) -> Container {
        let name = format!("c{number}");
        node.must_admit(&name, Bytes(CAP));
        Container {
            socket: node.socket(&name),
            peers: (1..processes).map(|_| Peer::new()).collect(),
            unit: CAP / (64 * (processes - 1)),
            program: None,
            random: Random(((seed << 16) | number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            counts: Counts::default(),
            broken: Vec::new(),
            name,
        }
    }

    /// Starts its program if there is none.
    fn complete(&mut self, node: &Node) {
        if self.program.is_some() {
            return;
        }
        let mut command = in_slice_of(node, &self.name, program("churn"));
        let seed = self.random.next() >> 16;
        command.args([seed, 2, PAGE, 2].map(|number| number.to_string())).arg("01345");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        self.program = Some(Tenant::of(child.expect("churn starts")));
    }

    /// The sum of what its processes hold that ask by themselves.
    fn holds(&self) -> u64 {
        self.peers.iter().map(|peer| peer.holds).sum()
    }

    /// One step of one process.
    fn step(&mut self) {
        let at = self.random.below(self.peers.len() as u64) as usize;
        let done = match self.random.below(1000) {
            0..550 => self.take(at),
            550..990 => {
                let bytes = self.random.below(self.peers[at].holds / 4);
                self.peers[at].give_back(&self.socket, bytes)
            }
            990..998 => {
                self.peers[at].link = None;
                Ok(())
            }
            _ => {
                self.peers[at] = Peer::new(); // the old one is killed
                self.counts.replaced += 1;
                Ok(())
            }
        };
        self.broken.extend(done.err());
    }

    /// A request that fits beside the program's most, which must be granted.
    fn take(&mut self, at: usize) -> Result<(), String> {
        let need = self.unit * (1 + self.random.below(8));
        let wish = need * (1 + self.random.below(2));
        let request = Request::Reserve { lane: Lane(0), need: Bytes(need), wish: Bytes(wish) };
        // The daemon that is asked is known before what it may have of the others, which depends on its life.
        self.peers[at].attached(&self.socket)?;
        let before: u64 = self.peers.iter().map(Peer::charged_at_most).sum();
        if before + wish + PROGRAM > CAP {
            let bytes = self.peers[at].holds / 2;
            return self.peers[at].give_back(&self.socket, bytes);
        }
        match self.peers[at].ask(&self.socket, &request)? {
            None => Ok(()),
            Some(Reply::Reserved { bytes: Bytes(bytes), .. }) if (need..=wish).contains(&bytes) => {
                let peer = &mut self.peers[at];
                peer.holds += bytes;
                peer.most = peer.most.max(peer.holds);
                self.counts.grants += 1;
                Ok(())
            }
            Some(other) => {
                let (rows, told) = (self.rows(), self.told());
                Err(format!("{need} to {wish} beside {before}: {other:?}, while {rows:?}; {told}"))
            }
        }
    }

    /// The daemon's administrator; none while the daemon is away.
    fn admin(&self) -> Option<AdminClient> {
        let runtime_dir =
            self.socket.ancestors().nth(4).expect("c/ID/inside/tenant.sock is below it");
        AdminClient::connect(&runtime_dir.join("admin.sock")).ok()
    }

    /// What the daemon has of it, and of itself.
    fn rows(&self) -> Vec<Snapshot> {
        let mut rows = self.admin().map(|admin| admin.list()).unwrap_or_default();
        rows.retain(|row| match row {
            Snapshot::Slice { container, .. } => container.to_string() == self.name,
            Snapshot::Daemon { .. } => true,
            _ => false,
        });
        rows
    }

    /// For a person: what each of its processes holds, and what the daemon knows of each.
    fn told(&self) -> String {
        let peers = self.peers.iter();
        let peers = peers.map(|it| (it.agent.pid(), it.holds, it.most, it.link.is_some(), it.life));
        let peers: Vec<_> = peers.collect();
        let (admin, container) = (self.admin(), id(&self.name));
        let ask = |it: &AdminClient| it.0.send(9, &AdminCommand::Processes { container }).ok();
        let admin = admin.filter(|it| ask(it).is_some());
        let next = || admin.as_ref()?.0.message::<Snapshot>().map(|it| it.1);
        let rows = std::iter::from_fn(next).take_while(|it| !matches!(it, Snapshot::End { .. }));
        let rows: Vec<Snapshot> = rows.collect();
        format!("{}: pid, holds, most, attached, life: {peers:?}; {rows:?}", self.name)
    }

    /// A request for the whole cap, which must be refused while others hold something.
    fn take_all(&mut self) -> Result<(), String> {
        let (lane, all) = (Lane(0), Bytes(CAP));
        let others: u64 = self.peers.iter().skip(1).map(|peer| peer.holds).sum();
        let request = Request::Reserve { lane, need: all, wish: all };
        loop {
            match self.peers[0].ask(&self.socket, &request)? {
                Some(Reply::Refused { .. }) => {
                    self.counts.refusals += 1;
                    return Ok(());
                }
                // The daemon was killed meanwhile.
                None => {}
                other => return Err(format!("all was asked for beside {others}: {other:?}")),
            }
        }
    }

    /// Its program's answer to an order. Sometimes it is killed instead.
    fn hear_program(&mut self) {
        let Some(program) = &mut self.program else { return };
        if self.random.below(300) == 0 {
            self.program = None;
            self.counts.replaced += 1;
        } else if program.answer().is_none() {
            self.broken.push("its program has ended".to_owned());
            self.program = None;
        }
    }

    /// All its processes are idle and attached to the daemon that runs.
    fn settle(&mut self) {
        for peer in &mut self.peers {
            if peer.life != LIFE.load(SeqCst) {
                peer.link = None;
            }
            self.broken.extend(peer.attached(&self.socket).err());
        }
        if let Some(program) = &mut self.program {
            // Lets its threads return what they keep.
            let answer = program.ask("go 1");
            assert_eq!(numbers(&answer).len(), 4, "{answer}");
        }
    }
}

/// Lets processes of these containers work for a time.
fn work(containers: &mut [Container], until: Instant) {
    // A program answers first that it is ready.
    for program in containers.iter_mut().filter_map(|it| it.program.as_mut()) {
        if !program.holding {
            assert_eq!(program.answer().as_deref(), Some("ready"));
            program.holding = true;
        }
    }
    while Instant::now() < until {
        for program in containers.iter_mut().filter_map(|it| it.program.as_mut()) {
            program.order("go 20");
        }
        for container in containers.iter_mut() {
            (0..STEPS).for_each(|_| container.step());
        }
        containers.iter_mut().for_each(Container::hear_program);
    }
    containers.iter_mut().for_each(Container::settle);
    // One of each worker's, since the daemon first asks the others for what they do not use, for 0.3 s.
    let refused = containers[0].take_all();
    containers[0].broken.extend(refused.err());
}

/// Bytes that the ledger has of each container.
fn ledger(node: &Node) -> BTreeMap<String, u64> {
    let row = |row| match row {
        Snapshot::Slice { container, lane: Lane(0), reserved, .. } => {
            Some((container.to_string(), reserved.0))
        }
        _ => None,
    };
    node.admin().list().into_iter().filter_map(row).collect()
}

/// Waits until the ledger has what processes hold and the device shows. At no look is a container above its cap, or
/// has less than its processes hold.
fn agree(node: &Node, device: &DeviceView, containers: &[Container]) {
    let start = Instant::now();
    loop {
        let ledger = ledger(node);
        for it in containers {
            let (booked, known) = (ledger[&it.name], it.holds());
            assert!((known..=CAP).contains(&booked), "{}: {booked} of {known}", it.name);
        }
        let booked: u64 = ledger.values().sum();
        let real = containers.iter().map(Container::holds).sum::<u64>() + device.shown();
        if booked == real {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "the ledger has {booked} bytes, processes {real}: {:#?}",
            containers.iter().map(|it| (ledger[&it.name], it.told())).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One round: work, in which no container is above its cap, and a kill of the daemon in it.
fn round(node: &mut Node, containers: &mut [Container], length: Duration, kill_at: Duration) {
    containers.iter_mut().for_each(|it| it.complete(node));
    let until = Instant::now() + length;
    let share = containers.len().div_ceil(WORKERS);
    std::thread::scope(|scope| {
        for part in containers.chunks_mut(share) {
            scope.spawn(move || work(part, until));
        }
        let kill_at = Instant::now() + kill_at;
        // The next daemon may count what was given back just before this end, until the processes have attached again.
        while Instant::now() < kill_at {
            let booked = ledger(node);
            assert!(booked.values().all(|bytes| *bytes <= CAP), "above the cap: {booked:?}");
            std::thread::sleep(UNREAD);
        }
        node.end_daemon_unread(UNREAD);
        LIFE.fetch_add(1, SeqCst);
        node.start_daemon(&[]);
    });
    // On a busy machine the daemon may have been killed after a container's work.
    containers.iter_mut().for_each(Container::settle);
}

/// All processes end, half of them by SIGKILL with what they hold: nothing stays reserved or in use.
fn end(node: &Node, device: &DeviceView, containers: Vec<Container>) {
    for mut container in containers {
        for (at, peer) in container.peers.iter_mut().enumerate().filter(|(at, _)| at % 2 == 0) {
            let given = peer.give_back(&container.socket, peer.holds);
            assert_eq!(given, Ok(()), "{} {at}", container.name);
        }
        match container.program.take() {
            Some(program) if container.peers.len() % 2 == 1 => program.end(),
            other => drop(other),
        }
    }
    eventually("nothing is reserved", || ledger(node).values().all(|&bytes| bytes == 0));
    eventually("nothing is in use", || device.used() == 0);
}

#[test]
fn a_node_under_load_breaks_no_promise() {
    let (seed, seconds) = (setting("SEED", 3), setting("NODE_SECONDS", 0));
    let [count, processes, seconds] = if seconds == 0 { [8, 4, 2] } else { [64, 16, seconds] };
    eprintln!("SEED={seed} NODE_SECONDS={seconds}, {count} containers of {processes} processes");
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if most < 4 * count * processes + 200 {
        return skip(TEST, "this process may open only a few files");
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("allowed");
    let mut node = Node::start_with("devices=1,mem=80GiB");
    let device = DeviceView::of(&node);
    let mut containers: Vec<Container> =
        (0..count).map(|number| Container::new(&node, number, processes, seed)).collect();
    let rounds = (seconds / 60).max(2);
    let length = Duration::from_millis(seconds * 1000 / rounds);
    let (mut random, mut resident) = (Random((seed << 8) | 1), Vec::new());
    for _ in 0..rounds {
        let kill_at = length * (20 + random.below(50) as u32) / 100;
        round(&mut node, &mut containers, length, kill_at);
        let broken: Vec<_> = containers.iter().flat_map(|it| &it.broken).collect();
        assert!(broken.is_empty(), "{broken:?}");
        agree(&node, &device, &containers);
        resident.push(node.status("RssAnon:"));
    }
    let sum = |of: fn(&Counts) -> u64| containers.iter().map(|it| of(&it.counts)).sum::<u64>();
    let [grants, refusals] = [sum(|it| it.grants), sum(|it| it.refusals)];
    let replaced = sum(|it| it.replaced);
    end(&node, &device, containers);
    eprintln!(
        "{grants} grants, {refusals} refusals, {replaced} processes killed, the daemon {rounds} times; no promise \
         broken, 0 bytes left; anonymous memory of the daemon after each round: {resident:?} KiB"
    );
    assert!(grants > 0 && refusals > 0, "{grants} grants, {refusals} refusals");
    // Each life has a heap of its own, of 8 or 12 MiB: by how many asked at once.
    let (first, last) = (resident[0], resident[resident.len() - 1]);
    assert!(last <= first + first / 2 + 1024, "the daemon grew: {resident:?} KiB");
}
