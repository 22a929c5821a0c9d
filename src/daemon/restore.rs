//! Restores slices from the records of an earlier daemon, with the grants of the processes that still run.

use crate::executor::Duties;
use crate::replies::{EARLIER, NO_REPLY};
use crate::suspend::{Mark, read_mark};
use gpuslice_engine::{Action, Engine, Event, Grant, Record, Token};
use gpuslice_host::clock::now;
use gpuslice_host::process::pidfd_of;
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::units::Bytes;

/// Restores a slice from its record, or logs why not; the record is kept in both cases. A slice that cannot be opened
/// is restored all the same, and opened later.
pub fn restore(engine: &mut Engine, duties: &mut Duties, record: &Record) {
    let container = record.container;
    let mut actions = Vec::new();
    engine.step(now(), Event::Restore(record.clone().into()), &mut actions);
    for action in actions {
        match &action {
            Action::Restored { .. } => {
                if let Err(why) = duties.reopen(record) {
                    duties.containers.open_later(record, &why);
                }
            }
            Action::NotRestored { why, .. } => {
                tracing::error!(%container, %why, "slice not restored; its record is kept, delete it with gpuslice rm {container}");
            }
            _ => {}
        }
        let taken = matches!(action, Action::Restored { .. });
        duties.perform(engine, action);
        if taken {
            take_up_grants(engine, duties, record);
            let dir = duties.containers.state().container_dir(&container);
            if let Some(Mark { reclaimed, moved }) = read_mark(&dir) {
                tracing::info!(%container, moved, "it was suspended before the restart, and stays so");
                let token = if reclaimed { Token::NONE } else { EARLIER };
                step_now(engine, duties, Event::WasSuspended { container, token, moved });
            }
            let nvml = &mut duties.accounting;
            duties.cgroup_limits.restore(nvml, record);
        }
    }
}

/// Charges the recorded grants of a restored slice to the processes that still run.
fn take_up_grants(engine: &mut Engine, duties: &mut Duties, record: &Record) {
    let container = record.container;
    let found = duties.containers.recorded_grants(record);
    let why = found.as_ref().err().cloned();
    let (mut complete, grants) = found.unwrap_or_default();
    let mut taken = Vec::new();
    for grant in grants {
        match take_up(engine, duties, &container, &grant) {
            Ok(client) => taken.extend(client.map(|client| (client, grant))),
            Err(why) => {
                tracing::warn!(%container, why, "the grants of a process are unknown");
                complete = false;
            }
        }
    }
    if complete {
        step_now(engine, duties, Event::Complete { container });
    } else {
        let why = why.as_deref().unwrap_or("the record is incomplete");
        tracing::warn!(%container, why, "the grants of its processes are not all known: growth waits until they have reconnected and reported their memory");
    }
    duties.containers.continue_grants(&container, complete, taken);
    let untracked = duties.containers.recorded_untracked(&container);
    duties.accounting.expect_unattributed(container, untracked.len());
    step_now(engine, duties, Event::RestoreUntracked { container, untracked });
}

/// Restores one client; `None` if its process has exited, which freed its memory.
fn take_up(
    engine: &mut Engine,
    duties: &mut Duties,
    container: &ContainerId,
    grant: &Grant,
) -> Result<Option<ClientId>, String> {
    let process = grant.process.ok_or("its pid in this namespace is unknown")?;
    let pidfd = pidfd_of(process.pid, process.born)
        .map_err(|why| format!("process {}: {why}", process.pid))?;
    let Some(pidfd) = pidfd else {
        return Ok(None);
    };
    let restored = Event::RestoreProcess {
        token: NO_REPLY,
        container: *container,
        process,
        granted: grant.granted,
    };
    let client = step_now(engine, duties, restored).ok_or("there are too many processes")?;
    let page = duties.containers.page(container);
    let slot = page.and_then(|page| page.usage.slot(&grant.granted));
    let clients = &mut duties.clients;
    if let Err(why) = clients.wait_for(*container, client, (process, pidfd), slot) {
        step_now(engine, duties, Event::Gone { client });
        return Err(why.to_owned());
    }
    let held = grant.granted.iter().fold(0, |sum: u64, it: &Bytes| sum.saturating_add(it.0));
    tracing::info!(%container, pid = process.pid, held = %Bytes(held), "a process from before the restart holds memory");
    Ok(Some(client))
}

/// Passes an event to the engine and executes the actions; returns the client created, if any.
fn step_now(engine: &mut Engine, duties: &mut Duties, event: Event) -> Option<ClientId> {
    let mut actions = Vec::new();
    engine.step(now(), event, &mut actions);
    let mut known = None;
    for action in actions {
        if let Action::ProcessRestored { client, .. } = action {
            known = Some(client);
        }
        duties.perform(engine, action);
    }
    known
}
