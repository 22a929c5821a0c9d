//! The begin, the changes and the end of a slice: record on disk first, then the driver's limits, then the answer.

use super::Duties;
use crate::cgroup_limits::{After, Finished};
use crate::events::Happening;
use crate::paths::host_path;
use crate::replies::{NO_REPLY, is_agents, key_of};
use crate::slab::Key;
use crate::tasks::Task;
use gpuslice_engine::{CapChange, Event, Record, TimeChange, Token};
use gpuslice_host::clock::now;
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk, Mounts};
use gpuslice_wire::history::EventKind;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::text::HostPath;
use gpuslice_wire::units::{Percent, Weight};

/// Amounts of [`EventKind::SliceBegan`].
pub(super) fn given(record: &Record) -> [u64; 2] {
    let caps = record.lanes.iter().map(|lane| lane.cap.0);
    [record.lanes.len() as u64, caps.max().unwrap_or(0)]
}

impl Duties {
    /// Opens a slice whose record is on disk.
    ///
    /// # Errors
    /// A system call failed.
    pub fn reopen(&mut self, record: &Record) -> std::io::Result<()> {
        self.expect_slice();
        self.events.know(record.container, record.name);
        self.containers.reopen(now(), record)
    }

    pub(super) fn expect_slice(&mut self) {
        if self.containers.len() == 0 {
            self.accounting.schedule_first_sample(now());
        }
    }

    pub(super) fn admitted(&mut self, token: Token, record: &Record) {
        let asked = self.admins.take_asked(key_of(token));
        let owner = self.admins.take_owner(key_of(token));
        self.expect_slice();
        self.shared_files.open_leased();
        let container = record.container;
        if let Err(why) = self.containers.admit(now(), record, &owner, asked) {
            let text = self.on_disk(
                &container,
                &why,
                "free disk space or raise the limit there, then start the container again",
            );
            self.deny(key_of(token), Denial::Host, &text);
            return self.dismiss(container);
        }
        tracing::info!(%container, name = %record.name, gpus = record.lanes.len(), "slice given");
        self.events.know(container, record.name);
        self.tasks.push(Task::ShowMemory(container));
        let began = Happening::of(EventKind::SliceBegan, container);
        let began = began.by_client(self.admins.peer(key_of(token)));
        self.events.record(now(), began.with(given(record), String::new()));
        let finished = self.cgroup_limits.admit(&mut self.accounting, token, record);
        self.continue_after_limits(finished);
    }

    /// Ends a slice without an answer.
    pub(super) fn dismiss(&mut self, container: ContainerId) {
        let token = NO_REPLY;
        self.tasks.step(Event::Dismiss { token, container });
    }

    /// The text for an error in a container's directory, which is also logged.
    fn on_disk(&self, container: &ContainerId, why: &std::io::Error, hint: &str) -> String {
        let dir = self.containers.state().container_dir(container);
        let text = format!("{}: {why}; {hint}", dir.display());
        tracing::error!(%container, "{text}");
        text
    }

    /// Continues when NVML has changed the limits of a slice, or was not asked.
    pub fn continue_after_limits(&mut self, finished: impl IntoIterator<Item = Finished>) {
        for Finished { container, after, failed } in finished {
            match (after, failed) {
                (After::Nothing, _) => {}
                (After::Admit(token), _) if is_agents(token) => {
                    self.answer_limited_claim(token, container);
                }
                (After::Admit(token), _) => self.answer_limited(key_of(token), container),
                (After::Dismiss(token, known), _) => self.forget_slice(token, &container, known),
                (After::Grow(token, lane, memory), None) => {
                    self.tasks.step(Event::Resize { token, container, lane, memory });
                    // Also after a refusal: the raised limit is lowered to the old cap.
                    self.tasks.push(Task::UpdateLimits(container));
                }
                (After::Grow(token, ..), Some(why)) => {
                    let text = format!(
                        "the driver did not set the new limit: {why}; the cap is unchanged"
                    );
                    self.deny(key_of(token), Denial::Host, &text);
                }
            }
        }
    }

    /// Answers an admission once NVML has set or refused each limit.
    fn answer_limited(&mut self, key: Key, container: ContainerId) {
        if !self.containers.has(&container) {
            let why = "the slice was removed before its limits were set";
            return self.deny(key, Denial::Host, why);
        }
        if let Err(text) = self.cgroup_limits.verdict(&container) {
            tracing::error!(%container, "{text}");
            self.deny(key, Denial::Host, &text);
            return self.dismiss(container);
        }
        self.answer_admitted(key, container);
    }

    /// Answers with the paths a container needs mounted.
    fn answer_admitted(&mut self, key: Key, container: ContainerId) {
        let answer = Answer::Admitted { mounts: self.mounts(&container) };
        let tasks = &mut self.tasks;
        if !self.admins.answer_admitted(key, container, &answer, tasks) {
            // The hook waited too long and its container does not start.
            tracing::warn!(%container, "the client that asked for the slice has disconnected; the slice is removed");
            self.dismiss(container);
        }
    }

