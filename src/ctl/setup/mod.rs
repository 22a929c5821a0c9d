//! `gpuslice setup`: configures a container engine for gpuslice, and undoes it.
//!
//! No package installation runs it, because an engine's configuration is the administrator's. Every
//! change is shown as a diff first. A file is written after the files it refers to, and a backup stays
//! beside it. A second run changes nothing. `--undo` restores the old bytes, or removes gpuslice's part
//! alone if the file has been changed since, and removes the directories that setup made, if they are
//! empty. One invalid file prevents every change.

mod change;
mod containerd;
mod docker;
mod engines;
pub mod file;
mod imports;
mod json;
#[cfg(test)]
mod mutations;
mod next;
mod nvidia;
mod part;
mod toml;

use crate::node;
use crate::out;
use anyhow::{Context, Result, bail};
use change::{Edit, carry_out, diff};
use part::{NAME, Own, PROGRAM, Part, Undone, Wish};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `gpuslice setup`.
#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub struct Options {
    /// Engine to configure
    #[arg(value_name = "ENGINE")]
    engine: Engine,
    /// Show the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Undo an earlier run
    #[arg(long, conflicts_with = "default")]
    undo: bool,
    /// Make it the default runtime; containers without a slice request are unaffected
    #[arg(long)]
    default: bool,
    /// Switch CDI devices on, by which pods of Kubernetes get their claims (containerd)
    #[arg(long, conflicts_with = "undo")]
    cdi: bool,
    /// Path of the engine's configuration; for podman and crio its directory [default: the engine's]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Configuration of NVIDIA's container runtime
    #[arg(
        long,
        value_name = "FILE",
        default_value = Engine::Nvidia.usual()
    )]
    nvidia_config: PathBuf,
    /// Runtime directory of gpusliced, for podman [default: /run/gpuslice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const AFTER: &str = "\
Files changed:
  containerd  a runtime handler in /etc/containerd/config.toml, or in the import that hides it
  docker      a runtime in /etc/docker/daemon.json
  podman      zz-gpuslice.json in its hooks directory, usually
              /usr/share/containers/oci/hooks.d, and /etc/containers/containers.conf.d/99-gpuslice.conf
  crio        /etc/crio/crio.conf.d/99-gpuslice.toml
  nvidia      the runtimes of /etc/nvidia-container-runtime/config.toml; the others change it too if
              they use NVIDIA's runtime";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    Containerd,
    Docker,
    Podman,
    #[value(alias = "cri-o")]
    Crio,
    Nvidia,
}

/// Setup state of an engine.
pub struct State {
    /// Its name in `gpuslice setup`.
    pub engine: &'static str,
    /// It and everything it relies on are set up.
    pub ok: bool,
    /// The finding.
    pub found: String,
}

/// The installed engines, each examined as in a dry run. `runtime_dir` is gpusliced's, if not the
/// default.
pub fn states(runtime_dir: Option<&Path>) -> Vec<State> {
    let engines = [Engine::Docker, Engine::Podman, Engine::Containerd, Engine::Crio];
    let installed = engines.into_iter().filter(|engine| node::is_in_path(engine.program()));
    installed.map(|engine| state(engine, runtime_dir)).collect()
}

