//! The daemon from outside: its protocols, its files, its lives.

mod admission;
mod again;
mod apart;
pub mod descriptors;
mod lives;
mod memory;
mod pages;
mod rules;