    /// Answers with the paths that a container in a claim needs mounted; returns whether its client is connected.
    pub(super) fn answer_joined(&mut self, key: Key, container: &ContainerId) -> bool {
        let answer = Answer::Admitted { mounts: self.mounts(container) };
        self.answer(key, &answer);
        self.admins.is_connected(key)
    }

    /// The paths that a container needs mounted.
    fn mounts(&self, container: &ContainerId) -> Mounts {
        let dir = self.containers.state().inside(container);
        let (driver, shim) = (&self.paths.driver, &self.paths.shim);
        Mounts {
            dir: host_path(&dir).unwrap_or(HostPath::EMPTY),
            cuda: driver.cuda,
            nvml: driver.nvml,
            preload: shim.preload,
            mount: shim.mount,
            nvml_shim: shim.nvml_shim,
            device: driver.device,
        }
    }

    /// Writes the record again before the answer. If that fails, the ledger returns to the old cap and the old limit,
    /// which are those on disk; that change is not answered.
    pub(super) fn resized(&mut self, token: Token, record: &Record, change: &CapChange) {
        let container = record.container;
        let kept = match token {
            NO_REPLY => Ok(()),
            _ => self.containers.state().rewrite(record),
        };
        if let Err(why) = kept {
            let hint = "the cap is unchanged, free disk space there";
            let text = self.on_disk(&container, &why, hint);
            for undo in undo(container, change).into_iter().rev() {
                self.tasks.step_first(undo);
            }
            return self.deny(key_of(token), Denial::Host, &text);
        }
        self.cgroup_limits.note_caps(record);
        self.tasks.push(Task::ShowMemory(container));
        let CapChange { cap, reserved, .. } = *change;
        if token != NO_REPLY {
            tracing::info!(%container, name = %record.name, was = %change.was, %cap, %reserved, "cap changed");
            let changed = Happening::of(EventKind::CapChanged, container);
            let changed = changed.on(self.containers.gpu_of(&container, change.lane));
            let changed = changed.by_client(self.admins.peer(key_of(token)));
            let what = if change.lane == Lane::HOST { "pinned memory" } else { "" };
            self.events.record(now(), changed.with([change.was.0, cap.0], what.to_owned()));
        }
        self.answer(key_of(token), &Answer::Resized { cap, reserved });
    }

    /// Writes the record again before the answer. If that fails, the ledger returns to the old limit.
    pub(super) fn relimited(&mut self, token: Token, record: &Record, change: &CapChange) {
        let container = record.container;
        let CapChange { lane, was, cap: limit, reserved, .. } = *change;
        if token != NO_REPLY
            && let Err(why) = self.containers.state().rewrite(record)
        {
            let hint = "the memory limit is unchanged, free disk space there";
            let text = self.on_disk(&container, &why, hint);
            let former = Some(MemoryAsk::Exactly(was));
            let undo = Event::Relimit { token: NO_REPLY, container, lane, limit: former };
            self.tasks.step_first(undo);
            return self.deny(key_of(token), Denial::Host, &text);
        }
        self.cgroup_limits.note_caps(record);
        self.tasks.push(Task::UpdateLimits(container));
        self.tasks.push(Task::ShowMemory(container));
        if token != NO_REPLY {
            tracing::info!(%container, name = %record.name, %was, %limit, %reserved, "memory limit changed");
            let changed = Happening::of(EventKind::LimitChanged, container);
            let changed = changed.on(self.containers.gpu_of(&container, lane));
            let changed = changed.by_client(self.admins.peer(key_of(token)));
            self.events.record(now(), changed.with([was.0, limit.0], String::new()));
        }
        self.answer(key_of(token), &Answer::Resized { cap: limit, reserved });
    }

    /// Records limits of the driver's that another program has set, such as NVIDIA's container toolkit.
    pub fn note_found_limits(&mut self) {
        for (container, gpu, limits) in self.cgroup_limits.take_found() {
            let text = "another program's, on the container's cgroup, kept as the driver's limit";
            let changed = Happening::of(EventKind::LimitChanged, container).on(Some(gpu));
            self.events.record(now(), changed.with(limits.map(|it| it.0), text.to_owned()));
        }
    }