fn state(engine: Engine, runtime_dir: Option<&Path>) -> State {
    let plan = doing(&Options {
        engine,
        dry_run: true,
        undo: false,
        default: false,
        cdi: false,
        config: None,
        nvidia_config: Engine::Nvidia.usual().into(),
        runtime_dir: runtime_dir.map(Path::to_owned),
    });
    let (ok, found) = match plan {
        Ok(plan) if plan.edits.is_empty() => (true, "set up for slices".to_owned()),
        Ok(plan) => {
            let files: Vec<String> =
                plan.edits.iter().map(|edit| edit.path.display().to_string()).collect();
            (false, format!("not set up, or set up differently: {}", files.join(", ")))
        }
        Err(why) => (false, format!("{why:#}")),
    };
    let engine = engine.name();
    State { engine, ok, found }
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Containerd => "containerd",
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Crio => "crio",
            Engine::Nvidia => "nvidia",
        }
    }

    /// The program that reads its configuration.
    fn program(self) -> &'static str {
        match self {
            Engine::Containerd => "containerd",
            Engine::Docker => "dockerd",
            Engine::Podman => "podman",
            Engine::Crio => "crio",
            Engine::Nvidia => "nvidia-container-runtime",
        }
    }

    fn usual(self) -> &'static str {
        match self {
            Engine::Containerd => "/etc/containerd/config.toml",
            Engine::Docker => "/etc/docker/daemon.json",
            Engine::Podman => "/etc/containers",
            Engine::Crio => "/etc/crio",
            Engine::Nvidia => "/etc/nvidia-container-runtime/config.toml",
        }
    }

    /// How a change or an undo takes effect.
    fn then(self, undo: bool) -> &'static str {
        match self {
            Engine::Docker if undo => {
                "run systemctl restart docker to apply it; a reload only adds. A restart stops running \
                 containers unless live-restore is on; those created with --runtime=gpuslice do not start again"
            }
            Engine::Containerd => {
                "run systemctl restart containerd to apply it; running containers continue"
            }
            Engine::Docker => {
                "run systemctl reload docker to apply it; running containers continue. A restart would \
                 stop them unless live-restore is on"
            }
            Engine::Podman => "it applies from the next podman run on",
            Engine::Crio => "run systemctl restart crio to apply it; running containers continue",
            Engine::Nvidia => "it applies from the next container on",
        }
    }
}

/// One file and gpuslice's part of it.
struct Target {
    path: PathBuf,
    part: Box<dyn Part>,
}

impl Target {
    /// Follows links to the real file.
    fn of(path: &Path, part: impl Part + 'static) -> Result<Target> {
        let (path, part) = (file::real(path)?, Box::new(part));
        Ok(Target { path, part })
    }
}

/// All planned changes, and notes for the user.
#[derive(Default)]
struct Plan {
    edits: Vec<Edit>,
    notes: Vec<String>,
}

