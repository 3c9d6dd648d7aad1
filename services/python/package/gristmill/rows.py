"""Results as bytes, in the form that the job's output needs.

``text`` is what Azure ML writes, byte for byte. The native formats, CSV, JSON lines and Parquet, share one form: a
table, as an Arrow IPC stream, whose columns have the types of the values. The reducer brings the tables of all
mini-batches to one type for each column, and writes the file. Each kind of result becomes a table by the shortest way
that loses nothing: Arrow tables and frames of Polars write themselves, DataFrames are written column by column by their
own rules, and lists of dictionaries, tuples or values become columns in ``src/values.rs``.

Missing values in a list are the same as in a frame: NaN, ``pandas.NaT`` and ``pandas.NA`` are null. Lines of ``text``
have them as Azure ML writes them.
"""

import io
import json
import sys

from gristmill import _native
from gristmill.delimited import DelimitedFrames, column_names, encode
from gristmill.errors import valid_text
from gristmill.json_lines import Unwritable, illegal_value, json_default, json_line
from gristmill.missing import is_missing
from gristmill.results import PERIOD, POSITIONS, ArrowRows


class RowsError(Exception):
    """The result is valid but cannot be written in the output format."""


def make_formatter(output_format, to_csv_arguments):
    """Returns the formatter of a job."""
    if output_format == "text":
        return Text(to_csv_arguments)
    formatter = Tables()
    formatter.loses_empty_rows = output_format == "parquet"
    return formatter


class Text:
    """Writes ``format(element)`` lines, and frames like ``to_csv`` without header and index, separated by spaces.

    Text may contain file names of any bytes: bytes that ``os.fsdecode`` could not decode are written unchanged.
    """

    def __init__(self, to_csv_arguments):
        self._frames = DelimitedFrames(" ", to_csv_arguments)

    def warning_about(self, _result):
        return None

    def of_list(self, result):
        if {*map(type, result)} == {str}:
            return encode("\n".join(result) + "\n"), None
        return encode("".join([f"{element}\n" for element in result])), None

    def of_frame(self, frame):
        return self._frames.format(frame)

    def of_table(self, table):
        # Columns with missing values keep their whole numbers.
        return self.of_frame(arrow_of(table).to_pandas(integer_object_nulls=True))


