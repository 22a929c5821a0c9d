//! Whether GPUs have room for the memory of a container that is to be resumed, by NVML's own figures.
//!
//! # Problem
//! A restore that finds too little GPU memory can never be repeated: its process is stuck until it is killed (drivers
//! 580 and 595: NVIDIA/cuda-checkpoint, issue 44; gpunap, `validation/FINDINGS.md`). The ledger has room for what it
//! knows, and a process outside of all slices takes memory of which it does not know.
//!
//! # Idea
//! Before the first restore NVML is asked for each GPU's free memory, by the accounting's own process: one that hangs
//! holds up this resume alone. The figure is at most [`WITHIN`] old when the move begins. NVML may be late, and a
//! process that ends gives its memory back late, so where room is lacking it is asked again within that time. Then the
//! resume is refused, and may be ordered again later. Without NVML, or where NVML has no such figure, the ledger alone
//! decides.
//!
//! What a process outside of all slices takes between NVML's answer and the restore is not seen.

use crate::accounting::questions::{GpuRoom, Ticket};
use gpuslice_engine::{ResumeNeed, Token};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::units::{Bytes, Duration, Instant};

/// A resume waits for room, or for NVML's answer, for this long.
const WITHIN: Duration = Duration::from_millis(2_000);
/// Time between an answer without room and the next question.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Most processes that a refusal names.
const NAMED_MAX: usize = 3;

/// A resume that was ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Of the order.
    pub token: Token,
    /// The container.
    pub container: ContainerId,
    /// All its memory.
    pub memory: Bytes,
    /// What it needs of each GPU.
    pub needs: Vec<ResumeNeed>,
}

/// The end of a look for room: the resume, and why it cannot begin.
pub type Looked = (Resume, Result<(), String>);

#[derive(Debug)]
struct Look {
    resume: Resume,
    until: Instant,
    /// The question that is not answered.
    asked: Option<Ticket>,
    /// When the next one is asked.
    next: Instant,
    /// What the last answer lacked.
    lacks: String,
}

/// The resumes that wait for NVML's answer.
#[derive(Debug, Default)]
pub struct Rooms(Vec<Look>);

impl Rooms {
    /// Begins to look for room.
    pub fn begin(&mut self, resume: Resume, now: Instant) {
        let lacks = "NVML does not answer".to_owned();
        self.0.push(Look { resume, until: now.plus(WITHIN), asked: None, next: now, lacks });
    }

    /// When [`Rooms::due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let next = |look: &Look| if look.asked.is_some() { look.until } else { look.next };
        self.0.iter().map(|look| next(look).min(look.until)).min()
    }

    /// Asks by `ask` what is to be asked now; returns the resumes that have waited for long enough.
    pub fn due(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(Vec<GpuUuid>) -> Option<Ticket>,
    ) -> Vec<Looked> {
        let over = |look: &mut Look| look.until <= now;
        let over: Vec<_> =
            self.0.extract_if(.., over).map(|it| (it.resume, Err(it.lacks))).collect();
        for look in self.0.iter_mut().filter(|it| it.asked.is_none() && it.next <= now) {
            look.asked = ask(look.resume.needs.iter().map(|need| need.gpu).collect());
            look.next = now.plus(AGAIN_AFTER);
        }
        over
    }

    /// NVML has answered; `name`: of a pid.
    pub fn answered(
        &mut self,
        ticket: Ticket,
        rooms: &[GpuRoom],
        now: Instant,
        name: impl Fn(u32) -> String,
    ) -> Option<Looked> {
        let at = self.0.iter().position(|look| look.asked == Some(ticket))?;
        match lacking(&self.0[at].resume.needs, rooms, name) {
            None => Some((self.0.swap_remove(at).resume, Ok(()))),
            Some(lacks) => {
                let look = &mut self.0[at];
                (look.asked, look.next, look.lacks) = (None, now.plus(AGAIN_AFTER), lacks);
                None
            }
        }
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.0.retain(|look| look.resume.container != *container);
    }
}

/// Says which GPU lacks room, and which processes have the most of it.
fn lacking(
    needs: &[ResumeNeed],
    rooms: &[GpuRoom],
    name: impl Fn(u32) -> String,
) -> Option<String> {
    needs.iter().find_map(|need| {
        let index = need.index.0;
        let untold = |why| Some(format!("NVML does not tell what GPU {index} has free: {why}"));
        let Some(room) = rooms.iter().find(|room| GpuUuid(room.gpu) == need.gpu) else {
            return untold("it is not in the answer");
        };
        let free = match &room.free {
            Err(why) => return untold(why),
            Ok(free) => Bytes((*free)?),
        };
        (free < need.bytes).then(|| {
            let holders = holders(room, &name);
            let wanted = need.bytes;
            format!("GPU {index} has {free} free, and {wanted} are wanted{holders}")
        })
    })
}

