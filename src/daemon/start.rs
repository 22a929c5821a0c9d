//! The program: reads the command line, starts the daemon and runs it to its end.

use crate::accounting::Accounting;
use crate::admin::Admins;
use crate::agents::Agents;
use crate::cgroup_limits::CgroupLimits;
use crate::claims::{CdiFiles, ClaimStore, Claims, Directories, Writer};
use crate::clients::Clients;
use crate::command_line::{CommandLine, LogFormat};
use crate::config::{ConfigError, DaemonConfig};
use crate::containers::{Budget, Containers, Members, PageSettings};
use crate::driver_lock::{DriverLock, DriverLockError};
use crate::event_loop::Daemon;
use crate::events::Events;
use crate::executor::Duties;
use crate::gpu_table::GpuTable;
use crate::gpus::{self, Gpu, GpuError};
use crate::health::HealthWatch;
use crate::health::record::ErrorRecord;
use crate::journal::Journal;
use crate::log_writer::LogWriter;
use crate::mps::may_be_one_of;
use crate::over_cap::OverCap;
use crate::paths::{PathError, Paths};
use crate::policies::Policies;
use crate::poll::{Poll, Watch};
use crate::preempt::Preemption;
use crate::privileges::{Role, lower};
use crate::recorder::Recorder;
use crate::samples::Samples;
use crate::service::{ActivatedSockets, ActivationError, Manager};
use crate::shared_files::SharedFiles;
use crate::socket_closer::{SocketCloser, SocketOwner};
use crate::sockets::{Socket, can_refuse_descriptors};
use crate::state::{Found, State, StateError};
use crate::suspend::Suspender;
use crate::suspend::room::Rooms;
use crate::tasks::Tasks;
use crate::unavailable::refuse_all;
use clap::Parser;
use gpuslice_engine::{Engine, Event, NoSlices};
use gpuslice_host::clock::now;
use gpuslice_host::layout::ADMIN_SOCKET;
use gpuslice_wire::owner::ClaimId;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::fstat;
use nix::unistd::{Gid, Group};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Exit status without a working driver: EX_UNAVAILABLE of sysexits.h.
const NO_DRIVER: u8 = 69;
/// How long the containers of a killed demo may take to end.
const CONTAINERS_END: Duration = Duration::from_secs(5);

