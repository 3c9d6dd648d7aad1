//! Metadata of the columns of a table on its way from an agent to a process: what their Arrow types do not say.

/// Key of a field: what pandas must know of the column, [`FLOAT`] or [`NAN`].
pub const PANDAS: &str = "gristmill.pandas";
/// Whole numbers are `float64` in pandas, because a value is missing here or elsewhere; `Int64` or `UInt64` where that
/// would round one.
pub const FLOAT: &str = "float64";
/// A missing value is NaN in pandas, not `None`.
pub const NAN: &str = "nan";

/// Key of the field whose texts are the lines of JSON from which the rows come. It is no column of the table.
pub const LINES: &str = "gristmill.lines";
/// Its value: of the keys in a line, those that are columns of the table count. Otherwise it is empty.
pub const SELECTED: &str = "selected";

/// Key of a field of truth values: of a row for which it is false, a value does not fit the type of its column. The row is
/// an item, and no row of a frame. The field is no column of the table.
pub const FITS: &str = "gristmill.fits";
