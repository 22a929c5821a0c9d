//! The order of calls, on a driver that refuses what it is told to.

use super::obstacles::tests::{machine, put};
use super::*;
use std::cell::RefCell;

const ALL: [(u32, u64); 3] = [(1, 1), (2, 1), (3, 1)];

/// The states of processes 1 to 3, the calls that were made, and those that are refused.
struct Fake {
    calls: RefCell<Vec<(u32, Call)>>,
    states: RefCell<[Option<CUprocessState>; 3]>,
    refused: Vec<(u32, Call)>,
    /// The answer to every question for a state.
    silent: Option<CUresult>,
    /// The call that loses a process.
    lost: Option<(u32, Call)>,
    /// The call in which a process ends.
    ends: Option<(u32, Call)>,
}

fn fake(refused: &[(u32, Call)]) -> Fake {
    let states = RefCell::new([Some(CU_PROCESS_STATE_RUNNING); 3]);
    let (calls, refused) = (RefCell::default(), refused.to_vec());
    Fake { calls, states, refused, silent: None, lost: None, ends: None }
}

impl Checkpoints for Fake {
    fn state(&self, (pid, _): (u32, u64)) -> Result<Option<CUprocessState>, CUresult> {
        match self.silent {
            Some(code) => Err(code),
            None => Ok(self.states.borrow()[pid as usize - 1]),
        }
    }

    fn call(&self, pid: u32, call: Call) -> CUresult {
        self.calls.borrow_mut().push((pid, call));
        if self.refused.contains(&(pid, call)) {
            return CUresult::ERROR_NOT_SUPPORTED;
        }
        if self.lost == Some((pid, call)) {
            self.states.borrow_mut()[pid as usize - 1] = Some(CU_PROCESS_STATE_FAILED);
            return CUresult::ERROR_UNKNOWN;
        }
        let states = &mut self.states.borrow_mut();
        if self.ends == Some((pid, call)) {
            states[pid as usize - 1] = None;
            return CUresult::ERROR_UNKNOWN;
        }
        let (from, to) = match call {
            Call::Lock => (CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED),
            Call::Checkpoint => {
                // A process that runs could change what it shares with the others.
                assert!(states.iter().flatten().all(|it| *it != CU_PROCESS_STATE_RUNNING));
                (CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED)
            }
            Call::Restore => (CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED),
            Call::Unlock => (CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING),
        };
        assert_eq!(states[pid as usize - 1], Some(from), "{call:?} of {pid}");
        states[pid as usize - 1] = Some(to);
        CUresult::SUCCESS
    }
}

/// The report of a job that is done, after which the driver reports these as moved.
fn done(away: bool, moved: &[(u32, u64)]) -> Report {
    Report { away, moved: Some(moved.to_vec()), why: None }
}

/// Nothing is known against a move.
fn nothing(_: &[(u32, u64)]) -> Option<String> {
    None
}

fn is_all(fake: &Fake, state: CUprocessState) -> bool {
    fake.states.borrow().iter().flatten().all(|it| *it == state)
}

#[test]
fn all_go_and_all_return() {
    let fake = fake(&[]);
    assert_eq!(move_away(&fake, &ALL, nothing), done(true, &ALL));
    assert!(is_all(&fake, CU_PROCESS_STATE_CHECKPOINTED));
    // Again, as after an answer that was lost.
    assert_eq!(move_away(&fake, &ALL, nothing), done(true, &ALL));
    assert_eq!(move_back(&fake, &ALL), done(false, &[]));
    assert!(is_all(&fake, CU_PROCESS_STATE_RUNNING));
    assert_eq!(move_back(&fake, &ALL), done(false, &[]));
}

#[test]
fn one_refusal_undoes_all() {
    for refused in [(2, Call::Lock), (3, Call::Checkpoint)] {
        let fake = fake(&[refused]);
        let report = move_away(&fake, &ALL, nothing);
        let why = report.why.expect("a reason");
        assert!(!report.away && why.contains(&format!("process {}", refused.0)), "{why}");
        assert!(why.contains(refused.1.name()), "{why}");
        assert!(is_all(&fake, CU_PROCESS_STATE_RUNNING));
    }
}

#[test]
fn one_refused_restore_keeps_all_away() {
    let mut fake = fake(&[]);
    move_away(&fake, &ALL, nothing);
    fake.refused.push((2, Call::Restore));
    let report = move_back(&fake, &ALL);
    assert!(report.away && report.why.is_some_and(|why| why.contains("process 2")));
    assert!(is_all(&fake, CU_PROCESS_STATE_CHECKPOINTED));
    fake.refused.clear();
    assert_eq!(move_back(&fake, &ALL), done(false, &[]));
}

