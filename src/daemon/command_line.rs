//! The command line: where things are. Everything else is in the configuration file.

use clap::Parser;
use std::path::PathBuf;

/// The daemon that gives containers slices of this node's GPUs
#[derive(Debug, Parser)]
#[command(name = "gpusliced", version, disable_help_subcommand = true)]
pub struct CommandLine {
    /// Configuration file [default: /etc/gpuslice/gpusliced.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Read FILE, say `ok` or what is wrong on which line, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub check: Option<PathBuf>,

    /// Directory of the sockets and records [default: /run/gpuslice as root, else $XDG_RUNTIME_DIR/gpuslice or /tmp/gpuslice-UID]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// Directory with the libcuda.so.1 and libnvidia-ml.so.1 to use [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub driver_dir: Option<PathBuf>,

    /// Ask this libcuda.so.1 for its GPUs, print them and end; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub probe_cuda: Option<PathBuf>,

    /// Ask this NVML what is asked on standard input; used by the daemon itself
    #[arg(long, value_name = "LIBRARY", exclusive = true, hide = true)]
    pub ask_nvml: Option<PathBuf>,

    /// Close the sockets that are received on standard input; used by the daemon itself
    #[arg(long, exclusive = true, hide = true)]
    pub close_sockets: bool,

    /// Print what this node has and has not, as JSON, and end; used by gpuslice doctor
    #[arg(long, hide = true)]
    pub examine: bool,

    /// Leave nothing behind at the end: all slices end with the daemon (without it, they outlive it)
    #[arg(long)]
    pub ephemeral: bool,

    /// End with the last client of the admin socket, and each slice with the client that asked for it: a
    /// daemon that several `gpuslice run` share
    #[arg(long, requires = "ephemeral", hide = true)]
    pub while_used: bool,

    /// Remove this directory too at the end, with --ephemeral, once no container of an OCI runtime
    /// has its state in its `runtime`: what a private daemon's maker leaves behind when killed
    #[arg(long, value_name = "DIR", requires = "ephemeral", hide = true)]
    pub remove: Vec<PathBuf>,

    /// Log what containers and processes do, not only what goes wrong
    #[arg(long, short)]
    pub verbose: bool,
}
