//! The daemon from outside: its protocols, its files, its lives.

mod admission;
mod lives;
mod pages;
mod rules;
