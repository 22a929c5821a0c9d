//! The process's streams: the model behind a lock, and the threads that advance it.
//!
//! Three kinds of threads run the effects that are due. A thread that waits for a stream runs every
//! effect that has become due in any stream, and sleeps until the next one may be. While no thread
//! waits, one worker does the same; the first operation that needs it starts it, and it sleeps
//! while none does. Host functions are foreign code that may block, even for something another
//! stream must do first, so they run one after the other in a thread of their own.
//!
//! Effects run outside the lock: while a gigabyte is copied in one stream, launches in the others
//! go on. Within a stream the order holds because a stream does not advance while its effect runs.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::{ContextId, DeviceError, Machine, Recalled, Seq, Status, Work, now_ns};

use super::{
    Body, Call, Due, Elapsed, EventKey, Look, Manner, Mark, Model, Request, Ring, StreamKey,
};
use crate::driver::{process, strict};
use crate::exec::cost::Nanos;
use crate::exec::{hold, threads};

/// Operations a stream may hold before the thread that queues one more has to wait, as with the
/// real driver, whose queues hold about as many launches.
const BACKLOG: usize = 1024;
/// Every so many operations the ones that have ended are let go.
const TIDY_EVERY: usize = 64;
/// How often a condition on memory is tested.
const POLL: Duration = Duration::from_micros(40);
/// After so many tests in vain the time between two doubles...
const POLLS_EACH: u32 = 128;
/// ...and so many times at most.
const SLOWER_MOST: u32 = 3;
/// Below this a sleep is not worth it.
const YIELD_BELOW_NS: Nanos = 40_000;
/// Longest sleep of a thread with something to look after.
const NAP: Duration = Duration::from_millis(1);
/// Longest sleep of a waiting thread that another one will wake.
const LONG_NAP: Duration = Duration::from_millis(20);
/// Longest wait for the operations queued in a context that ends.
const DRAIN_NS: Nanos = 1_000_000_000;
/// How much later than a waiting thread the worker looks, so that it mostly finds nothing to do.
const WORKER_LAG: Duration = Duration::from_micros(100);

/// An operation on a process's streams is refused with the driver's error code.
pub type Answer<T> = Result<T, CUresult>;
const INVALID_HANDLE: CUresult = CUresult::ERROR_INVALID_HANDLE;
const OUT_OF_MEMORY: CUresult = CUresult::ERROR_OUT_OF_MEMORY;

impl Ring for Machine {
    fn now(&self) -> Nanos {
        now_ns()
    }
    fn submit(&self, context: ContextId, work: Work) -> Result<Seq, DeviceError> {
        Machine::submit(self, context, work)
    }
    fn recall(&self, context: ContextId, from: Seq) -> Recalled {
        // Of a context that is gone there is nothing left to take back.
        Machine::recall(self, context, from).unwrap_or_default()
    }
    fn status(&self, context: ContextId, seq: Seq) -> Status {
        // A context that is gone has nothing pending; its streams are dropped with it.
        self.poll(context, seq).unwrap_or(Status::Faulted { xid: 0 })
    }
}

struct Inner {
    model: Model,
    /// The default stream of each context, and of each of its threads.
    defaults: HashMap<(ContextId, Option<ThreadId>), StreamKey>,
    worker: Worker,
    /// Threads that wait for a stream at the moment.
    waiting: usize,
    /// What the device was told last; see [`Run::note_unsettled`].
    unsettled: bool,
    host: Option<Sender<(StreamKey, Call)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Worker {
    NotStarted,
    Looking,
    /// Sleeps until it is told that there is something to look after.
    Resting,
}

/// How long to sleep between two tests of a condition on memory: longer when nothing has moved for
/// a while, so that a process that waits for long costs little.
#[derive(Default)]
struct Patience {
    ended: u64,
    polls: u32,
}

impl Patience {
    fn pause(&mut self, model: &Model) -> Duration {
        if std::mem::replace(&mut self.ended, model.ended) != model.ended {
            self.polls = 0;
        }
        self.polls = self.polls.saturating_add(1);
        POLL * (1 << (self.polls / POLLS_EACH).min(SLOWER_MOST))
    }
}

/// All streams of the process on one machine.
pub struct Run {
    machine: &'static Machine,
    any_fault: Arc<AtomicBool>,
    inner: Mutex<Inner>,
    /// An operation has ended, or an effect has run.
    moved: Condvar,
    /// The resting worker is needed.
    needed: Condvar,
}

type Guard = MutexGuard<'static, Inner>;

impl Run {
    pub fn new(machine: &'static Machine) -> Self {
        let model = Model::new(strict::queues(), strict::properties().overlap != 0);
        let any_fault = Arc::clone(&model.any_fault);
        let inner = Inner {
            model,
            defaults: HashMap::new(),
            worker: Worker::NotStarted,
            waiting: 0,
            unsettled: false,
            host: None,
        };
        let inner = Mutex::new(inner);
        Self { machine, any_fault, inner, moved: Condvar::new(), needed: Condvar::new() }
    }

