//! The daemon from outside: its protocols, its files, its lives.

mod admission;
mod again;
mod apart;
mod connects;
pub mod descriptors;
mod kills;
mod lives;
mod memory;
pub mod old_kernel;
mod pages;
pub mod privileges;
mod requests;
mod rings;
mod rules;
mod unread_log;
mod usage;

use crate::harness::wire::TenantClient;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::Bytes;

/// Whether a reservation was granted.
fn granted(reply: &Reply) -> bool {
    match reply {
        Reply::Reserved { .. } => true,
        Reply::Refused { .. } => false,
        other => panic!("{other:?}"),
    }
}

/// What a process that attaches is told.
fn answer(tenant: &TenantClient, holds: u64) -> Reply {
    tenant.ask_to_attach(Bytes(holds));
    tenant.0.message().expect("an answer").1
}
