//! `gpuslice setup`: makes a container engine know gpuslice, and undoes it.
//!
//! Never by itself, as when a package is installed: an engine's configuration is the
//! administrator's. Everything that would change is shown as a diff first; what a file refers to is
//! written before it; the file as it was stays beside it; a second run finds nothing to do; and
//! `--undo` brings the old bytes back, or takes out our part alone if somebody else has changed the
//! file since. One bad file, and nothing is changed at all.

mod change;
mod containerd;
mod docker;
mod engines;
pub mod file;
mod imports;
mod json;
#[cfg(test)]
mod mutations;
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
    /// What to set up
    #[arg(value_name = "ENGINE")]
    engine: Engine,
    /// Show what would change and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take back what an earlier run did
    #[arg(long, conflicts_with = "default")]
    undo: bool,
    /// Make it the runtime of every container; one that asks for no slice is not touched by it
    #[arg(long)]
    default: bool,
    /// The engine's configuration, if it is not where it usually is; for podman and crio the directory
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// NVIDIA's runtime's configuration
    #[arg(
        long,
        value_name = "FILE",
        default_value = Engine::Nvidia.usual()
    )]
    nvidia_config: PathBuf,
    /// Runtime directory of gpusliced, if it is not /run/gpuslice (podman)
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const AFTER: &str = "\
What it changes:
  containerd  a runtime handler in /etc/containerd/config.toml, or in the import that hides it
  docker      a runtime in /etc/docker/daemon.json
  podman      zz-gpuslice.json in the directory where it looks for hooks, mostly
              /usr/share/containers/oci/hooks.d, and /etc/containers/containers.conf.d/99-gpuslice.conf
  crio        /etc/crio/crio.conf.d/99-gpuslice.toml
  nvidia      the runtimes of /etc/nvidia-container-runtime/config.toml; the others do it where they
              find NVIDIA's runtime";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    Containerd,
    Docker,
    Podman,
    #[value(alias = "cri-o")]
    Crio,
    Nvidia,
}

/// How an engine stands to us.
pub struct State {
    /// Its name, as `gpuslice setup` takes it.
    pub engine: &'static str,
    /// It is set up, and what it relies on is too.
    pub ok: bool,
    /// What was found.
    pub found: String,
}

/// The engines that are installed, each looked at as a dry run would; `runtime_dir` is that of
/// gpusliced if it is not the usual one.
pub fn states(runtime_dir: Option<&Path>, is_installed: impl Fn(&str) -> bool) -> Vec<State> {
    let programs = [
        (Engine::Docker, "dockerd"),
        (Engine::Podman, "podman"),
        (Engine::Containerd, "containerd"),
        (Engine::Crio, "crio"),
    ];
    let installed = programs
        .into_iter()
        .filter(|(_, program)| is_installed(program));
    installed
        .map(|(engine, _)| state(engine, runtime_dir))
        .collect()
}

fn state(engine: Engine, runtime_dir: Option<&Path>) -> State {
    let plan = doing(&Options {
        engine,
        dry_run: true,
        undo: false,
        default: false,
        config: None,
        nvidia_config: Engine::Nvidia.usual().into(),
        runtime_dir: runtime_dir.map(Path::to_owned),
    });
    let (ok, found) = match plan {
        Ok(plan) if plan.edits.is_empty() => (true, "set up for slices".to_owned()),
        Ok(plan) => {
            let files: Vec<String> = plan
                .edits
                .iter()
                .map(|edit| edit.path.display().to_string())
                .collect();
            (
                false,
                format!("not set up, or not as it should be: {}", files.join(", ")),
            )
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

    fn usual(self) -> &'static str {
        match self {
            Engine::Containerd => "/etc/containerd/config.toml",
            Engine::Docker => "/etc/docker/daemon.json",
            Engine::Podman => "/etc/containers",
            Engine::Crio => "/etc/crio",
            Engine::Nvidia => "/etc/nvidia-container-runtime/config.toml",
        }
    }

    /// What makes a change count, or an undoing.
    fn then(self, undo: bool) -> &'static str {
        match self {
            Engine::Docker if undo => {
                "systemctl restart docker makes it count; a reload only adds. It stops running \
                 containers, unless live-restore is on; those made with --runtime=gpuslice do not start again"
            }
            Engine::Containerd => {
                "systemctl restart containerd makes it count; running containers go on"
            }
            Engine::Docker => {
                "systemctl reload docker makes it count and stops no container; a restart would stop \
                 all, unless live-restore is on"
            }
            Engine::Podman => "it counts from the next podman run on",
            Engine::Crio => "systemctl restart crio makes it count; running containers go on",
            Engine::Nvidia => "it counts from the next container on",
        }
    }
}

/// One file with the part of it that is ours.
struct Target {
    path: PathBuf,
    part: Box<dyn Part>,
}

impl Target {
    /// Links are followed here.
    fn of(path: &Path, part: impl Part + 'static) -> Result<Target> {
        let (path, part) = (file::real(path)?, Box::new(part));
        Ok(Target { path, part })
    }
}

/// Everything that is to happen, and what the person should know.
#[derive(Default)]
struct Plan {
    edits: Vec<Edit>,
    notes: Vec<String>,
}

