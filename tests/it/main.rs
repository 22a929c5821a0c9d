//! Real processes on a simulated GPU: every test starts its own daemon in its own directories.

mod coexistence;
mod command;
mod conformance;
mod containers;
mod daemon;
mod debian;
mod demo;
mod device;
mod docs;
mod harness;
mod hostile;
mod injection;
mod memory;
mod metrics;
mod node;
mod policy;
mod setup;
mod simulated;
mod systemd;
mod time;
