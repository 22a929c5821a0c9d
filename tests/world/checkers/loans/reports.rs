//! After a step: which claims wait, what borrowers are told, and what containers see.

use gpuslice_wire::units::Bytes;

use super::*;

impl Loans {
    /// Checks the state after a step.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(
        &mut self,
        seen: &Observer,
        (ledger, requests): (&Ledger, &Requests),
    ) -> Result<(), Objection> {
        if std::mem::take(&mut self.promised) {
            ledger.gpus().try_for_each(|gpu| promises(seen, ledger, gpu))?;
        }
        self.note_asked(seen, ledger, requests);
        let lends = ledger.gpus().any(|(gpu, _)| ledger.lends_on(gpu));
        if !lends && self.suspensions.is_empty() && seen.suspended.is_empty() {
            self.claims.clear();
            self.before.clear();
            return Ok(());
        }
        self.claims = self.waiting(seen, ledger, requests);
        self.note_moves(seen, ledger);
        for claim in self.claims.iter().filter(|it| it.sure) {
            let recalled = requests.recalled_until(&claim.key).unwrap_or(0);
            self.waits(seen, ledger, (claim, recalled))?;
        }
        for (gpu, _) in ledger.gpus() {
            if ledger.lends_on(gpu) {
                self.told(seen, ledger, gpu)?;
                self.amount(seen, ledger, gpu)?;
                self.shown(ledger, gpu)?;
            }
        }
        self.drain(seen)?;
        self.returns(seen, ledger)?;
        self.before.clone_from(&seen.suspended);
        Ok(())
    }

    /// Notes for which requests borrowers may be asked from now on.
    fn note_asked(&mut self, seen: &Observer, ledger: &Ledger, requests: &Requests) {
        let were = std::mem::take(&mut self.asked);
        for (key, all) in requests.queues().filter(|it| !seen.suspended.contains_key(&it.0.0)) {
            let cap = ledger.account(key).map_or(0, |it| it.cap);
            let mut sum = ledger.reserved(key.0, key.1) + self.unfreed(ledger, key).0;
            let mut lacks = ledger.lacks_in_order(*key);
            for (client, asked, since) in all {
                sum += u128::from(lacks(client, asked));
                let request = (*key, client, since, asked);
                let fits = (sum <= cap.into()).then_some(seen.now);
                let begun = were.get(&request).copied().or(fits);
                self.asked.extend(begun.map(|begun| (request, begun)));
            }
        }
    }

    /// The claims that wait.
    fn waiting(&mut self, seen: &Observer, ledger: &Ledger, requests: &Requests) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (key, all) in requests.queues() {
            let account = ledger.account(key).filter(|_| ledger.lends(key));
            let Some((account, gpu)) = account.and_then(|it| Some((it, it.gpu?))) else {
                continue;
            };
            if seen.suspended.contains_key(&key.0) {
                continue;
            }
            let mut before = ledger.reserved(key.0, key.1);
            let (unfreed, waits) = (self.unfreed(ledger, key).1, requests.may_wait(ledger, key));
            let mut lacks = ledger.lacks_in_order(*key);
            for (at, (client, asked, since)) in all.enumerate() {
                let need = lacks(client, asked);
                before += u128::from(need);
                if before > u128::from(account.cap) {
                    break;
                }
                let sure = before + unfreed <= u128::from(ledger.of(client, key.1).0) && !waits;
                claims.push(Claim {
                    client: Some(client),
                    head: at == 0,
                    asked,
                    sure,
                    begun: sure.then_some(seen.now),
                    ..Claim::of_resume((*key, gpu), need, since, seen.now)
                });
            }
        }
        self.resumes.retain(|id, _| seen.suspended.get(id) == Some(&SuspensionState::Suspended));
        for (id, (_, since)) in &self.resumes {
            for (key, account) in ledger.accounts_of(*id) {
                let Some(gpu) = account.gpu else { continue };
                let need = u64::try_from(ledger.kept(key.0, key.1)).unwrap_or(u64::MAX);
                claims.push(Claim::of_resume((*key, gpu), need, *since, seen.now));
            }
        }
        for claim in &mut claims {
            let of = |it: &Claim| (it.key, it.client, it.since, it.asked);
            let new = *claim;
            let same = self.claims.iter().filter(|it| of(it) == of(&new));
            let begun = same.clone().filter_map(|it| it.begun).min();
            claim.begun = begun.or(new.begun);
            let mut same = same.filter(|it| (it.sure, it.head) == (new.sure, new.head));
            claim.claims = same.next().map_or(new.claims, |it| it.claims);
        }
        claims
    }

    fn note_moves(&mut self, seen: &Observer, ledger: &Ledger) {
        let suspends = |key: &LaneKey| {
            let state = seen.suspended.get(&key.0);
            matches!(state, Some(SuspensionState::Suspending | SuspensionState::Suspended))
                && self.unfreed(ledger, key).1 > 0
        };
        let moves = |gpu: &GpuUuid| {
            self.moving(seen, ledger, *gpu).next().is_some()
                || self.left(*gpu).1 > 0
                || ledger.on(*gpu).any(|(key, _)| suspends(key))
        };
        let all = ledger.gpus().map(|(gpu, _)| gpu);
        let all: Vec<GpuUuid> = all.filter(|gpu| self.is_behind() || moves(gpu)).collect();
        self.moves.extend(all.into_iter().map(|gpu| (gpu, seen.now)));
    }

    /// A claim waits for memory that others borrowed, and for no longer than it may. Until `recalled` its container's
    /// processes may answer a recall.
    fn waits(
        &self,
        seen: &Observer,
        ledger: &Ledger,
        (claim, recalled): (&Claim, u64),
    ) -> Result<(), Objection> {
        let Claim { key, client, head, gpu, need, since, begun, claims, .. } = *claim;
        let (id, grace) = (key.0, begun.unwrap_or(seen.now) + seen.config.reclaim_grace.0);
        if client.is_some() && head {
            let free = self.free(ledger, gpu).least;
            if u128::from(need) <= free {
                return Err(format!("{id} waits for {need} bytes, and {free} are free"));
            }
            if self.lent(ledger, gpu, Some(id)).next().is_none() && self.left(gpu).1 == 0 {
                return Err(format!("{id} waits for {need} bytes, and none are lent"));
            }
            let moved = self.moves.get(&gpu).map_or(0, |at| at + NEXT_STEP);
            if seen.now > grace.max(claims).max(moved).max(recalled) + SLACK {
                return Err(format!("{id} waits after the grace, and no memory moves"));
            }
        }
        match seen.now > (grace + RECLAIM_MOVE_MAX.0).max(claims) + SLACK {
            true => Err(format!("{id} claims {need} bytes since {} ns", seen.now - since)),
            false => Ok(()),
        }
    }

    /// Whether memory of a suspended container may be on its GPU: NVML will tell.
    fn is_behind(&self) -> bool {
        let away = self.suspensions.values().filter(|it| it.place == Place::Away);
        away.flat_map(|it| it.behind.values()).any(|bytes| *bytes > 0)
    }

    /// Which borrowers are told to give back.
    fn told(&self, seen: &Observer, ledger: &Ledger, gpu: GpuUuid) -> Result<(), Objection> {
        let lent: BTreeMap<LaneKey, (u128, u128)> = self.lent(ledger, gpu, None).collect();
        let claimed = self.claims.iter().any(|it| it.gpu == gpu);
        let mut last = None;
        for (key, bytes) in self.wanted_of(ledger, gpu) {
            let (_, has) = lent.get(&key).copied().unwrap_or((0, 0));
            if !claimed {
                return Err(format!("{} is to give back {bytes} bytes that none claims", key.0));
            }
            if u128::from(bytes) > has {
                return Err(format!("{} is to give back {bytes} bytes, and borrowed {has}", key.0));
            }
            last = last.max(self.classes.get(&key.0).map(|class| rank(*class)));
        }
        for (key, (has, _)) in lent.iter().filter(|(key, _)| !seen.suspended.contains_key(&key.0)) {
            let told = u128::from(self.wanted.get(key).copied().unwrap_or(0));
            let class = self.classes.get(&key.0).map(|class| rank(*class));
            if told < *has && class < last {
                return Err(format!("{} keeps a loan before a higher class", key.0));
            }
        }
        Ok(())
    }

    /// What containers of a GPU are to give back.
    fn wanted_of(&self, ledger: &Ledger, gpu: GpuUuid) -> impl Iterator<Item = (LaneKey, u64)> {
        let on_it = move |key: &LaneKey| ledger.account(key).is_some_and(|it| it.gpu == Some(gpu));
        let all = self.wanted.iter().map(|(key, bytes)| (*key, *bytes));
        all.filter(move |(key, bytes)| *bytes > 0 && on_it(key))
    }

    /// How much they are told to give back: what claims lack, as far as it is lent.
    fn amount(&self, seen: &Observer, ledger: &Ledger, gpu: GpuUuid) -> Result<(), Objection> {
        let state = |key: &LaneKey| seen.suspended.get(&key.0);
        let leaving = ledger.on(gpu).filter_map(|(key, _)| match state(key)? {
            SuspensionState::Suspending => Some(self.kept(ledger, key)),
            SuspensionState::Suspended => Some((0, self.unfreed(ledger, key).1)),
            SuspensionState::Resuming => None,
        });
        let leaving = leaving.fold(self.left(gpu), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let claims = self.claims.iter().filter(|it| it.gpu == gpu);
        let needed: u128 = claims.clone().map(|it| u128::from(it.need)).sum();
        // a resume does not claim what has stayed on the GPU
        let lacks = |it: &Claim| {
            let stays = self.suspensions.get(&it.key.0).filter(|_| it.client.is_none());
            let stays = stays.and_then(|of| of.behind.get(&it.key.1)).copied().unwrap_or(0);
            u128::from(it.need).saturating_sub(stays)
        };
        let sure: u128 = claims.filter(|it| it.sure).map(lacks).sum();
        let can = self.lent(ledger, gpu, None).filter(|(key, _)| state(key).is_none());
        let can: u128 = can.map(|(_, (bytes, _))| bytes).sum();
        let free = self.free(ledger, gpu);
        let least = sure.saturating_sub(free.most + leaving.1 + free.behind).min(can);
        let most = needed.saturating_sub(free.least + leaving.0);
        let sum: u128 = self.wanted_of(ledger, gpu).map(|(_, bytes)| u128::from(bytes)).sum();
        match (least..=most).contains(&sum) {
            true => Ok(()),
            false => Err(format!("{sum} bytes of {gpu} are wanted back, not {least} to {most}")),
        }
    }

    /// What containers see as free below a limit above their cap.
    fn shown(&self, ledger: &Ledger, gpu: GpuUuid) -> Result<(), Objection> {
        let free = self.free(ledger, gpu);
        let claims = self.claims.iter().filter(|it| it.gpu == gpu);
        let (reclaims, may) = (claims.clone().any(|it| it.sure), claims.count() > 0);
        for (key, account) in ledger.on(gpu).filter(|(_, account)| account.elastic) {
            let (reserved, unfreed) = (ledger.reserved(key.0, key.1), self.unfreed(ledger, key));
            let left = |of: u64, unfreed| u128::from(of).saturating_sub(reserved + unfreed);
            let [least, most] = [unfreed.1, unfreed.0].map(|unfreed| left(account.cap, unfreed));
            let sees = |free: u128, unfreed, promised| {
                free.min(left(account.limit, unfreed)).max(promised)
            };
            let shown = u128::from(account.limit).saturating_sub(account.shown.into());
            let least = if may { least } else { sees(free.least, unfreed.1, least) };
            let most = if reclaims { most } else { sees(free.most, unfreed.0, most) };
            if !(least..=most).contains(&shown) {
                return Err(format!("{} sees {shown} bytes free, not {least} to {most}", key.0));
            }
        }
        Ok(())
    }

    /// A container that drains before a move is moved in time.
    fn drain(&mut self, seen: &Observer) -> Result<(), Objection> {
        let drains = |id: &ContainerId| {
            seen.suspended.get(id) == Some(&SuspensionState::Suspending)
                && self.place(id) != Some(Place::Leaving)
        };
        let now: Vec<ContainerId> = seen.suspended.keys().copied().filter(drains).collect();
        self.drains.retain(|id, _| now.contains(id));
        for id in now {
            self.drains.entry(id).or_insert(seen.now);
        }
        let patience = seen.config.drain_max.0.max(seen.config.restore_grace.0) + SLACK;
        let late = self.drains.iter().find(|(_, since)| seen.now > **since + patience);
        late.map_or(Ok(()), |(id, _)| Err(format!("{id} drains and is not moved")))
    }

    /// A container that was suspended for a claim returns when there is room for it.
    fn returns(&mut self, seen: &Observer, ledger: &Ledger) -> Result<(), Objection> {
        let patience = RESUME_WITHIN.max(seen.config.reclaim_grace.0) + SLACK;
        let ids: Vec<ContainerId> = self.suspensions.keys().copied().collect();
        for id in ids {
            let claimed = |gpu: GpuUuid| self.claims.iter().any(|it| it.gpu == gpu);
            let mut its = ledger.accounts_of(id).filter_map(|(key, it)| Some((key, it.gpu?)));
            let fits = its.all(|(key, gpu)| {
                let free = self.free(ledger, gpu).least;
                !claimed(gpu) && ledger.kept(key.0, key.1) <= free
            });
            let Some(it) = self.suspensions.get_mut(&id) else { continue };
            let fits = fits && it.place == Place::Away && it.reclaimed;
            it.fits = fits.then(|| it.fits.unwrap_or(seen.now));
            if it.fits.is_some_and(|since| seen.now > since + patience) {
                return Err(format!("{id} is suspended, and there is room for it"));
            }
        }
        Ok(())
    }

    /// Compares rows with the books.
    ///
    /// # Errors
    /// The objection.
    pub fn agree(&self, ledger: &Ledger, row: &Snapshot) -> Result<(), Objection> {
        match row {
            Snapshot::Suspension { container, memory, .. } => self.has(ledger, container, memory.0),
            Snapshot::MemoryLimit { container, lane, limit, wanted, .. } => {
                let key = (*container, *lane);
                let has = ledger.account(&key).map_or(Bytes(0), |it| Bytes(it.limit));
                let told = Bytes(self.wanted.get(&key).copied().unwrap_or(0));
                match (has, told) == (*limit, *wanted) {
                    true => Ok(()),
                    false => Err(format!(
                        "{container} has a limit of {limit:?}, and {wanted:?} are wanted, not {has:?} and {told:?}"
                    )),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The caps of a GPU fit, and limits are on it.
fn promises(
    seen: &Observer,
    ledger: &Ledger,
    (gpu, total): (GpuUuid, u64),
) -> Result<(), Objection> {
    let sum: u128 = ledger.on(gpu).map(|(_, account)| u128::from(account.cap)).sum();
    if sum > u128::from(total) && !seen.config.oversubscribe {
        return Err(format!("{sum} bytes are promised of {gpu}'s {total}"));
    }
    let wrong = |it: &super::super::memory::Account| {
        it.limit < it.cap || it.limit > total && !seen.config.oversubscribe
    };
    let wrong = ledger.on(gpu).find(|(_, it)| wrong(it));
    wrong.map_or(Ok(()), |(key, it)| Err(format!("{} has a limit of {}", key.0, it.limit)))
}

/// The lowest class gives back first.
fn rank(class: Class) -> u8 {
    match class {
        Class::BestEffort => 0,
        Class::Normal => 1,
        Class::High => 2,
    }
}
