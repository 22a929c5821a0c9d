//! One tenant of the demo: a container or a process, and its own report.

use super::plan::{Due, Plan};
use super::{bundle, rootfs};
use crate::admin::Admin;
use crate::inject::{Injected, Injection, inject};
use crate::node;
use crate::out;
use crate::slice::SliceOptions;
use anyhow::{Context, Result, bail};
use gpuslice_host::cgroup;
use gpuslice_wire::admin::Answer;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A tenant's report, from the lines it prints.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its due share.
    pub due: Due,
    /// Total memory as reported by the driver.
    pub total: u64,
    /// Memory it allocated before the first refusal.
    pub got: u64,
    /// The driver's code for the refusal.
    pub refusal: i64,
    /// CLOCK_MONOTONIC ns and GPU time of its finished kernels so far, ns.
    pub progress: Vec<(u64, u64)>,
}

impl Account {
    fn read(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let number = |key: &str| event[key].as_u64().unwrap_or(0);
        match event["event"].as_str() {
            Some("memory") => {
                (self.total, self.got) = (number("total"), number("got"));
                self.refusal = event["refusal"].as_i64().unwrap_or(0);
            }
            Some("progress") => self.progress.push((number("now_ns"), number("busy_ns"))),
            _ => {}
        }
    }

    /// GPU time of its kernels up to `now_ns`, interpolated between its own reports.
    pub fn busy_at(&self, now_ns: u64) -> f64 {
        let at = self.progress.partition_point(|&(then, _)| then <= now_ns);
        let before = self.progress.get(at.wrapping_sub(1)).copied().unwrap_or((0, 0));
        let Some(&after) = self.progress.get(at) else {
            return before.1 as f64;
        };
        let part = (now_ns - before.0) as f64 / (after.0 - before.0).max(1) as f64;
        before.1 as f64 + part * (after.1 - before.1) as f64
    }
}

/// The tenant's kind, which decides how it is removed.
enum Kind {
    Container { runtime: String, root: PathBuf },
    Process { _kept: Injected },
}

/// A running tenant.
pub struct Tenant {
    /// How often it was started.
    pub starts: u32,
    plan: Plan,
    child: Child,
    kind: Kind,
    account: Arc<Mutex<Account>>,
    said: Arc<Mutex<String>>,
}

impl Tenant {
    /// Starts the tenant as a container; the hook requests its slice.
    ///
    /// # Errors
    /// The root filesystem or bundle could not be made, or the runtime is missing.
    pub fn container(
        plan: Plan,
        runtime: &str,
        work: &Path,
        daemon: &Path,
        given: &bundle::Given,
    ) -> Result<Tenant> {
        let bundle = work.join(&plan.name);
        let mut arguments = vec!["/tenant".to_owned()];
        arguments.extend(plan.program());
        rootfs::build(&bundle.join("rootfs"), &node::part("tenant")?)?;
        bundle::write(&bundle, &plan, &arguments, daemon, given)?;
        let root = work.join("runtime");
        let mut command = bundle::command(runtime, &root);
        command.arg("run").arg("--bundle").arg(&bundle).arg(&plan.name);
        let kind = Kind::Container { runtime: runtime.to_owned(), root };
        Tenant::spawn(plan, command, kind)
            .with_context(|| format!("starting {runtime}; install it or use --runtime none"))
    }

    /// Starts the tenant as a process in a slice of its own.
    ///
    /// # Errors
    /// The slice is refused, or the tenant program is missing.
    pub fn process(plan: Plan, admin: &Admin) -> Result<Tenant> {
        let slice = SliceOptions {
            gpus: "any".into(),
            memory: gpuslice_wire::admin::MemoryAsk::Exactly(plan.memory),
            memory_limit: plan.limit.map(gpuslice_wire::admin::MemoryAsk::Exactly),
            pinned: None,
            weight: plan.share.is_none().then_some(plan.weight),
            share: plan.share,
            share_limit: None,
            priority: plan.class,
            gang: gpuslice_wire::policy::Gangs::Auto,
            name: Some(plan.name.clone()),
        };
        let answer = admin.ask(&slice.admit(&plan.name, 0)?)?;
        let Answer::Admitted { mounts } = answer else {
            bail!("unexpected answer from the daemon; check that it has the same version")
        };
        let mut command = Command::new(node::part("tenant")?);
        command.args(plan.program());
        let (_, kept) = inject(&mut command, &mounts, Injection::Auto)?;
        Tenant::spawn(plan, command, Kind::Process { _kept: kept })
    }

