//! A driver and a daemon's pages for tests: streams run their launches one after the other in real time, on
//! one GPU shared by all, and every forbidden operation is recorded.

pub mod clock;

use super::backend::{Context, DriverBackend, Event, Pages, Pinned, Progress, Stream};
use crate::daemon::sys::SecondMapping;
use gpuslice_wire::limits::PAGE_BYTES;
use gpuslice_wire::page::{ClientPage, ContainerPage, GATE_OPEN};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// The stream into which this thread launches, or which it destroys: the gate may put something into no other.
    static AT_WORK: Cell<Option<Stream>> = const { Cell::new(None) };
    static CURRENT: Cell<Option<Context>> = const { Cell::new(Some(Context(1))) };
}

/// Makes a call of a program that launches into `stream`, or destroys it.
pub fn at_work<R>(stream: Stream, call: impl FnOnce() -> R) -> R {
    let before = AT_WORK.replace(Some(stream));
    let result = call();
    AT_WORK.set(before);
    result
}

/// Runs `call` with another current context, or with none.
pub fn in_context<R>(context: Option<Context>, call: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(context);
    let result = call();
    CURRENT.set(before);
    result
}

pub fn blank_container() -> &'static ContainerPage {
    // SAFETY: atomics and padding integers; all bits zero is a value of each.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// In shared memory, as the daemon's is; its gates are open.
fn blank_client() -> &'static ClientPage {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: new memory of a page, never unmapped; all bits zero is a value of each field.
    let page = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast::<ClientPage>()
    };
    let gates = page.lane.iter().map(|lane| &lane.gate);
    gates.for_each(|gate| gate.store(GATE_OPEN, SeqCst));
    page
}

/// An operation in a stream behind a closed gate.
enum Behind {
    Kernel(u64),
    Event(usize),
}

#[derive(Default)]
pub struct Gpu {
    /// End of all work launched so far, ns.
    pub busy_until: u64,
    /// Completion time of each event.
    pub events: HashMap<usize, u64>,
    next: usize,
    /// End of the work of each stream.
    streams: HashMap<usize, u64>,
    pub capturing: Vec<Stream>,
    pub dead: Vec<Stream>,
    pub misuse: Vec<&'static str>,
    /// Number of recorded events.
    pub recorded: u32,
    /// Number of queries of streams.
    pub asked: u32,
    pub lost: bool,
    /// The streams into which gates were put.
    pub held: Vec<Stream>,
    /// Operations behind gates that were closed when they were put; an open gate is passed immediately.
    behind: HashMap<usize, Vec<Behind>>,
    pub no_waits: bool,
    /// Streams of other contexts than the first, with those and their lanes.
    pub elsewhere: HashMap<usize, (Context, usize)>,
}

pub struct Fake {
    pub pages: Mutex<Pages>,
    pub gpu: Mutex<Gpu>,
    pub rings: AtomicU32,
    pub reconnects: AtomicU32,
    /// Number of times that the gate thread had time for updates.
    pub settles: AtomicU32,
    /// Number of times that a recall cannot be answered.
    pub recalls: AtomicU32,
    /// Number of times that no thread can be created.
    pub threadless: AtomicU32,
    /// Number of attempts to create one.
    pub threads: AtomicU32,
    /// What another thread does while a thread is created, or a page is pinned: once.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Lane of every thread's context.
    pub lane: AtomicU32,
    /// Number of attaches.
    pub generation: AtomicU32,
}

impl Fake {
    pub fn new() -> &'static Fake {
        let container = blank_container();
        container.lanes.store(1, SeqCst);
        container.heartbeat_ns.store(u64::MAX, SeqCst);
        Box::leak(Box::new(Fake {
            pages: Mutex::new(Pages { container, client: blank_client() }),
            gpu: Mutex::default(),
            rings: AtomicU32::new(0),
            reconnects: AtomicU32::new(0),
            settles: AtomicU32::new(0),
            recalls: AtomicU32::new(0),
            threadless: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            meanwhile: Mutex::new(None),
            lane: AtomicU32::new(0),
            generation: AtomicU32::new(1),
        }))
    }

    pub fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().expect("no test panics with the GPU in hand")
    }

    /// The driver's launch of a kernel of `ns`.
    pub fn launch(&self, stream: Stream, ns: u64) {
        let mut gpu = self.gpu();
        match gpu.behind.get_mut(&stream.0) {
            Some(behind) => behind.push(Behind::Kernel(ns)),
            None => gpu.run(stream.0, ns),
        }
    }

    fn let_others_go(&self) {
        let meanwhile = self.meanwhile.lock().expect("unpoisoned").take();
        meanwhile.into_iter().for_each(|other| other());
    }

    fn closed(&self) -> bool {
        let pages = self.pages.lock().expect("unpoisoned");
        pages.client.lane[0].gate.load(SeqCst) != GATE_OPEN
    }

    /// The GPU, after it has passed open gates.
    fn up_to_date(&self) -> MutexGuard<'_, Gpu> {
        let closed = self.closed();
        let mut gpu = self.gpu();
        if !closed {
            for (stream, behind) in std::mem::take(&mut gpu.behind) {
                for op in behind {
                    match op {
                        Behind::Kernel(ns) => gpu.run(stream, ns),
                        Behind::Event(event) => gpu.reach(event, stream),
                    }
                }
            }
        }
        gpu
    }
}

impl Gpu {
    fn context_of(&self, stream: Stream) -> (Context, usize) {
        self.elsewhere.get(&stream.0).copied().unwrap_or((Context(1), 0))
    }

