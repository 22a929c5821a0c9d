//! The API server: the objects that this crate reads, and the ways to them.
//!
//! An object's text has hundreds of fields and grows with every release; the structures here name the ones that
//! decide something. Unknown fields are ignored, missing ones have their empty value.

pub mod client;
pub mod event;
pub mod kubectl;
pub mod objects;
pub mod pages;
pub mod quantity;
pub mod store;
