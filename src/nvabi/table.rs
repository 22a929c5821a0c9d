//! The table as data, for use by the shim, the simulator and the tests at run time.

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
    /// Whether it takes a stream, by value.
    pub takes_stream: bool,
}

/// Whether one of these arguments, as the table has them, is a stream and not a pointer to one.
const fn has_stream(arguments: &str) -> bool {
    const TYPE: &[u8] = b"CUstream";
    let text = arguments.as_bytes();
    let (mut at, mut before) = (0, b' ');
    while at + TYPE.len() <= text.len() {
        let mut same = 0;
        while same < TYPE.len() && text[at + same] == TYPE[same] {
            same += 1;
        }
        // Other types begin so too.
        let end = at + TYPE.len();
        let whole = end == text.len() || !text[end].is_ascii_alphanumeric();
        if same == TYPE.len() && whole && before == b':' {
            return true;
        }
        if !text[at].is_ascii_whitespace() {
            before = text[at];
        }
        at += 1;
    }
    false
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

/// Number of rows.
macro_rules! count {
    ($([$($columns:tt)*] $name:ident($($args:tt)*) $(-> $ret:ty)?;)*) => {
        [$(stringify!($name)),*].len()
    };
}

/// Writes rows into `$table` from index `$at` on.
macro_rules! fill {
    ($table:ident $at:ident
     $([$shim:ident, $sim:ident, $since:literal] $name:ident($($args:tt)*) $(-> $ret:ty)?;)*) => {
        $(
            $table[$at] = Function {
                name: stringify!($name),
                since: $since,
                shim: column!($shim),
                sim: column!($sim),
                takes_stream: has_stream(stringify!($($args)*)),
            };
            $at += 1;
        )*
    };
}

/// The element of an array that is not yet filled.
const NO_ROW: Function =
    Function { name: "", since: 0, shim: Shim::Pass, sim: Sim::NotSupported, takes_stream: false };

/// Number of driver functions: the length of an array with one element per row.
pub const DRIVER_COUNT: usize = {
    let mut rows = 0;
    macro_rules! add {
        ($($family:tt)*) => { rows += count!($($family)*); };
    }
    crate::for_each_driver_fn!(add);
    rows
};

/// Number of NVML functions.
pub const NVML_COUNT: usize = {
    let mut rows = 0;
    macro_rules! add {
        ($($family:tt)*) => { rows += count!($($family)*); };
    }
    crate::for_each_nvml_fn!(add);
    rows
};

/// Every driver function in the order of `for_each_driver_fn!`; a position here is the function's index.
pub static DRIVER: [Function; DRIVER_COUNT] = {
    let (mut table, mut at) = ([NO_ROW; DRIVER_COUNT], 0);
    macro_rules! add {
        ($($family:tt)*) => { fill!(table at $($family)*); };
    }
    crate::for_each_driver_fn!(add);
    assert!(at == DRIVER_COUNT);
    table
};

/// Every NVML function in the order of `for_each_nvml_fn!`.
pub static NVML: [Function; NVML_COUNT] = {
    let (mut table, mut at) = ([NO_ROW; NVML_COUNT], 0);
    macro_rules! add {
        ($($family:tt)*) => { fill!(table at $($family)*); };
    }
    crate::for_each_nvml_fn!(add);
    assert!(at == NVML_COUNT);
    table
};
