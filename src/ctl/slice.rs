//! A slice request: command-line options and the Admit command made from them.

use anyhow::{Context, Result, bail};
use clap::Args;
use gpuslice_wire::admin::{Admission, Command, MemoryAsk};
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::{GpuSelector, SelectError};
use gpuslice_wire::text::{Name, Selector, TextError};
use gpuslice_wire::units::{Bytes, Percent, UnitError, Weight, plausible};

/// Options that describe a slice, shared by the commands that create one.
#[derive(Args, Clone, Debug)]
pub struct SliceOptions {
    /// GPUs to use: any, all, or a list of indices or UUIDs
    // `gpuslice set` takes the same two names: with one GPU, people write --gpu.
    #[arg(long, visible_alias = "gpu", value_name = "SEL", default_value = "any", value_parser = parse_gpus, add = crate::complete::gpus())]
    pub gpus: String,
    /// GPU memory cap per GPU, in bytes, KiB, MiB or GiB, or as a part of each GPU's memory: 1/4
    #[arg(long, value_name = "SIZE", value_parser = parse_cap, allow_hyphen_values = true)]
    pub memory: MemoryAsk,
    /// Let it grow up to this into GPU memory that others leave unused; they get it back [default: the cap]
    #[arg(long, value_name = "SIZE", value_parser = parse_cap, allow_hyphen_values = true)]
    pub memory_limit: Option<MemoryAsk>,
    /// Pinned host memory cap, for all GPUs together [default: the node's, usually none]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, allow_hyphen_values = true)]
    pub pinned: Option<Bytes>,
    /// Scheduling weight for the time that shares leave, 1 to 1000 [default: 1, or none with --share]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub weight: Option<Weight>,
    /// Share of GPU time in percent, reserved for the container
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    pub share: Option<Percent>,
    /// Limit of GPU time in percent, not below the share [default: none, or the share under fixed]
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    pub share_limit: Option<Percent>,
    /// Scheduling priority: high, normal or best-effort
    #[arg(long, value_name = "CLASS", default_value = "normal", add = crate::complete::priorities())]
    pub priority: Class,
    /// Gang scheduling of the GPUs it uses: auto or never
    #[arg(long, value_name = "WHEN", default_value = "auto", add = crate::complete::gangs())]
    pub gang: Gangs,
    /// Display name
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
}

/// Checks the words that choose GPUs.
pub fn parse_gpus(text: &str) -> Result<String, SelectError> {
    GpuSelector::parse(text).map(|_| text.to_owned())
}

/// Checks a display name.
fn parse_name(text: &str) -> Result<String, TextError> {
    Name::new(text).map(|_| text.to_owned())
}

/// The refusal of a limit below a cap; the daemon has the same words.
pub fn limit_below_cap(limit: &str, cap: &str) -> String {
    format!(
        "memory limit {limit} is below the cap {cap}; ask for a limit of at least {cap}, or for a cap of at most {limit}"
    )
}

/// That a limit is below the cap, if that holds on every GPU. Of a size and a part the daemon decides.
pub fn limit_below(limit: MemoryAsk, cap: MemoryAsk) -> Option<String> {
    let is_below = match (limit, cap) {
        (MemoryAsk::Exactly(limit), MemoryAsk::Exactly(cap)) => limit < cap,
        (MemoryAsk::Ratio { part, whole }, MemoryAsk::Ratio { part: cap, whole: of }) => {
            u64::from(part) * u64::from(of) < u64::from(cap) * u64::from(whole)
        }
        _ => false,
    };
    let short = |asked| match asked {
        MemoryAsk::Exactly(bytes) => bytes.to_string(),
        MemoryAsk::Ratio { part, whole } => format!("{part}/{whole}"),
    };
    is_below.then(|| limit_below_cap(&short(limit), &short(cap)))
}

/// Parses a size of 1 MiB or more.
pub fn parse_memory(text: &str) -> Result<Bytes, UnitError> {
    plausible(text, text.parse()?)
}

/// Parses a size of 1 MiB or more, or a part of the GPU's memory.
pub fn parse_cap(text: &str) -> Result<MemoryAsk, UnitError> {
    match text.parse()? {
        MemoryAsk::Exactly(bytes) => plausible(text, bytes).map(MemoryAsk::Exactly),
        part @ MemoryAsk::Ratio { .. } => Ok(part),
    }
}

impl SliceOptions {
    /// That the limit is below the cap, if that holds on every GPU. Of a size and a part the daemon decides.
    pub fn wrong(&self) -> Option<String> {
        limit_below(self.memory_limit?, self.memory)
    }

    /// The command that requests this slice under the id `container`. `pid` is a process in the
    /// slice's own control group, or 0 without one.
    ///
    /// # Errors
    /// The selector or the name is malformed.
    pub fn admit(&self, container: &str, pid: u32) -> Result<Command> {
        if let Err(error) = GpuSelector::parse(&self.gpus) {
            bail!("--gpus {}: {error}", self.gpus);
        }
        let name = self.name.as_deref().unwrap_or_default();
        Ok(Command::Admit {
            asked: Admission {
                container: ContainerId::new(container)?,
                name: Name::new(name).with_context(|| "--name")?,
                gpus: Selector::new(&self.gpus).with_context(|| "--gpus")?,
                whole: Selector::EMPTY,
                memory: self.memory,
                memory_limit: self.memory_limit,
                weight: self.weight,
                share: self.share,
                share_limit: self.share_limit,
                class: self.priority,
                gang: self.gang,
                pinned: self.pinned,
                pid,
                owner: Owner::default(),
            },
        })
    }
}