/// Runs `gpuslice setup`.
///
/// # Errors
/// A file is invalid or cannot be written.
pub fn main(options: &Options) -> Result<ExitCode> {
    let engine = options.engine;
    let no_default = matches!(engine, Engine::Podman | Engine::Nvidia);
    if options.default && no_default {
        bail!(
            "{} has no use for --default: all its containers use gpuslice already; omit it",
            engine.name()
        );
    }
    if options.cdi && engine != Engine::Containerd {
        bail!("{} has no switch for CDI devices: omit --cdi", engine.name());
    }
    let mut plan = match options.undo {
        true => undoing(options)?,
        false => doing(options)?,
    };
    if options.config.is_none() && !node::is_in_path(engine.program()) {
        let program = engine.program();
        plan.notes
            .push(format!("there is no {program} in PATH: the files have no effect without it"));
    }
    for edit in &plan.edits {
        out::line(diff(edit).trim_end())?;
    }
    if plan.edits.is_empty() {
        let said = if options.undo { "is not set up" } else { "is set up already" };
        out::line(&format!("{}: nothing to do; it {said}", engine.name()))?;
    } else if options.dry_run {
        out::line(&format!("{}: nothing was changed (--dry-run)", engine.name()))?;
    } else {
        // NVIDIA's configuration, the first file if it is one, stays at an undo of others.
        let nvidia = file::real(of_nvidia(options)).unwrap_or_default();
        let undone_by = |path: &Path| if path == nvidia { Engine::Nvidia } else { engine }.name();
        carry_out(&plan.edits, undone_by)?;
        if options.undo {
            file::remove_made_dirs(plan.edits.iter().map(|edit| edit.path.as_path()))?;
        }
        out::line(&format!("{}: done; {}", engine.name(), engine.then(options.undo)))?;
    }
    for note in &plan.notes {
        out::line(&format!("{}: {note}", engine.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wish(options: &Options) -> Result<Wish> {
    let program = node::part(PROGRAM)?.canonicalize().context(PROGRAM)?;
    let program = program.to_str().context("the path of gpuslice-runtime is not UTF-8")?;
    Ok(Wish { program: program.to_owned(), default: options.default, cdi: options.cdi })
}

/// The files of an engine, in the order in which they are written.
fn targets(options: &Options, wish: &Wish, plan: &mut Plan) -> Result<Vec<Target>> {
    let usual = || PathBuf::from(options.engine.usual());
    let config = options.config.clone().unwrap_or_else(usual);
    let (behind, mut targets) = match options.engine {
        Engine::Docker => {
            let target = Target::of(&config, docker::Docker)?;
            let text = file::read(&target.path)?.unwrap_or_default();
            let named = || target.path.display().to_string();
            (docker::Docker.behind(&text).with_context(named)?, vec![target])
        }
        Engine::Containerd => {
            let sources = imports::all(&config)?;
            let source = imports::that_counts(&sources)?;
            told_of(&sources, source, plan)?;
            let named = || source.path.display().to_string();
            let behind = source.part()?.behind(&source.text).with_context(named)?;
            let replaced = source.part()?.replaced(&source.text).with_context(named)?;
            check_next(options, &replaced)?;
            // Removed from the file that took effect when it was added.
            let all = sources.iter().filter(|one| options.undo || one.path == source.path);
            let all = all.map(|one| Target::of(&one.path, one.part()?));
            (behind, all.collect::<Result<_>>()?)
        }
        Engine::Podman => (None, of_podman(options, &config, wish)?),
        Engine::Crio => {
            let text = engines::crio(&config, wish)?;
            check_next(options, &engines::crio_replaced(&config)?)?;
            let path = config.join("crio.conf.d").join(engines::CRIO_FILE);
            (engines::crio_behind(&config)?, vec![Target::of(&path, Own { text })?])
        }
        Engine::Nvidia => (None, Vec::new()),
    };
    if behind.is_some() || options.engine == Engine::Nvidia {
        let target = Target::of(of_nvidia(options), nvidia::Nvidia)?;
        let text = file::read(&target.path)?.unwrap_or_default();
        let replaced =
            nvidia::replaced(&text).with_context(|| target.path.display().to_string())?;
        check_next(options, &replaced)?;
        // First, because the engine's file relies on it.
        targets.insert(0, target);
    }
    Ok(targets)
}

/// Checks that gpuslice-runtime calls the runtime whose place it takes: see [`next`].
fn check_next(options: &Options, replaced: &[String]) -> Result<()> {
    match options.undo {
        true => Ok(()),
        false => next::check(options.engine.name(), replaced),
    }
}

fn of_podman(options: &Options, config: &Path, wish: &Wish) -> Result<Vec<Target>> {
    let hook = match node::part("gpuslice-hook") {
        Err(_) if options.undo => PathBuf::new(),
        found => found?.canonicalize().context("gpuslice-hook")?,
    };
    let hooks_d = engines::hooks_d(&hook, options.runtime_dir.as_deref())?;
    let conf = config.join("containers.conf.d/99-gpuslice.conf");
    let text = engines::containers_conf(wish)?;
    let mut targets = vec![Target::of(&conf, Own { text })?];
    let dirs = engines::hooks_dirs(config)?;
    // Added where podman reads it last; removed from every place.
    let dirs = if options.undo { &dirs[..] } else { &dirs[dirs.len() - 1..] };
    for dir in dirs {
        let text = hooks_d.clone();
        targets.push(Target::of(&dir.join("zz-gpuslice.json"), Own { text })?);
    }
    Ok(targets)
}

/// NVIDIA's configuration: the engine's own if the engine is `nvidia`.
fn of_nvidia(options: &Options) -> &Path {
    let given = options.config.as_ref();
    given.filter(|_| options.engine == Engine::Nvidia).unwrap_or(&options.nvidia_config)
}

/// Notes for the user about containerd's files.
fn told_of(sources: &[imports::Source], chosen: &imports::Source, plan: &mut Plan) -> Result<()> {
    if sources.first().is_some_and(|main| main.path != chosen.path) {
        plan.notes.push(format!(
            "{} has the CRI plugin's table, which hides that of files read before it (up to \
             containerd 2.0); so the handler goes there",
            chosen.path.display()
        ));
    }
    for source in sources {
        if source.part()?.is_disabled_in(&source.text)? {
            plan.notes.push(format!(
                "{} has the CRI plugin in disabled_plugins: Kubernetes cannot use containerd until \
                 it is removed from the list",
                source.path.display()
            ));
        }
    }
    Ok(())
}

fn doing(options: &Options) -> Result<Plan> {
    let (wish, mut plan) = (wish(options)?, Plan::default());
    for Target { path, part } in targets(options, &wish, &mut plan)? {
        let named = || path.display().to_string();
        let before = file::read(&path)?;
        let text = before.as_deref().unwrap_or_default();
        let after = part.put(text, &wish).with_context(named)?;
        if before.as_ref() == Some(&after) {
            continue;
        }
        let is_first = part.find(text).with_context(named)?.is_none();
        plan.edits.push(Edit {
            path,
            backup: is_first.then(|| before.clone()),
            before,
            after: Some(after),
        });
    }
    Ok(plan)
}

fn undoing(options: &Options) -> Result<Plan> {
    // An undo finds gpuslice's part by name, wherever the programs are now.
    let program = PROGRAM.to_owned();
    let wish = wish(options).unwrap_or(Wish { program, default: false, cdi: false });
    let mut plan = Plan::default();
    let mut all = targets(options, &wish, &mut Plan::default())?;
    if options.engine == Engine::Nvidia {
        check_no_engine_relies_on_nvidia()?;
    } else {
        // Other engines may use it.
        let nvidia = file::real(&options.nvidia_config)?;
        all.retain(|target| target.path != nvidia);
    }
    // A file is removed before the files it refers to.
    for Target { path, part } in all.into_iter().rev() {
        let Some(before) = file::read(&path)? else {
            continue;
        };
        let backup = file::backup_of(&path);
        let named = || path.display().to_string();
        let kept = file::read(&backup)?;
        let undone = part::undo(&*part, &before, kept.as_deref()).with_context(named)?;
        let Some(Undone { text, exact }) = undone else {
            continue;
        };
        if !exact && text.is_some() {
            plan.notes.push(format!(
                "{} has been changed since: only gpuslice's part is removed{}",
                path.display(),
                match kept {
                    Some(_) => format!("; the backup is {}", backup.display()),
                    None => String::new(),
                }
            ));
        }
        plan.edits.push(Edit {
            backup: exact.then_some(None),
            before: Some(before),
            after: text,
            path,
        });
    }
    Ok(plan)
}

/// Refuses while an engine depends on NVIDIA's list: without gpuslice in it, NVIDIA's runtime would
/// start containers that request a slice with a whole GPU.
fn check_no_engine_relies_on_nvidia() -> Result<()> {
    let relies = |part: &dyn Part, text: &str| {
        let ours = part.find(text).ok().flatten();
        ours.is_some_and(|wish| part::is_nvidia(&wish.program))
    };
    let docker = file::read(Path::new(Engine::Docker.usual())).ok().flatten();
    let docker = docker.is_some_and(|text| relies(&docker::Docker, &text));
    let sources = imports::all(Path::new(Engine::Containerd.usual())).unwrap_or_default();
    let containerd =
        sources.iter().any(|source| source.part().is_ok_and(|part| relies(&part, &source.text)));
    for (uses, engine) in [(docker, Engine::Docker), (containerd, Engine::Containerd)] {
        if uses {
            let name = engine.name();
            bail!(
                "{name}'s runtime {NAME} is NVIDIA's, which would then give containers that request a \
                 slice a whole GPU; run gpuslice setup {name} --undo first"
            );
        }
    }
    Ok(())
}
