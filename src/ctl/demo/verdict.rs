//! The demo's judgement. Pure: the tenants' own accounts and the daemon's ledger in, a verdict out.
//!
//! The tenants measure their shares themselves (GPU time of kernels they saw finish), which checks the
//! ledger independently; both figures are shown. Where a policy limits tenants, a share refers to the
//! GPU's time; otherwise to the time that all tenants got together. A limit is a limit on turns: time
//! that a tenant leaves unused in its turn, by handing over or by its own delay, is not made up for. So
//! a limited tenant may get less in kernels if the ledger has its whole share; it never gets more.

use super::plan::Of;
use super::tenant::Account;
use crate::table::{Row, View};
use gpuslice_wire::policy::Policy;
use serde_json::{Value, json};
use std::ops::Range;

/// Tolerated deviation of a tenant's share from its due share, as a part of the device's time.
const TOLERANCE: f64 = 0.02;
const SECOND: u64 = 1_000_000_000;
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i64 = 2;

/// The verdict on one tenant.
#[derive(Debug)]
struct Line {
    name: String,
    weight: u32,
    expected: f64,
    measured: f64,
    /// Largest deviation from `expected` in any second.
    worst: f64,
    ledger: f64,
    cap: u64,
    peak: u64,
    denied: u64,
    /// Turns during the measurement.
    turns: u64,
    faults: Vec<String>,
}

/// The verdict on all tenants.
#[derive(Debug)]
pub struct Verdict {
    policy: Policy,
    /// The profile of a simulated GPU.
    profile: Option<&'static str>,
    lines: Vec<Line>,
    utilisation: f64,
}

/// Judges what happened between the two views.
pub fn judge(accounts: &[Account], policy: Option<Policy>, first: &View, last: &View) -> Verdict {
    let policy = policy.unwrap_or_default();
    let busy = |account: &Account| account.busy_at(last.now_ns) - account.busy_at(first.now_ns);
    let row = |account: &Account| last.rows.iter().find(|row| row.name == account.name);
    let rows: Vec<(&Account, &Row)> =
        accounts.iter().filter_map(|account| row(account).map(|row| (account, row))).collect();
    let all_busy: f64 = rows.iter().map(|(account, _)| busy(account)).sum();
    let all_booked: f64 = rows.iter().map(|(_, row)| last.charged(row, first)).sum();
    let span = last.now_ns.saturating_sub(first.now_ns).max(1);
    let turns = |name: &str, view: &View| {
        let row = view.rows.iter().find(|row| row.name == name);
        row.map_or(0, |row| row.turns)
    };
    let all: Vec<&Account> = rows.iter().map(|(account, _)| *account).collect();
    let line = |(account, row): &(&Account, &Row)| {
        let expected = account.due.part;
        let (whole, booked) = match account.due.of {
            Of::Busy => (all_busy.max(1.0), all_booked.max(1e-9)),
            Of::Device => (span as f64, 1.0),
        };
        let mut line = Line {
            name: account.name.clone(),
            weight: row.weight.unwrap_or(1),
            expected,
            worst: worst_second(account, &all, first.now_ns..last.now_ns),
            measured: busy(account) / whole,
            ledger: last.charged(row, first) / booked,
            cap: row.cap.0,
            peak: row.peak.0,
            denied: row.denied,
            turns: row.turns - turns(&row.name, first).min(row.turns),
            faults: Vec::new(),
        };
        line.faults = faults(&line, account, policy);
        line
    };
    let mut lines: Vec<Line> = rows.iter().map(line).collect();
    for account in accounts.iter().filter(|account| row(account).is_none()) {
        lines.push(Line::lost(&account.name));
    }
    Verdict {
        policy,
        profile: last.gpus.iter().find_map(|gpu| gpu.uuid.profile()),
        lines,
        utilisation: all_busy / span as f64,
    }
}

