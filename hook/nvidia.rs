//! NVIDIA's environment variables.
//!
//! `NVIDIA_GPU_MEMORY_REQUEST` and `NVIDIA_GPU_MEMORY_LIMIT` are MiB on each GPU of the container. KAI's GPU fractions
//! set them, and NVIDIA's container toolkit gives them to the driver (from 1.20.1 and r615 on): the request as what is
//! guaranteed, the limit as the most. A limit alone is the request as well; a request alone has no limit.
//!
//! They are a slice's cap and its memory limit. A request alone is refused: what it may grow to is not said.
//!
//! As with cGPU's variables, the image may have set them, so they request memory alone, within the node's bounds.

use crate::ask::{Ask, selector};
use crate::config::Config;
use crate::error::Error;
use gpuslice_wire::admin::{MemoryAsk, RequestSource};
use gpuslice_wire::text::Selector;
use gpuslice_wire::units::{Bytes, MIB};

const REQUEST: &str = "NVIDIA_GPU_MEMORY_REQUEST";
pub(crate) const LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";
/// The GPUs that NVIDIA's runtime gives the container.
pub(crate) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// The request in the environment.
///
/// # Errors
/// [`Error::Ask`] for a malformed value, a limit below the request, and a request without a limit.
pub(crate) fn ask(config: &Config) -> Result<Option<Ask>, Error> {
    let amount = |key| config.variable(key)?.map(|text| mib(key, text)).transpose();
    let (memory, limit) = match (amount(REQUEST)?, amount(LIMIT)?) {
        (None, None) => return Ok(None),
        (None, Some(limit)) => (limit, None),
        (Some(request), Some(limit)) if request == limit => (limit, None),
        (Some(request), Some(limit)) if limit < request => {
            let why = format!("is below {REQUEST}={}", request.0 / MIB);
            return Err(Error::ask(LIMIT, &(limit.0 / MIB).to_string(), why));
        }
        (Some(request), Some(limit)) => (request, Some(MemoryAsk::Exactly(limit))),
        (Some(request), None) => {
            let why = format!(
                "is no request without {LIMIT}, up to which the container may grow; set both, to the same value if \
                 it may not grow"
            );
            return Err(Error::ask(REQUEST, &(request.0 / MIB).to_string(), why));
        }
    };
    let gpus = match visible(config)? {
        Some(text) => selector(text).map_err(|why| Error::ask(VISIBLE, text, why))?,
        None => Selector::EMPTY,
    };
    let ask = Ask::of_memory(MemoryAsk::Exactly(memory), RequestSource::Nvidia);
    Ok(Some(Ask { gpus, memory_limit: limit, ..ask }))
}

/// A whole number of MiB, at least 1.
fn mib(key: &str, text: &str) -> Result<Bytes, Error> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse::<u64>().ok()).flatten().filter(|&n| n > 0);
    let bytes = number.and_then(|number| number.checked_mul(MIB)).map(Bytes);
    bytes.ok_or_else(|| Error::ask(key, text, "not a whole number of MiB, at least 1"))
}

