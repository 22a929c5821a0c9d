//! Division of a GPU's time among containers: the policy of a GPU, the class of a container.
//!
//! All policies but `native` use the same queue of turns; they differ in each container's cap and in whether weights
//! count. [`Policy::rules`] is the table of what distinguishes them, and the engine's `cap` (`sched/policy.rs`) the one
//! function that computes a cap. The CLI's help is written from the table; the other texts are checked against it.
//!
//! A slice gets its share whenever it has work, under every policy but `native`; the policies divide what the shares
//! leave. Under `fixed` a share without a limit is also the limit.
//!
//! The numbers are those of cGPU's policies.

use crate::frame::{Field, FrameError, Reader, Writer, field_as};
use crate::units::{Percent, UnitError, Weight};
use core::fmt;
use core::str::FromStr;

/// A GPU's policy; [`Policy::rules`] says what each means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Policy {
    Fair,
    Preemptive,
    Weighted,
    Fixed,
    #[default]
    Soft,
    Native,
}

/// What distinguishes a policy, beside the caps that it gives.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRules {
    /// Its name.
    pub name: &'static str,
    /// The part of a GPU's time that a container without a share gets.
    pub summary: &'static str,
    /// Whether containers take turns; otherwise the driver divides the time, and nothing limits it.
    pub turns: bool,
    /// Whether weights count.
    pub weights: bool,
}

/// The policies by number.
const RULES: [PolicyRules; 6] = [
    PolicyRules {
        name: "fair",
        summary: "1/slices_per_gpu for each container, even alone",
        turns: true,
        weights: false,
    },
    PolicyRules {
        name: "preemptive",
        summary: "1/n for each of the n containers with a slice; all of it when alone",
        turns: true,
        weights: false,
    },
    PolicyRules {
        name: "weighted",
        summary: "by weight among all containers with a slice; all of it when alone",
        turns: true,
        weights: true,
    },
    PolicyRules {
        name: "fixed",
        summary: "weight/slices_per_gpu for each container, even alone",
        turns: true,
        weights: true,
    },
    PolicyRules {
        name: "soft",
        summary: "by weight among containers with work; unused time goes to the others at once",
        turns: true,
        weights: true,
    },
    PolicyRules {
        name: "native",
        summary: "the driver's own time slicing; memory caps only",
        turns: false,
        weights: true,
    },
];

impl Policy {
    /// All, by number.
    pub const ALL: [Policy; RULES.len()] = [
        Policy::Fair,
        Policy::Preemptive,
        Policy::Weighted,
        Policy::Fixed,
        Policy::Soft,
        Policy::Native,
    ];

    /// cGPU's number of the policy.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The policy of that number.
    #[must_use]
    pub fn of(number: u8) -> Option<Policy> {
        Policy::ALL.get(usize::from(number)).copied()
    }

    /// What distinguishes it.
    #[must_use]
    pub const fn rules(self) -> &'static PolicyRules {
        &RULES[self as usize]
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.rules().name
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is not a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPolicy;

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy is ")?;
        let last = Policy::ALL.len() - 1;
        for (number, policy) in Policy::ALL.iter().enumerate() {
            let before = match number {
                0 => "",
                _ if number == last => " or ",
                _ => ", ",
            };
            write!(f, "{before}{policy}")?;
        }
        write!(f, ", or its number 0 to {last}")
    }
}

impl core::error::Error for BadPolicy {}

impl FromStr for Policy {
    type Err = BadPolicy;
    fn from_str(text: &str) -> Result<Policy, BadPolicy> {
        let named = Policy::ALL.into_iter().find(|it| it.name() == text);
        let numbered = || match text.as_bytes() {
            &[digit @ b'0'..=b'9'] => Policy::of(digit - b'0'),
            _ => None,
        };
        named.or_else(numbered).ok_or(BadPolicy)
    }
}

field_as!(Policy as u8, |policy| policy.number(), Policy::of);

/// Scheduling priority, regardless of weights; the highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Before all others, up to the node's `high_cap`.
    High,
    /// The default.
    #[default]
    Normal,
    /// Time that no other container wants, and a small part of the rest.
    BestEffort,
}

/// The part of a GPU's time that higher classes keep while a lower one waits, by which no class starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCaps {
    /// What high-priority containers keep while normal ones wait.
    pub high: Percent,
    /// What high-priority and normal ones keep while best-effort ones wait.
    pub normal: Percent,
}

impl ClassCaps {
    /// Lower classes get nothing while higher ones have work.
    pub const ALL: ClassCaps = ClassCaps { high: Percent::ALL, normal: Percent::ALL };

    /// What the waiting class gets behind the others at least, percent.
    #[must_use]
    pub const fn floor(self, class: Class) -> u32 {
        match class {
            Class::High => 0,
            Class::Normal => 100 - self.high.get(),
            Class::BestEffort => 100 - self.normal.get(),
        }
    }
}

impl Field for ClassCaps {
    const BYTES: usize = 2 * u32::BYTES;
    fn put(&self, w: &mut Writer<'_>) -> Result<(), FrameError> {
        self.high.get().put(w)?;
        self.normal.get().put(w)
    }
    fn get(r: &mut Reader<'_>) -> Result<ClassCaps, FrameError> {
        let (high, normal) = (u32::get(r)?, u32::get(r)?);
        let percent = |percent| Percent::new(percent).map_err(|_| FrameError::Field);
        Ok(ClassCaps { high: percent(high)?, normal: percent(normal)? })
    }
}

