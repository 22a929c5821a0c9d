//! The text that configures the simulated machine: `devices=2,mem=16GiB/24GiB,slice=2ms`.
//!
//! Errors are not overlooked: an unknown key, a key given twice or a number without a unit is refused
//! with the expected form. The text is read once, when the device directory is made; an existing
//! directory keeps its machine.
//!
//! `profile` chooses the defaults of all other keys: `kind` is a driver that answers at once and the same
//! every time, `strict` one as a real driver is at its worst ([`crate::properties`]).

use crate::error::ConfigError;
use crate::faults::{FAULT_FORM, Faults};
use crate::limits::{MAX_GPUS, MAX_PAGES, MAX_QUEUES, NAME_BYTES, PAGE_BYTES};
use crate::properties::{Listing, Properties, SPAN_FORM, Span};
use crate::units::{self, DURATION_FORM, SIZE_FORM};

const MAX_MEMORY: u64 = MAX_PAGES as u64 * PAGE_BYTES;

/// One GPU to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    pub memory_bytes: u64,
    pub name: String,
}

/// Whether the driver has memory limits per control group, and by which means of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Limits {
    /// It has none, as drivers before CUDA 13.4.
    Off,
    /// Flat: a soft limit is the group's own affair.
    Misc,
    /// A soft limit is reserved in all groups above.
    Dmem,
}

impl Limits {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "misc" => Some(Self::Misc),
            "dmem" => Some(Self::Dmem),
            _ => None,
        }
    }

    /// Of a number that was one of these; any other is no limits.
    pub(crate) fn from_number(number: u32) -> Self {
        [Self::Misc, Self::Dmem].into_iter().find(|one| *one as u32 == number).unwrap_or(Self::Off)
    }
}

/// How the driver answers controls of channel groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Controls {
    /// It obeys.
    On,
    /// It refuses.
    Denied,
    /// It does not support them.
    Unsupported,
    /// It obeys, after 5 ms.
    Slow,
    /// It reports success and does nothing.
    Void,
    /// It obeys, but cannot set time slices.
    Stops,
}

impl Controls {
    const ALL: [(Self, &str); 6] = [
        (Self::On, "on"),
        (Self::Denied, "denied"),
        (Self::Unsupported, "unsupported"),
        (Self::Slow, "slow"),
        (Self::Void, "void"),
        (Self::Stops, "stops"),
    ];

    fn parse(text: &str) -> Option<Self> {
        let one = Self::ALL.iter().find(|(_, name)| *name == text);
        one.map(|(one, _)| *one)
    }

    /// Of a number that was one of these; any other is nothing that is known.
    pub(crate) fn from_number(number: u32) -> Self {
        let mut all = Self::ALL.iter().map(|(one, _)| *one);
        all.find(|one| *one as u32 == number).unwrap_or(Self::Unsupported)
    }
}

/// The machine to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether the profile is `strict`.
    pub strict: bool,
    pub devices: Vec<DeviceConfig>,
    /// The hardware's time slice of a context while others have work.
    pub slice: Span,
    /// Time of a switch from one context to another.
    pub switch: Span,
    /// Device memory every context takes for itself.
    pub context_bytes: u64,
    /// Additional memory of the first context of a process on a GPU.
    pub first_context_bytes: u64,
    /// Least device memory of a loaded module; 0: modules have none.
    pub module_bytes: u64,
    pub limits: Limits,
    pub controls: Controls,
    /// CUDA version of the driver: major, minor.
    pub driver: (u32, u32),
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    pub faults: Faults,
    pub properties: Properties,
}

struct Key {
    name: &'static str,
    /// The value where none is given: of the profile `kind`, and of `strict` where that has another.
    default: &'static str,
    strict: Option<&'static str>,
    form: &'static str,
    meaning: &'static str,
}

const KIND: &str = "kind";
const STRICT: &str = "strict";

