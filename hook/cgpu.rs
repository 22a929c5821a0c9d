//! cGPU's environment variables, with the same meaning here as far as an image may request it.
//!
//! `ALIYUN_COM_GPU_MEM_CONTAINER` GiB of `ALIYUN_COM_GPU_MEM_DEV` GiB is a *ratio*: the cap is
//! `floor(physical MiB * container / device)` MiB, so 4 of 15 on a 16130 MiB card is 4301 MiB
//! (Alibaba's documentation shows these outputs). Without the first variable there is no request.
//!
//! Kubernetes' device plugin puts these variables into a container's environment, and so can the image;
//! the hook cannot distinguish them. So they may request memory, within the node's bounds, which the
//! daemon enforces. A weight above 1, high priority and whole GPUs (those that NVIDIA's list has beyond
//! cGPU's) cost other containers more than memory. They are refused, and the error names the
//! alternative: to ignore them silently would be as wrong as to grant them.

use crate::ask::{Ask, selector};
use crate::config::Config;
use crate::error::Error;
use crate::nvidia::{VISIBLE, visible};
use gpuslice_wire::admin::{MemoryAsk, RequestSource};
use gpuslice_wire::text::Selector;
use gpuslice_wire::units::Weight;

pub(crate) const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
const GPUS: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES";
const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
const HIGH: &str = "ALIYUN_COM_GPU_HIGH_PRIO";
const DISABLE: &str = "CGPU_DISABLE";

/// The request in the environment.
///
/// # Errors
/// [`Error::Ask`] for a malformed value, also for an opt-out the node does not allow.
pub(crate) fn ask(config: &Config, allow_disable: bool) -> Result<Option<Ask>, Error> {
    let Some(part) = config.variable(CONTAINER)? else {
        return Ok(None);
    };
    if disabled(config, allow_disable)? {
        return Ok(None);
    }
    let missing = || {
        Error::ask(DEVICE, "", "the GPU's memory in GiB is missing; set it beside the container's")
    };
    let whole = config.variable(DEVICE)?.ok_or_else(missing)?;
    let (part, whole) = (gib(CONTAINER, part)?, gib(DEVICE, whole)?);
    if part > whole {
        return Err(Error::ask(CONTAINER, &part.to_string(), "more than the GPU has"));
    }
    no_more_than_memory(config)?;
    let memory = MemoryAsk::Ratio { part, whole };
    Ok(Some(Ask { gpus: gpus(config)?, ..Ask::of_memory(memory, RequestSource::Cgpu) }))
}

/// Refuses requests that an image must not make.
fn no_more_than_memory(config: &Config) -> Result<(), Error> {
    let not_here = |key, value, instead| {
        let why = format!(
            "the image may have set it; request it by the annotation {instead} or by a CDI device"
        );
        Err(Error::ask(key, value, why))
    };
    if let Some(text) = config.variable(WEIGHT)? {
        let weight: Weight = text.parse().map_err(|why| Error::ask(WEIGHT, text, why))?;
        if weight > Weight::ONE {
            return not_here(WEIGHT, text, "gpuslice.io/weight");
        }
    }
    if flag(config, HIGH)? == Some(true) {
        return not_here(HIGH, "1", "gpuslice.io/priority");
    }
    match beside(config)? {
        Some(text) => not_here(VISIBLE, text, "gpuslice.io/whole-gpus"),
        None => Ok(()),
    }
}

fn disabled(config: &Config, allow: bool) -> Result<bool, Error> {
    match flag(config, DISABLE)? {
        Some(true) if allow => Ok(true),
        Some(true) => Err(Error::ask(
            DISABLE,
            "true",
            "this node does not let containers opt out; remove the variable",
        )),
        _ => Ok(false),
    }
}

/// A whole number of GiB, at least 1.
fn gib(key: &str, text: &str) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse::<u32>().ok()).flatten().filter(|&n| n > 0);
    number.ok_or_else(|| Error::ask(key, text, "not a whole number of GiB, at least 1"))
}

fn flag(config: &Config, key: &str) -> Result<Option<bool>, Error> {
    match config.variable(key)? {
        None | Some("") => Ok(None),
        Some("1" | "true") => Ok(Some(true)),
        Some("0" | "false") => Ok(Some(false)),
        Some(other) => Err(Error::ask(key, other, "1, true, 0 or false")),
    }
}

/// The GPUs to slice: cGPU's own list, else those of NVIDIA's variable.
fn gpus(config: &Config) -> Result<Selector, Error> {
    let (key, text) = match (list(config, GPUS)?, visible(config)?) {
        (Some(text), _) => (GPUS, text),
        (None, Some(text)) => (VISIBLE, text),
        (None, None) => return Ok(Selector::EMPTY),
    };
    selector(text).map_err(|why| Error::ask(key, text, why))
}

/// NVIDIA's list, if it names GPUs that cGPU's does not.
fn beside(config: &Config) -> Result<Option<&str>, Error> {
    let (Some(sliced), Some(listed)) = (list(config, GPUS)?, visible(config)?) else {
        return Ok(None);
    };
    selector(listed).map_err(|why| Error::ask(VISIBLE, listed, why))?;
    let is_sliced = |gpu: &str| sliced == "all" || sliced.split(',').any(|one| one == gpu);
    Ok((!listed.split(',').all(is_sliced)).then_some(listed))
}

