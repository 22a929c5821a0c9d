//! The daemon from outside: its protocols, its files, its lives.

mod admission;
mod lives;
mod memory;
mod pages;
mod rules;
