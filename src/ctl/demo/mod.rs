//! `gpuslice demo`: three tenants on one GPU, with weights 1:2:4 or chosen to show a policy, and a
//! verdict. They keep the GPU's queue full or, with `--load steps`, wait for each kernel as most programs do. With
//! `--memory-limit` there are two, of which one borrows memory and the other one wants it back ([`lending`]).
//!
//! As root the tenants are real containers under a real OCI runtime, each with a slice from
//! `gpuslice-hook`; as an ordinary user they are processes. Daemon, device, containers and files live in
//! temporary directories that are removed at every kind of end: each part is an object whose `Drop`
//! removes it, and Ctrl-C only ends the loop early.

mod bundle;
mod lending;
mod plan;
mod rootfs;
mod tenant;
mod verdict;

use crate::admin::Admin;
use crate::columns::{self, DropOrder};
use crate::node::{self, DriverOptions, PrivateDaemon};
use crate::out;
use crate::ps;
use crate::sim::PrivateDevice;
use crate::table::View;
use anyhow::{Context, Result, bail};
use gpuslice_host::layout;
use gpuslice_wire::admin::Command;
use gpuslice_wire::policy::Policy;
use gpuslice_wire::text::Selector;
use gpuslice_wire::units::Bytes;
use plan::{Load, Plan};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tenant::Tenant;

/// Interval between two drawings of the live table.
const REFRESH: Duration = Duration::from_millis(500);
/// Time for the tenants to start, fill their memory and settle before measurement begins.
const SETTLE: Duration = Duration::from_millis(1500);
/// Time limit until all tenants launch work.
const START: Duration = Duration::from_secs(30);
/// Most starts of a container whose hook fails: on a busy machine it may have no answer in time.
const STARTS_MAX: u32 = 3;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Options of `gpuslice demo`.
#[derive(clap::Args)]
pub struct Options {
    /// Run the tenants for this many seconds
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(3..=3600))]
    seconds: u32,
    /// Demonstrate this policy, by name or number, instead of weights 1:2:4
    #[arg(long, value_name = "POLICY", allow_hyphen_values = true, add = crate::complete::policies())]
    policy: Option<Policy>,
    /// What the tenants do
    #[arg(long, value_enum, value_name = "LOAD", default_value = "busy")]
    load: Load,
    /// Demonstrate a memory limit above a cap instead: memory that is borrowed and wanted back
    #[arg(long, conflicts_with_all = ["load", "seconds"])]
    memory_limit: bool,
    /// Print one JSON object at the end instead of tables
    #[arg(long)]
    json: bool,
    /// OCI runtime for the containers; none for plain processes [default: runc; none as an ordinary user]
    #[arg(long, env = "RUNTIME", value_name = "NAME")]
    runtime: Option<String>,
    #[command(flatten)]
    driver: DriverOptions,
}

/// The parts of a running demo, in the order in which they are removed.
struct Stage {
    tenants: Vec<Tenant>,
    admin: Admin,
    /// The OCI runtime; none for plain processes.
    runtime: Option<String>,
    /// What containers get of the driver beside the hook's part.
    given: bundle::Given,
    /// The GPU's memory.
    memory: Bytes,
    work: tempfile::TempDir,
    daemon: PrivateDaemon,
    _device: Option<PrivateDevice>,
}

/// Runs `gpuslice demo`.
///
/// # Errors
/// A part is missing, does not start, or ends early.
pub fn main(options: &Options) -> Result<ExitCode> {
    catch_signals()?;
    let runtime = runtime(options.runtime.as_deref())?;
    let mut stage = set_up(options, runtime)?;
    if options.memory_limit {
        return lending::main(stage, options);
    }
    for plan in Plan::three(options.policy, options.load, stage.memory, options.seconds) {
        stage.start(plan)?;
    }
    let verdict = play(&mut stage, options)?;
    drop(stage);
    if options.json {
        out::line(&verdict.json(options.load.name()).to_string())?;
    } else {
        tell(&verdict.lines())?;
    }
    Ok(if verdict.pass() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints lines, which a terminal breaks between words.
fn tell(lines: &[String]) -> Result<()> {
    lines.iter().try_for_each(|line| out::sentence(line, 2).map(drop))
}

extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn catch_signals() -> Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores into an atomic.
        unsafe { signal(number, SigHandler::Handler(on_signal)) }?;
    }
    Ok(())
}

/// The OCI runtime to use, or `None` for plain processes.
fn runtime(asked: Option<&str>) -> Result<Option<String>> {
    let root = nix::unistd::getuid().is_root();
    match asked.filter(|name| !name.is_empty()) {
        Some("none") => Ok(None),
        None if !root => Ok(None),
        Some(name) if !root => {
            bail!("containers under {name} need root here; omit --runtime")
        }
        name => Ok(Some(name.unwrap_or("runc").to_owned())),
    }
}