/// A move that can neither be completed nor undone says both, and can be tried again.
#[test]
fn what_cannot_be_undone_is_said() {
    let mut fake = fake(&[(2, Call::Checkpoint), (1, Call::Restore)]);
    let report = move_away(&fake, &ALL, nothing);
    let why = report.why.expect("a reason");
    assert!(report.away && why.contains("process 2") && why.contains("process 1"), "{why}");
    assert_eq!(report.moved.as_deref(), Some(&ALL[..1]), "the others are still on the GPU");
    fake.refused.clear();
    assert_eq!(move_back(&fake, &ALL), done(false, &[]));
    assert!(is_all(&fake, CU_PROCESS_STATE_RUNNING));
}

#[test]
fn processes_that_ended_or_failed_are_no_obstacle() {
    let fake = fake(&[]);
    fake.states.borrow_mut()[0] = None;
    assert_eq!(move_away(&fake, &ALL, nothing), done(true, &ALL[1..]));
    fake.states.borrow_mut()[1] = Some(CU_PROCESS_STATE_FAILED);
    let report = move_back(&fake, &ALL);
    assert!(!report.away && report.why.is_some_and(|why| why.contains("process 2")));
}

/// The others are moved, also where one ends in the middle of its own call.
#[test]
fn a_process_that_ends_in_a_move_is_no_obstacle() {
    let others = [ALL[0], ALL[2]];
    let in_state = |fake: &Fake, state| {
        let states = fake.states.borrow();
        assert_eq!(*states, [Some(state), None, Some(state)], "{:?}", fake.ends);
    };
    for call in [Call::Lock, Call::Checkpoint] {
        let fake = Fake { ends: Some((2, call)), ..fake(&[]) };
        assert_eq!(move_away(&fake, &ALL, nothing), done(true, &others), "{call:?}");
        in_state(&fake, CU_PROCESS_STATE_CHECKPOINTED);
        assert_eq!(move_back(&fake, &ALL), done(false, &[]));
        in_state(&fake, CU_PROCESS_STATE_RUNNING);
    }
    for call in [Call::Restore, Call::Unlock] {
        let fake = Fake { ends: Some((2, call)), ..fake(&[]) };
        assert_eq!(move_away(&fake, &ALL, nothing), done(true, &ALL));
        assert_eq!(move_back(&fake, &ALL), done(false, &[]), "{call:?}");
        in_state(&fake, CU_PROCESS_STATE_RUNNING);
    }
}

/// A driver that does not tell the states of processes has moved nothing, and is not taken for one whose processes
/// have all ended.
#[test]
fn a_driver_that_tells_no_state_has_moved_nothing() {
    let silent = Fake { silent: Some(CUresult::ERROR_NOT_SUPPORTED), ..fake(&[]) };
    for report in [move_away(&silent, &ALL, nothing), move_back(&silent, &ALL)] {
        let why = report.why.expect("a reason");
        assert!(why.contains("process 1 (801): it has no checkpoints; install"), "{why}");
        assert_eq!((report.away, report.moved), (false, Some(Vec::new())));
    }
}

/// The checkpoint ends half-way. What is lost is said, then and at the next attempt.
#[test]
fn a_process_that_a_checkpoint_lost_is_named() {
    let half = Fake { lost: Some((2, Call::Checkpoint)), ..fake(&[]) };
    let report = move_away(&half, &ALL, nothing);
    let why = report.why.expect("a reason");
    assert!(why.contains("refused cuCheckpointProcessCheckpoint of process 2 (999)"), "{why}");
    assert!(why.ends_with("; the driver has lost the memory of process 2; end it"), "{why}");
    assert_eq!((report.away, report.moved), (false, Some(Vec::new())));
    let again = move_away(&half, &ALL, nothing).why;
    assert_eq!(again.as_deref(), Some("the driver has lost the memory of process 2; end it"));
    let states = half.states.borrow();
    assert_eq!([states[0], states[2]], [Some(CU_PROCESS_STATE_RUNNING); 2], "the others go on");
}

/// A worker was killed between its calls: some processes are moved, some locked, some neither.
#[test]
fn a_move_that_was_cut_short_is_done_again() {
    let fake = fake(&[]);
    *fake.states.borrow_mut() = [
        Some(CU_PROCESS_STATE_CHECKPOINTED),
        Some(CU_PROCESS_STATE_LOCKED),
        Some(CU_PROCESS_STATE_RUNNING),
    ];
    assert_eq!(move_away(&fake, &ALL, nothing), done(true, &ALL));
}

