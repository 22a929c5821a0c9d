//! The intercepted driver functions, one Rust function per row marked `hook`, under its own name.
//!
//! Each has the signature of its row; otherwise the shim libraries and [`lookup`] would not
//! compile. It runs in [`crate::guard::guard`], and calls the real function of the same name exactly once
//! when it lets the call through. What several families need is in [`mod@crate::slice`].
#![allow(non_snake_case, missing_docs)] // the driver's names; NVIDIA documents them

/// Defines hooks: `guard name(arguments) as |call| body;`. `call` calls the real function with the hook's own
/// arguments, which are the application's; `guard` or `quick` is the function of [`crate::guard`] around the body.
macro_rules! hooks {
    ($(
        $(#[$doc:meta])*
        $guard:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) as |$call:ident| $body:expr;
    )*) => {$(
        $(#[$doc])*
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let $call = || $crate::real!($name($($arg),*));
            $crate::guard::$guard(|| $body)
        }
    )*};
}

mod array;
mod capture;
mod context;
mod external;
mod graph;
mod host;
mod init;
mod ipc;
mod launch;
mod limits;
pub mod lookup;
mod memory;
mod moving;
mod multicast;
mod physical;
mod pool;
mod query;
mod shared;
mod sharing;
mod sparse;
mod wait;

pub use array::*;
pub use capture::*;
pub use context::*;
pub use external::*;
pub use graph::*;
pub use host::*;
pub use init::*;
pub use ipc::*;
pub use launch::*;
pub use limits::*;
pub use memory::*;
pub use moving::*;
pub use multicast::*;
pub use physical::*;
pub use pool::*;
pub use query::*;
pub use sharing::*;
pub use sparse::*;
pub use wait::*;
