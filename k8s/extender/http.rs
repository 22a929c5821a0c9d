//! The extender's paths.

use super::{BindArgs, Extender};
use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Bytes of a request, at most: a scheduler without node cache sends whole nodes.
const REQUEST_MAX: usize = 16 << 20;
/// Connections at a time, at most.
const CONNECTIONS_MAX: usize = 64;
/// Time limit for a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// The version of gpushare's extender whose answers these are.
const VERSION: &str = "0.1.0";

type Body = Full<Bytes>;

/// Serves until the socket fails.
pub async fn serve(extender: Arc<Extender>, listener: TcpListener) -> Result<()> {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (stream, _) = listener.accept().await?;
        let room = room.clone().acquire_owned().await?;
        let extender = extender.clone();
        let service = service_fn(move |request| answer(extender.clone(), request));
        tokio::spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
            // A client that goes away is no concern of others.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(room);
        });
    }
}

async fn answer(
    extender: Arc<Extender>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Ok(match (method, parts.as_slice()) {
        (Method::GET, ["version"] | ["gpushare-scheduler", "version"]) => {
            Response::new(Full::from(VERSION))
        }
        (Method::GET, ["gpushare-scheduler", "inspect"]) => told(extender.inspect(None).await),
        (Method::GET, ["gpushare-scheduler", "inspect", node]) => {
            told(extender.inspect(Some(node)).await)
        }
        (Method::POST, ["gpushare-scheduler", "filter"]) => match read(request).await {
            Ok(args) => told(extender.filter(args).await),
            Err(error) => reply(StatusCode::BAD_REQUEST, &json!({ "Error": format!("{error:#}") })),
        },
        (Method::POST, ["gpushare-scheduler", "bind"]) => match bind(&extender, request).await {
            Ok(()) => reply(StatusCode::OK, &json!({ "Error": "" })),
            Err(error) => {
                let text = format!("{error:#}");
                tracing::warn!("not bound: {text}");
                reply(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "Error": text }))
            }
        },
        _ => reply(StatusCode::NOT_FOUND, &json!({ "Error": format!("there is no {path}") })),
    })
}

async fn bind(extender: &Extender, request: Request<Incoming>) -> Result<()> {
    let args: BindArgs = read(request).await?;
    extender.bind(&args).await
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T> {
    let body = Limited::new(request.into_body(), REQUEST_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the request's body: {error}"))?.to_bytes();
    serde_json::from_slice(&body).context("the request is not what a scheduler sends")
}

fn told(answer: Result<Value>) -> Response<Body> {
    match answer {
        Ok(value) => reply(StatusCode::OK, &value),
        Err(error) => reply(StatusCode::OK, &json!({ "Error": format!("{error:#}") })),
    }
}

fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::from(value.to_string()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