/// Largest deviation of an account from its due share in any second of `span`.
fn worst_second(account: &Account, all: &[&Account], span: Range<u64>) -> f64 {
    let grew =
        |account: &Account, from: u64| account.busy_at(from + SECOND) - account.busy_at(from);
    let starts = span.clone().step_by((SECOND / 20) as usize);
    let whole = starts.take_while(|start| start + SECOND <= span.end);
    whole.fold(0.0, |worst, from| {
        let together = match account.due.of {
            Of::Busy => all.iter().map(|account| grew(account, from)).sum(),
            Of::Device => SECOND as f64,
        };
        let part = grew(account, from) / f64::max(together, 1.0);
        f64::max(worst, (part - account.due.part).abs())
    })
}

impl Line {
    fn lost(name: &str) -> Line {
        let faults = vec!["the daemon does not know it".to_owned()];
        Line {
            name: name.into(),
            weight: 0,
            expected: 0.0,
            measured: 0.0,
            worst: 0.0,
            ledger: 0.0,
            cap: 0,
            peak: 0,
            denied: 0,
            turns: 0,
            faults,
        }
    }
}

/// Describes the faults of one tenant; empty if it passes.
fn faults(line: &Line, account: &Account, policy: Policy) -> Vec<String> {
    let error = match account.due.of {
        Of::Device if line.measured < line.expected => line.ledger - line.expected,
        _ => line.measured - line.expected,
    };
    let error = error.abs();
    let checks = [
        (error > TOLERANCE, format!("share is off by {:.1} % of the GPU", error * 100.0)),
        (account.got > line.cap, format!("it got {} bytes, above its cap", account.got)),
        (line.peak > line.cap, format!("the ledger shows {} bytes, above its cap", line.peak)),
        (account.got * 2 < line.cap, format!("it got only {} bytes of its cap", account.got)),
        (account.refusal != OUT_OF_MEMORY, format!("the refusal was {}, not 2", account.refusal)),
        (
            !policy.rules().turns && line.turns > 0,
            format!("it was given {} turns, and native has none", line.turns),
        ),
        (line.denied == 0, "no refusal is in the ledger".to_owned()),
        (
            account.total != line.cap,
            format!("the driver reported {} bytes, not its cap", account.total),
        ),
    ];
    checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, text)| text).collect()
}