    fn lock(&'static self) -> Guard {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks something up, or changes what needs no device.
    pub fn with<T>(&'static self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(&mut self.lock().model)
    }

    pub fn create(
        &'static self,
        context: ContextId,
        manner: Manner,
        priority: i32,
    ) -> Answer<StreamKey> {
        self.check(context)?;
        self.lock().model.create(context, manner, priority).ok_or(OUT_OF_MEMORY)
    }

    /// The context's default stream: the legacy one, or the calling thread's own.
    pub fn default_stream(
        &'static self,
        context: ContextId,
        per_thread: bool,
    ) -> Answer<StreamKey> {
        let thread = per_thread.then(threads::current);
        let mut inner = self.lock();
        if let Some(key) = inner.defaults.get(&(context, thread)) {
            return Ok(*key);
        }
        let manner = if per_thread { Manner::Blocking } else { Manner::Legacy };
        let key = inner.model.create(context, manner, 0).ok_or(OUT_OF_MEMORY)?;
        inner.defaults.insert((context, thread), key);
        Ok(key)
    }

    /// Takes the handle of a stream away; its queued operations still run.
    pub fn destroy(&'static self, stream: StreamKey) -> bool {
        let mut inner = self.lock();
        // Default streams are not the program's to destroy.
        !inner.defaults.values().any(|key| *key == stream) && inner.model.destroy(stream)
    }

    /// Waits at most `DRAIN_NS` for the operations queued in a context.
    pub fn drain(&'static self, context: ContextId) {
        let end = now_ns() + DRAIN_NS;
        let mut inner = self.lock();
        let marks = inner.model.marks(context);
        inner.waiting += 1;
        let done = |model: &Model| now_ns() > end || marks.iter().all(|mark| model.reached(*mark));
        inner = self.wait_until(inner, done, &marks);
        inner.waiting -= 1;
    }

    /// The context is about to be destroyed: nothing queued in it happens any more.
    pub fn drop_context(&'static self, context: ContextId) {
        let mut inner = self.lock();
        inner.model.drop_context(context);
        inner.defaults.retain(|(of, _), _| *of != context);
        self.moved.notify_all();
    }

    /// The error every call in the context gives, if it was killed.
    pub fn check(&'static self, context: ContextId) -> Answer<()> {
        if !self.any_fault.load(Ordering::Acquire) {
            return Ok(());
        }
        self.lock().model.fault(context).map_or(Ok(()), Err)
    }

    /// Queues the requests, one behind the other, the first after the given marks; returns the
    /// last one's mark. Blocks while the stream holds too many operations.
    pub fn push(
        &'static self,
        stream: StreamKey,
        after: Vec<Mark>,
        requests: impl IntoIterator<Item = Request>,
    ) -> Answer<Option<Mark>> {
        let context = self.with(|model| model.stream(stream).map(|stream| stream.context));
        let _held = hold(context.ok_or(INVALID_HANDLE)?);
        let mut inner = self.room(stream)?;
        let (mut after, mut last) = (after, None);
        for request in requests {
            let mut after = std::mem::take(&mut after);
            let model = &mut inner.model;
            let body = match request {
                Request::Body(body) => body,
                Request::Record(event) => {
                    if !model.record(self.machine, event, stream, after) {
                        return Err(INVALID_HANDLE);
                    }
                    last = model.mark(stream);
                    continue;
                }
                Request::Await(event) => {
                    model.event(event).ok_or(INVALID_HANDLE)?;
                    after.extend(model.pending(event));
                    Body::nothing()
                }
            };
            last = Some(model.push(self.machine, stream, after, body).ok_or(INVALID_HANDLE)?);
        }
        self.pushed(inner, stream)?;
        Ok(last)
    }

    /// Milliseconds between two events; an error code where there is no such time (yet).
    pub fn elapsed(&'static self, start: EventKey, end: EventKey) -> Answer<f32> {
        let inner = self.advance(self.lock());
        match inner.model.elapsed(start, end) {
            Elapsed::Milliseconds(time) => Ok(time),
            Elapsed::NotReady => Err(CUresult::ERROR_NOT_READY),
            Elapsed::Invalid => Err(INVALID_HANDLE),
        }
    }

    /// Whether all the marks are reached now; the context's error if it was killed.
    pub fn reached(&'static self, context: ContextId, marks: &[Mark]) -> Answer<bool> {
        let inner = self.advance(self.lock());
        inner.model.fault(context).map_or(Ok(()), Err)?;
        Ok(marks.iter().all(|mark| inner.model.reached(*mark)))
    }

    /// Blocks until all the marks are reached.
    pub fn wait(&'static self, context: ContextId, marks: &[Mark]) -> Answer<()> {
        let mut inner = self.lock();
        inner.waiting += 1;
        inner =
            self.wait_until(inner, |model| marks.iter().all(|mark| model.reached(*mark)), marks);
        inner.waiting -= 1;
        inner.model.fault(context).map_or(Ok(()), Err)
    }

    fn wait_until(
        &'static self,
        mut inner: Guard,
        done: impl Fn(&Model) -> bool,
        marks: &[Mark],
    ) -> Guard {
        let mut patience = Patience::default();
        loop {
            inner = self.advance(inner);
            if done(&inner.model) {
                return inner;
            }
            let unreached = marks.iter().filter(|mark| !inner.model.reached(**mark));
            let ours = unreached.map(|mark| inner.model.next_reached(self.machine, *mark)).max();
            let look = ours.unwrap_or(Look::Poll).min(inner.model.next_effect(self.machine));
            inner = self.nap(inner, look, &mut patience);
        }
    }

    /// Sleeps until it is time to look again, or something has moved.
    fn nap(&'static self, inner: Guard, look: Look, patience: &mut Patience) -> Guard {
        let time = match look {
            Look::Poll => patience.pause(&inner.model),
            Look::Never => LONG_NAP,
            Look::At(due) => {
                let ahead = due.saturating_sub(now_ns());
                if ahead < YIELD_BELOW_NS {
                    drop(inner);
                    std::thread::yield_now();
                    return self.lock();
                }
                Duration::from_nanos(ahead - YIELD_BELOW_NS / 2)
            }
        };
        self.moved.wait_timeout(inner, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The lock, once the stream can take another operation.
    fn room(&'static self, stream: StreamKey) -> Answer<Guard> {
        let mut inner = self.lock();
        let known = inner.model.stream(stream).ok_or(INVALID_HANDLE)?;
        let (context, backlog) = (known.context, known.backlog());
        if backlog >= TIDY_EVERY && backlog.is_multiple_of(TIDY_EVERY) {
            inner = self.advance(inner);
        }
        let full =
            |model: &Model| model.stream(stream).is_some_and(|stream| stream.backlog() >= BACKLOG);
        if full(&inner.model) {
            inner.waiting += 1;
            let oldest = inner.model.oldest(stream, BACKLOG / 4);
            let marks: Vec<_> = oldest.into_iter().collect();
            let roomy = |model: &Model| marks.iter().all(|mark| model.reached(*mark));
            inner = self.wait_until(inner, roomy, &marks);
            inner.waiting -= 1;
        }
        inner.model.fault(context).map_or(Ok(()), Err)?;
        Ok(inner)
    }

    /// Advances the operations just queued: at once where one can be due already, later by the worker.
    fn pushed(&'static self, mut inner: Guard, stream: StreamKey) -> Answer<()> {
        let Some(known) = inner.model.stream(stream) else {
            return Ok(());
        };
        let context = known.context;
        if !known.settled() {
            // Behind other operations nothing can be due at once.
            if known.backlog() == 1 {
                inner = self.advance(inner);
            }
            self.note_unsettled(&mut inner);
            self.see_to_worker(&mut inner);
        }
        inner.model.fault(context).map_or(Ok(()), Err)
    }

    /// Runs every effect that is due now. Then it wakes the worker for the operations left: the worker rests while
    /// another thread runs a stream's effect, and this thread may not call the driver again.
    fn advance(&'static self, mut inner: Guard) -> Guard {
        let mut ran = false;
        while let Some(due) = inner.model.advance(self.machine) {
            match due {
                Due::Effect(stream, effect) => {
                    drop(inner);
                    let result = effect();
                    inner = self.lock();
                    inner.model.finish(stream, result);
                    self.tell_waiting(&inner);
                    ran = true;
                }
                Due::Host(stream, call) => self.call_host(&mut inner, stream, call),
            }
        }
        self.note_unsettled(&mut inner);
        if ran {
            self.see_to_worker(&mut inner);
        }
        inner
    }
}

/// The threads.
impl Run {
    /// Tells the device whether operations need a thread of this process: a checkpoint waits for them.
    fn note_unsettled(&self, inner: &mut Inner) {
        let unsettled = inner.model.is_unsettled();
        if std::mem::replace(&mut inner.unsettled, unsettled) != unsettled {
            self.machine.note_unsettled(unsettled);
        }
    }

    /// Sees to it that the worker looks as long as there is something to look after.
    fn see_to_worker(&'static self, inner: &mut Inner) {
        let needed =
            inner.worker != Worker::Looking && inner.model.next_effect(self.machine) != Look::Never;
        if needed {
            self.call_worker(inner);
        }
    }

    /// Wakes the threads that wait for a stream, if there are any.
    fn tell_waiting(&self, inner: &Inner) {
        if inner.waiting > 0 {
            self.moved.notify_all();
        }
    }

    fn call_worker(&'static self, inner: &mut Inner) {
        match inner.worker {
            Worker::Looking => {}
            Worker::Resting => {
                inner.worker = Worker::Looking;
                self.needed.notify_one();
            }
            Worker::NotStarted => {
                // Without the thread the streams still advance with each call.
                if threads::spawn("gpusim-streams", || self.work()) {
                    inner.worker = Worker::Looking;
                }
            }
        }
    }

    fn work(&'static self) {
        let mut inner = self.lock();
        let mut patience = Patience::default();
        loop {
            inner = self.advance(inner);
            let pause = match inner.model.next_effect(self.machine) {
                Look::Never => None,
                Look::Poll => Some(patience.pause(&inner.model)),
                Look::At(due) => {
                    let ahead = Duration::from_nanos(due.saturating_sub(now_ns()));
                    Some(ahead.min(NAP))
                }
            };
            let lag = if inner.waiting > 0 { WORKER_LAG } else { Duration::ZERO };
            inner = match pause {
                Some(pause) => {
                    let slept = self.needed.wait_timeout(inner, pause + lag);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    inner.worker = Worker::Resting;
                    self.needed.wait(inner).unwrap_or_else(PoisonError::into_inner)
                }
            };
            inner.worker = Worker::Looking;
        }
    }

    fn call_host(&'static self, inner: &mut Inner, stream: StreamKey, call: Call) {
        let sender = inner.host.get_or_insert_with(|| {
            let (sender, calls) = channel::<(StreamKey, Call)>();
            threads::spawn("gpusim-host", move || {
                for (stream, call) in calls {
                    call();
                    self.finish(stream);
                }
            });
            sender
        });
        // Without a thread the function is lost, and its stream with it: an error, not a hang.
        if sender.send((stream, call)).is_err() {
            inner.model.finish(stream, Err(OUT_OF_MEMORY));
        }
    }

    fn finish(&'static self, stream: StreamKey) {
        let mut inner = self.lock();
        inner.model.finish(stream, Ok(()));
        inner = self.advance(inner);
        self.see_to_worker(&mut inner);
        self.tell_waiting(&inner);
    }
}

static SHARED: OnceLock<Run> = OnceLock::new();

/// The process's streams; there are none before the driver is initialised.
pub fn shared() -> Answer<&'static Run> {
    if let Some(run) = SHARED.get() {
        return Ok(run);
    }
    let machine = process()?.machine;
    Ok(SHARED.get_or_init(|| Run::new(machine)))
}
