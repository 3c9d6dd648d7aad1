//! What the engine says on stderr: for people as text, for machines as one JSON object a line.

use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, filter, fmt};

use crate::printed::LogLines;
use crate::settings::Settings;

/// Libraries that repeat what the engine says in its own words, or that would print credentials at the finest levels.
const QUIET: &str = "lapin=off,amq_protocol=off,async_rs=off,aws_config=off,aws_credential_types=off,aws_runtime=off,\
                     aws_sigv4=off,aws_smithy_runtime=off,aws_smithy_runtime_api=off,aws_sdk_sqs=off,aws_sdk_s3=off";
/// What a role says of its own life, whatever the filter.
pub const LIFE: &str = "gristmill::life";

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Form of what the engine says on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One object a line. Worker and reducer then say there, too, what they otherwise say on stdout.
    Json,
}

/// Whether lines are objects.
pub fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Says what a role does, for people on stdout or as an object on stderr.
macro_rules! life {
    ($($text:tt)*) => {
        match $crate::observe::is_json() {
            true => tracing::info!(target: $crate::observe::LIFE, $($text)*),
            false => say!(out, $($text)*),
        }
    };
}
pub(crate) use life;

/// Everything that is said goes to stderr from now on, in this form.
pub fn start_logging(flag: Option<LogFormat>, settings: &Settings) -> Result<()> {
    let from_variable = settings.log_format.as_deref().map(|name| LogFormat::from_str(name, true));
    let from_variable = from_variable.transpose().map_err(anyhow::Error::msg);
    let from_variable = from_variable.context("GRISTMILL_LOG_FORMAT is `text` or `json`")?;
    let format = *FORMAT.get_or_init(|| flag.or(from_variable).unwrap_or(LogFormat::Text));
    let filter = EnvFilter::new(format!("{},{LIFE}=info,{QUIET}", settings.log_filter));
    let layer = fmt::layer().with_writer(|| LogLines);
    match format {
        LogFormat::Text => {
            // Spans say whose a line is, where several jobs may be meant: for machines.
            let layer = layer.without_time().with_target(false).with_filter(filter::filter_fn(|what| what.is_event()));
            tracing_subscriber::registry().with(filter).with(layer).init();
        }
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true).with_current_span(false).with_span_list(true);
            tracing_subscriber::registry().with(filter).with(layer).init();
            std::panic::set_hook(Box::new(|panic| tracing::error!(error = %panic, "a thread panicked")));
        }
    }
    Ok(())
}

/// Says why the command failed.
pub fn tell_failure(error: &anyhow::Error) {
    match is_json() {
        true => tracing::error!(target: LIFE, error = format!("{error:#}"), "the command failed"),
        false => say!(err, "gristmill: {error:#}"),
    }
}