/// The processes that have the most memory of a GPU, with a comma before each.
fn holders(room: &GpuRoom, name: impl Fn(u32) -> String) -> String {
    let used = |(pid, used): (&u32, &Option<u64>)| Some((used.filter(|it| *it > 0)?, *pid));
    let mut all: Vec<(u64, u32)> = room.processes.iter().filter_map(used).collect();
    all.sort_unstable_by(|one, other| other.cmp(one));
    let first = all.into_iter().take(NAMED_MAX);
    first.map(|(used, pid)| format!(", process {} has {}", name(pid), Bytes(used))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::NvmlIndex;
    use gpuslice_wire::units::MIB;

    fn resume(bytes: u64) -> Resume {
        let need =
            ResumeNeed { gpu: GpuUuid([1; 16]), index: NvmlIndex(0), bytes: Bytes(bytes * MIB) };
        let container = ContainerId::new("a").expect("an id");
        let memory = need.bytes;
        Resume { token: Token(7), container, memory, needs: vec![need] }
    }

    fn room(free: u64) -> GpuRoom {
        let processes = [
            (7, Some(MIB)),
            (8, Some(3 * MIB)),
            (9, None),
            (10, Some(2 * MIB)),
            (11, Some(MIB / 2)),
        ];
        GpuRoom { gpu: [1; 16], free: Ok(Some(free * MIB)), processes: processes.into() }
    }

    fn named(pid: u32) -> String {
        format!("p{pid}")
    }

    #[test]
    fn what_is_missing_is_said_and_which_processes_have_most() {
        let needs = resume(100).needs;
        let said = |room: GpuRoom| lacking(&needs, &[room], named);
        assert_eq!(said(room(100)), None);
        let expected = "GPU 0 has 99MiB free, and 100MiB are wanted, process p8 has 3MiB, process p10 has 2MiB, \
                        process p7 has 1MiB";
        assert_eq!(said(room(99)).as_deref(), Some(expected));
        assert_eq!(said(GpuRoom { free: Ok(None), ..room(0) }), None, "there is no such figure");
        let lost = said(GpuRoom { free: Err("it is lost".to_owned()), ..room(100) });
        assert_eq!(lost.as_deref(), Some("NVML does not tell what GPU 0 has free: it is lost"));
    }

    #[test]
    fn room_is_looked_for_again_until_the_time_is_over() {
        let (mut rooms, mut now) = (Rooms::default(), Instant(1));
        rooms.begin(resume(100), now);
        for ticket in [1, 2] {
            assert_eq!(rooms.deadline(), Some(now), "question {ticket}");
            assert_eq!(rooms.due(now, |_| Some(ticket)), []);
            assert_eq!(rooms.due(now, |_| panic!("it is asked")), []);
            assert_eq!(rooms.answered(ticket + 7, &[room(100)], now, named), None, "another one's");
            assert_eq!(rooms.answered(ticket, &[room(99)], now, named), None);
            now = now.plus(AGAIN_AFTER);
        }
        assert_eq!(rooms.due(now, |_| Some(3)), []);
        let found = rooms.answered(3, &[room(100)], now, named);
        assert_eq!(found, Some((resume(100), Ok(()))));
        assert_eq!(rooms.deadline(), None);
    }

    #[test]
    fn a_resume_without_an_answer_or_room_is_refused() {
        let (mut rooms, now) = (Rooms::default(), Instant(1));
        let late = now.plus(WITHIN);
        assert_eq!(late.since(now), Duration::from_millis(2_000));
        rooms.begin(resume(100), now);
        assert_eq!(rooms.due(now, |_| None), [], "it is asked again");
        assert_eq!(rooms.due(now.plus(AGAIN_AFTER), |_| Some(4)), []);
        assert_eq!(rooms.deadline(), Some(late));
        let refused = rooms.due(late, |_| None);
        assert_eq!(refused, [(resume(100), Err("NVML does not answer".to_owned()))]);
        assert_eq!(rooms.answered(4, &[room(100)], late, named), None, "too late");
        rooms.begin(resume(100), now);
        rooms.forget(&resume(1).container);
        assert_eq!(rooms.deadline(), None);
    }
}
