//! What both injection methods promise, one function per promise, a file per kind of it; [`conformance`] lists
//! them and makes tests of them.

mod context;
mod cost;
mod external;
mod gate;
mod graphs;
mod ipc;
mod link;
mod memory;
mod names;
mod physical;
mod pools;
mod recall;

pub use context::*;
pub use cost::*;
pub use external::*;
pub use gate::*;
pub use graphs::*;
pub use ipc::*;
pub use link::*;
pub use memory::*;
pub use names::*;
pub use physical::*;
pub use pools::*;
pub use recall::*;

use super::{Injection, Slice};

const MIB: u64 = 1 << 20;
const CAP: u64 = 256 * MIB;

/// Makes a test of every case for one injection method.
#[macro_export]
macro_rules! conformance {
    ($injection:expr) => {
        conformance! { $injection;
            // context.rs
            the_end_of_a_context_releases_its_memory a_context_that_is_not_destroyed_keeps_its_memory
            lanes_are_identified_by_uuid a_gpu_outside_the_slice_is_unavailable
            // external.rs
            external_memory_is_charged_until_its_last_mapping_is_freed
            an_import_of_own_memory_is_charged_once
            // ipc.rs
            memory_of_the_own_container_is_charged_once
            memory_of_another_container_is_refused
            memory_of_another_container_may_be_charged
            exports_and_imports_are_counted
            shared_handles_are_reported_to_a_restarted_daemon
            // cost.rs
            a_context_is_charged_its_measured_cost a_context_is_claimed_before_it_is_charged
            a_context_that_seems_to_cost_nothing_is_measured_again
            a_context_that_cannot_be_measured_is_charged_the_smallest_cost
            a_primary_context_is_charged_once
            a_context_that_does_not_fit_is_not_created
            a_first_context_of_known_cost_is_refused_in_advance
            a_first_context_is_created_once_there_is_room
            a_raised_limit_is_charged a_limit_that_does_not_fit_is_reset
            a_smaller_stack_releases_what_the_driver_gives_back
            pinned_memory_has_an_account_of_its_own pinned_memory_is_refused_above_its_cap_alone
            managed_memory_is_claimed_as_unseen what_memory_is_used_for_is_claimed
            // gate.rs
            every_call_that_puts_work_on_the_gpu_is_gated calls_that_only_order_or_wait_are_not_gated
            a_graph_is_gated_as_one_launch work_waits_for_its_turn
            // link.rs
            a_restarted_daemon_recovers_its_ledger a_process_that_only_holds_memory_reattaches_too
            an_older_daemon_refuses_a_newer_process growth_waits_for_a_daemon_of_its_version
            growth_waits_for_an_absent_daemon a_cancelled_thread_ends_after_its_call
            a_thread_cancelled_at_the_gate_ends_after_its_launch a_forked_child_has_a_slice_of_its_own
            closed_descriptors_are_recreated reused_descriptor_numbers_belong_to_the_program without_a_daemon_initialisation_fails
            a_lost_connection_is_noticed_without_a_request
            // memory.rs
            the_cap_is_exact most_allocations_need_no_request
            small_allocations_are_charged_the_driver_s_granularity a_failed_allocation_is_not_charged
            unusual_sizes_return_the_driver_s_errors unknown_pointers_are_passed_to_the_driver
            memory_queries_show_the_slice internal_calls_of_the_driver_are_charged_once
            every_allocation_function_is_charged racing_processes_never_exceed_the_cap
            // names.rs
            names_resolve_to_hooks_by_version_and_stream_variant other_functions_pass_through
            usual_detours_do_not_bypass_the_hooks
            // physical.rs
            physical_memory_is_charged_while_referenced unmatched_releases_change_no_charge
            the_host_s_memory_has_a_cap_of_its_own memory_is_charged_to_the_gpu_it_is_on
            an_open_descriptor_holds_memory imports_are_not_charged
            a_tile_of_a_sparse_array_holds_memory a_multicast_object_holds_bound_memory
            arrays_are_charged_the_driver_s_size
            // graphs.rs
            graph_memory_is_charged_at_launch
            a_graph_that_does_not_fit_does_not_run graph_memory_is_trimmed_when_short
            // pools.rs
            a_pool_is_charged_its_reserved_memory growth_that_does_not_fit_is_rolled_back
            a_destroyed_pool_is_charged_until_its_last_allocation
            unused_pool_memory_is_reclaimed_when_short a_pool_on_the_host_has_the_host_s_account
            // recall.rs
            unused_credit_of_a_sibling_is_available two_churning_processes_share_the_cap
            idle_credit_is_returned idle_credit_of_a_forked_child_is_returned
            before_initialisation_the_driver_answers
        }
    };
    ($injection:expr; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            suite::cases::$case($injection);
        }
    )*};
}

fn slice(injection: Injection) -> Slice {
    Slice::new(injection, &[CAP])
}

/// Lines of `run` after those of `init` and `ctx`, which must succeed.
fn steps(slice: &Slice, steps: &[&str]) -> Vec<String> {
    let all = [&["init", "ctx:0"], steps].concat();
    let mut lines = slice.run(&all);
    assert_eq!(lines[..2], ["init 0 0 0", "ctx 0 0 0"]);
    lines.split_off(2)
}
