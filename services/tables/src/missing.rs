//! The words for a missing value by the rules of pandas: those of `pandas.read_csv` without arguments.

/// Returns whether a cell, without its quotes, is one of `pandas._libs.parsers.STR_NA_VALUES`. White space belongs to it.
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