    fn run(&mut self, stream: usize, ns: u64) {
        let end = self.busy_until.max(super::os::now()) + ns;
        self.busy_until = end;
        self.streams.insert(stream, end);
    }

    fn reach(&mut self, event: usize, stream: usize) {
        let end = self.streams.get(&stream).copied().unwrap_or(0);
        self.events.insert(event, end.max(super::os::now()));
    }
}

impl DriverBackend for Fake {
    fn pages(&self) -> Pages {
        *self.pages.lock().expect("unpoisoned")
    }
    fn lane(&self) -> Option<usize> {
        CURRENT.get()?;
        Some(self.lane.load(SeqCst) as usize)
    }
    fn ring(&self) {
        self.rings.fetch_add(1, SeqCst);
    }
    fn spawn(&self, work: Box<dyn FnOnce() + Send>) -> bool {
        self.threads.fetch_add(1, SeqCst);
        self.let_others_go();
        let down = |left: u32| left.checked_sub(1);
        let fails = self.threadless.fetch_update(SeqCst, SeqCst, down).is_ok();
        !fails && super::os::spawn(work)
    }
    fn reconnect(&self) {
        self.reconnects.fetch_add(1, SeqCst);
    }
    fn answer_recalls(&self) -> bool {
        let down = |left: u32| left.checked_sub(1);
        self.recalls.fetch_update(SeqCst, SeqCst, down).is_err()
    }
    fn settle(&self) {
        self.settles.fetch_add(1, SeqCst);
    }
    fn context(&self) -> Option<Context> {
        CURRENT.get()
    }
    fn foreign(
        &self,
        stream: Stream,
        current: Option<Context>,
    ) -> Option<(Context, Option<usize>)> {
        let (context, lane) = self.gpu().context_of(stream);
        (current != Some(context)).then_some((context, Some(lane)))
    }
    fn within(&self, context: Context, work: &mut dyn FnMut()) -> bool {
        let lost = self.gpu().lost;
        if !lost {
            in_context(Some(context), work);
        }
        !lost
    }
    fn capturing(&self, stream: Stream) -> bool {
        self.gpu().capturing.contains(&stream)
    }
    fn event(&self) -> Option<Event> {
        let mut gpu = self.gpu();
        gpu.next += 1;
        Some(Event(gpu.next))
    }
    fn record(&self, event: Event, stream: Stream) -> bool {
        let mut gpu = self.gpu();
        gpu.recorded += 1;
        if std::thread::current().name() == Some(super::os::THREAD) {
            gpu.misuse.push("recorded by a thread that does not launch");
        }
        if AT_WORK.get() != Some(stream) {
            gpu.misuse.push("recorded into another stream than that of the launch");
        }
        if CURRENT.get() != Some(gpu.context_of(stream).0) {
            gpu.misuse.push("recorded into another context's stream");
        }
        if gpu.capturing.contains(&stream) {
            gpu.misuse.push("recorded into a stream under capture");
        }
        if gpu.dead.contains(&stream) {
            gpu.misuse.push("recorded into a destroyed stream");
        }
        match gpu.behind.get_mut(&stream.0) {
            Some(behind) => {
                behind.push(Behind::Event(event.0));
                gpu.events.insert(event.0, u64::MAX);
            }
            None => gpu.reach(event.0, stream.0),
        }
        !gpu.lost
    }
    fn progress(&self, event: Event) -> Progress {
        let gpu = self.up_to_date();
        let pending = gpu.events.get(&event.0).is_some_and(|end| *end > super::os::now());
        if pending && !gpu.lost { Progress::Pending } else { Progress::Done }
    }
    fn finished(&self, stream: Stream) -> Option<Progress> {
        let mut gpu = self.up_to_date();
        gpu.asked += 1;
        if gpu.capturing.contains(&stream) {
            return None;
        }
        if CURRENT.get() != Some(gpu.context_of(stream).0) {
            gpu.misuse.push("asked another context's stream");
        }
        if gpu.dead.contains(&stream) {
            gpu.misuse.push("asked a destroyed stream");
        }
        let end = gpu.streams.get(&stream.0).copied().unwrap_or(0);
        let pending = gpu.behind.contains_key(&stream.0) || end > super::os::now();
        Some(if pending && !gpu.lost { Progress::Pending } else { Progress::Done })
    }
    fn elapsed(&self, from: Event, to: Event) -> Option<u64> {
        let gpu = self.gpu();
        Some(gpu.events.get(&to.0)?.saturating_sub(*gpu.events.get(&from.0)?))
    }
    fn generation(&self) -> u32 {
        self.generation.load(SeqCst)
    }
    fn pin(&self) -> Option<Pinned> {
        self.let_others_go();
        let page = SecondMapping::of(self.pages().client).ok()?;
        Some(Pinned { page, address: 0 })
    }
    fn hold(&self, stream: Stream, _: u64) -> bool {
        let closed = self.closed();
        let mut gpu = self.gpu();
        if gpu.no_waits {
            return false;
        }
        if AT_WORK.get() != Some(stream) {
            gpu.misuse.push("a gate in another stream than that of the launch");
        }
        if gpu.capturing.contains(&stream) {
            gpu.misuse.push("a gate in a stream under capture");
        }
        gpu.held.push(stream);
        if closed {
            gpu.behind.entry(stream.0).or_default();
        }
        true
    }
    fn discard(&self, event: Event) {
        self.gpu().events.remove(&event.0);
    }
}
