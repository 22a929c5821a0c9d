//! The packaged alerts and dashboard: their unit tests, the names in them, and an alert that a real Prometheus fires
//! after a fault of the simulated GPU.

use super::{Exporter, GOOD};
use crate::harness::process::KillOnDrop;
use crate::harness::{eventually, skip};
use crate::node::cases::Case;
use crate::node::health::fail;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs promtool; `None`, counted as skipped, where there is none.
fn promtool(words: &[&str]) -> Option<()> {
    let mut command = Command::new("promtool");
    let output = command.args(words).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let Ok(output) = output else {
        skip(&format!("promtool {}", words[0]), "no promtool in PATH");
        return None;
    };
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    Some(())
}

const RULES: &str = "packaging/prometheus/gpuslice.rules.yml";
const DASHBOARD: &str = "packaging/grafana/gpuslice.json";

#[test]
fn rules_pass_their_unit_tests() {
    if promtool(&["check", "rules", RULES]).is_some() {
        promtool(&["test", "rules", "tests/alerts/gpuslice.test.yml"]);
    }
}

/// Each alert has a test, a runbook line, and a heading in the page of alerts.
#[test]
fn each_alert_has_a_test_and_a_runbook() {
    let read = |path: &str| fs::read_to_string(repository(path)).expect("a file");
    let (rules, tests, page) =
        (read(RULES), read("tests/alerts/gpuslice.test.yml"), read("docs/alerts.md"));
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 11, "{}", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().expect("a name");
        assert!(alert.contains("runbook: ") && alert.contains("summary: "), "{name}");
        assert!(tests.contains(name), "{name} has no test");
        assert!(page.contains(&format!("\n## {name}\n")), "{name} is not in docs/alerts.md");
    }
}

/// The metrics' names in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_word(c)).filter(|word| word.starts_with("gpuslice_"));
    words.map(str::to_owned).collect()
}

/// Rules and dashboard name metrics that exist, and the dashboard's expressions are well formed.
#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut manual = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    assert!(manual.arg("manual").arg(dir.path()).status().expect("it starts").success());
    let page = fs::read_to_string(dir.path().join("metrics.md")).expect("a page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<String> = rows.map(|name| format!("gpuslice_{name}")).collect();
    assert!(known.len() > 40, "{known:?}");
    for file in [RULES, DASHBOARD, "tests/alerts/gpuslice.test.yml"] {
        let used = names(&fs::read_to_string(repository(file)).expect("a file"));
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(used.len() > 10 && unknown.is_empty(), "{file}: {unknown:?}");
    }
    let dashboard = fs::read(repository(DASHBOARD)).expect("a file");
    let dashboard: Value = serde_json::from_slice(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    for (n, target) in targets.enumerate() {
        let expression = target["expr"].as_str().expect("an expression");
        let expression = expression.replace("$__rate_interval", "5m");
        let quoted = serde_json::to_string(&expression).expect("text");
        rules += &format!("      - {{ record: panel{n}, expr: {quoted} }}\n");
    }
    let file = dir.path().join("dashboard.yml");
    fs::write(&file, rules).expect("written");
    promtool(&["check", "rules", file.to_str().expect("plain")]);
}

/// A Prometheus with the packaged rules that scrapes an exporter each second.
struct Prometheus(#[expect(dead_code)] KillOnDrop, u16);

impl Prometheus {
    /// `None` where there is no Prometheus.
    fn start(dir: &Path, exporter: &str) -> Option<Prometheus> {
        let rules = repository(RULES);
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: gpuslice\n    static_configs: [{{ targets: [{exporter:?}] }}]\n"
        );
        let file = dir.join("prometheus.yml");
        fs::write(&file, config).expect("written");
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address={port}"));
        let log = fs::File::create(dir.join("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Some(Prometheus(KillOnDrop(command.spawn().ok()?), port.port()))
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let mut client = TcpStream::connect(("127.0.0.1", self.1)).ok()?;
        write!(client, "GET {path} HTTP/1.0\r\nHost: here\r\n\r\n").ok()?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Names of the alerts that fire, with their labels and annotations.
    fn firing(&self) -> Vec<Value> {
        let answer = self.ask("/api/v1/alerts").unwrap_or_default();
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        alerts.into_iter().filter(|alert| alert["state"] == "firing").collect()
    }

    /// The value of an expression's only series.
    fn value(&self, expression: &str) -> Option<String> {
        let answer = self.ask(&format!("/api/v1/query?query={expression}"))?;
        Some(answer["data"]["result"][0]["value"][1].as_str()?.to_owned())
    }
}

/// A real Prometheus scrapes, evaluates and fires: a GPU's Xid becomes an alert that names the GPU.
#[test]
fn a_fault_of_the_gpu_becomes_an_alert() {
    let case = Case::start("devices=1,mem=16GiB", "unhealthy_s = 3600");
    let exporter = Exporter::start(&case.node);
    // The first scrape lets the daemon watch the GPUs.
    assert!(exporter.ask(GOOD).contains("gpuslice_gpu_healthy{"));
    let dir = tempfile::tempdir().expect("a directory");
    let Some(prometheus) = Prometheus::start(dir.path(), &exporter.1) else {
        return skip("a_fault_of_the_gpu_becomes_an_alert", "no prometheus in PATH");
    };
    eventually("a scrape", || prometheus.value("gpuslice_gpu_healthy").as_deref() == Some("1"));
    // A scrape that takes longer than a second leaves no series until the next one.
    let many = "count({__name__=~\"gpuslice_.*\"})>bool+20";
    eventually("the metrics", || prometheus.value(many).as_deref() == Some("1"));
    let of_gpu = |alert: &Value| alert["labels"]["alertname"] == "GpusliceGpuError";
    assert!(!prometheus.firing().iter().any(of_gpu));
    let mut found = None;
    // The daemon's child may not watch yet.
    eventually("an alert", || {
        if !exporter.ask(GOOD).contains("gpuslice_gpu_xid{")
            || !prometheus.firing().iter().any(of_gpu)
        {
            fail(&case, 79);
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        found = prometheus.firing().into_iter().find(of_gpu);
        found.is_some()
    });
    let alert = found.expect("it fires");
    let summary = alert["annotations"]["summary"].as_str().expect("text");
    assert!(summary.starts_with("GPU 0 (GPU-") && summary.contains(&exporter.1), "{summary}");
    assert_eq!(alert["labels"]["severity"], "critical");
    let is_told = || prometheus.value("gpuslice_gpu_xid").as_deref() == Some("79");
    eventually("the number of the error", is_told);
}
