//! Registration of device plugins: the kubelet answers at once, and dials back.

use super::authority::Style;
use super::{Plugin, State};
use gpuslice_k8s::grpc::{Answer, Empty, Methods, open_stream, unary, unknown};
use gpuslice_k8s::kubelet::Directories;
use gpuslice_k8s::kubelet::device_plugin::{
    HEALTHY, ListAndWatchResponse, MESSAGE_MAX, RegisterRequest, VERSION, method,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

/// `v1beta1.Registration`.
pub struct Registry {
    pub directories: Directories,
    pub state: Arc<Mutex<State>>,
}

impl Methods for Registry {
    const NAME: &'static str = "v1beta1.Registration";

    fn call(self: Arc<Self>, method: &str, request: Request<Body>) -> Answer {
        match method {
            "Register" => unary(request, move |it| self.register(it)),
            other => unknown(other),
        }
    }
}

impl Registry {
    async fn register(self: Arc<Self>, request: RegisterRequest) -> Result<Empty, Status> {
        if request.version != VERSION {
            return Err(Status::invalid_argument("unsupported version"));
        }
        let path = self.directories.device_plugins().join(&request.endpoint);
        let style = self.state.lock().expect("no panic").authority;
        tokio::spawn(follow(self.state.clone(), path, style, request));
        Ok(Empty {})
    }
}

/// Dials the plugin and follows its devices until the stream ends.
async fn follow(state: Arc<Mutex<State>>, path: PathBuf, style: Style, request: RegisterRequest) {
    let channel = style.dial(&path).await.expect("the plugin listens");
    let name = request.resource_name;
    {
        let mut state = state.lock().expect("no panic");
        let before = state.plugins.get(&name).map_or(0, |it| it.registrations);
        let plugin = Plugin {
            channel: channel.clone(),
            options: request.options.unwrap_or_default(),
            devices: Default::default(),
            failure: None,
            updates: 0,
            registrations: before + 1,
        };
        state.plugins.insert(name.clone(), plugin);
    }
    let stream =
        open_stream::<_, ListAndWatchResponse>(&channel, method::WATCH, Empty {}, MESSAGE_MAX);
    let failure = match stream.await {
        Err(status) => Some(status),
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(list)) => {
                    let mut state = state.lock().expect("no panic");
                    let Some(plugin) = state.plugins.get_mut(&name) else {
                        break None;
                    };
                    let one = |it: gpuslice_k8s::kubelet::device_plugin::Device| {
                        (it.id, it.health == HEALTHY)
                    };
                    plugin.devices = list.devices.into_iter().map(one).collect();
                    plugin.updates += 1;
                }
                Ok(None) => break None,
                Err(status) => break Some(status),
            }
        },
    };
    let mut state = state.lock().expect("no panic");
    if let Some(plugin) = state.plugins.get_mut(&name) {
        plugin.failure = failure;
        plugin.devices.clear();
    }
}
