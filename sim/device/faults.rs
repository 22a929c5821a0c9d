//! Faults on demand, to test the rare paths of the programs above.
//!
//! | text | what happens |
//! |---|---|
//! | `oom-every=N` | every Nth allocation of a process fails as out of memory |
//! | `slow-launch=D` | every kernel takes D longer |
//! | `xid:X@launch=N` | the Nth kernel of a process kills its context with Xid X |
//! | `hang=CONTROL` | a control of a channel group hangs meanwhile: `stats`, `stop`, `preempt`, `resume` or `slice` |
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
}

pub(crate) const FAULT_FORM: &str =
    "none, oom-every=N, slow-launch=DURATION, xid:X@launch=N or hang=CONTROL";
/// Controls that can hang.
const HANGS: [&str; 5] = ["stats", "stop", "preempt", "resume", "slice"];

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
            self.hang = HANGS.iter().position(|name| *name == control)? as u64 + 1;
        } else {
            let (xid, launch) = text.strip_prefix("xid:")?.split_once("@launch=")?;
            self.xid = positive(xid).filter(|&xid| xid <= 1000)?;
            self.xid_at_launch = positive(launch)?;
        }
        Some(())
    }

    /// Whether a control of this name hangs.
    pub(crate) fn hangs(&self, control: &str) -> bool {
        self.hang > 0 && HANGS.get(self.hang as usize - 1) == Some(&control)
    }
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
        assert!(faults.hangs("resume") && !faults.hangs("stop"));
        assert!(!Faults::default().hangs("stats"));
        for bad in [
            "hang=",
            "hang=now",
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