/// # Errors
/// A file is not what its engine would read, or cannot be written.
pub fn main(options: &Options) -> Result<ExitCode> {
    let engine = options.engine;
    let no_default = matches!(engine, Engine::Podman | Engine::Nvidia);
    if options.default && no_default {
        bail!(
            "{} has no use for --default: every container of it passes us",
            engine.name()
        );
    }
    let plan = match options.undo {
        true => undoing(options)?,
        false => doing(options)?,
    };
    for edit in &plan.edits {
        out::line(diff(edit).trim_end())?;
    }
    if plan.edits.is_empty() {
        let said = if options.undo {
            "is not set up"
        } else {
            "is set up already"
        };
        out::line(&format!("{}: nothing to do; it {said}", engine.name()))?;
    } else if options.dry_run {
        out::line(&format!(
            "{}: nothing was changed (--dry-run)",
            engine.name()
        ))?;
    } else {
        carry_out(engine.name(), &plan.edits)?;
        out::line(&format!(
            "{}: done; {}",
            engine.name(),
            engine.then(options.undo)
        ))?;
    }
    for note in &plan.notes {
        out::line(&format!("{}: {note}", engine.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wish(options: &Options) -> Result<Wish> {
    let program = node::part(PROGRAM)?.canonicalize().context(PROGRAM)?;
    let program = program
        .to_str()
        .context("where gpuslice-runtime is, is not UTF-8")?;
    Ok(Wish {
        program: program.to_owned(),
        default: options.default,
    })
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
            (
                docker::Docker.behind(&text).with_context(named)?,
                vec![target],
            )
        }
        Engine::Containerd => {
            let sources = imports::all(&config)?;
            let source = imports::that_counts(&sources)?;
            told_of(&sources, source, plan)?;
            let named = || source.path.display().to_string();
            let behind = source.part()?.behind(&source.text).with_context(named)?;
            // Taken out of whichever counted when it was put in.
            let all = sources
                .iter()
                .filter(|one| options.undo || one.path == source.path);
            let all = all.map(|one| Target::of(&one.path, one.part()?));
            (behind, all.collect::<Result<_>>()?)
        }
        Engine::Podman => (None, of_podman(options, &config, wish)?),
        Engine::Crio => {
            let text = engines::crio(&config, wish)?;
            let path = config.join("crio.conf.d").join(engines::CRIO_FILE);
            (
                engines::crio_behind(&config)?,
                vec![Target::of(&path, Own { text })?],
            )
        }
        Engine::Nvidia => (None, vec![Target::of(of_nvidia(options), nvidia::Nvidia)?]),
    };
    if behind.is_some() {
        // First, because the engine's file relies on it.
        targets.insert(0, Target::of(of_nvidia(options), nvidia::Nvidia)?);
    }
    Ok(targets)
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
    // Put where it has the last word; taken from wherever it was put.
    let dirs = if options.undo {
        &dirs[..]
    } else {
        &dirs[dirs.len() - 1..]
    };
    for dir in dirs {
        let text = hooks_d.clone();
        targets.push(Target::of(&dir.join("zz-gpuslice.json"), Own { text })?);
    }
    Ok(targets)
}

/// NVIDIA's configuration; that of the engine itself, if the engine is NVIDIA's.
fn of_nvidia(options: &Options) -> &Path {
    let given = options.config.as_ref();
    given
        .filter(|_| options.engine == Engine::Nvidia)
        .unwrap_or(&options.nvidia_config)
}

/// What of containerd's files the person should know.
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
                 it is taken out",
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
    // What is taken out is found by its name, wherever the programs are by now.
    let program = PROGRAM.to_owned();
    let wish = wish(options).unwrap_or(Wish {
        program,
        default: false,
    });
    let mut plan = Plan::default();
    let mut all = targets(options, &wish, &mut Plan::default())?;
    if options.engine == Engine::Nvidia {
        nobody_relies_on_nvidia()?;
    } else {
        // Other engines may go through it.
        let nvidia = file::real(&options.nvidia_config)?;
        all.retain(|target| target.path != nvidia);
    }
    // What refers to another file goes before it.
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
                "{} was changed by somebody else since: only gpuslice's part is taken out{}",
                path.display(),
                match kept {
                    Some(_) => format!("; {} is the file from before", backup.display()),
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

/// Without us in its list, NVIDIA's runtime would start what asks for a slice with a whole GPU.
fn nobody_relies_on_nvidia() -> Result<()> {
    let relies = |part: &dyn Part, text: &str| {
        let ours = part.find(text).ok().flatten();
        ours.is_some_and(|wish| part::is_nvidia(&wish.program))
    };
    let docker = file::read(Path::new(Engine::Docker.usual())).ok().flatten();
    let docker = docker.is_some_and(|text| relies(&docker::Docker, &text));
    let sources = imports::all(Path::new(Engine::Containerd.usual())).unwrap_or_default();
    let containerd = sources
        .iter()
        .any(|source| source.part().is_ok_and(|part| relies(&part, &source.text)));
    for (uses, engine) in [(docker, Engine::Docker), (containerd, Engine::Containerd)] {
        if uses {
            let name = engine.name();
            bail!(
                "{name}'s runtime {NAME} is NVIDIA's, which then would give containers that ask for a \
                 slice a whole GPU; gpuslice setup {name} --undo first"
            );
        }
    }
    Ok(())
}
