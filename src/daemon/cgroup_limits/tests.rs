//! When limits are set, kept and cleared, and which of two programs' limits counts.

use super::*;
use crate::accounting::questions::{NvmlAnswer, Question, unanswered};
use gpuslice_engine::LaneRecord;
use gpuslice_wire::units::GIB;

const A: GpuUuid = GpuUuid([1; 16]);
const B: GpuUuid = GpuUuid([2; 16]);

fn record(cgroup: &str, cap: u64) -> Record {
    let lane = |gpu| {
        let cap = Bytes(cap);
        LaneRecord { gpu, cap, limit: cap, elastic: false, whole: false }
    };
    Record {
        lanes: vec![lane(A), lane(B)],
        cgroup: CgroupPath::new(cgroup.as_bytes()).unwrap_or(CgroupPath::EMPTY),
        ..crate::state::tests::record("web")
    }
}

/// A driver that has limits on the first GPU only.
fn limits_of_one_gpu(mode: CgroupLimitMode, soft: bool) -> CgroupLimits {
    let mut limits = CgroupLimits::new(mode, soft);
    limits.mount = Some("/cg".into());
    let lacks = LimitSupport::Lacks("too old".into());
    limits.supported(vec![(A.0, LimitSupport::Has), (B.0, lacks)]);
    limits
}

fn step(soft: u64, hard: u64, above_used: bool) -> Step {
    let (dir, keeps_all_but) = (Dir("/cg/pods/web".into()), Some(NO_LIMIT));
    Step { gpu: A.0, dir, soft, hard, above_used, keeps_all_but }
}

/// The same, in the place of a limit of the daemon's own; `None`: of any.
fn instead(ours: Option<u64>, step: Step) -> Step {
    Step { keeps_all_but: ours, ..step }
}

fn error(answer: nvmlReturn_t) -> NvmlError {
    NvmlError { call: "nvmlDeviceSetMemoryLimits_v1".to_owned(), answer }
}

/// A driver that hangs at the daemon's start.
#[test]
fn an_nvml_that_answers_after_the_start_still_sets_limits() {
    let told = |question| match unanswered(question, "it hangs") {
        NvmlAnswer::Support(told) => told,
        other => panic!("{other:?}"),
    };
    let mut limits = limits_of_one_gpu(CgroupLimitMode::Require, false);
    limits.support.clear();
    limits.supported(told(Question::Support { gpus: vec![A.0, B.0] }));
    let mut it = record("/pods/web", GIB);
    it.lanes.truncate(1);
    assert_eq!(limits.add_slice(&it, false), [step(0, GIB, false)]);
    for silent in [nvmlReturn_t::ERROR_UNINITIALIZED, nvmlReturn_t::ERROR_TIMEOUT] {
        limits.set(&it.container, (A, GIB), Err(error(silent)));
        let why = limits.verdict(&it.container).expect_err("the node requires it");
        assert!(why.contains("NVML has not answered yet"), "{why}");
        assert_eq!(limits.lagging_steps(&it.container), [step(0, GIB, true)], "with each sample");
    }
    limits.set(&it.container, (A, GIB), Ok(GIB));
    assert_eq!(limits.verdict(&it.container), Ok(()));
    // The answer to the first question, and that to a later one, which tells nothing.
    limits.supported(vec![(A.0, LimitSupport::Has), (B.0, LimitSupport::Lacks("too old".into()))]);
    limits.supported(told(Question::Support { gpus: vec![A.0, B.0] }));
    limits.add_slice(&record("/pods/web", GIB), false);
    limits.set(&it.container, (A, GIB), Ok(GIB));
    assert_eq!(limits.missing(&it.container), Some(format!("{B}: too old")));
}

