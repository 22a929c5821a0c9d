//! Rules for requests: which sources this node accepts, and within which bounds.
//!
//! Requests of the node itself (an administrator's, or the hook's arguments for a CDI device) are accepted
//! unchanged. The orchestrator writes a container's annotations. cGPU's variables in its environment may come
//! from Kubernetes' device plugin, from `docker run -e` or from the image, and cannot be told apart. So they
//! may ask for memory on a GPU within the node's bounds, but for nothing that costs other containers more:
//! no class, no weight, no whole GPU.

use crate::config::DaemonConfig;
use crate::replies::Denied;
use gpuslice_engine::Bounds;
use gpuslice_wire::admin::{Admission, Denial, RequestSource};
use gpuslice_wire::policy::{Class, Gangs};

/// The node's rules.
#[derive(Debug)]
pub struct Requests {
    from: Vec<RequestSource>,
    cgpu: Bounds,
}

impl Requests {
    /// The rules from the configuration.
    pub fn new(config: &DaemonConfig) -> Requests {
        Requests {
            from: config.requests_from.iter().map(|taken| taken.0).collect(),
            cgpu: Bounds {
                gpus: usize::try_from(config.cgpu_gpus_max.get()).unwrap_or(usize::MAX),
                memory: config.cgpu_memory_max.map(|cap| cap.0),
            },
        }
    }

    /// The bounds of a request, if it has any.
    ///
    /// # Errors
    /// This node does not accept the request.
    pub fn bounds(
        &self,
        source: Option<RequestSource>,
        asked: &Admission,
    ) -> Result<Option<Bounds>, Denied> {
        let Some(source) = source else {
            return Ok(None);
        };
        if !self.from.contains(&source) {
            return Err((Denial::Invalid, self.not_from(source)));
        }
        match source {
            RequestSource::Annotations => Ok(None),
            RequestSource::Cgpu if asks_for_memory_alone(asked) => Ok(Some(self.cgpu)),
            RequestSource::Cgpu => {
                let text = "cGPU's variables ask for memory alone; gpuslice-hook and gpusliced are \
                            of different versions";
                Err((Denial::Protocol, text.to_owned()))
            }
        }
    }

    fn not_from(&self, source: RequestSource) -> String {
        let what = match source {
            RequestSource::Annotations => "annotations",
            RequestSource::Cgpu => "cGPU's variables",
        };
        let others = match self.from.first() {
            Some(RequestSource::Annotations) => "annotations or a CDI device",
            Some(RequestSource::Cgpu) => "cGPU's variables or a CDI device",
            None => "a CDI device",
        };
        format!(
            "this node takes no requests from {what} (requests_from in its configuration); ask by {others}"
        )
    }
}

/// Whether the request contains only what an image may ask for.
fn asks_for_memory_alone(asked: &Admission) -> bool {
    matches!(
        asked,
        Admission {
            whole,
            weight: None,
            share: None,
            share_limit: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            pinned: None,
            ..
        } if whole.is_empty()
    )
}
