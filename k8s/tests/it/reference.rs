//! The page `docs/reference/gpuslice-k8s.md`, and the table of metrics in `docs/kubernetes.md`: they say what the
//! program does.
//!
//! Help texts are the program's own; `UPDATE_DOCS=1` writes them anew. The first cells of a table are names. Where the
//! program or its sources list the same names, both lists are compared; each other name is in the sources.

use gpuslice_host::layout::{NODE_DIR, NODE_SOCKET};
use gpuslice_k8s::agent::metrics::Metrics;
use gpuslice_k8s::api::objects::{List, Node, Pod};
use gpuslice_k8s::dra;
use gpuslice_k8s::grpc::socket_name;
use gpuslice_k8s::inspect::{json, nodes::Cluster};
use gpuslice_k8s::kubelet::Directories;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Names = BTreeSet<String>;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

const PAGE: &str = "docs/reference/gpuslice-k8s.md";

/// The part of a page below a heading of the second level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = format!("\n## {heading}\n");
    let rest = page.split_once(&start).unwrap_or_else(|| panic!("no section {heading}")).1;
    rest.split("\n## ").next().expect("one part")
}

/// What stands in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The names in the first cells of a section's tables.
fn names(page: &str, heading: &str) -> Names {
    let rows = section(page, heading).lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let names: Names = cells.flat_map(quoted).collect();
    assert!(!names.is_empty(), "no table in {heading}");
    names
}

/// The code of the program: without tests and comments.
fn sources() -> String {
    let (mut text, mut folders) = (String::new(), vec![repository().join("k8s")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path: PathBuf = entry.expect("an entry").path();
            let name = path.file_name().and_then(|it| it.to_str()).expect("a name");
            match path.extension().and_then(|it| it.to_str()) {
                None if name != "tests" => folders.push(path),
                Some("rs") if name != "tests.rs" => {
                    let all = fs::read_to_string(&path).expect("a source");
                    let code = all.split("#[cfg(test)]\nmod tests {").next().expect("one part");
                    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                    lines.for_each(|line| text += &format!("{line}\n"));
                }
                _ => {}
            }
        }
    }
    text
}

/// The names that follow each `before` in a text, up to the next quotation mark.
fn after(text: &str, before: &str) -> Names {
    let parts = text.split(before).skip(1);
    parts.map(|rest| rest.split('"').next().expect("one part").to_owned()).collect()
}

fn program(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice-k8s"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(words).env_clear().env("PATH", path).output().expect("it starts")
}

fn help(words: &[&str]) -> String {
    let text = String::from_utf8(program(&[words, &["--help"]].concat()).stdout).expect("text");
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The commands that the program lists.
fn commands() -> Vec<String> {
    let help = help(&[]);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.map_while(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn the_help_texts_are_the_programs() {
    let mut page = read(PAGE);
    let all = commands();
    assert!(all.iter().any(|it| it == "agent") && all.len() >= 4, "{all:?}");
    let headings = page.lines().filter(|line| line.starts_with("## gpuslice-k8s "));
    assert_eq!(headings.count(), all.len(), "{all:?}");
    for name in all {
        let part = section(&page, &format!("gpuslice-k8s {name}"));
        let (_, rest) = part.split_once("```text\n").expect("a help text");
        let old = format!("```text\n{}```\n", rest.split_once("```").expect("its end").0);
        let (part, new) = (part.to_owned(), format!("```text\n{}```\n", help(&[&name])));
        page = page.replace(&part, &part.replace(&old, &new));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(repository().join(PAGE), &page).expect("written");
    }
    let update = "UPDATE_DOCS=1 cargo test -p gpuslice-k8s --test it -- reference:: writes it";
    assert!(page == read(PAGE), "{PAGE} is old: {update}");
}

#[test]
fn every_name_of_a_table_is_the_programs() {
    let (page, sources) = (read(PAGE), sources());
    let tables = ["Resources", "Labels", "Annotations"].map(|it| names(&page, it));
    let told: Names = tables.into_iter().flatten().collect();
    let known = read("k8s/names.rs");
    let consts = known.split("pub const ").skip(1).filter(|it| !it.starts_with("CONFIG_MAPS"));
    let known: Names = consts.flat_map(|it| after(it, ": &str = \"")).collect();
    assert!(known.len() > 15, "{known:?}");
    assert_eq!(known.difference(&told).collect::<Vec<_>>(), [""; 0], "the page has all of them");
    for name in told {
        assert!(sources.contains(&format!("\"{name}")), "{name} is not in the sources");
    }
    let objects = names(&page, "Objects in the API server");
    for name in objects.iter().map(|it| it.replace("NODE", "")) {
        assert!(sources.contains(&name) || name.ends_with(dra::NAME), "{name}");
    }
}

#[test]
fn events_variables_and_attributes_are_the_programs() {
    let (page, sources) = (read(PAGE), sources());
    assert_eq!(names(&page, "Events"), after(&sources, "REASON: &str = \""));
    let variables = union([after(&sources, ", env = \""), after(&sources, "variable(\"")]);
    assert_eq!(names(&page, "Environment variables"), variables);
    let slices = read("k8s/dra/slices.rs");
    let attributes = union([after(&slices, "  string(\""), after(&slices, "all.insert(\"")]);
    let claim = read("k8s/dra/claim.rs");
    let fields = claim.split_once("struct Parameters {\n").expect("a structure").1;
    let fields = fields.split('}').next().expect("its fields").lines();
    let fields = fields.filter_map(|line| line.trim().split_once(": Option<"));
    let parameters: Names = fields.map(|(name, _)| camel(name.trim_matches('_'))).collect();
    assert!(attributes.len() > 6 && parameters.len() > 4, "{attributes:?} {parameters:?}");
    let both = union([attributes, parameters]);
    assert_eq!(names(&page, "Devices and claims"), both);
}

fn union(lists: [Names; 2]) -> Names {
    lists.into_iter().flatten().collect()
}

/// `share_limit` as serde's `camelCase`.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + &part[..1].to_uppercase() + &part[1..])
}

#[test]
fn paths_are_the_programs() {
    let (page, sources) = (read(PAGE), sources());
    let kubelet = Directories::new(Path::new("/var/lib/kubelet"));
    let plugin = |name: &str| {
        assert!(sources.contains(&format!("=> \"{name}\"")), "no plugin {name}");
        kubelet.device_plugins().join(socket_name(name))
    };
    let mut paths = vec![
        Path::new(NODE_DIR).join(NODE_SOCKET),
        kubelet.device_plugin_registry(),
        kubelet.pod_resources(),
        kubelet.driver(dra::NAME).join("dra.sock"),
        kubelet.plugins_registry().join(socket_name(dra::NAME)),
    ];
    paths.extend(["gpu-mem", "gpu-core", "gpu"].map(plugin));
    let account = after(&sources, "ACCOUNT: &str = \"");
    paths.extend(account.iter().map(PathBuf::from));
    for part in ["\"dra.sock\"", "\"/sys\"", "\"bus/pci/devices\""] {
        assert!(sources.contains(part), "{part}");
    }
    paths.push(PathBuf::from("/sys/bus/pci/devices"));
    let paths: Names = paths.iter().map(|it| it.display().to_string()).collect();
    assert_eq!(names(&page, "Files and sockets"), paths);
    for command in ["extender", "webhook"] {
        for path in names(&page, &format!("gpuslice-k8s {command}")) {
            let mut parts = path.split('/').filter(|it| !it.is_empty() && *it != "NODE");
            let is_there = sources.contains(&format!("\"{path}\""))
                || parts.all(|part| sources.contains(&format!("\"{part}\"")));
            assert!(is_there, "{path}");
        }
    }
}

/// The table is in the page of the chart.
#[test]
fn the_metrics_are_the_agents() {
    let text = Metrics::default().text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: Names = types.filter_map(|it| it.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(names(&read("docs/kubernetes.md"), "Metrics"), served);
}

fn keys(value: &Value, all: &mut Names) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                all.insert(key.clone());
                keys(value, all);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, all)),
        _ => {}
    }
}

