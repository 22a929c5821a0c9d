//! Executes the engine's actions: files, pages, packets.

use crate::daemon::{Daemon, Task};
use crate::lingering::ClientHolder;
use crate::slab::Key;
use gpuslice_engine::{Action, CapChange, Cut, Event, Late, Record, Token};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk};
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Duration;
use std::io;

/// The token of events that need no answer. Keys' generations start at 1.
pub const NO_REPLY: Token = Token(0);

/// A connection as a token.
pub fn token_of(key: Key) -> Token {
    Token(u64::from(key.generation) << 16 | u64::from(key.slot))
}

/// A token's connection.
pub fn key_of(token: Token) -> Key {
    Key {
        slot: token.0 as u16,
        generation: (token.0 >> 16) as u32,
    }
}

impl Daemon {
    /// Executes one action.
    pub fn perform(&mut self, action: Action) {
        match action {
            Action::SetLane {
                container,
                lane,
                view,
            } => {
                if let Some(slice) = self.slices.of(&container) {
                    // Update the GPU gates first; they take effect without waking a thread.
                    for key in &slice.tenants {
                        self.set_gate(*key, lane, view.gate_open);
                    }
                    slice.page.set_lane(lane, &view);
                }
            }
            Action::ReadClaims { container, lane } => self.read_lane(&container, lane),
            Action::Stop { container, lane } => self.stop_work(container, lane),
            Action::Resume { container, lane } => self.resume_work(container, lane),
            Action::Reserved {
                client,
                token,
                lane,
                bytes,
            } => {
                self.note_grant(client);
                let reply = Reply::Reserved { lane, bytes };
                self.reply_to(client, RequestId(token.0), &reply);
            }
            Action::Refused {
                client,
                token,
                lane,
                need,
                left,
            } => {
                let reply = Reply::Refused { lane, need, left };
                self.reply_to(client, RequestId(token.0), &reply);
            }
            other => self.perform_rare(other),
        }
    }

    /// Executes the actions of starts and ends.
    fn perform_rare(&mut self, action: Action) {
        match action {
            Action::Attached {
                token,
                client,
                container,
                lanes,
            } => {
                self.attached(key_of(token), client, &container, lanes);
            }
            Action::Rejected { token, why } => self.reject(key_of(token), why),
            Action::Disconnect { client, why } => match (self.holder_of(client), why) {
                (Some(ClientHolder::Connected(key)), Cut::Broke(rule)) => self.reject(key, rule),
                (Some(ClientHolder::Connected(key)), _) => drop(self.remove_tenant(key)),
                (Some(ClientHolder::Lingering(key)), _) => _ = self.forget_lingering(key),
                (None, _) => {}
            },
            Action::Admitted { token, record } => self.admitted(token, &record),
            Action::Denied { token, why } => {
                let mut text = why.to_string();
                if self.paths.driver.is_simulated() {
                    text.push_str(" (this node's GPUs are simulated)");
                }
                self.deny(key_of(token), why.denial(), &text);
            }
            Action::Dismissed {
                token,
                container,
                known,
            } => {
                self.dismissed(token, &container, known);
            }
            Action::Late {
                container,
                lane,
                stage,
                after,
            } => {
                log_late(&container, lane, stage, after);
            }
            Action::Resized {
                token,
                record,
                change,
            } => self.resized(token, &record, &change),
            Action::PolicySet { token, policy, was } => self.policy_set(token, policy, &was),
            Action::Retuned { token, record, was } => self.retuned(token, &record, &was),
            // `restore` has the record and executes the first two; the others are executed above.
            Action::Restored { .. }
            | Action::NotRestored { .. }
            | Action::SetLane { .. }
            | Action::ReadClaims { .. }
            | Action::Stop { .. }
            | Action::Resume { .. }
            | Action::ProcessRestored { .. }
            | Action::Reserved { .. }
            | Action::Refused { .. } => {}
        }
    }

    fn read_lane(&mut self, container: &ContainerId, lane: Lane) {
        if let Some(slice) = self.slices.of(container) {
            self.tasks
                .extend(slice.tenants.iter().map(|key| Task::ReadClaims(*key, lane)));
        }
    }

    fn open_slice(&mut self, record: &Record) -> io::Result<()> {
        if self.slices.len() == 0 {
            self.beat(now()); // the first slice: heartbeats start again
            self.schedule_first_sample();
        }
        let with = (&self.poll, &self.closer);
        self.slices
            .open(&self.state, with, self.page_settings, now(), record)
    }

