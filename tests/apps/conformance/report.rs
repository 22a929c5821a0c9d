//! Runs cases one after another and reports each result.

use crate::child::{self, Ended};
use crate::words::Case;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Prints names.
pub fn list(names: &[&str]) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let all = names.iter().try_for_each(|name| writeln!(out, "{name}"));
    if all.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A string as JSON writes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control < ' ' => quoted.push_str(&format!("\\u{:04x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Runs all these cases; fails if one of them does, or if there is none.
pub fn all(cases: impl Iterator<Item = &'static Case>, each: Duration, json: bool) -> ExitCode {
    let (mut passed, mut failed, mut skipped) = (0u32, 0u32, 0u32);
    let mut out = std::io::stdout().lock();
    for case in cases {
        let (word, why) = match child::run(case.name, each) {
            Ended::Pass(answers) => ("pass", answers),
            Ended::Skip(why) => ("skip", why),
            Ended::Fail(why) => ("FAIL", why),
        };
        match word {
            "pass" => passed += 1,
            "skip" => skipped += 1,
            _ => failed += 1,
        }
        let line = match (json, why.as_str()) {
            (true, why) => format!(
                r#"{{"case":{},"verdict":"{}","why":{}}}"#,
                quoted(case.name),
                word.to_lowercase(),
                quoted(why)
            ),
            (false, "") => format!("{word} {}", case.name),
            (false, why) => format!("{word} {}: {why}", case.name),
        };
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    let total = if json {
        format!(r#"{{"pass":{passed},"fail":{failed},"skip":{skipped}}}"#)
    } else {
        format!("TOTAL pass={passed} fail={failed} skip={skipped}")
    };
    let said = writeln!(out, "{total}").is_ok();
    if said && failed == 0 && passed + skipped > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
