//! Drivers of dynamic resource allocation: found by their sockets, asked before a pod starts and after it ends.

use super::Kubelet;
use super::authority::Style;
use gpuslice_k8s::grpc::{Empty, ask, connect};
use gpuslice_k8s::kubelet::dra::{
    Claim, ClaimsRequest, PluginInfo, PrepareResponse, Prepared, RegistrationStatus,
    UnprepareResponse, method,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Code;

/// A driver that has registered.
#[derive(Debug, Clone)]
pub struct Driver {
    pub info: PluginInfo,
    /// The announcement's file.
    pub announcement: PathBuf,
}

/// A claim as the kubelet names it.
pub fn named(claim: &Value) -> Claim {
    let text = |name: &str| claim["metadata"][name].as_str().expect("text").to_owned();
    Claim { namespace: text("namespace"), uid: text("uid"), name: text("name") }
}

impl Kubelet {
    /// Registers the first driver whose announcement there is; the path is the authority, as in every version so far.
    pub async fn find_driver(&self) -> Driver {
        for _ in 0..2000 {
            let entries = std::fs::read_dir(self.directories().plugins_registry()).expect("listed");
            for entry in entries {
                let path = entry.expect("an entry").path();
                if let Ok(driver) = self.register(&path).await {
                    return driver;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no driver within 20 s");
    }

    async fn register(&self, path: &Path) -> Result<Driver, tonic::Status> {
        let channel = Style::Escaped.dial(path).await;
        let channel = channel.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let info: PluginInfo = ask(&channel, method::INFO, Empty {}, 1 << 20).await?;
        let socket = Path::new(&info.endpoint);
        let dialled = connect(socket).await;
        let registered = RegistrationStatus {
            registered: dialled.is_ok(),
            error: dialled.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        };
        let _: Empty = ask(&channel, method::STATUS, registered, 1 << 20).await?;
        let channel = dialled.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let health = ask::<_, Empty>(&channel, method::HEALTH, Empty {}, 1 << 20).await;
        let code = health.expect_err("it is optional").code();
        assert_eq!(code, Code::Unimplemented, "the kubelet calls it, and goes on without");
        Ok(Driver { info, announcement: path.to_owned() })
    }

    /// Prepares a claim, and tries again while the driver is absent.
    pub async fn prepare(&self, driver: &Driver, claim: &Claim) -> Prepared {
        let request = ClaimsRequest { claims: vec![claim.clone()] };
        for _ in 0..200 {
            if let Ok(channel) = connect(Path::new(&driver.info.endpoint)).await {
                let asked = ask(&channel, method::PREPARE, request.clone(), 4 << 20).await;
                let mut answer: PrepareResponse = asked.expect("an answer");
                return answer.claims.remove(&claim.uid).expect("the claim's own answer");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the driver stays absent");
    }

    /// Tells that the pod of a claim is gone.
    pub async fn unprepare(&self, driver: &Driver, claim: &Claim) -> String {
        let request = ClaimsRequest { claims: vec![claim.clone()] };
        let channel = connect(Path::new(&driver.info.endpoint)).await.expect("it listens");
        let asked = ask(&channel, method::UNPREPARE, request, 4 << 20).await;
        let mut answer: UnprepareResponse = asked.expect("an answer");
        answer.claims.remove(&claim.uid).expect("the claim's own answer").error
    }
}
