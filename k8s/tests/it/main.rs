//! The agent's parts against a kubelet, an API server and a ledger, all in this process.

mod api;
mod bad_inputs;
mod containers;
mod daemon;
mod dra;
mod endurance;
mod engine;
mod extender;
mod kubelet;
mod ledger;
mod lists;
mod plugin;
mod ports;
mod pressure;
mod programs;
mod reference;
mod replicas;
mod webhook;
mod world;
