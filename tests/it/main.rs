//! Real processes on a simulated GPU: every test starts its own daemon in its own directories.

mod command;
mod conformance;
mod containers;
mod daemon;
mod demo;
mod device;
mod harness;
mod hostile;
mod injection;
mod manners;
mod node;
mod policy;
mod races;
mod setup;
mod simulated;
mod systemd;
mod time;