fn list<'a>(config: &'a Config, key: &str) -> Result<Option<&'a str>, Error> {
    Ok(config.variable(key)?.filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::policy::Class;

    fn asked(environment: &str, allow: bool) -> Result<Option<Ask>, Error> {
        let entries: Vec<String> =
            environment.split_whitespace().map(|e| format!("{e:?}")).collect();
        let text = format!(r#"{{"process":{{"env":[{}]}}}}"#, entries.join(","));
        ask(&Config::parse(text.as_bytes())?, allow)
    }

    const MEMORY: &str = "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15";

    fn with(more: &str) -> Result<Ask, Error> {
        Ok(asked(&format!("{MEMORY} {more}"), false)?.expect("asks"))
    }

    #[test]
    fn the_contract() {
        let plain = "ALIYUN_COM_GPU_SCHD_WEIGHT=1 ALIYUN_COM_GPU_HIGH_PRIO=0 \
                     ALIYUN_COM_GPU_VISIBLE_DEVICES=2 NVIDIA_VISIBLE_DEVICES=2";
        let ask = with(plain).expect("valid");
        assert_eq!(ask.memory, MemoryAsk::Ratio { part: 4, whole: 15 });
        assert_eq!((ask.weight, ask.class), (None, Class::Normal));
        assert_eq!(ask.source, Some(RequestSource::Cgpu));
        for (more, gpus) in [
            ("", ""),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=0,2", "0,2"),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=0,2 NVIDIA_VISIBLE_DEVICES=2", "0,2"),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=2 NVIDIA_VISIBLE_DEVICES=all", "2"),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=all NVIDIA_VISIBLE_DEVICES=0", "all"),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES= NVIDIA_VISIBLE_DEVICES=1", "1"),
            ("NVIDIA_VISIBLE_DEVICES=0,1", "0,1"),
            ("NVIDIA_VISIBLE_DEVICES=all", ""),
            ("NVIDIA_VISIBLE_DEVICES=none", ""),
            ("NVIDIA_VISIBLE_DEVICES=void", ""),
        ] {
            let ask = with(more).expect(more);
            assert_eq!((ask.gpus.as_str(), ask.whole), (gpus, Selector::EMPTY), "{more}");
        }
        assert_eq!(asked("NVIDIA_VISIBLE_DEVICES=all", false).expect("valid"), None);
    }

    /// Requests that cost others more than memory are refused, with the alternative.
    #[test]
    fn no_class_no_weight_no_whole_gpus() {
        for (more, instead) in [
            ("ALIYUN_COM_GPU_HIGH_PRIO=1", "gpuslice.io/priority"),
            ("ALIYUN_COM_GPU_HIGH_PRIO=true", "gpuslice.io/priority"),
            ("ALIYUN_COM_GPU_SCHD_WEIGHT=2", "gpuslice.io/weight"),
            ("ALIYUN_COM_GPU_SCHD_WEIGHT=1000", "gpuslice.io/weight"),
            (
                "ALIYUN_COM_GPU_VISIBLE_DEVICES=3 NVIDIA_VISIBLE_DEVICES=0,1,2,3",
                "gpuslice.io/whole-gpus",
            ),
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=3 NVIDIA_VISIBLE_DEVICES=2", "gpuslice.io/whole-gpus"),
        ] {
            let said = with(more).expect_err(more).to_string();
            assert!(said.contains(instead) && said.contains("CDI"), "{more}: {said}");
        }
    }

    /// With annotations the environment adds nothing.
    #[test]
    fn annotations_are_not_widened_by_the_environment() {
        let text = r#"{"annotations":{"gpuslice.io/memory":"1GiB"},"process":{"env":[
            "ALIYUN_COM_GPU_MEM_CONTAINER=15","ALIYUN_COM_GPU_MEM_DEV=15","CGPU_DISABLE=true",
            "ALIYUN_COM_GPU_HIGH_PRIO=1","ALIYUN_COM_GPU_SCHD_WEIGHT=1000",
            "ALIYUN_COM_GPU_VISIBLE_DEVICES=3","NVIDIA_VISIBLE_DEVICES=0,1,2,3"]}}"#;
        let bare = r#"{"annotations":{"gpuslice.io/memory":"1GiB"}}"#;
        let of = |text: &str| Ask::of(&Config::parse(text.as_bytes()).expect("JSON"), true);
        assert_eq!(of(text).expect("valid"), of(bare).expect("valid"));
    }

    #[test]
    fn opting_out_is_the_nodes_choice() {
        let env = &format!("{MEMORY} CGPU_DISABLE=true");
        assert_eq!(asked(env, true).expect("valid"), None);
        assert!(asked(env, false).is_err());
    }

    #[test]
    fn malformed_values() {
        let dev = "ALIYUN_COM_GPU_MEM_DEV=15";
        for bad in ["0", "-1", "1e30", "4.5", "0x4", "99999999999", "", "16", "4Gi"] {
            let env = format!("ALIYUN_COM_GPU_MEM_CONTAINER={bad} {dev}");
            assert!(asked(&env, true).is_err(), "{bad}");
        }
        for bad in [
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_SCHD_WEIGHT=0",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_SCHD_WEIGHT=1001",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_SCHD_WEIGHT=2.5",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_HIGH_PRIO=yes",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_HIGH_PRIO=2",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 NVIDIA_VISIBLE_DEVICES=x",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_CONTAINER=8 ALIYUN_COM_GPU_MEM_DEV=15",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 ALIYUN_COM_GPU_MEM_DEV=4",
        ] {
            assert!(asked(bad, false).is_err(), "{bad}");
        }
    }
}