const KEYS: [Key; 36] = [
    key("profile", KIND, "kind or strict", "defaults of all other keys: the first or the second"),
    key("devices", "1", "1 to 16", "number of GPUs"),
    key("mem", "16GiB", SIZE_FORM, "memory of each GPU, or one value per GPU: 16GiB/24GiB"),
    key("name", "gpuslice simulated GPU", "text", "name, or one per GPU: A/B"),
    key("cc", "9.0", "MAJOR.MINOR", "compute capability"),
    key("sms", "132", "1 to 1024", "multiprocessors"),
    key("slice", "2ms", SPAN_FORM, "time-slice between contexts that have work").or("1500us..2500us"),
    key("switch", "50us", SPAN_FORM, "cost of a change from one context to another").or("50us..500us"),
    key("context", "64MiB", SIZE_FORM, "device memory every context takes for itself").or("524MiB"),
    key("first", "0B", SIZE_FORM, "what the first context of a process on a GPU takes on top"),
    key("create", "0ns", SPAN_FORM, "time of the creation of a context").or("100ms"),
    key(
        "part",
        "0B",
        SIZE_FORM,
        "what a context takes when its creation begins; 0B for all of it",
    ),
    key(
        "module",
        "2MiB",
        SIZE_FORM,
        "least device memory of a loaded module; more if its image is larger, 0B for none",
    ),
    key(
        "lazy",
        "0ns",
        SPAN_FORM,
        "lazy loading: the first launch of a function takes this time, and a module's memory is taken then; 0ns for none",
    )
    .or("1ms..5ms"),
    key("lock", "off", SWITCH_FORM, "calls in a context wait while another thread's call in it blocks")
        .or("on"),
    key(
        "queues",
        "0",
        "0 to 32",
        "hardware queues of a context, where a stream that waits holds up the others; 0 for one per stream",
    )
    .or("8"),
    key("overlap", "off", SWITCH_FORM, "work of one context runs at the same time where grids fit").or("on"),
    key("event", "0ns", SPAN_FORM, "the GPU's work for the recording of an event").or("1us..2us"),
    key("exit", "0ns", SPAN_FORM, "time from a process's end until its memory is free").or("1s..3s"),
    key(
        "held",
        "off",
        SWITCH_FORM,
        "a process ends for the driver when its last descriptor is closed, be it in a forked child",
    )
    .or("on"),
    key("checkpoint", "47684MiB", SIZE_FORM, "what a checkpoint moves to the host each second")
        .or("1GiB"),
    key("restore", "47684MiB", SIZE_FORM, "what a restore moves back each second").or("2GiB"),
    key(
        "shared",
        "0ns",
        SPAN_FORM,
        "a checkpoint of shared memory fails after this time, with driver=13.2",
    )
    .or("32s..35s"),
    key("nvml", "0ns", SPAN_FORM, "time of a call of NVML's").or("1ms..50ms"),
    key("managed", "stays", "stays or moves", "managed memory is on the GPU, or comes there when the GPU uses it")
        .or("moves"),
    key("late", "0ns", DURATION_FORM, "NVML's figures of memory and processes are sampled this often")
        .or("100ms"),
    key(
        "listed",
        "always",
        Listing::FORM,
        "NVML's figures of a process's memory: in all answers, in three of four, not available, or not supported",
    )
    .or("sometimes"),
    key("mig", "none", "none, or numbers joined by +", "GPUs that NVML says are in MIG mode; CUDA shows them as others"),
    key("mps", "none", "none, or numbers joined by +", "GPUs on which NVML lists a client of an MPS server; CUDA shows them as others"),
    key("exclusive", "none", "none, or numbers joined by +", "GPUs whose compute mode NVML calls exclusive; CUDA admits all processes"),
    key("lost", "none", "none, or numbers joined by +", "GPUs that NVML counts and does not open; CUDA shows them as others"),
    key("seed", "1", "a whole number", "of what differs from one time to the next"),
    key(
        "limits",
        "off",
        "off, misc or dmem",
        "memory limits per control group, and what they are made of",
    ),
    key(
        "controls",
        "on",
        "on, denied, unsupported, slow, void or stops",
        "controls of channel groups: done, refused, unknown, done after 5 ms, only said to be done, or all but time slices",
    ),
    key("driver", "13.0", "MAJOR.MINOR from 11.0 to 13.9", "CUDA version of the driver"),
    key("fault", "none", FAULT_FORM, "injected faults, several joined by `+`"),
];

const SWITCH_FORM: &str = "off or on";

const fn key(
    name: &'static str,
    default: &'static str,
    form: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, default, strict: None, form, meaning }
}

impl Key {
    /// With another default in the profile `strict`.
    const fn or(self, strict: &'static str) -> Self {
        Self { strict: Some(strict), ..self }
    }

