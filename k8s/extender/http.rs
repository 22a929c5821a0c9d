//! The extender's paths.

use super::{BindArgs, Current, Extender};
use crate::http::{self, Body, Plain, read, reply};
use anyhow::Result;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Bytes of a request, at most: a scheduler without node cache sends whole nodes.
const REQUEST_MAX: usize = 16 << 20;
/// The version of gpushare's extender whose answers these are.
const VERSION: &str = "0.1.0";

/// Serves until the socket fails.
pub async fn serve(current: Current, listener: TcpListener) -> Result<()> {
    let answer = move |request: Request<Incoming>| {
        let extender = current.borrow().clone();
        async move {
            let ready = extender.as_ref().is_some_and(|it| it.is_ready());
            match (request.uri().path(), extender) {
                ("/healthz", _) => http::text(StatusCode::OK, "text/plain", "ok".to_owned()),
                ("/readyz", _) if ready => {
                    http::text(StatusCode::OK, "text/plain", "ok".to_owned())
                }
                (path, Some(extender)) if path != "/readyz" => answer(extender, request).await,
                _ => {
                    let why = "another extender leads, or the API server has not answered yet";
                    reply(StatusCode::SERVICE_UNAVAILABLE, &json!({ "Error": why }))
                }
            }
        }
    };
    http::serve(listener, Plain, answer).await
}

async fn answer(extender: Arc<Extender>, request: Request<Incoming>) -> Response<Body> {
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
        (Method::POST, ["gpushare-scheduler", "filter"]) => {
            match read(request, REQUEST_MAX).await {
                Ok(args) => told(extender.filter(args).await),
                Err(error) => {
                    reply(StatusCode::BAD_REQUEST, &json!({ "Error": format!("{error:#}") }))
                }
            }
        }
        (Method::POST, ["gpushare-scheduler", "bind"]) => match bind(&extender, request).await {
            Ok(()) => reply(StatusCode::OK, &json!({ "Error": "" })),
            Err(error) => {
                let text = format!("{error:#}");
                tracing::warn!("not bound: {text}");
                reply(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "Error": text }))
            }
        },
        _ => reply(StatusCode::NOT_FOUND, &json!({ "Error": format!("there is no {path}") })),
    }
}

async fn bind(extender: &Extender, request: Request<Incoming>) -> Result<()> {
    let args: BindArgs = read(request, REQUEST_MAX).await?;
    extender.bind(&args).await
}

fn told(answer: Result<Value>) -> Response<Body> {
    match answer {
        Ok(value) => reply(StatusCode::OK, &value),
        Err(error) => reply(StatusCode::OK, &json!({ "Error": format!("{error:#}") })),
    }
}
