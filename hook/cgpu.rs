//! cGPU's contract: what its users set in a container's environment, with the same meaning here.
//!
//! `ALIYUN_COM_GPU_MEM_CONTAINER` GiB of `ALIYUN_COM_GPU_MEM_DEV` GiB is a *ratio*: the cap is
//! `floor(physical MiB * container / device)` MiB, so 4 of 15 on a 16130 MiB card is 4301 MiB
//! (Alibaba's documentation shows these outputs). Without the first variable nothing is asked for.
//! Where cGPU's list of GPUs and NVIDIA's are both there, the GPUs that only NVIDIA's names are the
//! container's as a whole; "all" names none of them, for images have it in their environment.
//! A weight above 1 makes a GPU of policy 1 (preemptive) one of policy 2 (weighted), and high
//! priority is a yes or no: there is no best effort in this contract.

use crate::ask::{Ask, selector};
use crate::config::Config;
use crate::error::Error;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::Weight;

const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
const GPUS: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES";
const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
const HIGH: &str = "ALIYUN_COM_GPU_HIGH_PRIO";
const DISABLE: &str = "CGPU_DISABLE";
const NVIDIA: &str = "NVIDIA_VISIBLE_DEVICES";

/// What the environment asks for.
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
        Error::ask(
            DEVICE,
            "",
            "the GPU's memory in GiB is missing beside the container's",
        )
    };
    let whole = config.variable(DEVICE)?.ok_or_else(missing)?;
    let (part, whole) = (gib(CONTAINER, part)?, gib(DEVICE, whole)?);
    if part > whole {
        return Err(Error::ask(
            CONTAINER,
            &part.to_string(),
            "more than the GPU has",
        ));
    }
    let weight = match config.variable(WEIGHT)? {
        None => Weight::ONE,
        Some(text) => text.parse().map_err(|why| Error::ask(WEIGHT, text, why))?,
    };
    let memory = MemoryAsk::Ratio { part, whole };
    let class = match flag(config, HIGH)? {
        Some(true) => Class::High,
        _ => Class::Normal,
    };
    Ok(Some(Ask {
        memory,
        weight,
        share: None,
        class,
        gang: Gangs::Auto,
        gpus: gpus(config)?,
        whole: others(config)?,
        name: Name::EMPTY,
        pinned: None,
        weighs: weight > Weight::ONE,
    }))
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
    let number = digits
        .then(|| text.parse::<u32>().ok())
        .flatten()
        .filter(|&n| n > 0);
    number.ok_or_else(|| Error::ask(key, text, "a whole number of GiB from 1 up"))
}

fn flag(config: &Config, key: &str) -> Result<Option<bool>, Error> {
    match config.variable(key)? {
        None | Some("") => Ok(None),
        Some("1" | "true") => Ok(Some(true)),
        Some("0" | "false") => Ok(Some(false)),
        Some(other) => Err(Error::ask(key, other, "1, true, 0 or false")),
    }
}

/// The GPUs to slice: cGPU's own list, else those NVIDIA's variable makes visible.
fn gpus(config: &Config) -> Result<Selector, Error> {
    let named = |key: &'static str| -> Result<_, Error> {
        let text = config.variable(key)?.filter(|text| !text.is_empty());
        Ok(text.map(|text| (key, text)))
    };
    let (key, text) = match named(GPUS)?.or(named(NVIDIA)?) {
        None => return Ok(Selector::EMPTY),
        Some((NVIDIA, "none" | "void")) => return Ok(Selector::EMPTY),
        Some(found) => found,
    };
    selector(text).map_err(|why| Error::ask(key, text, why))
}

/// The GPUs that are not to be sliced.
fn others(config: &Config) -> Result<Selector, Error> {
    let list = |key| {
        let text = config.variable(key)?;
        Ok(text.filter(|text| !matches!(*text, "" | "none" | "void" | "all")))
    };
    match (list(GPUS)?, list(NVIDIA)?) {
        (Some(_), Some(text)) => selector(text).map_err(|why| Error::ask(NVIDIA, text, why)),
        _ => Ok(Selector::EMPTY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(environment: &str, allow: bool) -> Result<Option<Ask>, Error> {
        let entries: Vec<String> = environment
            .split_whitespace()
            .map(|e| format!("{e:?}"))
            .collect();
        let text = format!(r#"{{"process":{{"env":[{}]}}}}"#, entries.join(","));
        ask(&Config::parse(text.as_bytes())?, allow)
    }

    #[test]
    fn the_contract() {
        let env = "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 \
                   ALIYUN_COM_GPU_SCHD_WEIGHT=3 ALIYUN_COM_GPU_HIGH_PRIO=1 \
                   ALIYUN_COM_GPU_VISIBLE_DEVICES=2 NVIDIA_VISIBLE_DEVICES=0,1,2";
        let ask = asked(env, false).expect("valid").expect("asks");
        assert_eq!(ask.memory, MemoryAsk::Ratio { part: 4, whole: 15 });
        assert_eq!(
            (ask.weight.get(), ask.class, ask.gpus.as_str()),
            (3, Class::High, "2")
        );
        assert!(ask.weighs);
        assert_eq!(ask.whole.as_str(), "0,1,2");
        for visible in ["all", "none", ""] {
            let env = format!(
                "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 \
                 ALIYUN_COM_GPU_VISIBLE_DEVICES=2 NVIDIA_VISIBLE_DEVICES={visible}"
            );
            let ask = asked(&env, false).expect("valid").expect("asks");
            assert!(ask.whole.is_empty(), "{visible}");
        }
        let plain = "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 \
                     ALIYUN_COM_GPU_SCHD_WEIGHT=1 ALIYUN_COM_GPU_HIGH_PRIO=0";
        let plain = asked(plain, false).expect("valid").expect("asks");
        assert_eq!((plain.class, plain.weighs), (Class::Normal, false));
        assert_eq!(
            asked("NVIDIA_VISIBLE_DEVICES=all", false).expect("valid"),
            None
        );
    }

    #[test]
    fn opting_out_is_the_nodes_choice() {
        let env = "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 CGPU_DISABLE=true";
        assert_eq!(asked(env, true).expect("valid"), None);
        assert!(asked(env, false).is_err());
    }

    #[test]
    fn malformed_values() {
        let dev = "ALIYUN_COM_GPU_MEM_DEV=15";
        for bad in [
            "0",
            "-1",
            "1e30",
            "4.5",
            "0x4",
            "99999999999",
            "",
            "16",
            "4Gi",
        ] {
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