/// NVML answers about an ended slice when its container has been started again.
#[test]
fn a_late_answer_about_an_ended_slice_says_nothing_of_its_successor() {
    let (it, done) = (record("/pods/web", GIB), Ok(GIB));
    let container = it.container;
    // Of its end, and of its beginning, which had not been answered by then.
    for ends in [true, false] {
        let mut limits = limits_of_one_gpu(CgroupLimitMode::Require, false);
        let begin = limits.add_slice(&it, false);
        let late = |limits: &mut CgroupLimits, steps, ends| {
            // It has been given up.
            let (ticket, by, after) = (Ticket::default(), Instant(0), After::Nothing);
            let one = Pending { ticket, by, container, steps, after, ends, left: None };
            limits.pending.push_back(one);
        };
        if !ends {
            late(&mut limits, begin, false);
        }
        let end = limits.remove_slice(&container, Some(&it));
        if ends {
            late(&mut limits, end, true);
        }
        limits.add_slice(&it, false);
        assert!(limits.answered(Ticket::default(), vec![done.clone(), done.clone()]).is_none());
        let level = limits.memory_enforcement(&container, Lane(0), true);
        assert_eq!(level, MemoryEnforcement::Accounted, "requested still");
        limits.set(&container, (A, GIB), Err(error(nvmlReturn_t::ERROR_NOT_SUPPORTED)));
        assert!(limits.verdict(&container).is_err(), "the node requires it");
    }
}

#[test]
fn the_limit_equals_the_cap_where_the_driver_has_limits() {
    let mut limits = limits_of_one_gpu(CgroupLimitMode::Auto, false);
    let it = record("/pods/web", GIB);
    assert_eq!(limits.add_slice(&it, false), [step(0, GIB, false)]);
    assert_eq!(limits.gpus(), [A, B]);
    let level = |limits: &CgroupLimits, lane, measured| {
        limits.memory_enforcement(&it.container, Lane(lane), measured)
    };
    assert_eq!(level(&limits, 0, true), MemoryEnforcement::Accounted, "only requested so far");
    limits.set(&it.container, (A, GIB), Ok(GIB));
    assert_eq!(level(&limits, 0, false), MemoryEnforcement::Driver);
    assert_eq!(level(&limits, 1, true), MemoryEnforcement::Accounted);
    assert_eq!(level(&limits, 1, false), MemoryEnforcement::Shim);
    assert_eq!(limits.missing(&it.container), Some(format!("{B}: too old")));
    assert_eq!(limits.in_force(), [(A, Dir("/cg/pods/web".into()))]);
}

#[test]
fn the_reason_for_a_missing_limit_is_named() {
    let missing = |mut limits: CgroupLimits, cgroup: &str| {
        let steps = limits.add_slice(&record(cgroup, GIB), false);
        assert!(steps.is_empty(), "{steps:?}");
        limits.missing(&record(cgroup, GIB).container).expect("a reason")
    };
    let off = missing(limits_of_one_gpu(CgroupLimitMode::Off, false), "/pods/web");
    assert!(off.ends_with("cgroup_limits = \"off\" in the configuration"), "{off}");
    let nowhere = missing(limits_of_one_gpu(CgroupLimitMode::Auto, false), "");
    assert!(nowhere.ends_with("it has no cgroup of its own"), "{nowhere}");
    let mut refused = limits_of_one_gpu(CgroupLimitMode::Auto, false);
    let it = record("/pods/web", GIB);
    refused.add_slice(&it, false);
    refused.set(&it.container, (A, GIB), Err(error(nvmlReturn_t::ERROR_NO_PERMISSION)));
    let why = refused.missing(&it.container).expect("a reason");
    assert!(why.contains("only root may set"), "{why}");
    assert!(refused.in_force().is_empty());
}

#[test]
fn the_guarantee_is_cleared_before_the_limit() {
    let mut limits = limits_of_one_gpu(CgroupLimitMode::Auto, true);
    let it = record("/pods/web", GIB);
    assert_eq!(limits.add_slice(&it, true), [step(GIB, GIB, true)]);
    let end = [step(0, GIB, true), step(0, NO_LIMIT, false)].map(|it| instead(None, it));
    assert_eq!(limits.clear_steps(&it), end);
    assert!(limits.clear_steps(&record("", GIB)).is_empty());
}