/// A part of the memory was moved by an earlier daemon, and others have its room. The move is ordered again and
/// refused: that part stays where it is, and the rest is unlocked.
#[test]
fn a_refused_repetition_moves_nothing_back() {
    for refused in [(2, Call::Lock), (3, Call::Checkpoint)] {
        let mut fake = fake(&[refused]);
        fake.states.borrow_mut()[0] = Some(CU_PROCESS_STATE_CHECKPOINTED);
        let report = move_away(&fake, &ALL, nothing);
        assert!(report.why.is_some_and(|why| why.contains(refused.1.name())));
        assert_eq!((report.away, report.moved), (true, Some(ALL[..1].to_vec())));
        assert_eq!(fake.states.borrow()[1..], [Some(CU_PROCESS_STATE_RUNNING); 2]);
        fake.refused.clear();
        assert_eq!(move_back(&fake, &ALL), done(false, &[]));
        assert!(is_all(&fake, CU_PROCESS_STATE_RUNNING));
    }
}

/// What is known against a move is told before any process is locked; what an earlier daemon has moved stays.
#[test]
fn an_obstacle_is_met_before_the_first_lock() {
    let fake = fake(&[]);
    fake.states.borrow_mut()[0] = Some(CU_PROCESS_STATE_CHECKPOINTED);
    let refused = |here: &[(u32, u64)]| {
        assert_eq!(here, &ALL[1..], "the first one is on the host");
        Some("no room".to_owned())
    };
    let report = move_away(&fake, &ALL, refused);
    assert_eq!((report.away, report.why.as_deref()), (true, Some("no room")));
    assert_eq!(report.moved, Some(ALL[..1].to_vec()));
    let running = Some(CU_PROCESS_STATE_RUNNING);
    assert_eq!(fake.states.borrow()[1..], [running, running]);
}

/// The driver is not called for a process that would not survive, or not answer.
#[test]
fn each_obstacle_refuses_a_move_before_the_first_call() {
    let alone = || {
        let states = RefCell::new([Some(CU_PROCESS_STATE_RUNNING), None, None]);
        Fake { states, ..fake(&[]) }
    };
    let limit = ("groups/pod/memory.max", "314572800");
    let uvm = "7f00-7f01 rw-s 0 00:06 1 /dev/nvidia-uvm\n".repeat(2);
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[limit, ("groups/pod/memory.current", "0")], "its memory limit would end it"),
        (&[("proc/meminfo", "MemAvailable: 1024 kB\n")], "this machine has too little"),
        (&[("proc/1/stat", "7 (a) T 1 7 7 0")], "is stopped"),
        (&[("groups/pod/cgroup.events", "frozen 1\n")], "is frozen"),
        (&[("proc/1/maps", &uvm)], "has managed memory"),
    ];
    let job = Job { memory: 256 << 20, ..Job::of(true, std::iter::empty(), 0) };
    let job = Job { processes: vec![(1, 1)], ..job };
    for (files, why) in cases {
        let (dir, kernel) = machine();
        files.iter().for_each(|(path, text)| put(dir.path(), path, text));
        let fake = alone();
        let report = report_of(&job, &kernel, false, || Ok(&fake));
        assert!(report.why.as_ref().is_some_and(|it| it.contains(why)), "{why}: {report:?}");
        assert!(!report.away && fake.calls.borrow().is_empty(), "{why}: {:?}", fake.calls);
    }
    let (_dir, kernel) = machine();
    let fake = alone();
    assert_eq!(report_of(&job, &kernel, false, || Ok(&fake)), done(true, &[(1, 1)]));
}

/// A process that is locked may keep another one from answering: it is free before that one is asked.
#[test]
fn an_undone_move_frees_what_is_locked_at_once() {
    let fake = fake(&[(2, Call::Restore)]);
    let [locked, moved] = [CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED].map(Some);
    *fake.states.borrow_mut() = [locked, moved, locked];
    let report = undo(&fake, &ALL);
    assert!(report.away && report.why.is_some_and(|why| why.contains("Restore of process 2")));
    let running = Some(CU_PROCESS_STATE_RUNNING);
    assert_eq!(*fake.states.borrow(), [running, moved, running]);
    let calls = fake.calls.borrow();
    assert_eq!(calls[..], [(1, Call::Unlock), (3, Call::Unlock), (2, Call::Restore)]);
}
