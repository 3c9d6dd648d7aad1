//! The paths of the portal.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use crate::access::{Gate, guard};
use crate::answers::{
    actions, job, jobs, logs, map, mini_batch, nodes, output, rejects, series, source, table,
    target, timeline,
};
use crate::compress::compress;
use crate::error::{Refusal, errors_as_json};
use crate::{Shared, events, page};

/// Time for one answer; a job of millions of mini-batches takes some seconds to load.
const ANSWER_TIME: Duration = Duration::from_secs(60);
const API: &str = "/api/v1";

/// The description of the API.
const OPENAPI: &str = include_str!("../openapi.json");

/// Every path of the API below `/api/v1`, with its method; `openapi.json` describes each.
pub fn paths() -> Vec<(&'static str, &'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("get", "/info", get(jobs::info)),
        ("get", "/jobs", get(jobs::list)),
        ("get", "/jobs/{id}", get(job::job)),
        ("get", "/jobs/{id}/series", get(series::series)),
        ("get", "/jobs/{id}/map", get(map::map)),
        ("get", "/jobs/{id}/mini-batches", get(table::table)),
        ("get", "/jobs/{id}/mini-batches/{number}", get(mini_batch::mini_batch)),
        ("get", "/jobs/{id}/timeline", get(timeline::timeline)),
        ("get", "/jobs/{id}/nodes", get(nodes::nodes)),
        ("get", "/jobs/{id}/logs", get(logs::tree)),
        ("get", "/jobs/{id}/logs/text", get(logs::text)),
        ("get", "/jobs/{id}/logs/search", get(logs::search)),
        ("get", "/jobs/{id}/logs/raw", get(logs::raw)),
        ("get", "/jobs/{id}/rejects", get(rejects::rejects)),
        ("get", "/jobs/{id}/source", get(source::source)),
        ("get", "/jobs/{id}/output", get(output::output)),
        ("get", "/jobs/{id}/output/raw", get(output::raw)),
        ("post", "/jobs/{id}/cancel", post(actions::cancel)),
        ("post", "/jobs/{id}/retry", post(actions::retry)),
        ("post", "/jobs/{id}/mini-batches/{number}/run", post(actions::run_again)),
        ("get", "/targets", get(target::targets)),
        ("get", "/target", get(target::target)),
        ("post", "/target/dead-letters/redrive", post(target::redrive)),
        ("post", "/target/dead-letters/delete", post(target::delete)),
        ("post", "/doctor", post(target::doctor)),
        ("get", "/openapi.json", get(openapi)),
        ("get", "/events", get(events::events)),
    ]
}

/// Returns the router of a portal at this port.
pub fn router(shared: Arc<Shared>, port: u16) -> Router {
    let mut api = Router::new();
    for (_, path, methods) in paths() {
        api = api.route(path, methods);
    }
    let api = api.fallback(|| async { Refusal::not_found("there is no such path in the API") });
    let api = api.layer(map_response(errors_as_json));
    let gate =
        Gate { shared: Arc::clone(&shared), cookie: format!("gristmill_portal_{port}").into() };
    Router::new()
        .nest(API, api)
        .fallback(get(page::file))
        .layer(from_fn(compress))
        .layer(from_fn(in_time))
        .layer(from_fn_with_state(gate, guard))
        .with_state(shared)
}

async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER_TIME, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let seconds = ANSWER_TIME.as_secs();
            let message = format!("there was no answer within {seconds} s; try again");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response()
        }
    }
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn description_has_every_path_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).expect("JSON");
        let described =
            document["paths"].as_object().expect("paths").iter().flat_map(|(path, operations)| {
                let methods = operations.as_object().expect("operations").keys();
                methods.map(move |method| format!("{method} {path}"))
            });
        let served = paths().into_iter().map(|(method, path, _)| format!("{method} {path}"));
        assert_eq!(described.collect::<BTreeSet<_>>(), served.collect::<BTreeSet<_>>());
    }
}