    fn default_in(&self, profile: &str) -> &'static str {
        self.strict.filter(|_| profile == STRICT).unwrap_or(self.default)
    }
}

/// The keys of `GPUSLICE_SIM` with their forms and defaults, for a help text.
pub fn describe() -> String {
    let mut text = String::from(
        "GPUSLICE_SIM=KEY=VALUE,... read when the device is made; after a bar the value with profile=strict\n",
    );
    for Key { name, default, strict, form, meaning } in &KEYS {
        let strict = strict.map_or_else(String::new, |value| format!(" | {value}"));
        text.push_str(&format!("  {name:<8} {meaning} ({form}) [{default}{strict}]\n"));
    }
    text.push_str(
        "GPUSLICE_SIM_DEVICE=DIR the device's directory, its owner's alone (mode 700) \
         [/dev/gpuslice-sim if that exists, else /dev/shm/gpuslice-sim-UID]\n\
         GPUSLICE_SIM_FAULT=FAULT faults for one process, in place of the device's\n",
    );
    text
}

impl Config {
    /// Reads the text; the empty text is the default machine.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut given: [Option<&str>; KEYS.len()] = [None; KEYS.len()];
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(at) = KEYS.iter().position(|key| key.name == name) else {
                let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
                let expected = format!("one of the keys {}", names.join(", "));
                return Err(ConfigError { key: name.into(), value: value.into(), expected });
            };
            if given[at].replace(value).is_some() {
                let expected = "each key at most once".into();
                return Err(ConfigError { key: name.into(), value: value.into(), expected });
            }
        }
        let at = |name: &str| KEYS.iter().position(|key| key.name == name).unwrap_or(0);
        let profile = given[0].unwrap_or(KEYS[0].default);
        read((&KEYS[0], profile), |name| (name == KIND || name == STRICT).then_some(()))?;
        let value = |name: &str| {
            let at = at(name);
            (&KEYS[at], given[at].unwrap_or(KEYS[at].default_in(profile)))
        };
        Ok(Self {
            strict: profile == STRICT,
            devices: devices(value("devices"), value("mem"), value("name"))?,
            slice: read(value("slice"), |v| Span::parse(v).filter(|span| span.least_ns >= 1000))?,
            switch: read(value("switch"), short)?,
            context_bytes: read(value("context"), overhead)?,
            first_context_bytes: read(value("first"), overhead)?,
            module_bytes: read(value("module"), overhead)?,
            limits: read(value("limits"), Limits::parse)?,
            controls: read(value("controls"), Controls::parse)?,
            driver: read(value("driver"), |v| {
                version(v).filter(|&(major, minor)| (11..=13).contains(&major) && minor <= 9)
            })?,
            compute_capability: read(value("cc"), version)?,
            multiprocessors: read(value("sms"), |v| number(v).filter(|n| (1..=1024).contains(n)))?,
            faults: Faults::parse(value("fault").1)?,
            properties: properties(value)?,
        })
    }
}

fn properties<'a>(value: impl Fn(&str) -> Given<'a>) -> Result<Properties, ConfigError> {
    let most_late = |text: &str| short(text).filter(|span| span.is_fixed());
    Ok(Properties {
        seed: read(value("seed"), |v| v.parse().ok())?,
        create: read(value("create"), long)?,
        part_bytes: read(value("part"), overhead)?,
        lazy: read(value("lazy"), short)?,
        exit: read(value("exit"), long)?,
        nvml: read(value("nvml"), short)?,
        event: read(value("event"), short)?,
        checkpoint_speed: read(value("checkpoint"), speed)?,
        restore_speed: read(value("restore"), speed)?,
        shared: read(value("shared"), long)?,
        late_ns: read(value("late"), most_late)?.least_ns,
        queues: read(value("queues"), |v| number(v).filter(|&n| n <= MAX_QUEUES))?,
        overlap: read(value("overlap"), switch)?,
        lock: read(value("lock"), switch)?,
        held: read(value("held"), switch)?,
        listed: read(value("listed"), Listing::parse)? as u32,
        mig: read(value("mig"), numbers)?,
        mps: read(value("mps"), numbers)?,
        exclusive: read(value("exclusive"), numbers)?,
        lost: read(value("lost"), numbers)?,
        managed: read(value("managed"), moving)?,
    })
}

