//! gRPC over Unix sockets, as the kubelet speaks it in both directions.
//!
//! The kubelet's interfaces have a dozen methods in all, so their messages are structures here and a service is one
//! `match` over the names of its methods. Nothing is generated at build time.
//!
//! A kubelet may dial with the socket's path as `:authority`, `/` escaped as `%2F`. HTTP permits `%` only before an
//! `@`, and the server closes a stream with any other. So every socket's file name has an `@`: see [`socket_name`].

mod client;
mod server;

pub use client::{ask, connect, open_stream};
pub use server::{
    Answer, Listener, Methods, Service, identity, listen, server_stream, unary, unknown,
};

/// The file name of a socket that a kubelet dials, with the `@` that makes each of its authorities valid.
#[must_use]
pub fn socket_name(name: &str) -> String {
    format!("{name}@gpuslice.sock")
}

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}
