//! The part of the Python worker process that must be fast, or must work while user code holds the interpreter.
//!
//! Each duty has its own file: ending with the agent (`watch`), publishing the current phase (`status_page`), detecting
//! changed files (`inputs`), converting tables between Arrow and Python (`table_in`, `table_out`, `values`,
//! `delimited`, `json_lines`), checking rows (`row_checker`), and keeping freed memory (`memory`). Everything else,
//! including the main loop, is Python: `package/gristmill/runner.py`. Programs that start jobs from Python use only
//! `words`.
//!
//! The extension declines a frame that it cannot write exactly like pandas. It then returns `None`, and the Python side
//! calls pandas.

mod cells;
mod delimited;
mod inputs;
mod json_lines;
mod memory;
mod row_checker;
mod status_page;
mod table_in;
mod table_out;
mod values;
mod watch;
mod words;

use pyo3::prelude::*;

/// Private to the package `gristmill`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("PHASE_INIT", protocol::SlotPhase::Init as u8)?;
    module.add("PHASE_IDLE", protocol::SlotPhase::Idle as u8)?;
    module.add("PHASE_LOAD", protocol::SlotPhase::Load as u8)?;
    module.add("PHASE_RUN", protocol::SlotPhase::Run as u8)?;
    module.add("PHASE_REPORT", protocol::SlotPhase::Report as u8)?;
    module.add("PHASE_SHUTDOWN", protocol::SlotPhase::Shutdown as u8)?;
    module.add("PHASE_IMPORT", protocol::SlotPhase::Import as u8)?;
    module.add("FRAME_LENGTH_MAX", protocol::FRAME_LENGTH_MAX)?;
    module.add_class::<status_page::StatusPage>()?;
    module.add_function(wrap_pyfunction!(watch::watch, module)?)?;
    module.add_function(wrap_pyfunction!(watch::rewrite_variable, module)?)?;
    module.add_function(wrap_pyfunction!(watch::move_out_of_reach, module)?)?;
    module.add_function(wrap_pyfunction!(memory::keep_freed_memory, module)?)?;
    module.add_function(wrap_pyfunction!(inputs::changed_file, module)?)?;
    module.add_class::<table_in::TableReader>()?;
    module.add_function(wrap_pyfunction!(table_out::table_of_frame, module)?)?;
    module.add_function(wrap_pyfunction!(table_out::table_of_rows, module)?)?;
    module.add_function(wrap_pyfunction!(delimited::format_delimited, module)?)?;
    module.add_class::<row_checker::RowChecker>()?;
    module.add_function(wrap_pyfunction!(json_lines::format_json_lines, module)?)?;
    module.add_function(wrap_pyfunction!(words::duration, module)?)?;
    module.add_function(wrap_pyfunction!(words::took, module)?)?;
    module.add_function(wrap_pyfunction!(words::rate, module)?)?;
    Ok(())
}
