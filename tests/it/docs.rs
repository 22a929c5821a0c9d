//! The documentation: its commands are run, its links lead somewhere, and its reference is what the programs say.
//!
//! Each page is one shell script, made of its blocks marked `sh`. It runs in namespaces of its own with a simulated
//! GPU, with the installed paths in place, and, if the page says so in a comment, with the daemon. A block whose mark
//! names a need (`sh,needs-docker`) is not run and counted as skipped. `UPDATE_DOCS=1` writes the reference anew.

use crate::harness::{is_root, skip, target_dir};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages: path below the repository, and text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = vec![PathBuf::from("README.md")];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository().join(&folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let path = folder.join(name);
            match path.extension().and_then(|it| it.to_str()) {
                Some("md") => pages.push(path),
                None => folders.push(path),
                Some(_) => {}
            }
        }
    }
    pages.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(repository().join(&path)).expect("a page");
        (path, text)
    };
    pages.into_iter().map(read).collect()
}

/// The blocks of a page: mark and lines.
fn blocks(page: &str) -> Vec<(String, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, Vec<&str>)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(mark), None) => open = Some((mark.to_owned(), Vec::new())),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some((mark, mut lines))) => {
                lines.push(line);
                open = Some((mark, lines));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// What stands in for the installed package: paths, `sudo`, a simulated GPU, and the daemon if the page wants one.
const STAGE: &str = r#"
set -eu
build=$1 daemon=$2
for dir in /dev/shm /run /mnt; do mount -t tmpfs -o mode=1777 tmpfs $dir; done
mkdir -p /mnt/bin /mnt/new /mnt/work /run/gpuslice
chmod 711 /run/gpuslice
# What is written there is gone with this namespace.
for dir in /etc /usr /var; do
    mkdir -p /mnt/new$dir /mnt/work$dir
    mount -t overlay overlay -o lowerdir=$dir,upperdir=/mnt/new$dir,workdir=/mnt/work$dir $dir || exit 77
done
printf '#!/bin/sh\nexec "$@"\n' >/mnt/bin/sudo
chmod 755 /mnt/bin/sudo
mkdir -p /usr/libexec/gpuslice /etc/gpuslice /etc/cdi
ln -s "$build/tenant" /usr/libexec/gpuslice/tenant
cp packaging/gpusliced.toml /etc/gpuslice/gpusliced.toml
export PATH="/mnt/bin:$build:$PATH" GPUSLICE_SIM=mem=16GiB HOME=/mnt
cd /mnt
if [ "$daemon" = yes ]; then
    echo "driver_dir = \"$(gpuslice sim libraries)\"" >>/etc/gpuslice/gpusliced.toml
    gpusliced >/mnt/daemon.log 2>&1 &
    tries=0
    until gpuslice ps >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { cat /mnt/daemon.log >&2; exit 1; }
        sleep 0.1
    done
fi
slices() { gpuslice ps --json 2>/dev/null | grep -o '"container":' | wc -l; }
# Waits for one slice more. Without the daemon there is no list of them.
begun() {
    [ "$daemon" = yes ] || return 0
    until [ "$(slices)" -gt "$before" ]; do sleep 0.1; done
}
set -x
. "$3" </dev/null
"#;

/// The stage's exit status where it cannot be set up.
const NO_OVERLAY: i32 = 77;

/// Runs the blocks of a page.
fn run(path: &Path, page: &str, blocks: &[Vec<&str>]) {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script");
    // One that stays until the page's end, however long the page takes on a busy machine, once it has its slice.
    let lines = blocks.iter().flatten().map(|line| match line.ends_with(" &") {
        true => format!(
            "before=$(slices)\n{}\nbegun\n",
            line.replace("--seconds 60 ", "--seconds 600 ")
        ),
        false => format!("{line}\n"),
    });
    fs::write(&script, lines.collect::<String>()).expect("written");
    let daemon = if page.contains("<!-- daemon -->") { "yes" } else { "no" };
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args(["timeout", "120", "bash", "-c", STAGE, "stage"]);
    command.arg(target_dir()).arg(daemon).arg(&script);
    let output =
        command.current_dir(repository()).stdin(Stdio::null()).output().expect("it starts");
    if output.status.code() == Some(NO_OVERLAY) {
        return skip(
            &path.display().to_string(),
            "no overlay can be mounted over /etc, /usr and /var",
        );
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}\n{said}", path.display(), output.status);
}

#[test]
fn every_command_of_the_documentation_runs() {
    let (mut ran, mut needs) = (0, BTreeMap::<String, usize>::new());
    for (path, page) in pages() {
        let mut wanted = Vec::new();
        for (mark, lines) in blocks(&page) {
            match mark.split_once(',') {
                Some(("sh", need)) => *needs.entry(need.to_owned()).or_default() += 1,
                _ if mark == "sh" => wanted.push(lines),
                _ => assert!(!mark.starts_with("sh") && !mark.starts_with("bash"), "{mark}"),
            }
        }
        if wanted.is_empty() {
            continue;
        }
        ran += wanted.iter().flatten().filter(|line| !line.is_empty()).count();
        if is_root() {
            run(&path, &page, &wanted);
        }
    }
    assert!(ran > 25, "{ran} commands are in blocks that are run");
    if !is_root() {
        skip(
            "commands of the documentation",
            "needs root, for namespaces with the installed paths",
        );
    }
    for (need, count) in needs {
        skip(
            &format!("{count} blocks of the documentation"),
            &format!("a test machine has no such place ({need})"),
        );
    }
}

/// Whether a link of a page leads to a page, to a heading of one, or to a file of the repository.
fn leads_somewhere(path: &Path, target: &str) -> bool {
    let (file, place) = target.split_once('#').unwrap_or((target, ""));
    if target.contains("://") || target.is_empty() {
        return true;
    }
    let folder = path.parent().expect("a folder");
    let file = if file.is_empty() { path.to_owned() } else { folder.join(file) };
    let text = fs::read_to_string(repository().join(&file)).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        words.replace(|c: char| !c.is_alphanumeric() && c != ' ' && c != '-', "").replace(' ', "-")
    });
    let is_there = repository().join(&file).exists();
    is_there && (place.is_empty() || anchors.any(|anchor| anchor == place))
}