/// Times that a call may take.
fn short(text: &str) -> Option<Span> {
    Span::parse(text).filter(|span| span.most_ns <= 1_000_000_000)
}

fn long(text: &str) -> Option<Span> {
    Span::parse(text).filter(|span| span.most_ns <= 60_000_000_000)
}

/// The bits of GPUs by their numbers: `none`, or `0+2`.
pub fn numbers(text: &str) -> Option<u32> {
    let one = |text: &str| Some(1_u32 << number(text).filter(|&n| (n as usize) < MAX_GPUS)?);
    match text {
        "none" => Some(0),
        _ => text.split('+').try_fold(0, |all, text| Some(all | one(text)?)),
    }
}

fn switch(text: &str) -> Option<u32> {
    match text {
        "off" => Some(0),
        "on" => Some(1),
        _ => None,
    }
}

fn moving(text: &str) -> Option<u32> {
    match text {
        "stays" => Some(0),
        "moves" => Some(1),
        _ => None,
    }
}

fn read<T>(
    (key, value): (&Key, &str),
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    parse(value).ok_or_else(|| ConfigError {
        key: key.name.into(),
        value: value.into(),
        expected: key.form.into(),
    })
}

fn overhead(text: &str) -> Option<u64> {
    units::size(text).filter(|&bytes| bytes <= MAX_MEMORY)
}

/// At least so much that the largest memory moves in hours.
fn speed(text: &str) -> Option<u64> {
    units::size(text).filter(|&bytes| bytes >= PAGE_BYTES)
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?)).filter(|&(major, minor)| major < 100 && minor < 100)
}

type Given<'a> = (&'a Key, &'a str);

fn devices(count: Given, mem: Given, name: Given) -> Result<Vec<DeviceConfig>, ConfigError> {
    let count = read(count, |v| number(v).filter(|n| (1..=MAX_GPUS as u32).contains(n)))? as usize;
    let list = |given: Given| -> Result<Vec<String>, ConfigError> {
        let items: Vec<String> = given.1.split('/').map(String::from).collect();
        match items.len() {
            1 => Ok(vec![items[0].clone(); count]),
            many if many == count => Ok(items),
            _ => Err(ConfigError {
                key: given.0.name.into(),
                value: given.1.into(),
                expected: format!("one value, or {count} joined by `/`, one per device"),
            }),
        }
    };
    let (sizes, names) = (list(mem)?, list(name)?);
    sizes.iter().zip(names).map(|(size, device)| one_device(mem.0, size, name.0, device)).collect()
}

