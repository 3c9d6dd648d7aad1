//! Checks rows against the `result_schema` of the job.

use protocol::ResultSchema;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use row_schema::RowSchema;

/// A schema that is ready to check rows.
#[pyclass(frozen)]
pub struct RowChecker(RowSchema);

#[pymethods]
impl RowChecker {
    /// Creates a checker for the schema of the job, as JSON.
    #[new]
    fn new(schema: &str) -> PyResult<Self> {
        let schema: ResultSchema = serde_json::from_str(schema)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        RowSchema::new(&schema).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Returns the rows of JSON lines that do not match the schema, by position from 0, each with the reason.
    fn misfits(&self, py: Python<'_>, lines: &[u8]) -> Vec<(usize, String)> {
        py.detach(|| self.0.misfits(lines))
    }
}
