//! Sends traces over OTLP. The standard variables configure it: nothing is sent unless `OTEL_EXPORTER_OTLP_ENDPOINT` (or
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) names a collector; `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` decide
//! which mini-batches are traced.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags,
    TraceId, TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use protocol::TraceParent;
use telemetry::trace::{self, Recorder, Step, StepKind, Value};
use tokio::runtime::Handle;

use crate::Settings;

/// Maximum time for sending the last steps when the process ends.
const FLUSH_TIME: Duration = Duration::from_secs(5);

/// An exporter, which sends steps until it is dropped.
#[derive(Debug)]
pub struct Exporting(SdkTracerProvider);

impl Drop for Exporting {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_TIME) {
            tracing::warn!(%error, "cannot send the last steps of traces");
        }
    }
}

/// Starts to send steps to the collector of the environment, if there is one.
pub fn start(runtime: &Handle) -> Result<Option<Exporting>> {
    if !Settings::names_collector() {
        return Ok(None);
    }
    let (provider, recorder) = exporting(runtime)?;
    trace::install(recorder);
    Ok(Some(Exporting(provider)))
}

fn exporting(runtime: &Handle) -> Result<(SdkTracerProvider, Recorder)> {
    let client = Client { http: reqwest::Client::new(), runtime: runtime.clone() };
    let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
    let exporter =
        exporter.context("cannot send traces; check the variables OTEL_EXPORTER_OTLP_…")?;
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let resource =
        if Settings::names_service() { resource } else { resource.with_service_name("gristmill") };
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    let tracer = provider.tracer("gristmill");
    Ok((provider, Box::new(move |step| record(&tracer, step))))
}

/// Sends a step, and returns its context for the next one.
fn record(tracer: &SdkTracer, step: Step) -> Option<TraceParent> {
    let fields = step.fields.into_iter().map(|(name, value)| match value {
        Value::Text(text) => KeyValue::new(name, text),
        Value::Number(number) => KeyValue::new(name, number),
    });
    let kind = match step.kind {
        StepKind::Producer => SpanKind::Producer,
        StepKind::Consumer => SpanKind::Consumer,
    };
    let builder = SpanBuilder::from_name(step.name)
        .with_kind(kind)
        .with_attributes(fields)
        .with_start_time(step.began);
    let parent = step
        .parent
        .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(of(parent)));
    let mut span = tracer.build_with_context(builder, &parent);
    if let Some(error) = step.error {
        span.set_attribute(KeyValue::new("error.type", error));
        span.set_status(Status::error(error));
    }
    span.end_with_timestamp(step.began.checked_add(step.took).unwrap_or_else(SystemTime::now));
    let context = span.span_context();
    let (trace_id, span_id) = (context.trace_id().to_bytes(), context.span_id().to_bytes());
    context.is_valid().then(|| TraceParent {
        trace_id,
        span_id,
        flags: context.trace_flags().to_u8(),
    })
}

fn of(parent: TraceParent) -> SpanContext {
    let (trace_id, span_id) =
        (TraceId::from_bytes(parent.trace_id), SpanId::from_bytes(parent.span_id));
    SpanContext::new(trace_id, span_id, TraceFlags::new(parent.flags), true, TraceState::NONE)
}

/// The HTTP client of the exporter, which calls it from a thread of its own.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let sending = async move {
            let (parts, body) = request.into_parts();
            let url = parts.uri.to_string();
            let answer =
                http.request(parts.method, url).headers(parts.headers).body(body).send().await?;
            let (status, body) = (answer.status(), answer.bytes().await?);
            let mut response = Response::new(body);
            *response.status_mut() = status;
            Ok::<_, reqwest::Error>(response)
        };
        Ok(self.runtime.spawn(sending).await??)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers one export, and returns its head and body.
    fn collect(listener: &TcpListener) -> (String, Vec<u8>) {
        let (mut stream, _) = listener.accept().expect("the exporter connects");
        let mut received = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).expect("the exporter sends");
            received.extend_from_slice(&bytes[..count]);
            let Some(head) = received.windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            let text = String::from_utf8_lossy(&received[..head]).to_lowercase();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .expect("its length");
            if received.len() == head + 4 + length.parse::<usize>().expect("a number") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    .expect("the exporter reads");
                return (text, received.split_off(head + 4));
            }
        }
    }

    fn step(name: &'static str, parent: Option<TraceParent>) -> Step {
        let fields = vec![("job.id", "digits-20261121".into()), ("mini_batch.id", 7.into())];
        let (began, took) = (SystemTime::now(), Duration::from_millis(5));
        Step { name, kind: StepKind::Consumer, parent, began, took, fields, error: None }
    }

    fn holds(body: &[u8], part: &[u8]) -> bool {
        body.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn steps_of_a_mini_batch_arrive_as_one_trace() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it listens"));
        // SAFETY: every test has a process of its own, and this one has no other thread yet.
        unsafe { std::env::set_var("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint) };
        let collecting = std::thread::spawn(move || collect(&listener));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
        let (provider, record) = exporting(runtime.handle()).expect("an exporter");
        let first = record(step("create tasks", None)).expect("sampled");
        let second = record(step("process tasks", Some(first))).expect("sampled");
        assert_eq!((first.trace_id, first.is_sampled()), (second.trace_id, true));
        drop(Exporting(provider));
        let (head, body) = collecting.join().expect("one export");
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        let parts: [&[u8]; 6] = [
            b"create tasks",
            b"process tasks",
            b"digits-20261121",
            &first.trace_id,
            &first.span_id,
            &second.span_id,
        ];
        for part in parts {
            assert!(holds(&body, part), "the export lacks {part:?}");
        }
        let trace_ids = body.windows(16).filter(|window| *window == first.trace_id).count();
        assert_eq!(trace_ids, 2, "one for each step");
    }
}