fn one_device(
    mem: &Key,
    size: &str,
    name: &Key,
    device: String,
) -> Result<DeviceConfig, ConfigError> {
    let memory_bytes = read((mem, size), units::size)?;
    if memory_bytes == 0 || memory_bytes % PAGE_BYTES != 0 || memory_bytes > MAX_MEMORY {
        let expected = "a multiple of 2MiB from 2MiB to 192GiB".into();
        return Err(ConfigError { key: mem.name.into(), value: size.into(), expected });
    }
    let printable = device.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if device.is_empty() || device.len() >= NAME_BYTES || !printable {
        let expected = format!("1 to {} printable ASCII characters", NAME_BYTES - 1);
        return Err(ConfigError { key: name.name.into(), value: device, expected });
    }
    Ok(DeviceConfig { memory_bytes, name: device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_text_is_the_kind_machine() {
        let config = Config::parse("").unwrap();
        assert_eq!(Config::parse("profile=kind"), Ok(config.clone()));
        let speed = 47_684 << 20;
        let own = Properties {
            seed: 1,
            checkpoint_speed: speed,
            restore_speed: speed,
            ..Properties::default()
        };
        assert_eq!(config.properties, own);
        assert_eq!(
            (config.slice, config.switch),
            (Span::exactly(2_000_000), Span::exactly(50_000))
        );
    }

    #[test]
    fn a_profile_is_a_default_for_each_key() {
        let strict = Config::parse("profile=strict").unwrap();
        assert_eq!(strict.switch, Span { least_ns: 50_000, most_ns: 500_000 });
        assert_eq!((strict.properties.queues, strict.properties.late_ns), (8, 100_000_000));
        assert_eq!(strict.properties.listing(), Listing::Sometimes);
        // A key that is given counts in every profile, before and after it.
        let text = "exit=0ns,profile=strict,listed=never,queues=32,context=0B,held=off";
        let mixed = Config::parse(text).unwrap();
        assert!(mixed.properties.exit.is_zero() && mixed.context_bytes == 0);
        assert_eq!((mixed.properties.queues, mixed.properties.held), (32, 0));
        assert_eq!((mixed.properties.lock, mixed.properties.listing()), (1, Listing::Never));
        // All that strict changes can be given alone, and is then what strict has.
        let each = KEYS.iter().filter_map(|key| Some(format!("{}={}", key.name, key.strict?)));
        let all: Vec<String> = each.collect();
        assert_eq!(Config::parse(&all.join(",")), Ok(Config { strict: false, ..strict }));
    }

    #[test]
    fn every_key_is_read() {
        let text = "devices=2,mem=16GiB/24GiB,name=A/B,slice=1ms,switch=0ns,context=32MiB,\
                    driver=12.4,cc=8.6,sms=84,fault=oom-every=7,first=4MiB,module=0B,limits=dmem,controls=void";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.devices[1], DeviceConfig { memory_bytes: 24 << 30, name: "B".into() });
        assert_eq!((config.slice, config.switch), (Span::exactly(1_000_000), Span::exactly(0)));
        assert_eq!((config.driver, config.compute_capability), ((12, 4), (8, 6)));
        assert_eq!((config.context_bytes, config.multiprocessors), (32 << 20, 84));
        assert_eq!((config.first_context_bytes, config.module_bytes), (4 << 20, 0));
        assert_eq!((config.limits, config.controls), (Limits::Dmem, Controls::Void));
        assert_eq!(config.faults.oom_every, 7);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, key: &str| {
            let error = Config::parse(text).unwrap_err();
            assert_eq!(error.key, key, "{text}: {error}");
        };
        check("devices=0", "devices");
        check("devices=17", "devices");
        check("devices=+2", "devices");
        check("mem=16", "mem");
        check("mem=3MiB", "mem");
        check("mem=0B", "mem");
        check("mem=193GiB", "mem");
        check("devices=3,mem=1GiB/2GiB", "mem");
        check("name=", "name");
        check("slice=0ns", "slice");
        check("driver=10.2", "driver");
        check("limits=on", "limits");
        check("controls=maybe", "controls");
        check("module=2", "module");
        check("first=1PiB", "first");
        check("colour=red", "colour");
        check("devices", "devices");
        check("devices=1,devices=1", "devices");
        check("fault=fire", "fault");
        check("profile=cruel", "profile");
        check("switch=2s", "switch");
        check("slice=1ns..2ms", "slice");
        check("exit=3s..1s", "exit");
        check("queues=33", "queues");
        check("mig=16", "mig");
        check("mig=0+", "mig");
        check("late=1ms..2ms", "late");
        check("held=yes", "held");
        check("listed=often", "listed");
        check("seed=-1", "seed");
        check("checkpoint=0B", "checkpoint");
        check("restore=2GB", "restore");
    }

    #[test]
    fn the_help_names_every_key_with_its_defaults() {
        let text = describe();
        for Key { name, default, strict, .. } in &KEYS {
            let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
            let line = line.unwrap_or_else(|| panic!("{name} has no line"));
            assert!(line.contains(default) && line.contains(strict.unwrap_or("")), "{line}");
        }
    }

    /// The page tells of each property what it is in either profile, and where the value comes from.
    #[test]
    fn the_page_has_a_row_for_each_property() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulated-gpu.md");
        let page = std::fs::read_to_string(page).unwrap();
        for Key { name, default, strict, .. } in &KEYS {
            let Some(strict) = strict else { continue };
            let begin = format!("| `{name}` | `{default}` | `{strict}` | ");
            let row = page.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins with {begin}"));
            let cells: Vec<&str> = row.split(" | ").collect();
            assert!(cells.len() == 5 && cells[3..].iter().all(|cell| cell.len() > 10), "{row}");
        }
    }

    #[test]
    fn any_text_is_a_machine_or_an_error() {
        gpuslice_fuzz::fuzz!("machine", |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            match Config::parse(text) {
                Ok(machine) => assert!((1..=MAX_GPUS).contains(&machine.devices.len())),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        });
    }
}