    fn spawn(plan: Plan, mut command: Command, kind: Kind) -> Result<Tenant> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let account = Account { name: plan.name.clone(), due: plan.due, ..Account::default() };
        let account = Arc::new(Mutex::new(account));
        let said = Arc::new(Mutex::new(String::new()));
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            let (account, said) = (account.clone(), said.clone());
            std::thread::spawn(move || each_line(out, |line| lock(&account).read(line)));
            std::thread::spawn(move || each_line(err, |line| lock(&said).push_str(line)));
        }
        Ok(Tenant { starts: 1, plan, child, kind, account, said })
    }

    /// What it does.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The tenant's name.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Whether it is a container that did not start because its hook failed. crun does not tell why.
    pub fn hook_failed(&self, said: &str) -> bool {
        let has_run = lock(&self.account).total > 0;
        matches!(self.kind, Kind::Container { .. }) && !has_run && said.contains("hook")
    }

    /// Whether it has filled its memory and begun to launch.
    pub fn at_work(&self) -> bool {
        lock(&self.account).progress.len() > 1
    }

    /// Its report so far.
    pub fn account(&self) -> Account {
        lock(&self.account).clone()
    }

    /// Its output, if it has ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        std::thread::sleep(Duration::from_millis(50)); // the reader's last lines
        Some(format!("{status}: {}", lock(&self.said).trim()))
    }
}

/// How long a runtime may take to start a container, and to end.
const RUNTIME_WITHIN: Duration = Duration::from_secs(30);

/// Waits until that has happened, at most for [`RUNTIME_WITHIN`].
fn await_within(mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + RUNTIME_WITHIN;
    while !happened() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the runtime says that the container runs.
fn is_running(runtime: &str, root: &Path, name: &str) -> bool {
    let state = bundle::command(runtime, root).args(["state", name]).stderr(Stdio::null()).output();
    let state = state.map(|output| serde_json::from_slice::<Value>(&output.stdout));
    matches!(state, Ok(Ok(state)) if state["status"] == "running")
}

/// Removes a container's control groups, of each hierarchy; `false` while the kernel still ends a process in one of
/// them. On a busy machine that takes longer than a runtime tries.
fn removes_groups(name: &str) -> bool {
    let mount = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(mount).into_iter().flatten().flatten();
    let parents = hierarchies.map(|entry| entry.path()).chain([mount.to_owned()]);
    let groups = parents.map(|parent| parent.join(bundle::group(name)));
    groups.filter(|it| it.is_dir()).all(|group| cgroup::remove(&group).is_ok())
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let child = &mut self.child;
        let mut has_ended = || !matches!(child.try_wait(), Ok(None));
        if let Kind::Container { runtime, root } = &self.kind {
            // A runtime that is ended while it makes a container leaves the control group.
            await_within(|| has_ended() || is_running(runtime, root, &self.plan.name));
            let delete = bundle::command(runtime, root)
                .args(["delete", "--force", &self.plan.name])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if let Err(error) = delete {
                out::note(&format!("{runtime} delete {}: {error}", self.plan.name));
            }
            await_within(has_ended);
            await_within(|| removes_groups(&self.plan.name));
        }
        // It has ended already, or is a process without state to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn each_line(from: impl std::io::Read, mut take: impl FnMut(&str)) {
    for line in BufReader::new(from).lines() {
        match line {
            Ok(line) => take(&line),
            Err(_) => return,
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