    fn admitted(&mut self, token: Token, record: &Record) {
        let admin = self.admins.get_mut(key_of(token));
        let members = admin.map(|admin| std::mem::take(&mut admin.members));
        let done = self
            .state
            .keep(record, &members.unwrap_or_default())
            .and_then(|()| self.open_slice(record))
            .and_then(|()| self.begin_grants(record))
            .and_then(|()| self.watch_first_process(token, record));
        let container = record.container;
        if let Err(why) = done {
            let dir = self.state.container_dir(&container);
            let text = format!(
                "{}: {why}; free disk space or raise the limit there, then start the container again",
                dir.display()
            );
            tracing::error!(%container, "{text}");
            self.deny(key_of(token), Denial::Host, &text);
            self.tasks.push_back(Task::Step(Event::Dismiss {
                token: NO_REPLY,
                container,
            }));
            return;
        }
        tracing::info!(%container, name = %record.name, gpus = record.lanes.len(), "slice given");
        self.limit_new_slice(token, record);
    }

    /// Writes the record again before the answer. If that fails, the ledger returns to the old cap, which is
    /// the one on disk; that change is not answered.
    fn resized(&mut self, token: Token, record: &Record, change: &CapChange) {
        let container = record.container;
        let kept = match token {
            NO_REPLY => Ok(()),
            _ => self.state.rewrite(record),
        };
        if let Err(why) = kept {
            let dir = self.state.container_dir(&container);
            let text = format!(
                "{}: {why}; the cap is unchanged, free disk space there",
                dir.display()
            );
            tracing::error!(%container, "{text}");
            self.tasks.push_front(Task::Step(Event::Resize {
                token: NO_REPLY,
                container,
                lane: change.lane,
                memory: MemoryAsk::Exactly(change.was),
            }));
            return self.deny(key_of(token), Denial::Host, &text);
        }
        self.note_caps(record);
        let CapChange { cap, reserved, .. } = *change;
        if token != NO_REPLY {
            tracing::info!(%container, name = %record.name, was = %change.was, %cap, %reserved, "cap changed");
        }
        self.answer(key_of(token), &Answer::Resized { cap, reserved });
    }

    fn dismissed(&mut self, token: Token, container: &ContainerId, known: bool) {
        self.preemption.forget(container);
        let slice = self.slices.close(container);
        for key in slice.map(|slice| slice.tenants).unwrap_or_default() {
            self.remove_tenant(key);
        }
        self.clear_limits_and_dismiss(token, container, known);
    }

    /// Deletes the files of an ended slice, and answers.
    pub fn forget_slice(&mut self, token: Token, container: &ContainerId, known: bool) {
        if let Err(why) = self.state.forget(container) {
            let dir = self.state.container_dir(container);
            tracing::error!(%container, "{}: {why}; delete it by hand", dir.display());
            let text = format!("{}: {why}; delete it by hand", dir.display());
            self.deny(key_of(token), Denial::Host, &text);
            return self.unpark(container);
        }
        if known && token != NO_REPLY {
            tracing::info!(%container, "slice ended");
        }
        self.answer(key_of(token), &Answer::Dismissed {});
        self.unpark(container);
    }

    /// Restores a slice from its record, or logs why not; the record is kept in both cases.
    pub fn restore(&mut self, record: &Record) {
        let container = record.container;
        let mut actions = Vec::new();
        self.engine
            .step(now(), Event::Restore(record.clone()), &mut actions);
        for action in actions {
            let failed = match &action {
                Action::Restored { .. } => self.open_slice(record).err().map(|why| why.to_string()),
                Action::NotRestored { why, .. } => Some(why.to_string()),
                _ => None,
            };
            if let Some(why) = failed {
                tracing::error!(%container, why, "slice not restored; its record is kept, delete it with gpuslice rm {container}");
            }
            let taken = matches!(action, Action::Restored { .. });
            self.perform(action);
            if taken && self.slices.of(&container).is_some() {
                self.take_up_grants(record);
                self.limit_restored_slice(record);
            }
        }
        self.settle();
    }
}

fn log_late(container: &ContainerId, lane: Lane, stage: Late, after: Duration) {
    let (gpu, after_ms) = (lane.0, after.0 / 1_000_000);
    match stage {
        Late::Waiting => tracing::debug!(%container, gpu, after_ms, "has not drained yet"),
        Late::Overrun => {
            tracing::warn!(%container, gpu, after_ms, "has not drained the GPU after drain_max_ms; others go on");
        }
        Late::Drained => tracing::info!(%container, gpu, after_ms, "has drained"),
    }
}

/// A refusal's text without control characters, cut to 512 bytes.
pub fn plain(text: &str) -> Text<512> {
    let clean: String = text.chars().filter(|c| !c.is_control()).collect();
    Text::new(&clean[..clean.floor_char_boundary(512)]).unwrap_or(Text::EMPTY)
}
