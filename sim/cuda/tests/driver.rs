//! The driver from outside, as a program sees it: loaded by file name, called by symbol.
//!
//! The driver's state is one per process, so every test is a process of its own with a device of
//! its own: the test starts this program again for itself alone (see [`harness::isolated`]).

#![allow(non_snake_case)]

#[path = "driver/harness.rs"]
#[macro_use]
mod harness;

#[path = "driver/arrays.rs"]
mod arrays;
#[path = "driver/checkpoints.rs"]
mod checkpoints;
#[path = "driver/contexts.rs"]
mod contexts;
#[path = "driver/copies.rs"]
mod copies;
#[path = "driver/devices.rs"]
mod devices;
#[path = "driver/groups.rs"]
mod groups;
#[path = "driver/memory.rs"]
mod memory;
#[path = "driver/processes.rs"]
mod processes;
#[path = "driver/unseen.rs"]
mod unseen;
#[path = "driver/virtual_memory.rs"]
mod virtual_memory;
