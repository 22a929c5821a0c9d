//! The table as data, for use by the shim, the simulator and the tests at run time.

use crate::{driver, nvml};

/// How the shim handles a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shim {
    /// It inspects the call before or after the driver.
    Hook,
    /// It passes the call to the driver unchanged.
    Pass,
}

/// How the simulated driver handles a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sim {
    /// It implements the function.
    Implemented,
    /// It exports the symbol and returns "not supported".
    NotSupported,
}

/// One exported function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The exported symbol, version and stream suffixes included.
    pub name: &'static str,
    /// The CUDA version that introduced this form; for NVML the oldest of the compared headers that has it.
    pub since: u32,
    pub shim: Shim,
    pub sim: Sim,
}

/// Reads columns 1 and 2 of a row.
macro_rules! column {
    (hook) => {
        Shim::Hook
    };
    (pass) => {
        Shim::Pass
    };
    (sim) => {
        Sim::Implemented
    };
    (none) => {
        Sim::NotSupported
    };
}
pub(crate) use column;

/// Every driver function, one slice per family, in the order of `for_each_driver_fn!`.
pub const DRIVER: &[&[Function]] = driver::FAMILIES;

/// Every NVML function, one slice per family, in the order of `for_each_nvml_fn!`.
pub const NVML: &[&[Function]] = nvml::FAMILIES;

/// Number of driver functions: the length of an array with one element per row.
pub const DRIVER_COUNT: usize = count(DRIVER);

/// Number of NVML functions.
pub const NVML_COUNT: usize = count(NVML);

/// Every driver function in flat order; a position here is the function's index.
pub static DRIVER_FLAT: [Function; DRIVER_COUNT] = flatten(DRIVER);

/// Every NVML function in flat order.
pub static NVML_FLAT: [Function; NVML_COUNT] = flatten(NVML);

const fn count(families: &[&[Function]]) -> usize {
    let mut total = 0;
    let mut family = 0;
    while family < families.len() {
        total += families[family].len();
        family += 1;
    }
    total
}

const fn flatten<const N: usize>(families: &[&[Function]]) -> [Function; N] {
    let mut flat = [families[0][0]; N];
    let mut at = 0;
    let mut family = 0;
    while family < families.len() {
        let mut row = 0;
        while row < families[family].len() {
            flat[at] = families[family][row];
            at += 1;
            row += 1;
        }
        family += 1;
    }
    assert!(at == N);
    flat
}
