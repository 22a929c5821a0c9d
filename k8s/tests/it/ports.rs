//! Ports for servers under test, which no concurrent test gets meanwhile.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use tokio::net::TcpSocket;

/// A listener for a server in this process, for `tokio::net::TcpListener::from_std`.
pub fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// A port for a program that listens by itself, until dropped.
///
/// Its socket is bound and does not listen. So the kernel gives the port to no other socket that binds port 0 or
/// connects. A program that is told the address can listen there, since both sockets have `SO_REUSEADDR`.
pub struct Port {
    pub address: SocketAddr,
    _bound: TcpSocket,
}

impl Port {
    pub fn reserve() -> Port {
        let bound = TcpSocket::new_v4().expect("a socket");
        bound.set_reuseaddr(true).expect("an option");
        bound.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        Port { address: bound.local_addr().expect("bound"), _bound: bound }
    }
}