impl SliceOptions {
    /// What is asked for, in short, after the name: the cap, and each option that was given.
    pub fn told(&self) -> String {
        let name = self.name.iter().filter(|name| !name.is_empty());
        let mut all = name.map(|name| format!("{name}: ")).collect::<String>();
        all += &self.memory.to_string();
        let mut add = |what: &str, value: Option<String>| {
            value.into_iter().for_each(|value| all += &format!(", {what} {value}"));
        };
        add("limit", self.memory_limit.map(|it| it.to_string()));
        add("pinned", self.pinned.map(|it| it.to_string()));
        add("weight", self.weight.map(|it| it.get().to_string()));
        add("share", self.share.map(|it| format!("{}%", it.get())));
        add("share limit", self.share_limit.map(|it| format!("{}%", it.get())));
        add("priority", Some(self.priority.to_string()).filter(|_| self.priority != Class::Normal));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::units::MIB;

    #[test]
    fn what_was_asked_for_is_told() {
        use clap::FromArgMatches as _;
        let told = |words: &[&str]| {
            let words = [&["run", "--memory", "1GiB"], words].concat();
            let matches =
                SliceOptions::augment_args(clap::Command::new("run")).get_matches_from(words);
            SliceOptions::from_arg_matches(&matches).expect("options").told()
        };
        assert_eq!((told(&[]), told(&["--name", ""])), ("1GiB".to_owned(), "1GiB".to_owned()));
        let all = ["--name", "web", "--memory-limit", "1/2", "--weight", "3", "--priority", "high"];
        assert_eq!(told(&all), "web: 1GiB, limit 1/2 of the GPU's memory, weight 3, priority high");
        assert_eq!(
            told(&["--share", "20", "--share-limit", "50"]),
            "1GiB, share 20%, share limit 50%"
        );
    }

    #[test]
    fn a_limit_below_the_cap_is_wrong() {
        use clap::FromArgMatches as _;
        let wrong = |cap, limit| {
            let words = ["run", "--memory", cap, "--memory-limit", limit];
            let command = SliceOptions::augment_args(clap::Command::new("run"));
            let matches = command.get_matches_from(words);
            SliceOptions::from_arg_matches(&matches).expect("options").wrong()
        };
        let why = wrong("1/2", "1/4").expect("wrong");
        assert!(why.starts_with("memory limit 1/4 is below the cap 1/2; "), "{why}");
        assert!(wrong("5GiB", "4GiB").is_some());
        for (cap, limit) in [("4GiB", "5GiB"), ("1/2", "2/4"), ("1/2", "1GiB"), ("1GiB", "1/9")] {
            assert_eq!(wrong(cap, limit), None);
        }
    }

    #[test]
    fn a_name_that_cannot_be_shown_is_wrong_words() {
        for name in ["a\tb".to_owned(), "x".repeat(65)] {
            let command = SliceOptions::augment_args(clap::Command::new("run"));
            let words = ["run", "--memory", "1GiB", "--name", &name];
            let why = command.try_get_matches_from(words).expect_err("no name");
            assert!(why.exit_code() == 2 && why.to_string().contains("--name"), "{why}");
        }
    }

    /// The parser refuses them, with the exit status of wrong words.
    #[test]
    fn wrong_gpus_are_wrong_words() {
        let command = SliceOptions::augment_args(clap::Command::new("run"));
        let words = ["run", "--memory", "1GiB", "--gpus", "none"];
        let why = command.try_get_matches_from(words).expect_err("no selector");
        assert!(why.exit_code() == 2 && why.to_string().contains("any, all"), "{why}");
    }

    #[test]
    fn a_forgotten_unit_is_asked_for() {
        let said = |text: &str| parse_cap(text).map_err(|why| why.to_string());
        let tiny = "8B is less than 1MiB; did you mean 8GiB?";
        assert_eq!(said("8"), Err(tiny.to_owned()));
        assert!(said("1048575B").is_err_and(|why| why.contains("less than 1MiB")));
        assert!(said("512KiB").is_err_and(|why| why.ends_with("did you mean 512GiB?")));
        assert!(said("0").is_err_and(|why| why.contains("the size is 0")));
        let percent = said("50%").expect_err("no size");
        assert!(percent.ends_with("or a part of the GPU's memory, as in 1/4"), "{percent}");
        assert!(said("8GB").is_err_and(|why| why.contains("write 8GiB")));
        assert_eq!(said("1MiB"), Ok(MemoryAsk::Exactly(Bytes(MIB))));
        assert_eq!(said("8589934592"), Ok(MemoryAsk::Exactly(Bytes(8 << 30))));
        assert_eq!(said("1/4"), Ok(MemoryAsk::Ratio { part: 1, whole: 4 }));
        assert!(parse_memory("4096").is_err() && parse_memory("1MiB") == Ok(Bytes(MIB)));
    }
}