impl Verdict {
    /// Whether no tenant has a fault.
    pub fn pass(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.faults.is_empty())
    }

    fn word(&self) -> &'static str {
        if self.pass() { "pass" } else { "fail" }
    }

    /// The verdict as text; the last line is `verdict: pass` or `verdict: fail`.
    pub fn lines(&self) -> Vec<String> {
        let mut all = vec![String::new()];
        for line in &self.lines {
            all.push(format!(
                "{}: share {:.1} % of {:.1} % due (ledger: {:.1} %; worst second off by {:.1} %), memory peak {} of {} MiB, {} refused",
                line.name, line.measured * 100.0, line.expected * 100.0, line.ledger * 100.0,
                line.worst * 100.0, line.peak >> 20, line.cap >> 20, line.denied,
            ));
            all.extend(line.faults.iter().map(|fault| format!("  wrong: {fault}")));
        }
        all.push(format!("GPU busy with tenants' kernels: {:.1} %", self.utilisation * 100.0));
        all.push(format!("verdict: {}", self.word()));
        all
    }

    /// One JSON object; shares as parts of 1, memory in bytes, and the load's name.
    pub fn json(&self, load: &str) -> Value {
        let tenant = |line: &Line| {
            json!({
                "name": line.name, "weight": line.weight, "share_expected": line.expected,
                "share_measured": line.measured, "share_worst_second": line.worst, "share_ledger": line.ledger,
                "memory_cap": line.cap, "memory_peak": line.peak, "denied": line.denied, "turns": line.turns,
                "faults": line.faults,
            })
        };
        let all = json!({
            "verdict": self.word(),
            "simulated": self.profile.is_some(),
            "profile": self.profile,
            "policy": self.policy.name(),
            "load": load,
            "utilisation": self.utilisation,
            "tenants": self.lines.iter().map(tenant).collect::<Vec<_>>(),
        });
        crate::out::document("demo", 1, all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Due;
    use super::*;
    use crate::table::tests::slice;
    use gpuslice_wire::units::Bytes;

    const CAP: u64 = 1 << 30;

    fn account(name: &str, rate: u64) -> Account {
        let progress = (0..=10).map(|t| (t * 100, t * rate)).collect();
        Account {
            name: name.into(),
            due: Due::default(),
            total: CAP,
            got: CAP - 1,
            refusal: 2,
            progress,
        }
    }

    fn view(now_ns: u64, weights: [u32; 3]) -> View {
        let rows = ["a", "b", "c"].iter().zip(weights).map(|(name, weight)| Row {
            cap: Bytes(CAP),
            peak: Bytes(CAP),
            denied: 1,
            ..slice(name, weight, None, true, now_ns * u64::from(weight))
        });
        View { now_ns, gpus: Vec::new(), rows: rows.collect(), ..View::default() }
    }

    fn judged(change: impl Fn(&mut [Account; 3])) -> Verdict {
        let mut accounts = [account("a", 10), account("b", 20), account("c", 40)];
        for (account, weight) in accounts.iter_mut().zip([1.0, 2.0, 4.0]) {
            account.due.part = weight / 7.0;
        }
        change(&mut accounts);
        judge(&accounts, None, &view(150, [1, 2, 4]), &view(850, [1, 2, 4]))
    }

    #[test]
    fn right_shares_and_caps_pass() {
        let verdict = judged(|_| {});
        assert!(verdict.pass(), "{verdict:?}");
        for (off, passes) in [(0.0199, true), (-0.0199, true), (0.0201, false), (-0.0201, false)] {
            assert_eq!(judged(|all| all[0].due.part += off).pass(), passes, "off by {off}");
        }
        assert_eq!(verdict.lines().last().map(String::as_str), Some("verdict: pass"));
        assert_eq!(verdict.json("busy")["tenants"][2]["weight"], 4);
    }

    /// The ledger has a tenth of the GPU for each; their kernels had `rate` thousandths.
    fn limited(rate: u64, part: f64, policy: Policy, turns: u64) -> Verdict {
        let mut accounts = [account("a", 1), account("b", 1)];
        for account in &mut accounts {
            account.progress = (0..=10).map(|t| (t * 100_000, t * 100 * rate)).collect();
            let of = Of::Device;
            account.due = Due { part, of };
        }
        let [first, mut last] = [150_000, 850_000].map(|now| {
            let mut view = view(now, [1, 1, 1]);
            view.rows.iter_mut().for_each(|row| row.gpu_ns /= 10);
            view
        });
        last.rows[0].turns = turns;
        judge(&accounts, Some(policy), &first, &last)
    }

    #[test]
    fn a_limited_tenant_is_judged_by_the_gpus_time() {
        assert!(limited(100, 0.1, Policy::Fair, 9).pass());
        assert!(limited(60, 0.1, Policy::Fair, 9).pass(), "late itself");
        assert!(!limited(130, 0.1, Policy::Fair, 9).pass(), "above it");
        assert!(!limited(100, 0.2, Policy::Fair, 9).pass(), "below it");
        let native = limited(100, 0.1, Policy::Native, 9);
        assert!(!native.pass(), "native has no turns");
    }

    #[test]
    fn every_wrong_thing_fails() {
        let wrongs: [fn(&mut [Account; 3]); 6] = [
            |a| a[0] = account("a", 20),
            |a| a[1].got = CAP + 1,
            |a| a[1].got = 0,
            |a| a[2].refusal = 0,
            |a| a[2].total = 2 * CAP,
            |a| a[0].name = "unknown".into(),
        ];
        for (at, wrong) in wrongs.iter().enumerate() {
            let verdict = judged(wrong);
            assert!(!verdict.pass(), "wrong {at}: {verdict:?}");
            assert_eq!(verdict.json("busy")["verdict"], "fail");
        }
    }
}
