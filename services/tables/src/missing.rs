//! Words that `pandas.read_csv` takes for missing values by default.

/// Returns whether a cell, without its quotes, is one of `pandas._libs.parsers.STR_NA_VALUES`. White space is not
/// trimmed.
#[inline]
pub(crate) fn is_missing(cell: &[u8]) -> bool {
    matches!(
        cell,
        b"" | b"NA"
            | b"N/A"
            | b"n/a"
            | b"NaN"
            | b"nan"
            | b"-NaN"
            | b"-nan"
            | b"#NA"
            | b"#N/A"
            | b"#N/A N/A"
            | b"<NA>"
            | b"None"
            | b"NULL"
            | b"null"
            | b"1.#IND"
            | b"-1.#IND"
            | b"1.#QNAN"
            | b"-1.#QNAN"
    )
}
