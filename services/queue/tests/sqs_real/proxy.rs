//! A proxy between a queue and its service, which knows the requests of SQS.

#[path = "../../../storage/tests/s3_real/support.rs"]
mod support;

use serde_json::{Value, json};

pub use support::Fate;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The action, such as `SendMessageBatch`.
    pub action: String,
    pub body: Value,
}

impl Request {
    fn of(request: &support::Request) -> Self {
        let target = request.header("x-amz-target").unwrap_or_default();
        let action = target.rsplit('.').next().unwrap_or_default().to_owned();
        Self { action, body: serde_json::from_slice(&request.body).unwrap_or_default() }
    }

    /// Returns the entries of a batch.
    pub fn entries(&self) -> &[Value] {
        self.body["Entries"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Lets the request arrive without these entries of its batch, which the answer reports as failed with this code.
    pub fn hold_back(&self, ids: &[String], code: &str) -> Fate {
        let is_held = |entry: &&Value| ids.iter().any(|id| entry["Id"] == **id);
        let mut body = self.body.clone();
        body["Entries"] = self.entries().iter().filter(|entry| !is_held(entry)).cloned().collect();
        let failed = ids.iter().map(
            |id| json!({"Id": id, "Code": code, "SenderFault": false, "Message": "held back"}),
        );
        let failed: Value = failed.collect();
        let change = move |answer: &[u8]| {
            let mut answer: Value = serde_json::from_slice(answer).expect("JSON");
            answer["Failed"] = failed.clone();
            answer.to_string().into_bytes()
        };
        Fate::Change(body.to_string().into_bytes(), Box::new(change))
    }
}

/// A proxy to the service.
pub struct Proxy {
    pub endpoint: String,
    proxy: support::Proxy,
}

impl Proxy {
    /// Starts a proxy to `http://HOST:PORT` that calls `decide` for every request.
    pub fn start(
        upstream: &str,
        decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let proxy =
            support::Proxy::start_to(upstream, move |request, _| decide(&Request::of(request)));
        Self { endpoint: proxy.endpoint.clone(), proxy }
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.proxy.requests().iter().map(Request::of).collect()
    }

    /// Returns the number of requests with this action.
    pub fn count(&self, action: &str) -> usize {
        self.requests().iter().filter(|request| request.action == action).count()
    }
}
