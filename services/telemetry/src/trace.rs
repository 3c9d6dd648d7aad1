//! One trace for each mini-batch: the partitioner begins it, and every later step continues the trace that its message
//! carries.
//!
//! A step is recorded as a whole when it has ended, so that no step stays open while many mini-batches are in progress.
//! Steps go to the installed recorder; without one, a step costs one check.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use protocol::TraceParent;

/// A step of one mini-batch.
#[derive(Clone, Debug)]
pub struct Step {
    /// `create tasks`, `process tasks`, `process results`.
    pub name: &'static str,
    /// Its relation to messages.
    pub kind: StepKind,
    /// The step that sent its message; `None`: it is the first.
    pub parent: Option<TraceParent>,
    /// Start.
    pub began: SystemTime,
    /// Duration.
    pub took: Duration,
    /// Attributes.
    pub fields: Vec<(&'static str, Value)>,
    /// Why it failed, in one word.
    pub error: Option<&'static str>,
}

/// The relation of a step to messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// It sends a message, which begins another step.
    Producer,
    /// It began with a message.
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

/// Records a step, and returns the reference that the next step uses as its parent; `None`: the step was not recorded.
pub type Recorder = Box<dyn Fn(Step) -> Option<TraceParent> + Send + Sync>;

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Sets the recorder of steps. Later calls have no effect.
pub fn install(recorder: Recorder) {
    let _ = RECORDER.set(recorder);
}

/// Begins a trace.
pub fn begin(step: impl FnOnce() -> Step) -> Option<TraceParent> {
    RECORDER.get().and_then(|recorder| recorder(step()))
}

/// Continues the trace of a message, if it is recorded. Returns the parent for the next message: this step, or the step
/// before if this one was not recorded.
pub fn go_on(parent: Option<TraceParent>, step: impl FnOnce() -> Step) -> Option<TraceParent> {
    let recorder = RECORDER.get().filter(|_| parent.is_some_and(|parent| parent.is_sampled()));
    recorder.and_then(|recorder| recorder(Step { parent, ..step() })).or(parent)
}
