//! A container's slice request: from its annotations, else from cGPU's or NVIDIA's environment variables.
//!
//! The orchestrator writes annotations (podman adds an image's own, but given ones win). The image also
//! writes the environment, so annotations win.

use crate::ask::{Ask, from_annotations};
use crate::cgpu;
use crate::config::Config;
use crate::error::Error;
use crate::nvidia;
use gpuslice_wire::admin::RequestSource;

impl Ask {
    /// The container's request, `None` without one.
    ///
    /// # Errors
    /// [`Error::Ask`] for the first malformed value.
    pub fn of(config: &Config, allow_cgpu_disable: bool) -> Result<Option<Ask>, Error> {
        let ours: Vec<(&str, &str)> = config.annotations().collect();
        if ours.is_empty() {
            of_environment(config, allow_cgpu_disable)
        } else {
            let ask = from_annotations(&ours)?;
            Ok(Some(Ask { source: Some(RequestSource::Annotations), ..ask }))
        }
    }
}

/// The one request in the environment. Of two, either may be the image's, so neither is taken.
fn of_environment(config: &Config, allow_cgpu_disable: bool) -> Result<Option<Ask>, Error> {
    match (cgpu::ask(config, allow_cgpu_disable)?, nvidia::ask(config)?) {
        (Some(_), Some(_)) => {
            let why = format!("is a second request beside {}; remove one of them", cgpu::CONTAINER);
            let limit = config.variable(nvidia::LIMIT)?.unwrap_or_default();
            Err(Error::ask(nvidia::LIMIT, limit, why))
        }
        (cgpu, nvidia) => Ok(cgpu.or(nvidia)),
    }
}
