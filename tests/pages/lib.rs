//! The words shared by a process and the daemon, under every order that a weak memory model allows.
//!
//! `gpuslice_wire::page` says how a turn is closed: the daemon changes a word and then reads the claims,
//! a process writes its claim and then reads the word. Whether that excludes each other is not a
//! question of interleavings alone, which `shim/launch/claim/model.rs` tries with the shim's own steps:
//! each side may read *before* its own write has reached the other. Here the same protocol runs on loom's
//! atomics, which show every value that the memory model allows, with two launching threads, the gate
//! thread and the daemon.
//!
//! loom takes a sequentially consistent access for an acquiring or releasing one, so the order that the
//! pages have from such accesses is a fence here. Without it the model must break: that is tested too.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
mod model;
