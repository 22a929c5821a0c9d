//! What shells and `man` get: completions with the names of this node's slices, and manual pages without a warning.

use crate::harness::node::Node;
use crate::harness::skip;
use gpuslice_wire::text::Name;
use gpuslice_wire::units::{Bytes, GIB};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A node with the slices `train` and `web`; the second has another name than its id.
fn node() -> Node {
    let node = Node::start();
    node.must_admit("train", Bytes(GIB));
    let web = Name::new("web").expect("a name");
    node.must_admit_with("c0ffee", "0", Bytes(GIB), |asked| asked.name = web);
    node
}

/// Runs a script in a shell that finds this build's program by its name; `None`, counted as skipped, without the shell.
fn run(shell: &str, script: &str) -> Option<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_gpuslice"));
    let dir = program.parent().expect("a directory");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(shell);
    if shell != "fish" {
        command.arg("-f"); // no files of the user
    }
    command.arg("-c").arg(script).env("PATH", path).stdin(Stdio::null());
    let Ok(output) = command.output() else {
        skip(&format!("completion in {shell}"), "no such shell in PATH");
        return None;
    };
    assert!(output.status.success(), "{shell}: {output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/completions").join(name)
}

/// The packaged file in bash itself: what a tab offers at the end of this line.
fn bash(line: &str) -> Option<Vec<String>> {
    let mut words: Vec<&str> = line.split(' ').collect();
    let current = words.pop().unwrap_or_default();
    let before = words.join(" ");
    let script = format!(
        "source {}; COMP_WORDS=({before} '{current}'); COMP_CWORD={}; COMP_LINE='{line}'; COMP_POINT={}; COMP_TYPE=9; \
         _clap_complete_gpuslice gpuslice '{current}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file("gpuslice.bash").display(),
        words.len(),
        line.len(),
        words.last().copied().unwrap_or_default(),
    );
    let said = run("bash", &script)?;
    Some(said.lines().map(|line| line.trim_end().to_owned()).collect())
}

/// What a lookup of names finds, and whether all were there: of five lookups at most. The daemon has 0.3 s to name
/// them, which a busy machine may not give it, and then none is offered.
fn in_time<T>(mut look: impl FnMut() -> (bool, T)) -> (bool, T) {
    let mut found = look();
    for _ in 1..5 {
        if found.0 {
            break;
        }
        found = look();
    }
    found
}

#[test]
fn bash_completes_commands_options_slices_and_gpus() {
    let node = node();
    let dir = format!("--runtime-dir {}", node.runtime_dir().display());
    let Some(commands) = bash("gpuslice e") else { return };
    assert_eq!(commands, ["explain", "events"]);
    let options = bash("gpuslice set --sha").expect("bash");
    assert_eq!(options, ["--share", "--share-limit"]);
    for command in ["run", "set"] {
        let names = bash(&format!("gpuslice {command} --gpu")).expect("bash");
        assert_eq!(names, ["--gpus"], "{command}");
    }
    assert_eq!(bash("gpuslice metrics --compat ").expect("bash"), ["ack"]);
    for (line, names) in [("explain", &["train", "web"][..]), ("policy", &["0"])] {
        let offers = in_time(|| {
            let offers = bash(&format!("gpuslice {line} {dir} ")).expect("bash");
            (names.iter().all(|name| offers.iter().any(|it| it == name)), offers)
        });
        assert!(offers.0, "{line}: {offers:?}");
    }
    let web = in_time(|| {
        let offers = bash(&format!("gpuslice set {dir} we")).expect("bash");
        (offers == ["web"], offers)
    });
    assert!(web.0, "{web:?}");
    let classes = ["high", "normal", "best-effort"];
    for (line, words) in [
        ("gpuslice set web --priority ", &classes[..]),
        ("gpuslice run --priority b", &classes[2..]),
        ("gpuslice run --gang ", &["auto", "never"]),
        ("gpuslice policy 0 f", &["fair", "fixed"]),
        ("gpuslice demo --policy n", &["native"]),
        ("gpuslice ps -o NAME,WA", &["NAME,WAIT", "NAME,WANTED"]),
    ] {
        assert_eq!(bash(line).expect("bash"), words, "{line}");
    }
    // Without a daemon there are no names, and no error.
    let none = bash("gpuslice set --runtime-dir /nonexistent we").expect("bash");
    assert!(none.iter().all(|it| it.is_empty()), "{none:?}");
}

