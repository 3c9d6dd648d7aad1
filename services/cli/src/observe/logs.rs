//! The log on standard error: text for people, or one JSON object per line for machines.

use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, filter, fmt};

use crate::printed::LogLines;
use crate::{Settings, remedies};

/// Libraries that repeat the messages of the engine, or that print credentials at the finest levels.
const QUIET: &str = "lapin=off,amq_protocol=off,async_rs=off,aws_config=off,aws_credential_types=off,aws_runtime=off,\
                     aws_sigv4=off,aws_smithy_runtime=off,aws_smithy_runtime_api=off,aws_sdk_sqs=off,aws_sdk_s3=off";
/// Messages about the life of a role, which no filter suppresses.
pub const LIFE: &str = "gristmill::life";

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    // Without documentation, so that the help of every command stays short.
    Text,
    // One object per line, including what workers and reducers otherwise print on standard output.
    Json,
}

pub fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Prints a message of a role: as text on standard output, or as an object in the log.
macro_rules! life {
    ($($text:tt)*) => {
        match $crate::observe::is_json() {
            true => tracing::info!(target: $crate::observe::LIFE, $($text)*),
            false => say!(out, $($text)*),
        }
    };
}
pub(crate) use life;

pub fn start_logging(flag: Option<LogFormat>, settings: &Settings) -> Result<()> {
    let from_variable = settings.log_format.as_deref().map(|name| LogFormat::from_str(name, true));
    let from_variable = from_variable.transpose().map_err(anyhow::Error::msg);
    let from_variable = from_variable.context("GRISTMILL_LOG_FORMAT must be `text` or `json`")?;
    let format = *FORMAT.get_or_init(|| flag.or(from_variable).unwrap_or(LogFormat::Text));
    let filter = EnvFilter::new(format!("{},{LIFE}=info,{QUIET}", settings.log_filter));
    let layer = fmt::layer().with_writer(|| LogLines);
    match format {
        LogFormat::Text => {
            // Without spans, which name the job of a line for machines.
            let layer = layer
                .without_time()
                .with_target(false)
                .with_filter(filter::filter_fn(|metadata| metadata.is_event()));
            tracing_subscriber::registry().with(filter).with(layer).init();
        }
        LogFormat::Json => {
            let layer =
                layer.json().flatten_event(true).with_current_span(false).with_span_list(true);
            tracing_subscriber::registry().with(filter).with(layer).init();
            std::panic::set_hook(Box::new(
                |panic| tracing::error!(error = %panic, "a thread panicked"),
            ));
        }
    }
    Ok(())
}

pub fn report_failure(error: &anyhow::Error) {
    let error = remedies::message(error);
    match is_json() {
        true => tracing::error!(target: LIFE, error, "the command failed"),
        false => say!(err, "gristmill: {error}"),
    }
}
