//! `gpuslice demo --memory-limit`: one tenant borrows memory beyond its cap, and the one to which it is promised comes.
//!
//! The borrower fills its memory up to its limit while it is alone. Then the owner starts and fills its cap, for which
//! there is too little memory: its allocation waits, the borrower is asked to give back, keeps everything, and is
//! suspended after the grace. The owner ends, and the borrower goes on, not before the grace has passed once more. Each
//! step is judged by what the tenants themselves got from the driver, and by the ledger.

use super::plan::Plan;
use super::{INTERRUPTED, Options, REFRESH, START, Stage, pause, still_running, tell};
use crate::columns::{self, DropOrder};
use crate::out;
use crate::ps;
use crate::table::{Row, View};
use anyhow::{Result, bail};
use gpuslice_wire::policy::Policy;
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limit of each step: the grace of a daemon without a configuration, and the driver's move of the memory.
const STEP: Duration = Duration::from_secs(60);
/// Time after which the tenants end by themselves, s.
const TENANTS_S: u32 = 300;
/// What the borrower's steps of 64 MiB and its contexts may leave of its limit.
const LEFT: u64 = 1 << 30;
/// What is shown of the tenants.
const COLUMNS: &str = "NAME,CAP,MEM-LIMIT,USED,WANTED,GOT";

/// What happened.
#[derive(Debug, Default)]
struct Story {
    /// The borrower's cap, its limit, and what it got before it was refused.
    borrower: [u64; 3],
    /// The owner's cap and what it got.
    owner: [u64; 2],
    /// The most that the ledger wanted back.
    wanted: u64,
    /// Whether the borrower was seen suspended.
    is_suspended: bool,
    /// From the owner's start until it had its memory, and from its end until the borrower was resumed.
    took: [Duration; 2],
}

