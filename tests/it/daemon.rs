//! The daemon from outside: its protocols, its files, its lives.

mod admission;
pub mod descriptors;
mod lives;
mod memory;
mod pages;
mod rules;
