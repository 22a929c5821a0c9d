//! The command line: paths and modes. All other settings are in the configuration file.

use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;

/// A format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The daemon that gives containers slices of this node's GPUs
#[derive(Debug, Parser)]
#[command(name = "gpusliced", version, disable_help_subcommand = true)]
pub struct CommandLine {
    /// Configuration file [default: /etc/gpuslice/gpusliced.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check FILE, print `ok` or the line and the error, and exit
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub check: Option<PathBuf>,

    /// Write the manual pages into DIR and exit
    #[arg(long, value_name = "DIR", exclusive = true, hide = true)]
    pub manual: Option<PathBuf>,

    /// Directory of the sockets and records [default: /run/gpuslice as root, else $XDG_RUNTIME_DIR/gpuslice or
    /// /tmp/gpuslice-UID]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// Directory with the libcuda.so.1 and libnvidia-ml.so.1 to use [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub driver_dir: Option<PathBuf>,

    /// Print the GPUs of this libcuda.so.1, or of this libnvidia-ml.so.1 unless that is empty, and exit; used by the
    /// daemon itself
    #[arg(long, num_args = 2, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub list_gpus: Option<Vec<OsString>>,

    /// Make the simulated device of this libcuda.so.1, print its directory and exit; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub prepare_simulated: Option<PathBuf>,

    /// Answer questions from standard input with this NVML; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub ask_nvml: Option<PathBuf>,

    /// Write events of the GPUs of this NVML to standard output; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub watch_nvml: Option<PathBuf>,

    /// Stop and resume work on GPUs as asked on standard input, with the controls of this simulated driver or, if it is
    /// empty, of the machine's; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub stop_work: Option<OsString>,

    /// Move the GPU memory of processes to the host or back as asked on standard input, with this libcuda.so.1; used by
    /// the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub move_memory: Option<PathBuf>,

    /// Close the sockets received on standard input; used by the daemon itself
    #[arg(long, exclusive = true, hide = true)]
    pub close_sockets: bool,

    /// Examine the node, print JSON and exit; used by gpuslice doctor
    #[arg(long, hide = true)]
    pub examine: bool,

    /// End all slices and remove all files at the end; without it, slices outlive the daemon
    #[arg(long)]
    pub ephemeral: bool,

    /// Exit with the last client of the admin socket, and end each slice with the client that asked for it;
    /// for a daemon shared by several `gpuslice run`
    #[arg(long, requires = "ephemeral", hide = true)]
    pub while_used: bool,

    /// With --ephemeral, also remove this directory at the end, once its `runtime` holds no state of an OCI
    /// runtime's container; cleans up after a killed private daemon
    #[arg(long, value_name = "DIR", requires = "ephemeral", hide = true)]
    pub remove: Vec<PathBuf>,

    /// Format of the log: text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Log what containers and processes do, not only errors
    #[arg(long, short)]
    pub verbose: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The daemon starts itself so where the driver is the machine's own.
    #[test]
    fn the_worker_that_stops_work_may_be_given_no_library() {
        let parsed = CommandLine::try_parse_from(["gpusliced", "--stop-work", ""]);
        assert_eq!(parsed.expect("understood").stop_work, Some(OsString::new()));
    }
}
