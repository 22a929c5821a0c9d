//! The suites that run on a strict driver, and what of that profile each leaves out.
//!
//! A kind driver answers at once and the same every time, so it hides faults of programs that wait, measure or end.
//! `docs/simulated-gpu.md` has the properties. Suites that are not in the table judge figures of time or of memory to
//! the page, or never reach a driver; they have the kind one. `GPUSLICE_TEST_SIM` replaces the profile of any test:
//! `GPUSLICE_TEST_SIM=profile=strict,exit=1s cargo test --test it -- policy::`.

/// Suite, what replaces the profile's values, and why.
const STRICT: [(&str, &str, &str); 8] = [
    (
        "conformance",
        "exit=0ns,late=0ns,listed=always,context=64MiB,create=1ms,nvml=0ns..1ms",
        "on a bare device of 1 GiB, what has ended or is large leaves no room for the next case, and an NVML that is \
         late is not exact",
    ),
    (
        "conformance, late",
        "exit=0ns,late=5ms,context=64MiB,create=1ms,nvml=0ns..1ms",
        "cases of a device of 1 GiB, in a slice alone",
    ),
    (
        "memory",
        "context=64MiB,create=10ms,nvml=1ms..10ms,checkpoint=8GiB,restore=16GiB",
        "caps are small, processes are killed by the hundred, and gigabytes are suspended within a grace of seconds",
    ),
    (
        "memory::kills",
        "exit=0ns,context=64MiB,create=10ms,nvml=1ms..10ms",
        "a process that dies before its context was charged leaves it uncounted until the driver frees it",
    ),
    (
        "time::waits",
        "queues=0,context=64MiB,create=10ms",
        "streams that wait for each other need a hardware queue each, on a bare device as well",
    ),
    ("time::deadlocks", "context=64MiB,create=10ms", "many processes in a slice of 1 GiB"),
    (
        "time::loads",
        "switch=50us,slice=2ms,context=64MiB,create=10ms",
        "ratios of GPU time among programs that take turns at each wait",
    ),
    (
        "time::gang",
        "switch=50us,event=0ns,context=64MiB,create=10ms",
        "its rounds are counted, and cost a switch each",
    ),
];

/// The text of the simulated GPUs of a test in this suite.
///
/// # Panics
/// The suite is not in the table.
pub fn strict(gpus: &str, suite: &str) -> String {
    let row = STRICT.iter().find(|(name, ..)| *name == suite);
    let (_, less, _) = row.unwrap_or_else(|| panic!("{suite} is not in the table"));
    with(gpus, &format!("profile=strict,{less}"))
}

/// The text of the simulated GPUs of a test in any other suite.
pub fn simulated(gpus: &str) -> String {
    with(gpus, "profile=kind")
}

fn with(gpus: &str, profile: &str) -> String {
    let replaced = std::env::var("GPUSLICE_TEST_SIM").ok().filter(|text| !text.is_empty());
    format!("{gpus},{}", replaced.as_deref().unwrap_or(profile))
}

/// A row that no configuration can have would be found by its suite; one without a reason by nothing else.
#[test]
fn every_suite_of_the_table_has_a_machine_and_a_reason() {
    for (suite, _, why) in STRICT {
        let config = gpuslice_sim_device::Config::parse(&strict("mem=16GiB", suite));
        assert!(config.is_ok() && why.len() > 20, "{suite}: {config:?}");
    }
}
