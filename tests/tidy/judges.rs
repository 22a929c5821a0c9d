//! A test that skips itself passes. So `tests/run` fails where `tests/skips` does not allow the reason on this machine,
//! and at its end `tests/failures` repeats what failed. This asks both scripts about logs whose answer is known.

use crate::source::{all_sources, read, root};
use std::io::Write;
use std::process::{Command, Stdio};

/// Whether a script of `tests/` ends well for a log, and its output.
fn judged(script: &str, log: &str) -> (bool, String) {
    let mut judge = Command::new(root().join("tests").join(script));
    judge.arg("/dev/stdin").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut judge = judge.spawn().expect("the script starts");
    judge.stdin.take().expect("a pipe").write_all(log.as_bytes()).expect("it reads");
    let output = judge.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn only_skips_of_the_table_are_allowed() {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|it| it.stdout == b"0\n");
    let skipped = |part: &str, why: &str| {
        judged("skips", &format!("== {part}\ntest a::b ... SKIP a::b: {why}\nok\n"))
    };
    let cases = [
        ("tests", "no --peer was named", true),
        ("tests", "nothing known: at all", false),
        // Allowed for an ordinary user, and in the part that runs the tests as one.
        ("tests", "containers need root", !is_root),
        ("tests as an ordinary user", "containers need root", true),
        // The machine is asked, not the test.
        ("tests", "no-such-program is not installed", true),
        ("tests", "sh is not installed", false),
    ];
    for (part, why, allowed) in cases {
        let (fits, said) = skipped(part, why);
        assert_eq!(fits, allowed, "{part}: {why}: {said}");
        let named = said.contains(&format!("  {why} ({part}, 1 times)\n"));
        assert_eq!(named, !allowed, "{said}");
    }
    assert_eq!(judged("skips", "== tests\nok\n"), (true, "== nothing was skipped\n".to_owned()));
}

/// The reasons that a source gives where it calls `skip`: the last text of each call, `x` for what is filled in.
fn reasons(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || "_.".contains(c);
    let calls = text.match_indices("skip(").filter(|(at, _)| !text[..*at].ends_with(is_name));
    let reason = |(at, word): (usize, &str)| {
        let call = text[at + word.len()..].split(");").next()?;
        let last = call.split('"').skip(1).step_by(2).last()?;
        let mut parts = last.split('{');
        let first = parts.next()?.to_owned();
        let filled = parts.filter_map(|part| part.split_once('}'));
        Some(filled.fold(first, |text, (_, rest)| text + "x" + rest))
    };
    calls.filter_map(reason).collect()
}

/// Another wording of a reason fails no test, but all of CI at its end. A test whose program is not
/// staged may not skip itself there.
#[test]
fn each_reason_for_a_skip_is_in_the_table() {
    let table = read("tests/skips");
    let table = table.split("<<'ROWS'\n").nth(1).and_then(|rest| rest.split("\nROWS\n").next());
    let table = table.expect("the table");
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let rows: Vec<&str> = rows.filter_map(|row| row.split_once(" ; ")).map(|row| row.1).collect();
    let sources = all_sources();
    let tests = sources.iter().filter(|source| source.path.starts_with("tests/it/"));
    let all = tests.flat_map(|source| reasons(&source.text));
    let is_reason = |text: &String| {
        text.contains(' ') && !["SKIP", "(x)", "packaging/stage"].iter().any(|it| text.contains(it))
    };
    let all: Vec<String> = all.filter(is_reason).collect();
    assert!(all.len() > 50, "{}", all.len());
    let known = |reason: &String| {
        rows.iter().any(|row| {
            let grep = Command::new("grep").args(["-Exq", "--", row]).stdin(Stdio::piped()).spawn();
            let mut grep = grep.expect("grep");
            writeln!(grep.stdin.take().expect("a pipe"), "{reason}").expect("it reads");
            grep.wait().expect("it ends").success()
        })
    };
    let unknown: Vec<&String> = all.iter().filter(|reason| !known(reason)).collect();
    assert!(unknown.is_empty(), "add a row to tests/skips for {unknown:?}");
}

#[test]
fn each_failure_is_repeated_with_what_it_printed() {
    let rust = "test a::b ... FAILED\nfailures:\n\n---- a::b stdout ----\nthread 'a::b' panicked\nleft: 1\n\n\
        failures:\n    a::b\n\nerror: test failed, to rerun pass `--test it`\n";
    let log = format!(
        "== tests\ntest c ... ok\n{rust}== programs\nok   fork\nFAIL mount torch: exit 1\nok   x\n"
    );
    let said = "tests: a::b\n    thread 'a::b' panicked\n    left: 1\nprograms: FAIL mount torch: exit 1\n";
    assert_eq!(judged("failures", &log), (true, said.to_owned()));
    let log = "== lints\nerror[E0425]: cannot find `x`\n";
    assert_eq!(
        judged("failures", log),
        (true, "lints: error[E0425]: cannot find `x`\n".to_owned())
    );
}
