//! The processes of a container: what each has of a GPU, and what its memory is used for.

use crate::text::counted;
use gpuslice_wire::family::Family;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::Bytes;

/// What a process has of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which GPU.
    pub gpu: GpuUuid,
    /// Its pid; 0 if it has ended, or lives where the daemon sees no pid.
    pub pid: u32,
    /// Its name; empty if it is unknown.
    pub name: String,
    /// It is attached to the daemon.
    pub is_connected: bool,
    /// Granted to it.
    pub reserved: Bytes,
    /// Held, as it claims.
    pub used: Bytes,
    /// Memory that NVML shows for it beyond that.
    pub untracked: Bytes,
    /// What `used` is used for.
    pub families: [Bytes; Family::ALL.len()],
    /// Its contexts.
    pub contexts: u32,
    /// Its launches.
    pub launches: u64,
}

/// The number of a container's processes, those included that have memory and no connection, as just after a restart
/// of the daemon.
pub fn number(all: &[Process]) -> usize {
    // Each has a row for each GPU of the container.
    all.first().map_or(0, |first| all.iter().filter(|it| it.gpu == first.gpu).count())
}

impl Process {
    /// Reads a row; `None` for a row of another kind.
    pub fn of(row: Snapshot) -> Option<Process> {
        let Snapshot::Process {
            gpu,
            pid,
            name,
            connected,
            reserved,
            used,
            untracked,
            families,
            contexts,
            launches,
        } = row
        else {
            return None;
        };
        let (name, is_connected) = (name.to_string(), connected != 0);
        Some(Process {
            gpu,
            pid,
            name,
            is_connected,
            reserved,
            used,
            untracked,
            families,
            contexts,
            launches,
        })
    }

    /// The process as a sentence: its pid and name, its memory, its contexts and launches.
    pub fn told(&self) -> String {
        let who = match (self.pid, self.name.as_str()) {
            (0, _) => "no pid".to_owned(),
            (pid, "") => pid.to_string(),
            (pid, name) => format!("{pid} {name}"),
        };
        let mut told = format!("{who}: {}", families_of(&[self]));
        let credit = self.reserved.saturating_sub(self.used);
        for (bytes, what) in [(credit, "unused credit"), (self.untracked, "untracked")] {
            if bytes > Bytes::ZERO {
                told += &format!(", {bytes} {what}");
            }
        }
        told += &format!("; {}", counted(u64::from(self.contexts), "context"));
        told += &format!(", {}", counted(self.launches, "launch"));
        if !self.is_connected {
            told += "; not attached";
        }
        told
    }
}

/// Memory held by these processes, and what it is used for, the largest family first. What is in no family is in plain
/// allocations; a family is a claim, and may be larger than the held memory.
pub fn families_of(all: &[&Process]) -> String {
    let sum = |of: &dyn Fn(&Process) -> Bytes| {
        all.iter().fold(Bytes::ZERO, |sum, it| sum.saturating_add(of(it)))
    };
    let used = sum(&|it| it.used);
    let counted =
        Family::ALL.map(|family| (family.name(), sum(&|it| it.families[family as usize])));
    let plain = counted.iter().fold(used, |left, (_, bytes)| left.saturating_sub(*bytes));
    let mut parts: Vec<(&str, Bytes)> =
        [("allocations", plain)].into_iter().chain(counted).collect();
    parts.retain(|(_, bytes)| *bytes > Bytes::ZERO);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
    match parts.is_empty() {
        true => format!("{used} held"),
        false => format!("{used} held ({})", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::units::MIB;

    fn process(used: u64, families: [u64; 5]) -> Process {
        Process {
            gpu: GpuUuid([1; 16]),
            pid: 7,
            name: "python3".into(),
            is_connected: true,
            reserved: Bytes((used + 2) * MIB),
            used: Bytes(used * MIB),
            untracked: Bytes(0),
            families: families.map(|mib| Bytes(mib * MIB)),
            contexts: 1,
            launches: 1,
        }
    }

    #[test]
    fn what_is_in_no_family_is_in_allocations() {
        let it = process(100, [0, 10, 0, 20, 30]);
        assert_eq!(
            it.told(),
            "7 python3: 100MiB held (allocations 40MiB, contexts 30MiB, physical 20MiB, arrays 10MiB), \
             2MiB unused credit; 1 context, 1 launch"
        );
        let both = [&it, &process(50, [50, 0, 0, 0, 0])];
        assert!(families_of(&both).starts_with("150MiB held (managed 50MiB, allocations 40MiB"));
    }

    #[test]
    fn a_false_claim_underflows_nothing() {
        let mut it = process(1, [u64::MAX / MIB; 5]);
        (it.pid, it.is_connected, it.reserved) = (0, false, Bytes(0));
        it.name.clear();
        let told = it.told();
        assert!(
            told.starts_with("no pid: 1MiB held (managed ") && !told.contains("allocations"),
            "{told}"
        );
        assert!(told.ends_with("not attached"), "{told}");
        assert_eq!(families_of(&[]), "0B held");
    }
}
