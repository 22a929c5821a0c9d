//! A container's slice request: from its annotations, else from cGPU's environment variables.
//!
//! The orchestrator writes annotations (podman adds an image's own, but given ones win). The image also
//! writes the environment, so annotations win.

use crate::ask::{Ask, from_annotations};
use crate::cgpu;
use crate::config::Config;
use crate::error::Error;
use gpuslice_wire::admin::RequestSource;

impl Ask {
    /// The container's request, `None` without one.
    ///
    /// # Errors
    /// [`Error::Ask`] for the first malformed value.
    pub fn of(config: &Config, allow_cgpu_disable: bool) -> Result<Option<Ask>, Error> {
        let ours: Vec<(&str, &str)> = config.annotations().collect();
        if ours.is_empty() {
            cgpu::ask(config, allow_cgpu_disable)
        } else {
            let ask = from_annotations(&ours)?;
            Ok(Some(Ask { source: Some(RequestSource::Annotations), ..ask }))
        }
    }
}