    /// Records a slice's changed weight, share, limit or class and answers; if it cannot be recorded, restores the old
    /// values.
    pub(super) fn retuned(&mut self, token: Token, record: &Record, was: &TimeChange) {
        let container = record.container;
        if token == NO_REPLY {
            return;
        }
        if let Err(why) = self.containers.state().rewrite(record) {
            let hint = "the slice is unchanged, free disk space there";
            let text = self.on_disk(&container, &why, hint);
            self.tasks.step_first(Event::Retune {
                token: NO_REPLY,
                container,
                change: *was,
                undoes: true,
            });
            return self.deny(key_of(token), Denial::Host, &text);
        }
        let percent = |percent: Option<Percent>| percent.map_or(0, Percent::get);
        let (share, share_limit) = (percent(record.share), percent(record.share_limit));
        let weight = record.shown_weight().map_or(0, Weight::get);
        let (name, class) = (record.name, record.class);
        tracing::info!(
            %container, %name, weight, share, share_limit, %class,
            "weight, share, limit or class changed"
        );
        let retuned = Happening::of(EventKind::Retuned, container);
        let retuned = retuned.by_client(self.admins.peer(key_of(token)));
        let text = told(was, record);
        self.events.record(now(), retuned.with([0; 2], text));
        self.answer(key_of(token), &Answer::Done {});
    }

    /// Ends a slice: closes its connections, clears its limits, deletes its record, answers.
    pub(super) fn dismissed(&mut self, token: Token, container: &ContainerId, known: bool) {
        self.preemption.forget(container);
        self.suspender.forget(container);
        self.rooms.forget(container);
        self.over_cap.forget(container);
        if let Some(claim) = ClaimId::of_slice(container) {
            self.claim_dismissed(token, &claim);
        }
        self.containers.close(container);
        self.clients.close_all(container, &mut self.tasks);
        self.accounting.forget(container);
        let record = self.containers.state().record(container);
        let (limits, nvml) = (&mut self.cgroup_limits, &mut self.accounting);
        let finished = limits.dismiss(nvml, container, record.as_ref(), (token, known));
        self.continue_after_limits(finished);
        self.close_nvml_when_idle();
    }

    /// Deletes the files of an ended slice, and answers.
    fn forget_slice(&mut self, token: Token, container: &ContainerId, known: bool) {
        match self.containers.state().forget(container) {
            Err(why) => {
                let text = self.on_disk(container, &why, "delete it by hand");
                self.deny(key_of(token), Denial::Host, &text);
            }
            Ok(()) => {
                if known && token != NO_REPLY {
                    tracing::info!(%container, "slice ended");
                }
                self.note_ended(token, *container, known);
                self.answer(key_of(token), &Answer::Dismissed {});
            }
        }
        self.admins.unpark(container, &mut self.tasks);
    }

    /// Records the end of a slice.
    fn note_ended(&mut self, token: Token, container: ContainerId, known: bool) {
        if !known {
            return;
        }
        let ended = Happening::of(EventKind::SliceEnded, container);
        let (client, why) = match token {
            NO_REPLY => (None, "its container or its command ended"),
            _ => (self.admins.peer(key_of(token)), "removed"),
        };
        let ended = ended.by_client(client).with([0; 2], why.to_owned());
        self.events.record(now(), ended);
        self.events.forget(&container);
    }

    /// After the last slice: lets NVML close, unless each container's start needs it.
    pub fn close_nvml_when_idle(&mut self) {
        if self.containers.len() == 0 && !self.cgroup_limits.wanted() {
            self.accounting.close_later(now());
        }
    }
}

/// The events that undo a cap. A memory limit that equals the new cap changes with the cap when the old one is set
/// again, so it is set afterwards.
fn undo(container: ContainerId, change: &CapChange) -> Vec<Event> {
    let CapChange { lane, was, cap, limit, .. } = *change;
    let (token, memory) = (NO_REPLY, MemoryAsk::Exactly(was));
    let mut undo = vec![Event::Resize { token, container, lane, memory }];
    if limit == cap && limit > was {
        let limit = Some(MemoryAsk::Exactly(limit));
        undo.push(Event::Relimit { token, container, lane, limit });
    }
    undo
}

/// A slice's rules after a change, those that it changed with what they were: `weight 1 -> 3, share none, …`.
fn told(was: &TimeChange, record: &Record) -> String {
    let before = Record {
        weight: was.weight.of(record.weight),
        share: was.share.of(record.share),
        share_limit: was.share_limit.of(record.share_limit),
        class: was.class.unwrap_or(record.class),
        ..record.clone()
    };
    let number = |it: Option<u32>| it.map_or("none".to_owned(), |it| it.to_string());
    let rules = |it: &Record| {
        let (share, limit) = (it.share.map(Percent::get), it.share_limit.map(Percent::get));
        let weight = it.shown_weight().map(Weight::get);
        [number(weight), number(share), number(limit), it.class.to_string()]
    };
    let changed = |(name, (was, is)): (&str, (String, String))| match was == is {
        true => format!("{name}{is}"),
        false => format!("{name}{was} -> {is}"),
    };
    let names = ["weight ", "share ", "share-limit ", ""];
    let all = names.into_iter().zip(rules(&before).into_iter().zip(rules(record)));
    all.map(changed).collect::<Vec<_>>().join(", ")
}
