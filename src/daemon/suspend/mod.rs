//! Moves the GPU memory of containers to the host and back, for `gpuslice suspend` and `resume`.
//!
//! The engine decides when (`gpuslice_engine`, module `suspend`). Each move is the job of a [`worker`] that has no
//! other job, so that a driver that hangs holds up nothing but that container. A worker that is too late is killed;
//! after a move to the host, another one then moves back what it has left there, and if that one is late as well, the
//! container counts as suspended, and `gpuslice resume` tries again.
//!
//! A file in the container's directory says that it is suspended. It is made before the first call and removed after
//! the last one, so after a crash at any moment the next daemon finds each container that may have memory on the host.
//! The file has the word `moved` only while nothing moves and all memory is known to be there. Without that word a move
//! was under way: the worker ended with its daemon, and the next daemon orders the move to the host again.

mod jobs;
pub mod room;
pub mod shared;
pub mod worker;
mod workers;

use crate::poll::{Source, Watch};
use crate::slab::{Key, Slab};
use crate::state::{remove_tree, replace_passing_file};
use gpuslice_engine::Process;
use gpuslice_host::clock::now;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CONTAINERS_MAX;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use jobs::{Job, Report};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use workers::{Worker, Workers, of_this_program};

/// The file in the directory of a suspended container, and its words.
const MARK: &str = "suspended";
/// Another container needed the memory.
const RECLAIMED: &str = "reclaimed";
/// All memory is on the host.
const MOVED: &str = "moved";

/// A move.
#[derive(Clone, Debug)]
struct Move {
    container: ContainerId,
    job: Job,
    /// Why the move that this one undoes was not done.
    undoes: Option<String>,
    /// An earlier worker had this job, and ended.
    repeats: bool,
}

/// A move, and the worker that does it.
#[derive(Debug)]
struct Run {
    it: Move,
    worker: Worker,
    deadline: Instant,
}

/// The end of a move.
#[derive(Debug, PartialEq, Eq)]
pub struct Moved {
    /// The container.
    pub container: ContainerId,
    /// Its memory, or a part of it, is on the host.
    pub away: bool,
    /// The processes whose memory is there; `None`: the same as before.
    pub moved: Option<Vec<(u32, u64)>>,
}

/// See the file's head.
#[derive(Debug)]
pub struct Suspender {
    watch: Watch,
    workers: Workers,
    runs: Slab<Run>,
    /// Why a container's last move was not done, until the engine has settled it.
    failures: BTreeMap<ContainerId, String>,
}

impl Suspender {
    /// Moves nothing yet; `library` is the driver's.
    pub fn new(watch: &Watch, library: PathBuf) -> Suspender {
        Suspender {
            watch: watch.clone(),
            workers: Workers::new(of_this_program, library),
            runs: Slab::new(2 * CONTAINERS_MAX as u16),
            failures: BTreeMap::new(),
        }
    }

    /// Begins a move, to the host (`away`) or back; returns its end if it cannot begin, as for the reason `obstacle`.
    pub fn begin(
        &mut self,
        (container, dir): (ContainerId, &Path),
        (away, reclaims): (bool, bool),
        processes: impl Iterator<Item = Process>,
        memory: Bytes,
        obstacle: Option<String>,
    ) -> Option<Moved> {
        let mark = read_mark(dir);
        let job = Job { again: away && mark.is_some(), ..Job::of(away, processes, memory.0) };
        if let Some(why) = obstacle {
            let Report { away, moved, .. } = job.stays();
            return Some(self.failed((container, away, moved), why));
        }
        let marked = match mark {
            Some(mark) if !away => cut_mark(dir, mark),
            _ => write_mark(dir, Mark { reclaimed: reclaims, moved: false }),
        };
        let stays = job.stays();
        let it = Move { container, job, undoes: None, repeats: false };
        let begun = marked.and_then(|()| self.start(it));
        let why = begun.err()?;
        let Report { away, moved, .. } = stays;
        Some(self.failed((container, away, moved), format!("it cannot be moved: {why}")))
    }

    /// A container is not resumed, before any call was made.
    pub fn refuse_resume(&mut self, container: ContainerId, why: String) -> Moved {
        self.failed((container, true, None), why)
    }

