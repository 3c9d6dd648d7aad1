//! Crash tests: a request `<point>[:<n>]` makes the process kill itself at the n-th passage of a step of the write path.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct Planned {
    point: String,
    passages_left: AtomicU64,
}

static PLANNED: OnceLock<Option<Planned>> = OnceLock::new();

/// Sets the requested crash. Called once, before any role starts.
pub fn plan(request: Option<String>) {
    let planned = request.map(|request| {
        let (point, passage) = request.split_once(':').unwrap_or((&request, "1"));
        Planned {
            point: point.to_owned(),
            passages_left: AtomicU64::new(passage.parse().unwrap_or(1)),
        }
    });
    PLANNED.set(planned).ok().expect("planned once");
}

/// Returns the names of all steps, role by role.
pub fn points() -> Vec<String> {
    let worker = worker::CrashPoint::ALL.iter().map(name);
    let reducer = reducer::CrashPoint::ALL.iter().map(name);
    worker.chain(reducer).collect()
}

/// Marks the passage of a step; kills the process if a crash was requested here.
pub fn at(point: impl Debug) {
    let Some(Some(planned)) = PLANNED.get() else { return };
    if planned.point == name(point) && planned.passages_left.fetch_sub(1, Ordering::SeqCst) == 1 {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal arrives before any other step.
        loop {
            std::thread::park();
        }
    }
}

fn name(point: impl Debug) -> String {
    format!("{point:?}")
}