/// The driver's directory and a description of its GPU. A demo may fall back to a simulated GPU: its
/// first line says so, and no user's work runs on it.
fn driver(options: &DriverOptions) -> Result<(PathBuf, String)> {
    let why = match layout::system_driver() {
        Err(why) if !options.is_some() => format!(", because {why}"),
        _ => String::new(),
    };
    let simulated = DriverOptions { driver_dir: None, sim: true };
    let chosen = if why.is_empty() { options } else { &simulated };
    let (driver, simulated) = chosen.find()?;
    let what = match simulated {
        true => format!("simulated GPU, profile {}", crate::sim::profile()?),
        false => "real GPU".to_owned(),
    };
    let words = format!("{what} (driver of {}){why}", driver.display());
    Ok((driver, words))
}

/// A stage without tenants.
fn set_up(options: &Options, runtime: Option<String>) -> Result<Stage> {
    let (driver, words) = driver(&options.driver)?;
    let device = match layout::is_simulated(&driver.join("libcuda.so.1")) {
        true => Some(PrivateDevice::new()?),
        false => None,
    };
    let given = match device {
        Some(_) => bundle::Given::default(),
        None => bundle::Given::of(&driver)?,
    };
    if !options.json {
        let containers = |name| format!("containers under {name}");
        let how = runtime.as_ref().map_or("plain processes".to_owned(), containers);
        out::sentence(&format!("{words}; tenants are {how}"), 2)?;
    }
    let work = node::temporary("gpuslice-demo-")?;
    let daemon = PrivateDaemon::start(&driver, device.as_ref(), Some(work.path()))?;
    let admin = Admin::connect(daemon.dir.path())?;
    let memory = View::of(admin.list()?).gpus.first().context("the driver shows no GPU")?.total;
    if let Some(policy) = options.policy {
        let gpu = Selector::new("all")?;
        admin.ask(&Command::SetPolicy { gpu, policy })?;
    }
    Ok(Stage { tenants: Vec::new(), admin, runtime, given, memory, work, daemon, _device: device })
}

impl Stage {
    /// Starts a tenant.
    fn start(&mut self, plan: Plan) -> Result<()> {
        let tenant = self.tenant(plan)?;
        self.tenants.push(tenant);
        Ok(())
    }

    fn tenant(&self, plan: Plan) -> Result<Tenant> {
        let (work, daemon) = (self.work.path(), self.daemon.dir.path());
        match &self.runtime {
            Some(runtime) => Tenant::container(plan, runtime, work, daemon, &self.given),
            None => Tenant::process(plan, &self.admin),
        }
    }

    /// Starts a container again that did not start because of this.
    fn start_again(&mut self, at: usize, why: &str) -> Result<()> {
        let former = self.tenants.remove(at);
        let (plan, starts) = (former.plan().clone(), former.starts + 1);
        drop(former); // the runtime forgets it
        out::note(&format!("container {} did not start, and is started again: {why}", plan.name));
        let mut tenant = self.tenant(plan)?;
        tenant.starts = starts;
        self.tenants.insert(at, tenant);
        Ok(())
    }
}

/// Runs the tenants, draws the table, and judges.
fn play(stage: &mut Stage, options: &Options) -> Result<verdict::Verdict> {
    await_start(stage)?;
    pause(SETTLE);
    let first = View::of(stage.admin.list()?);
    let until = Instant::now() + Duration::from_secs(options.seconds.into()) - SETTLE;
    let (mut before, mut drawn) = (first.clone(), 0);
    let shown = (columns::standard(false), DropOrder::Known);
    while Instant::now() < until && !INTERRUPTED.load(Ordering::Relaxed) {
        pause(REFRESH.min(until.saturating_duration_since(Instant::now())));
        let now = View::of(stage.admin.list()?);
        if !options.json {
            out::draw(&ps::lines((&before, &now), &shown), &mut drawn)?;
        }
        still_running(stage)?;
        before = now;
    }
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted; everything is cleaned up");
    }
    let last = View::of(stage.admin.list()?);
    Ok(verdict::judge(
        &stage.tenants.iter().map(Tenant::account).collect::<Vec<_>>(),
        options.policy,
        &first,
        &last,
    ))
}

fn await_start(stage: &mut Stage) -> Result<()> {
    let until = Instant::now() + START;
    while !stage.tenants.iter().all(Tenant::at_work) {
        still_running(stage)?;
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted; everything is cleaned up");
        }
        if Instant::now() > until {
            bail!(
                "the tenants launched no work within {START:?}; the daemon's log: {}",
                stage.daemon.log()
            );
        }
        pause(Duration::from_millis(10));
    }
    Ok(())
}

/// Starts containers again whose hooks failed.
///
/// # Errors
/// A tenant has ended for another reason.
fn still_running(stage: &mut Stage) -> Result<()> {
    for at in 0..stage.tenants.len() {
        let tenant = &mut stage.tenants[at];
        let Some(said) = tenant.ended() else {
            continue;
        };
        if tenant.starts < STARTS_MAX && tenant.hook_failed(&said) {
            stage.start_again(at, &said)?;
            continue;
        }
        bail!(
            "tenant {} ended early: {said}; the daemon's log: {}",
            tenant.name(),
            stage.daemon.log()
        );
    }
    Ok(())
}

/// Sleeps until the time is up or a signal arrives.
fn pause(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until && !INTERRUPTED.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}