    /// When [`Suspender::due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.runs.iter().map(|(_, run)| run.deadline).chain(self.workers.deadline()).min()
    }

    /// Replaces workers that are too late.
    pub fn due(&mut self, now: Instant) -> Vec<Moved> {
        self.workers.due(now);
        let late = self.runs.iter().filter(|(_, run)| run.deadline <= now);
        let late: Vec<Key> = late.map(|(key, _)| key).collect();
        let late: Vec<Move> = late.into_iter().filter_map(|key| self.remove(key)).collect();
        late.into_iter().filter_map(|run| self.lost(run, "did not answer in time")).collect()
    }

    /// Reads a worker's answer.
    pub fn read(&mut self, key: Key) -> Option<Moved> {
        let answer = self.runs.get(key)?.worker.answer()?;
        let Ok(Report { away, moved, why }) = serde_json::from_slice(&answer) else {
            return self.ended(key);
        };
        let Run { it: run, worker, .. } = self.runs.remove(key)?;
        let works = why.is_none() && self.watch.forget(&worker).is_ok();
        match works {
            true => self.workers.keep(worker, now()),
            false => self.workers.end(worker),
        }
        let whys: Vec<String> = run.undoes.into_iter().chain(why).collect();
        if whys.is_empty() {
            return Some(Moved { container: run.container, away, moved });
        }
        Some(self.failed((run.container, away, moved), whys.join("; ")))
    }

    /// Why a container's last move was not done.
    pub fn take_failure(&mut self, container: &ContainerId) -> Option<String> {
        self.failures.remove(container)
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.failures.remove(container);
        let its = self.runs.iter().filter(|(_, run)| run.it.container == *container);
        let its: Vec<Key> = its.map(|(key, _)| key).collect();
        its.into_iter().for_each(|key| drop(self.remove(key)));
    }

    fn failed(
        &mut self,
        (container, away, moved): (ContainerId, bool, Option<Vec<(u32, u64)>>),
        why: String,
    ) -> Moved {
        tracing::warn!(%container, away, why, "its memory was not moved");
        self.failures.insert(container, why);
        Moved { container, away, moved }
    }

    /// A worker has ended without an answer. One that had waited for a job may have been killed before it took this
    /// one, and says nothing of the job; so a new worker does the job. A restore goes on without its caller, and leaves
    /// the process locked (measured with drivers 580 and 595); so another worker unlocks it, once.
    fn ended(&mut self, key: Key) -> Option<Moved> {
        let has_waited = self.runs.get(key)?.worker.has_waited();
        let run = self.remove(key)?;
        let restores = !run.job.away && !run.repeats;
        if (has_waited || restores) && self.start(Move { repeats: true, ..run.clone() }).is_ok() {
            return None;
        }
        self.lost(run, "ended")
    }

    /// The worker of a move has ended, or is given up.
    fn lost(&mut self, run: Move, what: &str) -> Option<Moved> {
        let why = format!("the process that calls the driver {what}");
        if !run.job.away {
            let why = run.undoes.map_or(why.clone(), |first| format!("{first}; and back: {why}"));
            return Some(self.failed((run.container, true, Some(Vec::new())), why));
        }
        let back = Job { away: false, undoes: true, ..run.job };
        let container = run.container;
        let back = Move { container, job: back, undoes: Some(why.clone()), repeats: false };
        let error = self.start(back).err()?;
        let why = format!("{why}; and back: {error}");
        Some(self.failed((run.container, true, Some(Vec::new())), why))
    }

    fn remove(&mut self, key: Key) -> Option<Move> {
        let Run { it, worker, .. } = self.runs.remove(key)?;
        self.workers.end(worker);
        Some(it)
    }

    fn start(&mut self, it: Move) -> io::Result<()> {
        let packet = serde_json::to_vec(&it.job).map_err(io::Error::other)?;
        let worker = self.workers.start(&packet)?;
        let deadline = now().plus(Duration(it.job.within().as_nanos() as u64));
        let run = Run { it, worker, deadline };
        let key = self.runs.insert(run).map_err(|_| io::Error::other("too many moves"))?;
        let Some(run) = self.runs.get(key) else { return Ok(()) };
        let watched = self.watch.add(run.worker.as_fd(), Source::Suspension(key));
        Ok(watched.inspect_err(|_| drop(self.remove(key)))?)
    }
}

/// What the file in a container's directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// It was suspended because another container needed the memory.
    pub reclaimed: bool,
    /// All its memory is on the host.
    pub moved: bool,
}

/// What a container's directory says of its suspension; `None` if it is not suspended.
pub fn read_mark(dir: &Path) -> Option<Mark> {
    let path = dir.join(MARK);
    // A file that cannot be read may say anything: the move is ordered again.
    let text = std::fs::read_to_string(&path).ok();
    let text = text.or_else(|| path.exists().then(String::new))?;
    let says = |word| text.split_whitespace().any(|it| it == word);
    Some(Mark { reclaimed: says(RECLAIMED), moved: says(MOVED) })
}

/// The words of a mark; `moved` is the last one.
fn words(mark: Mark) -> String {
    let words = [(mark.reclaimed, RECLAIMED), (mark.moved, MOVED)];
    let words = words.iter().filter(|(says, _)| *says).map(|(_, word)| *word);
    words.collect::<Vec<_>>().join(" ")
}