class Tables:
    """Writes Arrow IPC streams. They have the names of the columns, so the answer does not."""

    def __init__(self):
        self._known = {}
        self.keeps_index = False
        """Whether an unnamed index of numbers is kept as well, because the argument of ``run`` had one."""
        self.counted = None
        """The index of the argument of ``run``, if the input is a DataFrame in memory whose index counts its rows."""
        self.loses_empty_rows = False
        """Whether the file loses rows without columns if no row has any. Only the reducer knows whether one does."""

    def warning_about(self, result):
        """Returns a warning for the first result whose rows have no columns and may be lost, else ``None``."""
        if not self.loses_empty_rows or not len(result):
            return None
        if isinstance(result, list):
            # Rows of other types have values, and some of them, such as a Series, have no truth value.
            if any(type(row) not in (dict, tuple) or row for row in result):
                return None
        elif type(result) is ArrowRows:
            if result.table.shape[1]:
                return None
        elif result.shape[1] or self._kept_index(result) is not None:
            return None
        self.loses_empty_rows = False
        return (
            f"run() returned rows without columns ({len(result)} in one mini-batch): a Parquet file has them only if "
            "other rows have columns; return at least one value in each row"
        )

    def of_list(self, result):
        result = list(result)
        if result and type(result[0]).__name__ in ("Series", "void", "record"):
            result = [labelled(row) for row in result]
        try:
            return _native.table_of_rows(result), None
        except ValueError as error:
            raise RowsError(f"the result cannot be written: {error}") from None
        except Unwritable as error:
            raise illegal_value(result, error.args[0]) from None

    def of_frame(self, frame):
        from gristmill.frame_cells import native_columns

        index = self._kept_index(frame)
        levels = [name for name in frame.index.names if name is not None]
        if len({*levels}) < len(levels):
            raise RowsError(
                "the DataFrame that run() returned has several levels of its index with one name "
                f"({', '.join(map(repr, levels))}): give each a name of its own, with frame.rename_axis()"
            )
        names = column_names(frame)
        _require_unique(names, "DataFrame")
        columns = native_columns(frame)
        if any(kind is None for kind, _ in columns):
            columns = [
                column if column[0] is not None else foreign_column(frame.iloc[:, position])
                for position, column in enumerate(columns)
            ]
        known = None
        if index is not None or self._is_remarkable(frame):
            known = self._pandas_metadata(frame, index is not None)
        if index is None and self.counted is not None:
            index, known = self._numbers(frame, known)
        if index is not None:
            levels = index_names(frame.index, names)
            taken = [name for name in levels if name in names]
            if taken:
                raise RowsError(
                    f"the DataFrame that run() returned has a column {taken[0]!r}, which is the name of a level of its "
                    "index as well: rename the column"
                )
            names += levels
            columns = [*columns, *map(foreign_column, index)]
        try:
            return _native.table_of_frame(names, columns, len(frame), known), None
        except ValueError as error:
            raise RowsError(f"the DataFrame that run() returned cannot be written: {error}") from None
        except Unwritable as error:
            raise illegal_value(frame.to_dict("records"), error.args[0]) from None

    def of_table(self, table):
        names = [str(name) for name in (table.columns if is_polars(table) else table.column_names)]
        _require_unique(names, "table")
        return (polars_stream(table) if is_polars(table) else arrow_stream(table)), None

    def _kept_index(self, frame):
        """Returns the levels of the index if it says more than the positions of the rows, else ``None``."""
        index = frame.index
        if not says_more_than_positions(index) and (counts_rows(index) or not self.keeps_index):
            return None
        return [index.get_level_values(level).to_series() for level in range(index.nlevels)]

    def _numbers(self, frame, known):
        """Returns the numbers that label the rows of a frame, and its metadata of pandas. Only the reducer, which knows
        all mini-batches, sees whether they say more than the positions of the rows, as after a filter."""
        described = self._pandas_metadata(frame, True)
        if described is None:
            return None, known
        begins = counts_rows(frame.index)
        is_first = is_range(self.counted) and self.counted.start == 0
        if begins or not len(frame) or frame.index.equals(self.counted):
            counts = "anew" if begins and len(frame) and not is_first else "on"
            described = f'{described[:-1]}, "{POSITIONS}": "{counts}"}}'
        return [frame.index.to_series()], described

    def _is_remarkable(self, frame):
        """Returns whether the columns alone are not enough for pandas to read the same frame."""
        import numpy

        names = frame.columns
        return (
            any(name is not None for name in names.names)
            or {*map(type, names)} - {str} != set()
            or any(not isinstance(dtype, numpy.dtype) for dtype in frame.dtypes)
        )

    def _pandas_metadata(self, frame, with_index):
        """Returns the JSON that pandas writes into its Parquet files about a frame; ``None`` without pyarrow."""
        dtypes = (*frame.dtypes, *(frame.index.to_frame().dtypes if with_index else ()))
        key = (tuple(frame.columns), tuple(frame.columns.names), dtypes, with_index, tuple(frame.index.names))
        try:
            known = self._known.get(key)
        except TypeError:
            known = None
        if known is None:
            schema = _schema_of(frame.iloc[:0], with_index)
            if schema is None:
                return None
            # Arrow writes a missing label as NaN, which is not JSON.
            described = schema.metadata[b"pandas"].decode().replace('"name": NaN', '"name": "nan"')
            known = self._known[key] = _with_texts_of_periods(described)
        return known


def _require_unique(names, what):
    if len({*names}) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise RowsError(
            f"the {what} that run() returned has several columns named {', '.join(map(repr, repeated))}: give each "
            "column a name of its own"
        )


def _schema_of(frame, with_index):
    """Returns the schema of an empty frame. Columns without a type of Arrow, such as complex numbers, count as objects,
    which they become. ``None``: the labels or the index have none, or pyarrow is not installed."""
    import pandas

    try:
        import pyarrow
    except ImportError:
        return None

    def schema_of(part):
        try:
            # Without this argument, Arrow describes a range too, and with `False` not the labels of the columns.
            return pyarrow.Schema.from_pandas(part, preserve_index=with_index or None)
        except (pyarrow.ArrowException, TypeError, ValueError):
            return None

    schema = schema_of(frame)
    if schema is None:
        frame = frame.copy()
        for position in range(frame.shape[1]):
            if schema_of(frame.iloc[:, [position]]) is None:
                frame.isetitem(position, pandas.Series(dtype=object, index=frame.index))
        schema = schema_of(frame)
    return schema


def _with_texts_of_periods(known):
    """Returns the metadata of a frame, in JSON, with text as the type of periods. That is the type in the file, and
    readers would otherwise mistake the texts for the numbers of periods."""
    if '"period[' not in known:
        return known
    described = json.loads(known)
    for column in described["columns"]:
        if column["numpy_type"].startswith("period["):
            # The reducer compares the time zones of mini-batches, and leaves out metadata that differs.
            about = {PERIOD: column["numpy_type"], "timezone": column["numpy_type"]}
            column.update(pandas_type="unicode", numpy_type="object", metadata=about)
    return json.dumps(described)


def labelled(row):
    """Returns a row of a DataFrame or of a structured array as a dictionary, and other rows unchanged."""
    package = type(row).__module__.partition(".")[0]
    if package == "numpy" and getattr(row.dtype, "names", None) is not None:
        return dict(zip(row.dtype.names, row.tolist(), strict=True))
    if package == "pandas" and row.index.nlevels == 1 and all(isinstance(label, str) for label in row.index):
        return row.to_dict()
    return row