#[test]
fn the_keys_of_inspect_are_the_programs() {
    let amounts = json!({ "aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2" });
    let node = json!({ "metadata": { "name": "n" }, "status": { "capacity": amounts, "allocatable": amounts } });
    let node: Node = serde_json::from_value(node).expect("a node");
    let mut pod = crate::world::pod("p", &[crate::world::container("main", 3, 0)]);
    pod["spec"]["nodeName"] = json!("n");
    pod["metadata"]["annotations"] = json!({ "ALIYUN_COM_GPU_MEM_IDX": "0" });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let cluster = Cluster::of(&List::of(vec![node]), &List::of(vec![pod]));
    let mut printed = Names::new();
    keys(&json::of(&cluster), &mut printed);
    assert_eq!(names(&read(PAGE), "gpuslice-k8s inspect"), printed);
}

#[test]
fn the_exit_statuses_and_times_are_the_programs() {
    let page = read(PAGE);
    let status = |words: &[&str]| program(words).status.code();
    assert_eq!(status(&["--version"]), Some(0));
    assert_eq!(status(&["agent", "--node-name", "n"]), Some(1), "no credentials");
    let missing = ["inspect", "--local", "--node-socket", "/nonexistent/node.sock"];
    assert_eq!(status(&missing), Some(1), "no daemon");
    for wrong in [&[][..], &["none"], &["agent"], &["agent", "--node-name=n", "--placement=x"]] {
        assert_eq!(status(wrong), Some(2), "{wrong:?}");
    }
    let rows = section(&page, "Exit statuses").lines().filter(|line| line.starts_with("| "));
    let first: Vec<&str> = rows.skip(1).filter_map(|row| row.get(2..3)).collect();
    assert_eq!(first, ["0", "1", "2"]);
    let sources = sources();
    for (constant, heading, told) in [
        ("ROUTED: Duration = Duration::from_secs(5)", "Exit statuses", "serve for 5 s more"),
        (
            "DURATION: Duration = Duration::from_secs(30)",
            "gpuslice-k8s extender",
            "renewed for 30 s",
        ),
        ("LATE: Duration = Duration::from_secs(30)", "Events", "run for 30 s outside"),
        ("EVERY: Duration = Duration::from_secs(30)", "Annotations", "at most every 30 s"),
        ("LOOK: Duration = Duration::from_secs(1)", "Files and sockets", "again within 1 s"),
        ("STEP_MIB: u64 = 64", "gpuslice-k8s inspect", "rounded up to 64"),
        ("GIB_MAX: u64 = 1000", "gpuslice-k8s inspect", "more than 1000 of them"),
    ] {
        assert!(sources.contains(constant), "{constant} is another one now; change the page too");
        assert!(section(&page, heading).contains(told), "{heading}: {told}");
    }
}
