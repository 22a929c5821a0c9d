//! The extender's paths.

use super::{BindArgs, Current, Extender};
use crate::http::{self, Bodies, Body, Limits, Plain, reply};
use anyhow::Result;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpListener;

/// A request has a pod, of 3 MiB at most, and the names of nodes. So the most that clients make the process hold is 16
/// x 64 KiB of buffers, 16 MiB of bodies, and 16 requests that are answered. Each of these has 100,000 values of 125
/// bytes and an answer of three times 4 MiB. That is 405 MiB; the chart's limit is 512 MiB, of which the cluster's
/// nodes and pods have the rest.
const LIMITS: Limits = Limits { connections: 16, body: 4 << 20, bodies: 16 << 20, values: 100_000 };
/// The version of gpushare's extender whose answers these are.
const VERSION: &str = "0.1.0";

/// Serves until the socket fails, or `stop` is ready and what was asked is answered.
pub async fn serve(
    current: Current,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let bodies = Arc::new(Bodies::new(LIMITS));
    let answer = move |request: Request<Incoming>| {
        let (extender, bodies) = (current.borrow().clone(), bodies.clone());
        async move {
            let ready = extender.as_ref().is_some_and(|it| it.is_ready());
            match (request.uri().path(), extender) {
                ("/healthz", _) => http::text(StatusCode::OK, "text/plain", "ok".to_owned()),
                ("/readyz", _) if ready => {
                    http::text(StatusCode::OK, "text/plain", "ok".to_owned())
                }
                (path, Some(extender)) if path != "/readyz" => {
                    answer(&extender, &bodies, request).await
                }
                _ => {
                    let why = "another extender leads, or the API server has not answered yet";
                    reply(StatusCode::SERVICE_UNAVAILABLE, &json!({ "Error": why }))
                }
            }
        }
    };
    http::serve(listener, Plain, LIMITS.connections, answer, stop).await
}

async fn answer(
    extender: &Arc<Extender>,
    bodies: &Bodies,
    request: Request<Incoming>,
) -> Response<Body> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (method, parts.as_slice()) {
        (Method::GET, ["version"] | ["gpushare-scheduler", "version"]) => {
            Response::new(Full::from(VERSION))
        }
        (Method::GET, ["gpushare-scheduler", "inspect"]) => told(extender.inspect(None).await),
        (Method::GET, ["gpushare-scheduler", "inspect", node]) => {
            told(extender.inspect(Some(node)).await)
        }
        (Method::POST, ["gpushare-scheduler", "filter"]) => match bodies.read(request).await {
            Ok(args) => told(extender.filter(args).await),
            Err(error) => reply(StatusCode::BAD_REQUEST, &json!({ "Error": format!("{error:#}") })),
        },
        (Method::POST, ["gpushare-scheduler", "bind"]) => {
            match bind(extender, bodies, request).await {
                Ok(()) => reply(StatusCode::OK, &json!({ "Error": "" })),
                Err(error) => {
                    let text = format!("{error:#}");
                    tracing::warn!("not bound: {text}");
                    reply(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "Error": text }))
                }
            }
        }
        _ => reply(StatusCode::NOT_FOUND, &json!({ "Error": format!("there is no {path}") })),
    }
}

async fn bind(extender: &Arc<Extender>, bodies: &Bodies, request: Request<Incoming>) -> Result<()> {
    let args: BindArgs = bodies.read(request).await?;
    extender.bind(args).await
}

fn told(answer: Result<Value>) -> Response<Body> {
    match answer {
        Ok(value) => reply(StatusCode::OK, &value),
        Err(error) => reply(StatusCode::OK, &json!({ "Error": format!("{error:#}") })),
    }
}
