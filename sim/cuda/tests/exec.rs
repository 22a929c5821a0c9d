//! Streams, events, launches, graphs and pools from outside, as a program sees them. Every test is
//! a process with a device of its own (see [`harness::isolated`]).

#![allow(non_snake_case)]

#[path = "driver/harness.rs"]
#[macro_use]
#[allow(dead_code)]
mod harness;

#[path = "exec/common.rs"]
mod common;

#[path = "exec/captures.rs"]
mod captures;
#[path = "exec/faults.rs"]
mod faults;
#[path = "exec/graph_memory.rs"]
mod graph_memory;
#[path = "exec/graphs.rs"]
mod graphs;
#[path = "exec/launches.rs"]
mod launches;
#[path = "exec/memops.rs"]
mod memops;
#[path = "exec/modules.rs"]
mod modules;
#[path = "exec/pools.rs"]
mod pools;
#[path = "exec/streams.rs"]
mod streams;
#[path = "exec/strict.rs"]
mod strict;
