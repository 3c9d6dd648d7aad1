//! The outcomes of tasks.

use std::panic::resume_unwind;

use tokio::task::JoinError;

/// Returns the outcome of a task. The panic of a task goes on here.
pub(crate) fn joined<T>(outcome: Result<T, JoinError>) -> Result<T, JoinError> {
    outcome.map_err(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(error) => error,
    })
}
