//! Rules for requests: which sources this node accepts, and within which bounds.
//!
//! Requests of the node itself (an administrator's, or the hook's arguments for a CDI device) are accepted
//! unchanged. The orchestrator writes a container's annotations. Variables in its environment may come from
//! Kubernetes' device plugin, from `docker run -e` or from the image, and cannot be told apart. So they
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
    environment: Bounds,
}

impl Requests {
    /// The rules from the configuration.
    pub fn new(config: &DaemonConfig) -> Requests {
        Requests {
            from: config.requests_from.iter().map(|taken| taken.0).collect(),
            environment: Bounds {
                gpus: usize::try_from(config.environment_gpus_max.get()).unwrap_or(usize::MAX),
                memory: config.environment_memory_max.map(|cap| cap.0),
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
            RequestSource::Cgpu | RequestSource::Nvidia if asks_for_memory_alone(asked) => {
                Ok(Some(self.environment))
            }
            RequestSource::Cgpu | RequestSource::Nvidia => {
                let text = format!(
                    "{} ask for memory alone; gpuslice-hook and gpusliced are of different versions",
                    source.title()
                );
                Err((Denial::Protocol, text))
            }
        }
    }

    fn not_from(&self, source: RequestSource) -> String {
        let others = self.from.iter().map(|other| format!("{} or ", other.title()));
        format!(
            "this node takes no requests from {} (requests_from in its configuration); ask by {}a CDI device",
            source.title(),
            others.collect::<String>()
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
