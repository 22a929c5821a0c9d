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
            a_context_takes_its_memory_with_it a_context_that_is_not_destroyed_keeps_its_memory
            lanes_go_by_uuid a_gpu_outside_the_slice_gives_nothing
            // external.rs
            external_memory_is_charged_until_nothing_in_it_is_left
            what_was_exported_here_is_charged_once
            // ipc.rs
            memory_of_the_own_container_is_charged_once
            memory_of_another_container_is_out_of_reach
            memory_of_another_container_may_be_charged
            a_daemon_that_comes_back_is_told_of_shared_memory
            // cost.rs
            a_context_is_charged_what_it_took a_primary_context_is_charged_once
            a_context_that_does_not_fit_is_not_made
            a_first_context_is_refused_beforehand_where_its_price_is_known
            a_raised_limit_is_charged a_limit_that_took_more_than_fits_is_put_back
            pinned_memory_has_an_account_of_its_own pinned_memory_is_refused_over_its_cap_only
            managed_memory_is_claimed_as_unseen
            // gate.rs
            whatever_puts_work_on_the_gpu_is_gated what_only_orders_or_waits_is_not_gated
            work_waits_for_its_turn
            // link.rs
            a_daemon_that_comes_back_finds_its_books a_process_that_only_holds_memory_comes_back_too
            growth_waits_for_an_absent_daemon a_cancelled_thread_ends_after_its_call
            a_thread_cancelled_at_the_gate_ends_after_its_launch a_forked_child_has_a_slice_of_its_own
            closed_descriptors_are_made_anew reused_descriptor_numbers_are_the_programs no_daemon_is_no_permission
            a_lost_connection_is_found_out_without_a_question
            // memory.rs
            the_cap_is_exact most_allocations_ask_nobody
            small_requests_cost_what_the_driver_hands_out a_failed_allocation_is_given_back
            strange_sizes_get_the_drivers_answers strange_pointers_are_the_drivers_business
            memory_looks_like_the_slice a_driver_that_calls_itself_is_charged_once
            every_way_to_memory_is_charged processes_that_race_never_pass_the_cap
            // names.rs
            names_lead_to_hooks_by_version_and_flavour other_functions_pass_through
            usual_detours_are_no_way_around
            // physical.rs
            physical_memory_is_charged_while_referenced strange_releases_leave_the_books_alone
            the_host_s_memory_has_a_cap_of_its_own memory_is_charged_to_the_gpu_it_is_on
            an_open_descriptor_holds_memory imports_cost_nothing_and_disturb_nothing
            a_tile_of_an_array_holds_memory a_multicast_object_holds_what_is_bound
            arrays_cost_what_the_driver_says
            // graphs.rs
            memory_of_graphs_is_charged_when_they_run
            a_graph_that_does_not_fit_does_not_run graph_memory_is_trimmed_when_short
            // pools.rs
            a_pool_is_charged_by_what_it_has growth_that_does_not_fit_is_undone
            a_destroyed_pool_is_charged_until_its_last_allocation
            slack_of_pools_is_given_up_when_short a_pool_on_the_host_has_the_host_s_account
            // recall.rs
            what_a_sibling_does_not_use_can_be_had two_that_churn_leave_each_other_room
            idle_credit_goes_home before_the_beginning_the_driver_answers
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