def is_range(index):
    return type(index).__name__ == "RangeIndex"


def counts_rows(index):
    """Returns whether an index is the range that counts rows from 0."""
    return is_range(index) and (index.start, index.step) == (0, 1)


def says_more_than_positions(index):
    """Returns whether an index has a name, or other labels than numbers, which are mostly positions of rows."""
    if index.nlevels > 1 or index.name is not None:
        return True
    return not is_range(index) and getattr(index.dtype, "kind", "O") not in "iu"


def index_names(index, names):
    """Returns the names of the columns of an index, as pandas chooses them for Parquet files."""
    levels = enumerate(index.names)
    return [
        f"__index_level_{level}__" if name is None or str(name) in names else valid_text(str(name))
        for level, name in levels
    ]


def foreign_column(series):
    """Returns a column that the extension cannot read: as a stream of pyarrow, or as a list of objects."""
    kind = getattr(series.dtype, "name", "")
    if kind == "object":
        return "list", list(series)
    if kind.startswith("Sparse["):
        series = series.sparse.to_dense()
    if kind.startswith("period["):
        # Texts that every reader can read, and from which `outputs.to_pandas` restores the periods.
        return "list", [None if is_missing(one) else str(one) for one in series]
    categories = getattr(series.dtype, "categories", None)
    if categories is not None and getattr(categories.dtype, "name", "").startswith(("interval", "period")):
        # No file format has such categories: they become the texts that pandas shows.
        series = series.cat.rename_categories(categories.astype(str))
    try:
        import pyarrow

        array = pyarrow.array(series, from_pandas=True)
    except (ImportError, TypeError, ValueError, NotImplementedError):
        # pyarrow is not installed, or lacks the type. Its errors are subclasses of these.
        return "list", list(series)
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    return "stream", arrow_stream(pyarrow.table([array], names=["column"]))


def is_polars(table):
    return type(table).__module__.partition(".")[0] == "polars"


def arrow_of(table):
    """Returns an Arrow table, or a frame of Polars as one."""
    return table.to_arrow() if is_polars(table) else table


def arrow_stream(table):
    import pyarrow

    from gristmill.stored_tables import with_plain_scales

    table = _with_booleans(with_plain_scales(table))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


def _with_booleans(table):
    """Returns a table with ``bool`` in place of ``bool8``, a different layout of the same values."""
    import pyarrow

    for position, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", None) == "arrow.bool8":
            chunks = [chunk.storage for chunk in table.column(position).chunks]
            column = pyarrow.chunked_array(chunks, field.type.storage_type).cast(pyarrow.bool_())
            table = table.set_column(position, field.with_type(pyarrow.bool_()), column)
    return table


def polars_stream(frame):
    polars = sys.modules["polars"]
    for name, dtype in frame.schema.items():
        # Arrow has whole numbers of 128 bits only as decimals.
        if str(dtype) in ("Int128", "UInt128"):
            try:
                frame = frame.with_columns(polars.col(name).cast(polars.Decimal(38, 0)))
            except polars.exceptions.PolarsError:
                raise RowsError(
                    f"column {name!r} of the Polars frame that run() returned is {dtype}, and has a number of more "
                    "than 38 digits: cast it to another type"
                ) from None
        elif "Int128" in str(dtype):
            raise RowsError(
                f"column {name!r} of the Polars frame that run() returned is {dtype}, which Arrow lacks: cast it to "
                "another type"
            )
    sink = io.BytesIO()
    try:
        # Other readers lack the newest layouts of text.
        level = {"compat_level": polars.CompatLevel.oldest()} if hasattr(polars, "CompatLevel") else {}
        frame.write_ipc_stream(sink, **level)
    except polars.exceptions.PolarsError as error:
        raise RowsError(f"the Polars frame that run() returned cannot be written: {error}") from None
    return sink.getvalue()


def plain_value(value):
    """Returns a value that has no form in a table as one that has: a value of Arrow, a column or an array as objects of
    Python, a missing one as ``None``, others as their text. Refuses an object without a text of its own."""
    if is_missing(value):
        return None
    for name in ("as_py", "to_pylist", "to_list", "tolist"):
        convert = getattr(value, name, None)
        if callable(convert):
            plain = convert()
            return json_default(plain) if isinstance(plain, complex) else plain
    return json_default(value)


def plain_instant(value):
    """Returns an instant or a duration of NumPy as one of pandas or Python, without loss."""
    import numpy

    if numpy.isnat(value):
        return None
    unit, _ = numpy.datetime_data(value.dtype)
    if unit in ("ns", "ps", "fs", "as"):
        import pandas

        return pandas.Timestamp(value) if value.dtype.kind == "M" else pandas.Timedelta(value)
    plain = value.item()
    # Years and months have no fixed length, and Python has no object for years beyond 9999.
    return plain if not isinstance(plain, int) else str(value)


def json_text(value):
    """Returns a value as JSON in one line."""
    return json_line(value).decode().rstrip("\n")
