//! Real processes on a simulated GPU: every test starts its own daemon in its own directories.

mod containers;
mod daemon;
mod harness;