impl Class {
    /// All classes, the highest first.
    pub const ALL: [Class; 3] = [Class::High, Class::Normal, Class::BestEffort];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::High => "high",
            Class::Normal => "normal",
            Class::BestEffort => "best-effort",
        }
    }

    /// Its number in messages and records.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Class::Normal => 0,
            Class::High => 1,
            Class::BestEffort => 2,
        }
    }

    /// The class of that number.
    #[must_use]
    pub fn of(number: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|it| it.number() == number)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is not a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadClass;

impl fmt::Display for BadClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority is high, normal or best-effort")
    }
}

impl core::error::Error for BadClass {}

impl FromStr for Class {
    type Err = BadClass;
    fn from_str(text: &str) -> Result<Class, BadClass> {
        let mut all = Class::ALL.into_iter();
        all.find(|it| it.name() == text).ok_or(BadClass)
    }
}

field_as!(Class as u8, |class| class.number(), Class::of);

/// Whether a container's GPUs may take turns together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gangs {
    /// Those that its processes use, as soon as they use several.
    #[default]
    Auto,
    /// Never: nothing that runs on one of them waits for what runs on another.
    Never,
}

impl Gangs {
    /// Both.
    pub const ALL: [Gangs; 2] = [Gangs::Auto, Gangs::Never];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Gangs::Auto => "auto",
            Gangs::Never => "never",
        }
    }
}

impl fmt::Display for Gangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is neither `auto` nor `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadGangs;

impl fmt::Display for BadGangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whether its GPUs take turns together is auto or never")
    }
}

impl core::error::Error for BadGangs {}

impl FromStr for Gangs {
    type Err = BadGangs;
    fn from_str(text: &str) -> Result<Gangs, BadGangs> {
        let mut all = Gangs::ALL.into_iter();
        all.find(|it| it.name() == text).ok_or(BadGangs)
    }
}

field_as!(Gangs as u8, |gangs| *gangs as u8, |raw| {
    let mut all = Gangs::ALL.into_iter();
    all.find(|it| *it as u8 == raw)
});

const NO_CLASS: u8 = u8::MAX;

field_as!(
    Option<Class> as u8,
    |class| class.map_or(NO_CLASS, Class::number),
    |raw| match raw {
        NO_CLASS => Some(None),
        number => Class::of(number).map(Some),
    }
);

/// A change of a setting that a slice may lack: its weight, its share or the limit of its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change<T> {
    /// Unchanged.
    #[default]
    Keep,
    /// Removed.
    None,
    /// Set to this.
    To(T),
}

impl<T> Change<T> {
    /// The change to this setting.
    #[must_use]
    pub fn to(setting: Option<T>) -> Change<T> {
        setting.map_or(Change::None, Change::To)
    }

    /// The setting after the change; `was` is the one before.
    #[must_use]
    pub fn of(self, was: Option<T>) -> Option<T> {
        match self {
            Change::Keep => was,
            Change::None => None,
            Change::To(setting) => Some(setting),
        }
    }
}

const KEEP: u32 = u32::MAX;

/// The number of a change in messages; `number` is that of a setting.
fn number_of<T: Copy>(change: &Change<T>, number: fn(T) -> u32) -> u32 {
    match *change {
        Change::Keep => KEEP,
        Change::None => 0,
        Change::To(setting) => number(setting),
    }
}

/// The change of that number.
fn change_of<T>(raw: u32, setting: fn(u32) -> Result<T, UnitError>) -> Option<Change<T>> {
    match raw {
        KEEP => Some(Change::Keep),
        0 => Some(Change::None),
        number => setting(number).ok().map(Change::To),
    }
}

field_as!(Change<Percent> as u32, |change| number_of(change, Percent::get), |raw| change_of(
    raw,
    Percent::new
));
field_as!(Change<Weight> as u32, |change| number_of(change, Weight::get), |raw| change_of(
    raw,
    Weight::new
));

impl<T: FromStr> FromStr for Change<T> {
    type Err = T::Err;
    /// `none`, or a setting.
    fn from_str(text: &str) -> Result<Change<T>, T::Err> {
        match text {
            "none" => Ok(Change::None),
            setting => setting.parse().map(Change::To),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_and_numbers_are_read_back() {
        for (number, policy) in (0u8..).zip(Policy::ALL) {
            assert_eq!(policy.number(), number);
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(number.to_string().parse(), Ok(policy));
        }
        let beyond = Policy::ALL.len().to_string();
        for bad in ["", &beyond, "-1", "04", "Fair", "soft "] {
            assert_eq!(bad.parse::<Policy>(), Err(BadPolicy), "{bad}");
        }
        for class in Class::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
            assert_eq!(Class::of(class.number()), Some(class));
        }
        assert_eq!((Class::of(3), "HIGH".parse::<Class>()), (None, Err(BadClass)));
        assert!(Class::High < Class::Normal && Class::Normal < Class::BestEffort);
        for gangs in Gangs::ALL {
            assert_eq!(gangs.to_string().parse(), Ok(gangs));
        }
        assert_eq!("always".parse::<Gangs>(), Err(BadGangs));
        assert_eq!("none".parse(), Ok(Change::<Percent>::None));
        assert_eq!("7".parse::<Change<Weight>>().map(|it| it.of(None)), Ok(Weight::new(7).ok()));
        assert!("0".parse::<Change<Percent>>().is_err());
    }
}
