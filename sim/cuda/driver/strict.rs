//! What a strict driver does to its callers: it blocks them, for times that are drawn (`sim/device/properties.rs`).

use super::process;
use gpuslice_sim_device::properties::{Properties, Span};
use gpuslice_sim_device::{now_ns, sleep_until_ns};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The properties of the machine; a kind one's before `cuInit`.
pub fn properties() -> Properties {
    process().map_or_else(|_| Properties::default(), |process| *process.machine.properties())
}

/// The next of the process's drawn times.
pub fn draw(span: Span) -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    if span.is_fixed() {
        return span.least_ns;
    }
    span.draw(properties().seed, DRAWN.fetch_add(1, Ordering::Relaxed))
}

/// Blocks the calling thread for a drawn time.
pub fn block(span: Span) {
    if span.is_zero() {
        return;
    }
    let until = now_ns() + draw(span);
    // A signal ends a sleep early.
    while now_ns() < until {
        sleep_until_ns(until);
    }
}

/// How long the loading of a function takes, where functions are loaded when they are first launched.
pub fn lazy() -> Option<Span> {
    static EAGER: LazyLock<bool> =
        LazyLock::new(|| std::env::var("CUDA_MODULE_LOADING").is_ok_and(|how| how == "EAGER"));
    Some(properties().lazy).filter(|span| !span.is_zero() && !*EAGER)
}

/// The number of hardware queues of a context; 0 where each stream has its own.
pub fn queues() -> u32 {
    match properties().queues {
        0 => 0,
        number => asked_queues(std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok()).unwrap_or(number),
    }
}

fn asked_queues(text: Option<String>) -> Option<u32> {
    text?.parse().ok().filter(|number| (1..=32).contains(number))
}

#[cfg(test)]
mod tests {
    use super::asked_queues;

    #[test]
    fn a_program_may_ask_for_1_to_32_queues() {
        let asked = |text: &str| asked_queues(Some(text.into()));
        assert_eq!((asked("1"), asked("32")), (Some(1), Some(32)));
        assert_eq!((asked("0"), asked("33"), asked("many")), (None, None, None));
        assert_eq!(asked_queues(None), None);
    }
}
