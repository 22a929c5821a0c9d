//! A runtime's log file, from which engines take the reason why a container did not start.
//!
//! containerd and podman decode it line by line and drop all of it if one line differs from runc's
//! format, the time included.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Adds an error to the log.
pub(crate) fn note(file: &Path, as_json: bool, message: &str) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let line = line(now, as_json, message);
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(line.as_bytes())
}

fn line(now: u64, as_json: bool, message: &str) -> String {
    let time = time(now);
    match as_json {
        true => {
            format!("{}\n", serde_json::json!({ "level": "error", "msg": message, "time": time }))
        }
        false => format!("time={time:?} level=error msg={message:?}\n"),
    }
}

/// Seconds since 1970 in RFC 3339 format. Years start in March, so that a leap day is the last of its
/// year.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z",
        era * 400 + year + next
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn lines() {
        assert_eq!(
            line(0, true, "a \"b\""),
            "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\",\"time\":\"1970-01-01T00:00:00Z\"}\n"
        );
        assert_eq!(line(0, false, "a"), "time=\"1970-01-01T00:00:00Z\" level=error msg=\"a\"\n");
    }
}