/// Shows the demo and judges it.
///
/// # Errors
/// A tenant does not start or ends early, or a step takes too long.
pub fn main(mut stage: Stage, options: &Options) -> Result<ExitCode> {
    let story = play(&mut stage, !options.json)?;
    let simulated = View::of(stage.admin.list()?).gpus.iter().find_map(|gpu| gpu.uuid.profile());
    drop(stage);
    let policy = options.policy.unwrap_or_default();
    let faults = story.faults();
    if options.json {
        out::line(&story.json(&faults, (policy, simulated)).to_string())?;
    } else {
        tell(&story.lines(&faults))?;
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(stage: &mut Stage, draws: bool) -> Result<Story> {
    let [borrower, owner] = Plan::lending(stage.memory, TENANTS_S);
    let name = borrower.name.clone();
    let mut story = Story {
        borrower: [borrower.memory.0, borrower.limit.unwrap_or_default().0, 0],
        owner: [owner.memory.0, 0],
        ..Story::default()
    };
    let say = |text: &str| if draws { out::sentence(text, 2).map(drop) } else { Ok(()) };
    say("The borrower is alone, and fills its memory up to its limit:")?;
    stage.start(borrower)?;
    watch(stage, draws, START, |stage, _| stage.tenants[0].at_work())?;
    story.borrower[2] = stage.tenants[0].account().got;
    say(
        "\nThe owner comes, and fills its cap: the borrower keeps what is wanted back, and is suspended:",
    )?;
    let since = Instant::now();
    stage.start(owner)?;
    watch(stage, draws, STEP, |stage, view| {
        let row = view.rows.iter().find(|row| row.name == name);
        let wanted = row.map_or(Bytes::ZERO, |row| view.limit(row).wanted);
        story.wanted = story.wanted.max(wanted.0);
        story.is_suspended |= suspension(view, &name) == Some(SuspensionState::Suspended);
        stage.tenants[1].at_work()
    })?;
    story.took[0] = since.elapsed();
    story.owner[1] = stage.tenants[1].account().got;
    say("\nThe owner ends, and the borrower is resumed:")?;
    let since = Instant::now();
    stage.tenants.truncate(1);
    let before = stage.tenants[0].account().progress.len();
    watch(stage, draws, STEP, |stage, view| {
        suspension(view, &name).is_none() && stage.tenants[0].account().progress.len() > before
    })?;
    story.took[1] = since.elapsed();
    Ok(story)
}

fn suspension(view: &View, name: &str) -> Option<SuspensionState> {
    let row = view.rows.iter().find(|row| row.name == name)?;
    view.suspensions.get(&row.container).copied()
}

/// What a table is worth printing for: the slices, their suspension, and whether something is wanted back of them.
fn news(view: &View) -> Vec<(String, Option<SuspensionState>, bool)> {
    let of = |row: &Row| {
        let state = view.suspensions.get(&row.container).copied();
        (row.container.clone(), state, view.limit(row).wanted > Bytes::ZERO)
    };
    view.rows.iter().map(of).collect()
}

/// Waits until this is so. Prints the table at the end, and when something has happened before.
fn watch(
    stage: &mut Stage,
    draws: bool,
    most: Duration,
    mut until: impl FnMut(&Stage, &View) -> bool,
) -> Result<()> {
    let end = Instant::now() + most;
    let shown = (columns::parse(COLUMNS).map_err(anyhow::Error::msg)?, DropOrder::LastFirst);
    let mut before = View::of(stage.admin.list()?);
    pause(REFRESH);
    loop {
        let now = View::of(stage.admin.list()?);
        let is_over = until(stage, &now);
        if draws && (is_over || news(&now) != news(&before)) {
            out::line(&ps::lines((&before, &now), &shown).join("\n"))?;
        }
        if is_over {
            return Ok(());
        }
        before = now;
        still_running(stage)?;
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted; everything is cleaned up");
        }
        if Instant::now() > end {
            bail!("a step took more than {most:?}; the daemon's log: {}", stage.daemon.log());
        }
        pause(REFRESH);
    }
}

impl Story {
    /// Describes what went wrong; empty if nothing did.
    fn faults(&self) -> Vec<String> {
        let ([cap, limit, got], [owned, had]) = (self.borrower, self.owner);
        let checks = [
            (got <= cap, format!("the borrower got {}, no more than its cap", Bytes(got))),
            (got > limit, format!("the borrower got {}, above its limit", Bytes(got))),
            (got + LEFT < limit, format!("the borrower got only {} of its limit", Bytes(got))),
            (had > owned, format!("the owner got {}, above its cap", Bytes(had))),
            (had + owned / 8 < owned, format!("the owner got only {} of its cap", Bytes(had))),
            (self.wanted < owned / 28, format!("only {} were wanted back", Bytes(self.wanted))),
            (!self.is_suspended, "the borrower was not suspended".to_owned()),
        ];
        checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, text)| text).collect()
    }

    fn lines(&self, faults: &[String]) -> Vec<String> {
        let ([cap, limit, got], [owned, had]) = (self.borrower.map(Bytes), self.owner.map(Bytes));
        let [reclaim, resume] = self.took.map(|took| took.as_secs_f64());
        let mut all = vec![
            String::new(),
            format!("borrower: cap {cap}, limit {limit}: it got {got} while it was alone"),
            format!(
                "owner: cap {owned}: it got {had} within {reclaim:.1} s, of which {} were wanted back",
                Bytes(self.wanted)
            ),
            format!(
                "borrower: suspended meanwhile; it went on {resume:.1} s after the owner's end"
            ),
        ];
        all.extend(faults.iter().map(|fault| format!("  wrong: {fault}")));
        all.push(format!("verdict: {}", if faults.is_empty() { "pass" } else { "fail" }));
        all
    }

    fn json(&self, faults: &[String], of: (Policy, Option<&'static str>)) -> Value {
        let (policy, profile) = of;
        let ([cap, limit, got], [owned, had]) = (self.borrower, self.owner);
        let [reclaim, resume] = self.took.map(|took| took.as_secs_f64());
        let all = json!({
            "verdict": if faults.is_empty() { "pass" } else { "fail" },
            "simulated": profile.is_some(),
            "profile": profile,
            "policy": policy.name(),
            "lending": {
                "borrower_cap": cap, "borrower_limit": limit, "borrower_got": got,
                "owner_cap": owned, "owner_got": had, "wanted": self.wanted,
                "suspended": self.is_suspended, "reclaim_s": reclaim, "resume_s": resume,
            },
            "faults": faults,
        });
        out::document("demo-memory", 1, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::units::GIB;

    fn story() -> Story {
        Story {
            borrower: [GIB, 4 * GIB, 4 * GIB - 1],
            owner: [14 * GIB, 14 * GIB - 1],
            wanted: 2 * GIB,
            is_suspended: true,
            took: [Duration::from_secs(6), Duration::from_secs(1)],
        }
    }

    #[test]
    fn every_wrong_thing_fails() {
        assert!(story().faults().is_empty());
        assert_eq!(story().lines(&[]).last().map(String::as_str), Some("verdict: pass"));
        let wrongs: [fn(&mut Story); 7] = [
            |it| it.borrower[2] = GIB,
            |it| it.borrower[2] = 4 * GIB + 1,
            |it| it.borrower[2] = 2 * GIB,
            |it| it.owner[1] = 14 * GIB + 1,
            |it| it.owner[1] = 12 * GIB,
            |it| it.wanted = 0,
            |it| it.is_suspended = false,
        ];
        for (at, wrong) in wrongs.iter().enumerate() {
            let mut story = story();
            wrong(&mut story);
            let faults = story.faults();
            assert!(!faults.is_empty(), "wrong {at}");
            assert_eq!(story.json(&faults, (Policy::Soft, None))["verdict"], "fail");
        }
    }
}
