//! Detects files that have changed since the job was planned.

use std::path::PathBuf;

use protocol::FileVersion;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

/// Returns the position of the first file whose size or modification time differs from the plan. Ignores missing files:
/// the script that opens one gets the error.
#[pyfunction]
pub fn changed_file(paths: &Bound<'_, PyList>, stamps: Vec<u32>) -> PyResult<Option<usize>> {
    for (position, (path, stamp)) in paths.iter().zip(stamps).enumerate() {
        if stamp == 0 {
            continue;
        }
        // Nearly every path is valid text, which needs no copy.
        let metadata = match path.cast::<PyString>().ok().and_then(|path| path.to_str().ok()) {
            Some(text) => std::fs::metadata(text),
            None => std::fs::metadata(path.extract::<PathBuf>()?),
        };
        if metadata.is_ok_and(|metadata| FileVersion::of_file(&metadata).stamp() != stamp) {
            return Ok(Some(position));
        }
    }
    Ok(None)
}