/// The GPUs of NVIDIA's list, if it names some. `all` means any GPU, because images set it.
pub(crate) fn visible(config: &Config) -> Result<Option<&str>, Error> {
    let text = config.variable(VISIBLE)?;
    Ok(text.filter(|text| !matches!(*text, "" | "none" | "void" | "all")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::policy::{Class, Gangs};
    use gpuslice_wire::text::Name;

    fn asked(environment: &str) -> Result<Option<Ask>, Error> {
        let entries: Vec<String> =
            environment.split_whitespace().map(|e| format!("{e:?}")).collect();
        let text = format!(r#"{{"process":{{"env":[{}]}}}}"#, entries.join(","));
        Ask::of(&Config::parse(text.as_bytes())?, true)
    }

    #[test]
    fn a_limit_is_the_cap() {
        for (environment, gpus) in [
            ("NVIDIA_GPU_MEMORY_LIMIT=4096", ""),
            ("NVIDIA_GPU_MEMORY_LIMIT=4096 NVIDIA_GPU_MEMORY_REQUEST=4096", ""),
            ("NVIDIA_GPU_MEMORY_LIMIT=04096 NVIDIA_VISIBLE_DEVICES=all", ""),
            ("NVIDIA_GPU_MEMORY_LIMIT=4096 NVIDIA_VISIBLE_DEVICES=1", "1"),
            ("NVIDIA_GPU_MEMORY_LIMIT=4096 NVIDIA_VISIBLE_DEVICES=0,1", "0,1"),
        ] {
            let ask = asked(environment).expect(environment).expect(environment);
            assert_eq!(ask.memory, MemoryAsk::Exactly(Bytes(4 << 30)), "{environment}");
            assert_eq!((ask.gpus.as_str(), ask.memory_limit), (gpus, None), "{environment}");
            // Nothing but memory, whatever else the environment says.
            let costly = (ask.weight, ask.share, ask.share_limit, ask.pinned);
            assert_eq!(costly, (None, None, None, None));
            assert_eq!((ask.class, ask.gang, ask.name), (Class::Normal, Gangs::Auto, Name::EMPTY));
            assert!(ask.whole.is_empty());
            assert_eq!(ask.source, Some(RequestSource::Nvidia));
        }
        assert_eq!(asked("NVIDIA_VISIBLE_DEVICES=0").expect("valid"), None);
    }

    #[test]
    fn a_request_below_the_limit_is_the_cap() {
        let environment = "NVIDIA_GPU_MEMORY_REQUEST=4096 NVIDIA_GPU_MEMORY_LIMIT=8192";
        let ask = asked(environment).expect("valid").expect("asks");
        assert_eq!(ask.memory, MemoryAsk::Exactly(Bytes(4 << 30)));
        assert_eq!(ask.memory_limit, Some(MemoryAsk::Exactly(Bytes(8 << 30))));
        for (environment, why) in [
            (
                "NVIDIA_GPU_MEMORY_REQUEST=4096 NVIDIA_GPU_MEMORY_LIMIT=2048",
                "is below NVIDIA_GPU_MEMORY_REQUEST=4096",
            ),
            ("NVIDIA_GPU_MEMORY_REQUEST=4096", "is no request without NVIDIA_GPU_MEMORY_LIMIT"),
        ] {
            let said = asked(environment).expect_err(environment).to_string();
            assert!(said.contains(why), "{environment}: {said}");
        }
    }

    #[test]
    fn malformed_values() {
        for bad in ["", "0", "-1", "+1", "4Gi", "4096MiB", "1.5", "1e3", "0x10", " 4"] {
            for key in [REQUEST, LIMIT] {
                let entry = format!("{key}={bad}");
                let text = format!(r#"{{"process":{{"env":[{entry:?}]}}}}"#);
                let config = Config::parse(text.as_bytes()).expect("JSON");
                let said = Ask::of(&config, true).expect_err(bad).to_string();
                assert!(said.contains(key) && said.contains("MiB, at least 1"), "{said}");
            }
        }
        for bad in ["18446744073709551615", "17592186044416", "99999999999999999999999"] {
            assert!(asked(&format!("{LIMIT}={bad}")).is_err(), "{bad} MiB are no number of bytes");
        }
        assert!(asked("NVIDIA_GPU_MEMORY_LIMIT=1 NVIDIA_VISIBLE_DEVICES=x").is_err());
        assert!(asked("NVIDIA_GPU_MEMORY_LIMIT=1 NVIDIA_GPU_MEMORY_LIMIT=2").is_err());
    }

    /// Two systems that both count the container's memory are a mistake, whichever of them is meant.
    #[test]
    fn one_request_in_the_environment() {
        let both =
            "ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=16 NVIDIA_GPU_MEMORY_LIMIT=4096";
        let said = asked(both).expect_err("two requests").to_string();
        assert!(said.contains(LIMIT) && said.contains("ALIYUN_COM_GPU_MEM_CONTAINER"), "{said}");
    }
}
