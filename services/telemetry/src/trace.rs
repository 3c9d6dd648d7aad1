//! One trace for each mini-batch: the partitioner begins it, and every later step continues what its message carries.
//!
//! A step is told as a whole when it is over, so that nothing is kept open while many mini-batches are under way. Who
//! wants to know them installs a recorder; without one, a step costs a look at whether there is one.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use protocol::TraceParent;

/// A step of one mini-batch.
#[derive(Clone, Debug)]
pub struct Step {
    /// `create tasks`, `process tasks`, `process results`.
    pub name: &'static str,
    /// What it does with messages.
    pub kind: StepKind,
    /// The step whose message began it; `None`: it is the first.
    pub parent: Option<TraceParent>,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// What is worth knowing of it.
    pub fields: Vec<(&'static str, Value)>,
    /// Why it failed, in a word.
    pub error: Option<&'static str>,
}

/// What a step does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Its message begins another step.
    Producer,
    /// A message began it.
    Consumer,
}

/// What a field says.
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

/// Keeps a step, and says how the next refers to it. `None`: nobody wants to know.
pub type Recorder = Box<dyn Fn(Step) -> Option<TraceParent> + Send + Sync>;

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// From now on steps are told to this recorder. The first one stays.
pub fn install(recorder: Recorder) {
    let _ = RECORDER.set(recorder);
}

/// Begins a trace.
pub fn begin(step: impl FnOnce() -> Step) -> Option<TraceParent> {
    RECORDER.get().and_then(|recorder| recorder(step()))
}

/// Continues the trace of a message, if it has one that is recorded. What the next message carries: this step, or, where
/// nobody records it, the one before.
pub fn go_on(parent: Option<TraceParent>, step: impl FnOnce() -> Step) -> Option<TraceParent> {
    let recorder = RECORDER.get().filter(|_| parent.is_some_and(|parent| parent.is_sampled()));
    recorder.and_then(|recorder| recorder(Step { parent, ..step() })).or(parent)
}
