//! Faults on demand, to test the rare paths of the programs above.
//!
//! | text | what happens |
//! |---|---|
//! | `oom-every=N` | every Nth allocation of a process fails as out of memory |
//! | `slow-launch=D` | every kernel takes D longer |
//! | `xid:X@launch=N` | the Nth kernel of a process kills its context with Xid X |
//! | `hang=CALL` | a control of a channel group hangs meanwhile: `stats`, `stop`, `preempt`, `resume` or `slice`; |
//! | | or a call of checkpoints: `lock`, `checkpoint`, `restore` or `unlock` |
//! | `hang=CALL@PID` | the same, only on what is that process's |
//! | `refuse=CALL` | that call of checkpoints is refused as not supported, or `resume` for want of rights |
//! | `half=CALL` | `checkpoint` or `restore` moves a part of the memory, and fails |
//! | `none` | nothing |
//!
//! A directory's faults hold for every process; `GPUSLICE_SIM_FAULT` replaces them for one process.

use crate::error::ConfigError;
use crate::units;

/// Which faults are armed; zero means "not armed".
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub oom_every: u64,
    pub slow_launch_ns: u64,
    pub xid: u64,
    pub xid_at_launch: u64,
    /// A place in `HANGS`, from 1.
    pub hang: u64,
    /// The pid of the process on which it hangs, as the caller sees it; 0 for all.
    pub hang_on: u64,
    /// A call or `resume` that is refused, and a call that fails half-way: places in `HANGS`, too.
    pub refuse: u64,
    pub half: u64,
}

pub(crate) const FAULT_FORM: &str = "none, oom-every=N, slow-launch=DURATION, xid:X@launch=N, hang=CALL, hang=CALL@PID, refuse=CALL or half=CALL";
/// Controls that can hang, and calls of checkpoints, which can also be refused or fail half-way.
const HANGS: [&str; 8] =
    ["stats", "stop", "resume", "slice", "lock", "checkpoint", "restore", "unlock"];
/// The first call of checkpoints among these.
const CHECKPOINTS: usize = 4;

impl Faults {
    /// Several are joined by `+`: `oom-every=10+slow-launch=5ms`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut faults = Self::default();
        for one in text.split('+') {
            faults.arm(one).ok_or_else(|| ConfigError {
                key: "fault".into(),
                value: one.into(),
                expected: FAULT_FORM.into(),
            })?;
        }
        Ok(faults)
    }

    fn arm(&mut self, text: &str) -> Option<()> {
        let positive = |text: &str| text.parse::<u64>().ok().filter(|&n| n > 0);
        if text == "none" {
        } else if let Some(n) = text.strip_prefix("oom-every=") {
            self.oom_every = positive(n)?;
        } else if let Some(duration) = text.strip_prefix("slow-launch=") {
            self.slow_launch_ns = units::duration(duration).filter(|&ns| ns > 0)?;
        } else if let Some(control) = text.strip_prefix("hang=") {
            let (control, pid) = match control.split_once('@') {
                Some((control, pid)) => (control, positive(pid)?),
                None => (control, 0),
            };
            (self.hang, self.hang_on) = (place(control)?, pid);
        } else if let Some(call) = text.strip_prefix("refuse=") {
            let may = |at: &u64| *at > CHECKPOINTS as u64 || call == "resume";
            self.refuse = place(call).filter(may)?;
        } else if let Some(call) = text.strip_prefix("half=") {
            let moves = ["checkpoint", "restore"].contains(&call);
            self.half = place(call).filter(|_| moves)?;
        } else {
            let (xid, launch) = text.strip_prefix("xid:")?.split_once("@launch=")?;
            self.xid = positive(xid).filter(|&xid| xid <= 1000)?;
            self.xid_at_launch = positive(launch)?;
        }
        Some(())
    }

    /// Whether a control of this name hangs on a process. Its pid takes a system call, and is asked for if it matters.
    pub(crate) fn hangs(&self, control: &str, pid: impl FnOnce() -> Option<u32>) -> bool {
        let on = || self.hang_on == 0 || pid().is_some_and(|pid| u64::from(pid) == self.hang_on);
        place(control) == Some(self.hang) && on()
    }

    /// Whether a call of checkpoints, or a control, is refused.
    pub(crate) fn refuses(&self, call: &str) -> bool {
        place(call) == Some(self.refuse)
    }

    /// Whether a call of checkpoints fails half-way.
    pub(crate) fn is_half(&self, call: &str) -> bool {
        place(call) == Some(self.half)
    }
}

/// The place of a name in `HANGS`, from 1.
fn place(call: &str) -> Option<u64> {
    let at = HANGS.iter().position(|name| *name == call)?;
    Some(at as u64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_what_is_parsed() {
        let faults = Faults::parse("oom-every=3+xid:31@launch=100+slow-launch=5ms").unwrap();
        assert_eq!(faults.oom_every, 3);
        assert_eq!((faults.xid, faults.xid_at_launch), (31, 100));
        assert_eq!(faults.slow_launch_ns, 5_000_000);
        assert_eq!(Faults::parse("none"), Ok(Faults::default()));
        let faults = Faults::parse("hang=resume").unwrap();
        let hangs = |faults: &Faults, control, pid| faults.hangs(control, || Some(pid));
        assert!(hangs(&faults, "resume", 7) && !hangs(&faults, "stop", 7));
        assert!(!hangs(&Faults::default(), "stats", 7));
        let faults = Faults::parse("hang=stop@7").unwrap();
        assert!(hangs(&faults, "stop", 7) && !hangs(&faults, "stop", 8));
        assert!(!hangs(&faults, "stats", 7) && !faults.hangs("stop", || None));
        let faults = Faults::parse("refuse=lock+half=restore").unwrap();
        assert!(faults.refuses("lock") && faults.is_half("restore") && !hangs(&faults, "lock", 7));
        assert!(!faults.refuses("unlock") && !faults.is_half("checkpoint"));
        for bad in [
            "hang=",
            "hang=now",
            "hang=stop@",
            "hang=stop@0",
            "hang=stop@-1",
            "hang=@7",
            "refuse=stop",
            "half=lock",
            "",
            "oom-every=0",
            "xid:31",
            "xid:0@launch=1",
            "slow-launch=5",
            "fire",
        ] {
            assert!(Faults::parse(bad).is_err(), "{bad}");
        }
    }
}
