//! The cost of starting: three hundred processes that initialise CUDA at once, and a `sh` that does
//! nothing.
//!
//! `gpuslice-bench-init DIR SOCKET...` expects the simulated driver (`libcuda.so.1`) in DIR, the preloaded
//! shim beside its own file, and one container socket of a running daemon per group. All processes wait
//! for the end of one FIFO, which comes when its only writer closes it, then measure `dlopen`, `cuInit` and
//! the first context. Bare runs and runs in slices alternate (ABBA), so that a machine that slows down slows
//! both. The exit status is 1 when a target is missed.

mod stats;

use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{CUcontext, CUresult};
use serde_json::json;
use stats::{quantile, rounds};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

/// Processes that start at once.
const PROCESSES: usize = 300;
/// Target for the additional time of the slowest of a hundred, ms.
const ADDED_MS: f64 = 50.0;
/// Shells of each kind.
const SHELLS: usize = 500;

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["one", gun] => one(Path::new(gun)).map(|()| true),
        [directory, sockets @ ..] if !sockets.is_empty() => bench(Path::new(directory), sockets),
        _ => Err("usage: gpuslice-bench-init DIRECTORY-OF-THE-DRIVER SOCKET...".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("gpuslice-bench-init: {why}");
            ExitCode::FAILURE
        }
    }
}

/// One process of the batch.
fn one(gun: &Path) -> Result<(), Error> {
    let mut gun = File::open(gun)?;
    println!("waiting");
    // Nothing is ever written.
    gun.read_to_end(&mut Vec::new())?;
    let start = Instant::now();
    context()?;
    println!("{}", start.elapsed().as_nanos());
    Ok(())
}

/// A context on the first GPU, by way of `dlopen`.
fn context() -> Result<(), Error> {
    let ok = |call: &str, result: CUresult| match result {
        CUresult::SUCCESS => Ok(()),
        CUresult(code) => Err(format!("{call} answered {code}")),
    };
    // SAFETY: the driver's functions have the table's types; out-parameters are live locals.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        let find = |name: &str| {
            let name = CString::new(name).unwrap_or_default();
            let at = libc::dlsym(library, name.as_ptr());
            if at.is_null() { Err(format!("no {name:?}")) } else { Ok(at) }
        };
        let init: sig::cuInit = std::mem::transmute(find("cuInit")?);
        let create: sig::cuCtxCreate_v2 = std::mem::transmute(find("cuCtxCreate_v2")?);
        let mut context = CUcontext::NULL;
        ok("cuInit", init(0))?;
        ok("cuCtxCreate", create(&raw mut context, 0, 0))?;
    }
    Ok(())
}

/// How a process starts.
struct Place<'a> {
    directory: &'a Path,
    shim: PathBuf,
    sockets: &'a [&'a str],
}

impl Place<'_> {
    /// A command, bare or in the `index`th slice.
    fn command(&self, program: &Path, index: Option<usize>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.directory);
        if let Some(index) = index {
            command.env("LD_PRELOAD", &self.shim);
            command.env("GPUSLICE_DRIVER_DIR", self.directory);
            command.env("GPUSLICE_SOCKET", self.sockets[index % self.sockets.len()]);
        }
        command
    }

    /// Starts the batch, releases it, and returns the ns of each process.
    fn batch(&self, slices: bool) -> Result<Vec<f64>, Error> {
        let gun = std::env::temp_dir().join(format!("gpuslice-gun-{}", std::process::id()));
        let path = CString::new(gun.as_os_str().as_encoded_bytes())?;
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::mkfifo(path.as_ptr(), 0o600) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        // Before any process opens it, which would block without a writer. Opened for reading, too, it does not itself
        // wait for a reader. No process inherits it.
        let writer = File::options().read(true).write(true).open(&gun)?;
        let myself = std::env::current_exe()?;
        let start = |index: usize| {
            let mut command = self.command(&myself, slices.then_some(index));
            command.arg("one").arg(&gun).stdout(Stdio::piped());
            command.spawn()
        };
        let batch: Result<Vec<Child>, _> = (0..rounds(PROCESSES)).map(start).collect();
        let fired = fire(batch?, writer);
        std::fs::remove_file(&gun)?;
        fired
    }

    /// Starts `sh -c true` once; ns.
    fn shell(&self, index: Option<usize>) -> Result<f64, Error> {
        let start = Instant::now();
        let mut command = self.command(Path::new("/bin/sh"), index);
        let status = command.args(["-c", "true"]).status()?;
        let took = start.elapsed().as_nanos() as f64;
        match status.success() {
            true => Ok(took),
            false => Err(format!("sh: {status}").into()),
        }
    }
}

/// Ends the wait of all processes when the last one has opened the FIFO; ns of each.
fn fire(batch: Vec<Child>, writer: File) -> Result<Vec<f64>, Error> {
    let mut waiting = Vec::new();
    for mut child in batch {
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        waiting.push((child, output));
    }
    drop(writer);
    let mut times = Vec::new();
    for (mut child, mut output) in waiting {
        let mut line = String::new();
        output.read_line(&mut line)?;
        let status = child.wait()?;
        times.push(line.trim().parse().map_err(|_| format!("a process of the batch: {status}"))?);
    }
    Ok(times)
}

fn bench(directory: &Path, sockets: &[&str]) -> Result<bool, Error> {
    let myself = std::env::current_exe()?;
    let shim = myself.with_file_name("libgpuslice.so");
    let place = Place { directory, shim, sockets };
    let (mut batches, mut shells) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    // The shells first, while nothing else runs.
    for index in 0..rounds(SHELLS) {
        shells[0].push(place.shell(None)?);
        shells[1].push(place.shell(Some(index))?);
    }
    for slices in [false, true, true, false] {
        batches[usize::from(slices)].extend(place.batch(slices)?);
    }
    let pair = |name: &str, of: &mut [Vec<f64>; 2], share: f64, unit: f64| {
        let [bare, slice] = [0, 1].map(|at| quantile(&mut of[at], share) / unit);
        eprintln!(
            "{name:<28} bare {bare:>9.2}  in a slice {slice:>9.2}  added {:>8.2}",
            slice - bare
        );
        json!({ "what": name, "bare": bare, "slice": slice, "added": slice - bare })
    };
    let rows = [
        pair("300 at once, median, ms", &mut batches, 0.5, 1e6),
        pair("300 at once, p99, ms", &mut batches, 0.99, 1e6),
        pair("sh -c true, median, us", &mut shells, 0.5, 1e3),
    ];
    let met = rows[1]["added"].as_f64().is_some_and(|added| added <= ADDED_MS);
    let verdict = if met { "pass" } else { "fail" };
    eprintln!("promised: p99 of 300 at once, at most {ADDED_MS} ms added: {verdict}");
    println!(
        "{}",
        json!({ "bench": "init", "rows": rows, "target_ms": ADDED_MS, "verdict": verdict })
    );
    Ok(met)
}