#[test]
fn fish_and_zsh_take_their_files() {
    let node = node();
    let dir = node.runtime_dir().display().to_string();
    let (slice, gpu) =
        (format!("set --runtime-dir {dir} we"), format!("policy --runtime-dir {dir} "));
    let ask = |of: &dyn Fn(&str) -> String| ["e", "set --sha", &slice, &gpu].map(of).concat();
    let fish = format!("source {}; ", file("gpuslice.fish").display())
        + &ask(&|line| format!("complete -C 'gpuslice {line}'; "));
    // zsh completes in its line editor alone: here its file is loaded, and what it calls is asked.
    let zsh = format!(
        "autoload -U compinit; compinit -u -D; fpath=({} $fpath); autoload +X -U _gpuslice; \
         compadd() {{ : }}; _describe() {{ : }}; source <(GPUSLICE_COMPLETE=zsh gpuslice); \
         whence -w _clap_dynamic_completer_gpuslice; \
         ask() {{ _CLAP_IFS=$'\\n' GPUSLICE_COMPLETE=zsh gpuslice -- \"$@\"; echo }}; ",
        file("").display()
    ) + &ask(&|line| {
        let (words, last) = line.rsplit_once(' ').unwrap_or(("", line));
        let at = 1 + words.split_whitespace().count();
        format!("_CLAP_COMPLETE_INDEX={at} ask gpuslice {words} '{last}'; ")
    });
    for (shell, script) in [("fish", fish), ("zsh", zsh)] {
        if run(shell, "").is_none() {
            continue;
        }
        let words = ["explain", "events", "--share", "--share-limit", "web", "0", "1"];
        let (has_all, said) = in_time(|| {
            let said = run(shell, &script).expect("it is there");
            let first = |line: &str| line.split(['\t', ':']).next().map(str::to_owned);
            let offered: Vec<String> = said.lines().filter_map(first).collect();
            (words.iter().all(|word| offered.iter().any(|it| it == word)), said)
        });
        assert!(has_all, "{shell}: {said}");
        let takes_the_file = "_clap_dynamic_completer_gpuslice: function";
        assert!(shell == "fish" || said.contains(takes_the_file), "{said}");
    }
}

/// All pages of this build, in a directory.
fn pages() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let written = |program: &str, option: &str| {
        let mut command = Command::new(program);
        command.arg(option).arg(dir.path()).stdin(Stdio::null()).output().expect("it starts")
    };
    let outputs: [Output; 2] = [
        written(env!("CARGO_BIN_EXE_gpuslice"), "manual"),
        written(env!("CARGO_BIN_EXE_gpusliced"), "--manual"),
    ];
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    dir
}

/// Tables of the help and of the configuration are tables in the pages: a row that takes two lines goes on at the
/// column of its text.
#[test]
fn tables_stay_tables_in_manual_pages() {
    let dir = pages();
    for (page, tag, text) in [
        ("gpuslice-explain.1", "weight, share ", "others"),
        ("gpuslice-explain.1", "NAME: ... ", "it"),
        ("gpuslice-policy.1", "1 preemptive ", "1/n"),
        ("gpuslice-setup.1", "nvidia ", "the"),
        ("gpusliced.toml.5", "\"annotations\" ", "annotations"),
        ("gpusliced.toml.5", "\"nvidia\" ", "NVIDIA's"),
    ] {
        let mut man = Command::new("man");
        man.args(["--encoding=utf8", "--local-file"]).arg(dir.path().join(page));
        man.env("MANWIDTH", "72").env("LC_ALL", "C.UTF-8").env("GROFF_NO_SGR", "1");
        let Ok(output) = man.stdin(Stdio::null()).output() else {
            return skip("tables_stay_tables_in_manual_pages", "no man in PATH");
        };
        let shown = String::from_utf8_lossy(&output.stdout);
        let mut lines = shown.lines().skip_while(|line| !line.trim_start().starts_with(tag));
        let (row, next) = (lines.next().expect(tag), lines.next().expect(tag));

        let tag_end = row.find(tag).map_or(0, |at| at + tag.len());
        let column = row[tag_end..].find(text).map(|at| at + tag_end);
        let indent = next.len() - next.trim_start().len();
        assert_eq!(Some(indent), column, "{page}: {shown}");
    }
}

#[test]
fn man_shows_every_page_without_a_warning() {
    let dir = pages();
    let entries = std::fs::read_dir(dir.path()).expect("a directory");
    let files = entries.map(|entry| entry.expect("a page").path());
    let files: Vec<PathBuf> =
        files.filter(|file| file.extension() != Some("md".as_ref())).collect();
    for name in
        ["gpuslice.1", "gpuslice-run.1", "gpuslice-metrics.7", "gpusliced.8", "gpusliced.toml.5"]
    {
        assert!(files.iter().any(|file| file.ends_with(name)), "{name}: {files:?}");
    }
    for file in &files {
        let mut man = Command::new("man");
        man.args(["--warnings", "--encoding=utf8", "--local-file"]).arg(file);
        man.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        let Ok(output) = man.output() else {
            return skip("man_shows_every_page_without_a_warning", "no man in PATH");
        };
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}: {output:?}",
            file.display()
        );
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(
            shown.contains("NAME") && shown.lines().count() > 10,
            "{}: {shown}",
            file.display()
        );
    }
    let shown = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("a page");
    assert!(shown("gpusliced.toml.5").contains("slices_per_gpu = 16"));
    assert!(shown("gpuslice-set.1").contains("share\\-limit"));
    for page in ["gpuslice-run.1", "gpuslice-set.1"] {
        assert!(
            shown(page).contains("\\-\\-gpus") && shown(page).contains("[aliases: \\-\\-gpu]"),
            "{page}"
        );
    }
}
