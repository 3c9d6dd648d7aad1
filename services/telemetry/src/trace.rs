//! One trace for each mini-batch: the partitioner begins the trace, and every later step continues it with the
//! reference that its message carries.
//!
//! A role records a step when the step has ended, so that no step stays open while many mini-batches are in progress.
//! Without an installed recorder, a step costs one check.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use protocol::TraceParent;

/// A step of one mini-batch.
#[derive(Clone, Debug)]
pub struct Step {
    /// The name: `create tasks`, `process tasks` or `process results`.
    pub name: &'static str,
    /// The relation to messages.
    pub kind: StepKind,
    /// The step that sent its message; `None` for the first step of a trace.
    pub parent: Option<TraceParent>,
    /// The start.
    pub began: SystemTime,
    /// The duration.
    pub took: Duration,
    /// The attributes.
    pub fields: Vec<(&'static str, Value)>,
    /// The kind of the error in one word, if the step failed.
    pub error: Option<&'static str>,
}

/// The relation of a step to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The step sends a message, which begins another step.
    Producer,
    /// The step began with a message.
    Consumer,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A name.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A function that records a step. It returns the reference that the next step uses as its parent, or `None` if it has
/// not recorded the step.
pub type Recorder = Box<dyn Fn(Step) -> Option<TraceParent> + Send + Sync>;

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Sets the recorder of steps. Later calls have no effect.
pub fn install(recorder: Recorder) {
    let _ = RECORDER.set(recorder);
}

/// Begins a trace. Returns the parent for the next message, if the step is recorded.
pub fn begin(step: impl FnOnce() -> Step) -> Option<TraceParent> {
    RECORDER.get().and_then(|recorder| recorder(step()))
}

/// Continues the trace of a message, if the trace is sampled. Returns the parent for the next message: this step, or
/// the step before it if this step is not recorded.
pub fn go_on(parent: Option<TraceParent>, step: impl FnOnce() -> Step) -> Option<TraceParent> {
    let recorder = RECORDER.get().filter(|_| parent.is_some_and(|parent| parent.is_sampled()));
    recorder.and_then(|recorder| recorder(Step { parent, ..step() })).or(parent)
}