fn broken(path: &Path, page: &str) -> Vec<String> {
    let links = page.split("](").skip(1).map(|part| part.split(')').next().unwrap_or_default());
    let broken = links.filter(|target| !leads_somewhere(path, target));
    broken.map(|target| format!("{}: {target}", path.display())).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let planted = "[1](gone.md) [2](#gone) [3](SUMMARY.md#gone) [4](../README.md) [5](#summary)";
    assert_eq!(broken(Path::new("docs/SUMMARY.md"), planted).len(), 3);
    let all: Vec<String> = pages().iter().flat_map(|(path, page)| broken(path, page)).collect();
    assert!(all.is_empty(), "{all:#?}");
}

/// Compares a page of the reference with what the programs say.
fn generated(name: &str, text: &str) {
    let path = repository().join("docs/reference").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, text).expect("written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "docs/reference/{name} is old: UPDATE_DOCS=1 cargo test --test it -- docs:: writes it"
    );
}

fn help(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    let output =
        command.args(words).arg("--help").env("COLUMNS", "100").output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_reference_of_commands_is_what_they_say() {
    let names = commands(&help(&[]));
    assert!(names.iter().any(|it| it == "run") && names.len() > 10, "{names:?}");
    let mut text = "# Commands and columns\n\nWhat each command says to `--help`.\n".to_owned();
    for name in names {
        let own = help(&[&name]);
        text += &format!("\n## gpuslice {name}\n\n```text\n{own}```\n");
        for part in commands(&own) {
            let own = help(&[&name, &part]);
            text += &format!("\n## gpuslice {name} {part}\n\n```text\n{own}```\n");
        }
    }
    assert!(text.contains("\n## gpuslice cdi generate\n"), "commands of commands are in it");
    generated("commands.md", &text);
}

#[test]
fn the_reference_of_metrics_is_the_programs_table() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut manual = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    assert!(manual.arg("manual").arg(dir.path()).status().expect("it starts").success());
    let table = fs::read_to_string(dir.path().join("metrics.md")).expect("a table");
    generated("metrics.md", &table);
}

/// The bounds that programs agree on, from their own file.
#[test]
fn the_reference_of_limits_is_the_programs_file() {
    let source = fs::read_to_string(repository().join("src/wire/limits.rs")).expect("a file");
    let mut text =
        "# Limits\n\nBounds that daemon, shim and commands agree on (`src/wire/limits.rs`).\n\n\
                    | name | value | meaning |\n|---|---|---|\n"
            .to_owned();
    let mut about = Vec::new();
    for line in source.lines() {
        if let Some(words) = line.strip_prefix("/// ") {
            about.push(words);
        } else if let Some(constant) = line.strip_prefix("pub const ") {
            let (name, rest) = constant.split_once(": ").expect("a type");
            let value = rest.split_once(" = ").expect("a value").1.trim_end_matches(';');
            let about = std::mem::take(&mut about).join(" ").replace('|', "\\|");
            let about = about.replace("[`", "`").replace("`]", "`");
            text += &format!("| `{name}` | {value} | {about} |\n");
        } else {
            about.clear();
        }
    }
    generated("limits.md", &text);
}