/// Replaces the file: a daemon that is killed, or a full disk, leaves the old one.
fn write_mark(dir: &Path, mark: Mark) -> io::Result<()> {
    let path = dir.join(MARK);
    replace_passing_file(&path, (&path.with_extension("new"), 0o600), words(mark).as_bytes())
}

/// Takes the word `moved` away. Nothing is written, so that a full disk does not keep memory on the host.
fn cut_mark(dir: &Path, mark: Mark) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(dir.join(MARK))?;
    file.set_len(words(Mark { moved: false, ..mark }).len() as u64)
}

/// Notes that all memory of a suspended container is on the host.
pub fn mark_moved(dir: &Path, reclaimed: bool) {
    if let Err(why) = write_mark(dir, Mark { reclaimed, moved: true }) {
        let dir = dir.display();
        tracing::warn!(%dir, %why, "not noted that its memory is on the host: a restarted daemon orders the move again, which finds nothing to do");
    }
}

/// Notes that a container is not suspended any more.
pub fn unmark(dir: &Path) {
    if let Err(why) = remove_tree(&dir.join(MARK)) {
        let dir = dir.display();
        tracing::error!(%dir, %why, "not noted that it is resumed: a restarted daemon suspends the container again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poll;
    use std::fs::{self, File};
    use std::iter;
    use std::process::Command;

    /// A worker that reads its job and ends.
    fn takes_one_job(_: &Path) -> Command {
        let mut command = Command::new("dd");
        command.args(["bs=65536", "count=1", "status=none"]);
        command
    }

    /// A restore goes on without its worker, so one that ended is replaced, and the second is not. A move to the host
    /// is undone instead, which is a restore.
    #[test]
    fn a_worker_that_ends_in_a_restore_is_replaced_once() {
        let (poll, dir) = (Poll::new().expect("a poll"), tempfile::tempdir().expect("a place"));
        let container = ContainerId::new("web").expect("an id");
        for (away, lost) in [(false, 2), (true, 3)] {
            let mut suspender = Suspender::new(&poll.watch(), PathBuf::new());
            suspender.workers = Workers::new(takes_one_job, PathBuf::new());
            write_mark(dir.path(), Mark { reclaimed: false, moved: !away }).expect("written");
            let at = (container, dir.path());
            let begun = suspender.begin(at, (away, false), iter::empty(), Bytes(0), None);
            assert_eq!(begun, None);
            let mut keys = Vec::new();
            let end = loop {
                let run = suspender.runs.iter().next().expect("a worker, or the end");
                let key = run.0;
                if !keys.contains(&key) {
                    keys.push(key);
                }
                if let Some(end) = suspender.read(key) {
                    break end;
                }
                std::thread::yield_now();
            };
            assert_eq!(end, Moved { container, away: true, moved: Some(Vec::new()) });
            assert_eq!((keys.len(), suspender.runs.iter().count()), (lost, 0), "away: {away}");
            let why = suspender.take_failure(&container).expect("a reason");
            assert!(why.contains("the process that calls the driver ended"), "{why}");
        }
    }

    /// A daemon can be killed at any moment, and a disk can be full: what the file says is not lost.
    #[test]
    fn a_mark_is_replaced_or_cut_and_never_empty_in_between() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let [going, moved] = [false, true].map(|moved| Mark { reclaimed: true, moved });
        assert_eq!(read_mark(dir), None);
        write_mark(dir, going).expect("written");
        let old = File::open(dir.join(MARK)).expect("there");
        mark_moved(dir, true);
        assert_eq!(io::read_to_string(old).expect("text"), RECLAIMED, "the old one is unchanged");
        assert_eq!(read_mark(dir), Some(moved));
        // The place beside is taken, as by a file of a full disk.
        fs::create_dir(dir.join("suspended.new")).expect("made");
        write_mark(dir, going).expect_err("no place");
        assert_eq!(read_mark(dir), Some(moved));
        cut_mark(dir, moved).expect("nothing is written");
        assert_eq!(read_mark(dir), Some(going));
        cut_mark(dir, going).expect("it is as it was");
        assert_eq!(read_mark(dir), Some(going));
        unmark(dir);
        unmark(dir);
        assert_eq!(read_mark(dir), None);
        cut_mark(dir, going).expect_err("no file is made");
    }

    /// The word of one that an administrator suspended is the only one.
    #[test]
    fn a_mark_of_one_word_is_cut() {
        let dir = tempfile::tempdir().expect("a directory");
        let moved = Mark { reclaimed: false, moved: true };
        write_mark(dir.path(), moved).expect("written");
        cut_mark(dir.path(), moved).expect("cut");
        assert_eq!(read_mark(dir.path()), Some(Mark { reclaimed: false, moved: false }));
    }
}
