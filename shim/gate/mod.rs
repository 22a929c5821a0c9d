//! The gate: every launch of the process passes it, and nearly always without noticing.
pub mod claim;
pub mod estimate;
#[cfg(test)]
mod fake;
pub mod marks;
mod os;
pub mod pass;
pub mod port;
#[cfg(test)]
mod tests;
mod thread;
pub mod turn;
pub mod window;
