//! The engine's decisions become effects: files, pages, packets.

use crate::daemon::{Daemon, Work};
use crate::leave::Holder;
use crate::poll::now;
use crate::slots::Key;
use gpuslice_engine::{Action, CapChange, Cut, Event, Late, Record, Token};
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk};
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::text::Text;
use gpuslice_wire::units::Duration;
use std::io;

/// The token of questions whose answer nobody waits for. Keys' generations start at 1.
pub const NOBODY: Token = Token(0);

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
    /// Performs one decision.
    pub fn perform(&mut self, action: Action) {
        match action {
            Action::SetLane {
                container,
                lane,
                view,
            } => {
                if let Some(slice) = self.slices.of(&container) {
                    // The GPU first: it needs nobody to wake up.
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

    /// Performs what happens at beginnings and ends.
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
                (Some(Holder::Tenant(key)), Cut::Broke(rule)) => self.reject(key, rule),
                (Some(Holder::Tenant(key)), _) => drop(self.remove_tenant(key)),
                (Some(Holder::Absent(key)), _) => _ = self.forget_absent(key),
                (None, _) => {}
            },
            Action::Admitted { token, record } => self.admitted(token, &record),
            Action::Denied { token, why } => {
                let mut text = why.to_string();
                if self.places.driver.is_simulated() {
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
            Action::Overrun {
                container,
                lane,
                stage,
                after,
            } => {
                log_overrun(&container, lane, stage, after);
            }
            Action::Resized {
                token,
                record,
                change,
            } => self.resized(token, &record, &change),
            Action::PolicySet { token, policy, was } => self.policy_set(token, policy, &was),
            Action::Retuned { token, record, was } => self.retuned(token, &record, &was),
            // `restore` holds the record and does it; the others are performed above.
            Action::Restored { .. }
            | Action::NotRestored { .. }
            | Action::SetLane { .. }
            | Action::ReadClaims { .. }
            | Action::Stop { .. }
            | Action::Resume { .. }
            | Action::Accounted { .. }
            | Action::Reserved { .. }
            | Action::Refused { .. } => {}
        }
    }

    fn read_lane(&mut self, container: &ContainerId, lane: Lane) {
        if let Some(slice) = self.slices.of(container) {
            self.work
                .extend(slice.tenants.iter().map(|key| Work::Read(*key, lane)));
        }
    }

    fn open_slice(&mut self, record: &Record) -> io::Result<()> {
        if self.slices.len() == 0 {
            self.beat(now()); // the first container: the heart starts beating again
            self.schedule_first_sample();
        }
        let with = (&self.poll, &self.closer);
        self.slices
            .open(&self.state, with, self.life, now(), record)
    }

    fn admitted(&mut self, token: Token, record: &Record) {
        let admin = self.admins.get_mut(key_of(token));
        let members = admin.map(|admin| std::mem::take(&mut admin.members));
        let done = self
            .state
            .keep(record, &members.unwrap_or_default())
            .and_then(|()| self.open_slice(record))
            .and_then(|()| self.begin_grants(record))
            .and_then(|()| self.watch_first(token, record));
        let container = record.container;
        if let Err(why) = done {
            let dir = self.state.container_dir(&container);
            let text = format!(
                "{}: {why}; make room or raise the limit there, then start the container again",
                dir.display()
            );
            tracing::error!(%container, "{text}");
            self.deny(key_of(token), Denial::Host, &text);
            self.work.push_back(Work::Tell(Event::Dismiss {
                token: NOBODY,
                container,
            }));
            return;
        }
        tracing::info!(%container, name = %record.name, gpus = record.lanes.len(), "slice given");
        self.limit_new_slice(token, record);
    }

    /// The record is written down again before the answer. Where that fails, the books go back to
    /// the old cap, which is what is on the disk; that change has nobody who waits for it.
    fn resized(&mut self, token: Token, record: &Record, change: &CapChange) {
        let container = record.container;
        let kept = match token {
            NOBODY => Ok(()),
            _ => self.state.rewrite(record),
        };
        if let Err(why) = kept {
            let dir = self.state.container_dir(&container);
            let text = format!("{}: {why}; the cap stays, make room there", dir.display());
            tracing::error!(%container, "{text}");
            self.work.push_front(Work::Tell(Event::Resize {
                token: NOBODY,
                container,
                lane: change.lane,
                memory: MemoryAsk::Exactly(change.was),
            }));
            return self.deny(key_of(token), Denial::Host, &text);
        }
        self.note_caps(record);
        let CapChange { cap, reserved, .. } = *change;
        if token != NOBODY {
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

    /// Deletes what is on disk of a slice that ended, and answers.
    pub fn forget_slice(&mut self, token: Token, container: &ContainerId, known: bool) {
        if let Err(why) = self.state.forget(container) {
            let dir = self.state.container_dir(container);
            tracing::error!(%container, "{}: {why}; remove it by hand", dir.display());
            let text = format!("{}: {why}; remove it by hand", dir.display());
            self.deny(key_of(token), Denial::Host, &text);
            return self.unpark(container);
        }
        if known && token != NOBODY {
            tracing::info!(%container, "slice ended");
        }
        self.answer(key_of(token), &Answer::Dismissed {});
        self.unpark(container);
    }

    /// Takes up a slice of an earlier life, or says why not; its record is kept either way.
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
                tracing::error!(%container, why, "slice not taken up again; its record is kept until gpuslice rm {container}");
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

fn log_overrun(container: &ContainerId, lane: Lane, stage: Late, after: Duration) {
    let (gpu, after_ms) = (lane.0, after.0 / 1_000_000);
    match stage {
        Late::Waiting => tracing::debug!(%container, gpu, after_ms, "does not let go"),
        Late::Passed => {
            tracing::warn!(%container, gpu, after_ms, "does not let go of the GPU; others go on");
        }
        Late::Quiet => tracing::info!(%container, gpu, after_ms, "let go at last"),
    }
}

/// A refusal's text, cut if need be and without what a terminal would obey.
pub fn plain(text: &str) -> Text<512> {
    let clean: String = text.chars().filter(|c| !c.is_control()).collect();
    Text::new(&clean[..clean.floor_char_boundary(512)]).unwrap_or(Text::EMPTY)
}