/// Why the daemon does not start, or ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    DaemonConfig(#[from] ConfigError),
    #[error(transparent)]
    Place(#[from] PathError),
    #[error(transparent)]
    DriverLock(#[from] DriverLockError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    ActivatedSockets(#[from] ActivationError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("node_group = {0:?}: there is no such group; create it, or correct the configuration")]
    NoGroup(String),
    #[error("{0}")]
    System(#[from] nix::Error),
}

impl Failure {
    /// Whether the driver is missing or does not work.
    fn is_no_driver(&self) -> bool {
        let no_path =
            |why: &PathError| matches!(why, PathError::NoDriver { .. } | PathError::Missing { .. });
        matches!(self, Failure::Gpu(_)) || matches!(self, Failure::Place(why) if no_path(why))
    }
}

/// The program.
pub fn main() -> ExitCode {
    let options = CommandLine::parse();
    if let Some(file) = &options.check {
        return check(file);
    }
    if let Some(dir) = &options.manual {
        return print(crate::manual::write(dir).map_err(|why| format!("{}: {why}", dir.display())));
    }
    if let Some([cuda, nvml]) = options.list_gpus.as_deref() {
        return print(gpus::list::print(Path::new(cuda), Path::new(nvml)));
    }
    if let Some(library) = &options.prepare_simulated {
        return print(crate::simulated::print_device(library));
    }
    if let Some(library) = &options.ask_nvml {
        lower(Role::AskNvml);
        // It ends with its parent; there is no process left to report an error to.
        let _ = crate::accounting::ask_nvml::serve(library);
        return ExitCode::SUCCESS;
    }
    if let Some(library) = &options.watch_nvml {
        lower(Role::WatchNvml);
        // As above.
        let _ = crate::health::watcher::serve(library);
        return ExitCode::SUCCESS;
    }
    if let Some(library) = &options.stop_work {
        lower(Role::StopWork);
        return print(crate::preempt::worker::serve_child(Path::new(library)));
    }
    if let Some(library) = &options.move_memory {
        lower(Role::MoveMemory);
        return print(crate::suspend::worker::serve_child(library));
    }
    if options.close_sockets {
        lower(Role::CloseSockets);
        crate::socket_closer::serve_child();
        return ExitCode::SUCCESS;
    }
    if options.examine {
        // A closed output is not an error.
        let _ = writeln!(io::stdout(), "{}", crate::examine::facts(&options));
        return ExitCode::SUCCESS;
    }
    let served = serve(&options);
    remove(&options.remove);
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&format!("gpusliced: {failure}"));
            crate::service::failed(&failure.to_string());
            match failure.is_no_driver() {
                true => ExitCode::from(NO_DRIVER),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn check(file: &std::path::Path) -> ExitCode {
    match DaemonConfig::read(file) {
        Ok(_) => {
            // A closed output is not an error.
            let _ = writeln!(io::stdout(), "ok");
            ExitCode::SUCCESS
        }
        Err(why) => {
            complain(&why.to_string());
            ExitCode::FAILURE
        }
    }
}

/// The exit status of a child that has printed facts about a driver, or not.
fn print(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(&why);
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error; ignores a closed one.
fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn serve(options: &CommandLine) -> Result<(), Failure> {
    let to_journal = begin_log(options.verbose, options.log_format);
    abort_on_panic();
    // Block signals before creating files, so that all files are removed at the end.
    let signals = end_signals()?;
    let config = DaemonConfig::load(options.config.as_deref())?;
    prctl::set_timerslack(1)?;
    let fds = raise_descriptor_limit()?;
    let runtime_dir = Paths::runtime_dir(options, &config)?;
    let service = (ActivatedSockets::take(&runtime_dir)?, Manager::new());
    let found = found(options, &config, runtime_dir).inspect_err(|failure| {
        if failure.is_no_driver() {
            refuse_all(&service.0, &failure.to_string());
        }
    });
    let (paths, state, claim, gpus) = found?;
    let driver = paths.driver.dir.clone();
    let simulated = paths.driver.is_simulated();
    let group = node_group(&config)?;
    let serves_agents = !options.ephemeral;
    let agents = (serves_agents.then_some(group), GpuTable::new(gpus.clone()));
    let mut daemon = assemble(&config, paths, state, agents, signals, service, fds)?;
    daemon.duties.events = Events::new(to_journal);
    tell_gpus(&mut daemon, &gpus);
    let product = |gpu: &Gpu| (gpu.uuid, gpus::product_of(gpu.about.product.as_str()));
    daemon.products = gpus.iter().map(product).collect();
    let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.uuid).collect();
    let policies = daemon.duties.policies.events(&uuids);
    policies.into_iter().for_each(|event| daemon.deliver(event));
    let support = daemon.duties.accounting.support(&uuids);
    daemon.duties.cgroup_limits.supported(support);
    if let Some(why) = crate::accounting::pid_namespace_warning() {
        tracing::warn!("{why}");
    }
    take_up(&mut daemon)?;
    daemon.duties.close_nvml_when_idle();
    let containers = &daemon.duties.containers;
    let socket = containers.state().dir().join(ADMIN_SOCKET);
    let gpus = crate::service::gpus(gpus.len(), simulated);
    let (socket, driver) = (socket.display(), driver.display());
    complain(&format!("gpusliced ready: {socket}, {gpus} (driver: {driver})"));
    daemon.manager.ready(gpus, containers.len());
    if options.while_used {
        daemon.duties.admins.run_while_used(now());
    }
    let served = daemon.serve();
    daemon.manager.stopping();
    let containers = &daemon.duties.containers;
    if options.ephemeral || (containers.len() == 0 && containers.state().admin_is_ours()) {
        claim.withdraw();
    }
    daemon.close(options.ephemeral);
    Ok(served?)
}

/// The paths, the runtime directory, which no other daemon has, and the driver's GPUs.
fn found(
    options: &CommandLine,
    config: &DaemonConfig,
    runtime_dir: PathBuf,
) -> Result<(Paths, State, DriverLock, Vec<Gpu>), Failure> {
    let paths = Paths::find(options, config, runtime_dir)?;
    let state = State::open(&paths.runtime_dir)?;
    match claimed(&paths, options) {
        Ok((claim, gpus)) => Ok((paths, state, claim, gpus)),
        Err(failure) => {
            state.close(std::iter::empty(), options.ephemeral);
            Err(failure)
        }
    }
}

/// Removes the directories that the command line gives to the daemon, also one that has not started: the program that
/// gave them may have been killed meanwhile.
fn remove(dirs: &[PathBuf]) {
    for dir in dirs {
        await_containers(&dir.join("runtime"));
        // That program may have removed it already.
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Tells the engine of the GPUs, and the log of those without slices.
fn tell_gpus(daemon: &mut Daemon, gpus: &[Gpu]) {
    for gpu in gpus {
        let &Gpu { uuid, index, total, .. } = gpu;
        daemon.deliver(Event::GpuFound { uuid, index, total });
        if let Some(why) = gpu.no_slices {
            let (is, remedy) = (why.of(index), why.remedy(index));
            tracing::warn!(%uuid, "no slices are given: {is}; {remedy}");
            if why == NoSlices::Mps {
                daemon.duties.accounting.mps.found(uuid);
            }
            daemon.deliver(Event::GpuWithoutSlices { uuid, why });
        }
    }
    let slices = Members::all_noted(daemon.duties.containers.state().dir());
    if let [pid, ..] = crate::mps::processes(|it| may_be_one_of(&slices, it))[..] {
        tracing::warn!(
            pid,
            "NVIDIA's MPS runs on this node: a program that reaches its pipe directory is no slice's any more; echo quit | nvidia-cuda-mps-control ends it"
        );
    }
}

/// A daemon without GPUs and slices.
///
/// # Errors
/// A system call failed.
fn assemble(
    config: &DaemonConfig,
    paths: Paths,
    mut state: State,
    (group, gpu_table): (Option<Option<Gid>>, GpuTable),
    signals: SignalFd,
    (given, manager): (ActivatedSockets, Manager),
    fds: u64,
) -> io::Result<Daemon> {
    let poll = Poll::new()?;
    let watch = poll.watch();
    let closer = SocketCloser::new(watch.clone());
    if !can_refuse_descriptors() {
        closer.prepare()?;
    }
    let listeners = listeners(given, &mut state, &closer)?;
    let dir = config.node_socket_dir.as_ref().map(|dir| dir.0.as_path());
    let node = group.map(|group| state.listen_agents(group, dir)).transpose()?;
    let node = node.map(|fd| Socket::listening(fd, SocketOwner::Agents, &closer));
    let claims = claims(config, state.dir(), &gpu_table, &watch)?;
    let library = PathBuf::from(paths.driver.nvml.as_str());
    let errors = ErrorRecord::new(state.gpu_errors_path());
    let health = HealthWatch::new(library, config.unhealthy_s.get(), errors, watch.clone());
    let (nvml, interval_ms) = (&paths.driver.nvml, config.accounting_interval_ms.get());
    let accounting = Accounting::new(nvml.as_str(), interval_ms, &watch)?;
    let preemption = Preemption::new(config.preemption, &paths.driver, state.dir(), &watch);
    let suspender = Suspender::new(&watch, PathBuf::from(paths.driver.cuda.as_str()));
    let fds = fds.saturating_sub(preemption.descriptors());
    let budget = Budget::told(fds, config.containers_max.get());
    let settings = PageSettings {
        epoch: now().0,
        hard: config.block_without_daemon,
        foreign: config.foreign_memory.word(),
        stop: preemption.is_on(),
    };
    let engine = Engine::new(gpuslice_engine::Config {
        stop: preemption.is_on(),
        sees_devices: accounting.sees_devices(),
        containers: budget.containers.into(),
        suspended_memory: config.suspended_memory(),
        ..config.engine()
    });
    let both = (watch.clone(), closer.clone());
    let both_again = both.clone();
    let duties = Duties {
        policies: Policies::restored(&state),
        clients: Clients::new(watch.clone(), budget.clients),
        admins: Admins::new(config, listeners, both.clone(), budget.admins)?,
        containers: Containers::new(state, settings, budget, both),
        accounting,
        cgroup_limits: CgroupLimits::new(config.cgroup_limits, config.cgroup_guarantees),
        preemption,
        suspender,
        rooms: Rooms::default(),
        over_cap: OverCap::new(config),
        agents: Agents::new(node, group.flatten(), both_again, budget.agents)?,
        claims,
        gpu_table,
        health,
        events: Events::default(),
        samples: Samples::default(),
        recorder: Recorder::default(),
        shared_files: SharedFiles::of(&paths),
        paths,
        tasks: Tasks::default(),
    };
    Daemon::new(engine, duties, (poll, closer), (signals, manager))
}

/// The group whose members may use the node's socket.
///
/// # Errors
/// There is no such group.
fn node_group(config: &DaemonConfig) -> Result<Option<Gid>, Failure> {
    let Some(name) = &config.node_group else {
        return Ok(None);
    };
    let found = Group::from_name(name)?.map(|group| group.gid);
    found.map(Some).ok_or_else(|| Failure::NoGroup(name.clone()))
}

/// The claims of earlier daemons, and where their files are.
fn claims(
    config: &DaemonConfig,
    runtime_dir: &Path,
    gpus: &GpuTable,
    watch: &Watch,
) -> io::Result<Claims> {
    let Directories { state, cdi } = Directories::of(config, runtime_dir);
    let store = ClaimStore::at(&state);
    let writer = Writer::start(store.clone(), watch)?;
    Ok(Claims::restored(&store, writer, CdiFiles::new(cdi, runtime_dir, gpus.minors())))
}

/// The admin socket and, if the service manager made one, the observers' socket.
fn listeners(
    given: ActivatedSockets,
    state: &mut State,
    closer: &SocketCloser,
) -> io::Result<(Socket, Option<Socket>)> {
    let admin = match given.admin {
        Some(fd) => Socket::handed_over(fd, SocketOwner::Admins, closer),
        None => Socket::listening(state.listen_admin()?, SocketOwner::Admins, closer),
    };
    let observe = given.observe;
    let observe = observe.map(|fd| Socket::handed_over(fd, SocketOwner::Observers, closer));
    Ok((admin, observe))
}

/// Restores the slices from their records.
fn take_up(daemon: &mut Daemon) -> io::Result<()> {
    let (mut joined, mut records) = (Vec::new(), Vec::new());
    for found in daemon.duties.containers.state().records()? {
        match found {
            Found::Record(record) => {
                daemon.restore(&record);
                records.push(record);
            }
            Found::Joined(container, claim) => joined.push((container, claim)),
            Found::Unreadable(path, why) => {
                tracing::error!(path = %path.display(), why, "record not restored; it is kept until gpuslice rm of its container");
            }
        }
    }
    daemon.restore_claims(&joined);
    // After their containers, whose groups are theirs.
    let claims = records.iter().filter(|it| ClaimId::of_slice(&it.container).is_some());
    claims.for_each(|it| daemon.duties.restore_over_cap(it));
    // Last: the restore of many slices can take longer than their processes are waited for.
    records.iter().for_each(|it| daemon.deliver(Event::Opened { container: it.container }));
    Ok(())
}

/// Takes the driver lock, lists the driver's GPUs and gives up all privileges that are not needed from then on. The
/// driver's first start may need more of them: it can load its module and make its device files.
fn claimed(paths: &Paths, options: &CommandLine) -> Result<(DriverLock, Vec<Gpu>), Failure> {
    let mut claim = DriverLock::take(paths, options.ephemeral)?;
    let slices = Members::all_noted(&paths.runtime_dir);
    let gpus = gpus::find(&paths.driver, |it| may_be_one_of(&slices, it))?;
    lower(Role::Daemon);
    claim.publish(&paths.driver);
    Ok((claim, gpus))
}

/// Waits for the end of the last container of an OCI runtime whose state is in `root`. Without that state the
/// runtime could not remove the containers' control groups.
fn await_containers(root: &std::path::Path) {
    let until = Instant::now() + CONTAINERS_END;
    let any = || std::fs::read_dir(root).is_ok_and(|mut all| all.next().is_some());
    while any() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether standard error is journald's stream: its variable has the file's device and inode.
fn is_journals(stderr: BorrowedFd<'_>) -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let it = fstat(stderr).map(|it| format!("{}:{}", it.st_dev, it.st_ino));
    it.is_ok_and(|it| it == named)
}

/// Begins to log; returns whether the log is journald's. Its protocol carries the fields of each line; a stream would
/// carry its text alone.
fn begin_log(verbose: bool, format: LogFormat) -> bool {
    let level = if verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    let journal = is_journals(io::stderr().as_fd()).then(Journal::open);
    if let (LogFormat::Text, Some(Ok(journal))) = (format, journal) {
        tracing_subscriber::registry()
            .with(journal.with_filter(LevelFilter::from_level(level)))
            .init();
        return true;
    }
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_target(false)
        .with_max_level(level)
        // It would tell of an error on standard error, and panic where that is closed.
        .log_internal_errors(false)
        .with_writer(move || LogWriter { json: format == LogFormat::Json });
    match format {
        LogFormat::Text => log.compact().init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    false
}

/// Ends the daemon at once after a panic: it could continue with a wrong state. The next daemon starts from
/// the records and from what running processes report.
fn abort_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
}

fn end_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Raises the descriptor limit to the maximum; returns the limit.
fn raise_descriptor_limit() -> nix::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}
