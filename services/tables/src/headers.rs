//! Finds the files of an input that begin with a header.

use protocol::{HeaderMode, TableFormat, TableOptions};

/// Returns whether the first line of every file names the columns.
pub(crate) fn has_header(options: &TableOptions) -> bool {
    options.format != TableFormat::Jsonl && options.header.is_in_every_file()
}

/// Returns whether each file names its own columns.
pub(crate) fn has_own_header(options: &TableOptions) -> bool {
    options.format.is_delimited() && options.header == HeaderMode::AllFilesDifferentHeaders
}
