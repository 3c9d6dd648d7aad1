//! The words for a missing value by the rules of pandas: those of `pandas.read_csv` without arguments.

/// The longest of [`WORDS`].
const WORD_BYTES_MAX: usize = 9;

/// `pandas._libs.parsers.STR_NA_VALUES`, by length.
const WORDS: [&[&[u8]]; WORD_BYTES_MAX + 1] = [
    &[b""],
    &[],
    &[b"NA"],
    &[b"N/A", b"n/a", b"NaN", b"nan", b"#NA"],
    &[b"null", b"NULL", b"None", b"-nan", b"-NaN", b"#N/A", b"<NA>"],
    &[],
    &[],
    &[b"1.#IND"],
    &[b"-1.#IND", b"1.#QNAN"],
    &[b"-1.#QNAN", b"#N/A N/A"],
];

/// Returns whether a cell, without its quotes, is such a word. White space belongs to it.
#[inline]
pub(crate) fn is_missing(cell: &[u8]) -> bool {
    cell.len() <= WORD_BYTES_MAX && WORDS[cell.len()].contains(&cell)
}