#[test]
fn growth_raises_the_limit_before_the_ledger_and_shrinking_lowers_it_after() {
    let mut limits = limits_of_one_gpu(CgroupLimitMode::Auto, false);
    let it = record("/pods/web", GIB);
    limits.add_slice(&it, false);
    let grow = |limits: &CgroupLimits, to| {
        limits.raise_step(&it.container, Lane(0), MemoryAsk::Exactly(Bytes(to)))
    };
    assert_eq!(grow(&limits, 2 * GIB), None, "it is not in force");
    limits.set(&it.container, (A, GIB), Ok(GIB));
    assert_eq!(grow(&limits, 2 * GIB), Some(instead(Some(GIB), step(0, 2 * GIB, false))));
    assert_eq!(grow(&limits, GIB / 2), None);
    let other = limits.raise_step(&it.container, Lane(1), MemoryAsk::Exactly(Bytes(2 * GIB)));
    assert_eq!(other, None);
    let ratio = MemoryAsk::Ratio { part: 1, whole: 1 };
    assert_eq!(limits.raise_step(&it.container, Lane(0), ratio), None);
    assert!(limits.lagging_steps(&it.container).is_empty());
    // The limit was raised and the ledger refused: the limit is lowered again.
    limits.set(&it.container, (A, 2 * GIB), Ok(2 * GIB));
    let lower = |from| [instead(Some(from), step(0, GIB, true))];
    assert_eq!(limits.lagging_steps(&it.container), lower(2 * GIB));
    // The limit could not go below the use.
    limits.set(&it.container, (A, GIB), Ok(GIB + 5));
    assert_eq!(limits.lagging_steps(&it.container), lower(GIB + 5));
    // A refused limit leaves the previous one in force.
    limits.set(&it.container, (A, GIB), Err(error(nvmlReturn_t::ERROR_INVALID_ARGUMENT)));
    assert_eq!(limits.memory_enforcement(&it.container, Lane(0), true), MemoryEnforcement::Driver);
}

/// NVIDIA's container toolkit may set a limit before the daemon, or after it.
#[test]
fn the_smaller_of_two_programs_limits_stays() {
    let mut limits = limits_of_one_gpu(CgroupLimitMode::Auto, false);
    let it = record("/pods/web", GIB);
    limits.add_slice(&it, false);
    let group = |hard| LimitedGroup { dir: Dir("/cg/pods/web".into()), used: 0, hard };
    let sample =
        |hard| Sample { limited: vec![group(hard)], ..Sample::of(A.0, Ok(BTreeMap::new())) };
    let found = |theirs| vec![(it.container, A, [Bytes(GIB), Bytes(theirs)])];
    limits.set(&it.container, (A, GIB), Ok(GIB / 2));
    assert_eq!(limits.take_found(), found(GIB / 2));
    let level = limits.memory_enforcement(&it.container, Lane(0), true);
    assert_eq!(level, MemoryEnforcement::Driver);
    assert!(limits.lagging_steps(&it.container).is_empty());
    limits.note_sample(&sample(GIB / 2));
    assert!(limits.take_found().is_empty(), "it is told once");
    // It was raised above the slice's, or taken away: the slice's is set.
    for hard in [2 * GIB, NO_LIMIT] {
        limits.note_sample(&sample(hard));
        assert_eq!(limits.lagging_steps(&it.container), [instead(Some(hard), step(0, GIB, true))]);
    }
    limits.set(&it.container, (A, GIB), Ok(GIB));
    limits.note_sample(&sample(GIB / 4));
    assert_eq!(limits.take_found(), found(GIB / 4));
    // The slice's is lowered below it.
    limits.note_caps(&record("/pods/web", GIB / 8));
    assert_eq!(limits.lagging_steps(&it.container), [step(0, GIB / 8, true)]);
}
