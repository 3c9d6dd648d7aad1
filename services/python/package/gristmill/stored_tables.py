"""Stores tables in memory as Parquet files and restores them unchanged: ``gristmill.run`` writes the files, and the
process of a function reads them.

Parquet lacks some types of Arrow and most of pandas. So the file also holds the table without its rows, as a stream of
Arrow: its types, its metadata, and the values of dictionaries. For a DataFrame, its labels, dtypes and index are in
that metadata. The columns themselves are stored unchanged where Parquet allows it, because people see them in rejects.
"""

import base64
import copy
import functools
import io
import pickle
from typing import Any

from gristmill.tables import BLOCKS_MAX

TABLE = b"gristmill.table"
"""Metadata of the file: the table without rows."""
FRAME = b"gristmill.frame"
"""Metadata of that table: the labels, dtypes and index of a DataFrame."""
POSITIONS = (0, 1, None)
"""Start, step and name of an index that only counts rows."""


def stored(table: Any) -> Any:
    """Returns a table that a Parquet file can hold, with everything that ``restored`` needs."""
    import pyarrow

    table = table.unify_dictionaries()
    empty = [column.chunk(0).slice(0, 0) if column.num_chunks else _nothing(column.type) for column in table.columns]
    prototype = pyarrow.record_batch(empty, schema=table.schema)
    columns = [_storable(column) for column in table.columns]
    metadata = {**(table.schema.metadata or {}), TABLE: base64.b64encode(_message(prototype))}
    metadata.pop(FRAME, None)
    return pyarrow.table(columns, names=table.column_names, metadata=metadata)


def with_plain_scales(table: Any) -> Any:
    """Returns a table with the scale 0 for columns of decimals with a negative scale, which Parquet and Polars lack.
    Their values stay the same."""
    import pyarrow

    for position, field in enumerate(table.schema):
        if pyarrow.types.is_decimal(field.type) and field.type.scale < 0:
            digits = field.type.precision - field.type.scale
            kind = pyarrow.decimal128(digits, 0) if digits <= 38 else pyarrow.decimal256(min(digits, 76), 0)
            table = table.set_column(position, field.with_type(kind), table.column(position).cast(kind))
    return table


def unstorable(table: Any) -> str | None:
    """Returns the first column that a Parquet file cannot hold, for messages, or ``None``."""
    lacking = next((field for field in table.schema if not _has_parquet_form(field.type)), None)
    return None if lacking is None else f"column {lacking.name!r} of the type {lacking.type}"


def prototype_of(text):
    """Returns the table without rows in the metadata of a file, as a record batch."""
    return _read_message(base64.b64decode(text))


def restored(column, prototype):
    """Returns a column of a stored table with its original type and values.

    :param column: a ``pyarrow.ChunkedArray`` in the type in which the file holds it, or a similar one.
    :param prototype: the array of that column without rows.
    """
    import pyarrow

    kind = prototype.type
    if pyarrow.types.is_dictionary(kind):
        return pyarrow.chunked_array([_encoded(chunk, prototype) for chunk in column.chunks], kind)
    if isinstance(kind, pyarrow.BaseExtensionType):
        storage = restored(column, prototype.storage)
        return pyarrow.chunked_array([pyarrow.ExtensionArray.from_storage(kind, one) for one in storage.chunks], kind)
    if _has_parquet_form(kind):
        return column.cast(kind)
    cells = [_read_message(cell.as_buffer()).column(0) for cell in column]
    return pyarrow.chunked_array([pyarrow.concat_arrays(cells)] if cells else [], kind)


def _encoded(values, prototype):
    import pyarrow
    import pyarrow.compute

    kind, dictionary = prototype.type, prototype.dictionary
    if _is_plain(kind.value_type):
        plain = _without_views(kind.value_type)
        values = pyarrow.compute.index_in(values.cast(plain), dictionary.cast(plain))
    return pyarrow.DictionaryArray.from_arrays(values.cast(kind.index_type), dictionary, ordered=kind.ordered)


def _nothing(kind):
    import pyarrow

    if pyarrow.types.is_dictionary(kind):
        return pyarrow.DictionaryArray.from_arrays(pyarrow.nulls(0, kind.index_type), pyarrow.nulls(0, kind.value_type))
    return pyarrow.nulls(0, kind)


def _storable(column):
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        if _is_plain(kind.value_type):
            return column.cast(kind.value_type)
        return pyarrow.chunked_array([chunk.indices for chunk in column.chunks], kind.index_type)
    if _has_parquet_form(kind):
        return column
    rows = (column.slice(row, 1).combine_chunks() for row in range(len(column)))
    cells = [_message(pyarrow.record_batch([row], ["cell"])).to_pybytes() for row in rows]
    return pyarrow.chunked_array([pyarrow.array(cells, pyarrow.large_binary())])


def _is_plain(kind):
    """Returns whether the file has the values of a dictionary, and not their places in it."""
    import pyarrow

    types = pyarrow.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return is_number or types.is_temporal(kind) or _without_views(kind) != kind or _is_text_or_bytes(kind)


def _is_text_or_bytes(kind):
    import pyarrow

    types = pyarrow.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _without_views(kind):
    """Returns the type, or one that dictionaries can be searched for in place of a view."""
    import pyarrow

    return {pyarrow.string_view(): pyarrow.large_string(), pyarrow.binary_view(): pyarrow.large_binary()}.get(
        kind, kind
    )


@functools.lru_cache(maxsize=1024)
def _has_parquet_form(kind):
    """Returns whether a Parquet file holds a type, so that a cast restores it."""
    import pyarrow
    import pyarrow.parquet

    if isinstance(kind, pyarrow.BaseExtensionType):
        return _has_parquet_form(kind.storage_type)
    if any(_is_special(part) for part in _parts(kind)):
        return False
    try:
        pyarrow.parquet.write_table(pyarrow.table([pyarrow.nulls(0, kind)], names=["column"]), io.BytesIO())
    except (pyarrow.ArrowException, OSError):
        # Errors of Parquet are OSError, such as the one for decimals with a negative scale.
        return False
    return True


def _is_special(kind):
    """Returns whether a cast cannot restore a type that is nested in another."""
    import pyarrow

    is_own = isinstance(kind, pyarrow.BaseExtensionType) or pyarrow.types.is_dictionary(kind)
    return is_own or any(_is_special(part) for part in _parts(kind))


def _parts(kind):
    """Returns the types that a nested type consists of; none if it is not nested."""
    return [kind.field(position).type for position in range(kind.num_fields)]


def _message(batch):
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read_message(message):
    import pyarrow

    return pyarrow.ipc.open_stream(message).read_next_batch()


# DataFrames.


def table_of_frame(frame: Any) -> Any:
    """Returns a DataFrame as an Arrow table that ``stored`` takes; ``frame_of_table`` reads it.

    Fails, naming the column, if one cannot be pickled.
    """
    import pandas
    import pyarrow

    index = frame.index
    is_range = isinstance(index, pandas.RangeIndex)
    levels = [] if is_range else [pandas.Series(index.get_level_values(level)) for level in range(index.nlevels)]
    columns, names, missing = [], [], []
    for position, label in enumerate(frame.columns):
        if str(label) in names:
            raise ValueError(f"inputs: two columns have the name {label!r}; rename one of them")
        names.append(str(label))
        _add(columns, missing, frame.iloc[:, position], f"column {label!r}")
    for position, level in enumerate(levels):
        name = index.names[position]
        names.append(name if isinstance(name, str) and name not in names else f"__index_level_{position}__")
        _add(columns, missing, level, f"level {position} of the index")
    described = {
        "columns": frame.columns,
        "dtypes": [_plain(dtype) for dtype in frame.dtypes],
        "range": (index.start, index.step, index.name) if is_range else None,
        "levels": []
        if is_range
        else [(_plain(level.dtype), name) for level, name in zip(levels, index.names, strict=True)],
        "is_multiple": isinstance(index, pandas.MultiIndex),
        "missing": missing,
        "attrs": frame.attrs,
    }
    return pyarrow.table(columns, names=names, metadata={FRAME: base64.b64encode(_pickled(described))})


def frame_of_table(table, text, rows):
    """Returns the DataFrame, or some of its rows; and whether its index says more than the positions of the rows.

    :param table: the table that ``table_of_frame`` returned, or some of its rows.
    :param text: the metadata ``FRAME``.
    :param rows: the numbers of these rows: a slice with both ends, or a list.
    """
    import pandas

    described = _described(text)
    levels, count = described["levels"], len(described["dtypes"])
    dtypes = described["dtypes"] + [dtype for dtype, _ in levels]
    series = list(map(_series, table.columns, dtypes, described["missing"]))
    # This frame owns the arrays.
    data = dict(enumerate(series[:count]))
    frame = pandas.DataFrame(data, index=pandas.RangeIndex(table.num_rows), copy=count > BLOCKS_MAX)
    frame.columns = described["columns"]
    # None is a name, too: `Index(values, name=None)` would take the name of the series.
    indexes = [pandas.Index(values).rename(name) for values, (_, name) in zip(series[count:], levels, strict=True)]
    if described["range"] is not None:
        frame.index = part_of_range(*described["range"], rows)
    elif described["is_multiple"]:
        frame.index = pandas.MultiIndex.from_arrays(indexes)
    else:
        frame.index = indexes[0]
    frame.attrs = copy.deepcopy(described["attrs"])
    return frame, described["range"] != POSITIONS


def part_of_range(start, step, name, rows):
    """Returns the index of some rows of a frame whose index is a range.

    :param rows: a slice with both ends, or a list.
    """
    import pandas

    if isinstance(rows, list):
        return pandas.Index([start + step * row for row in rows], dtype="int64", name=name)
    return pandas.RangeIndex(start + step * rows.start, start + step * rows.stop, step, name=name)


@functools.lru_cache(maxsize=2)
def _described(text):
    import pandas

    try:
        return pickle.loads(base64.b64decode(text))
    except Exception as error:
        raise ValueError(
            f"the DataFrame of the inputs cannot be read by pandas {pandas.__version__}: {error}; run the function "
            "with the pandas that wrote it"
        ) from None


def _pickled(described):
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, 5)
    # Equal frames then have equal pickles, no matter which of their labels are the same object.
    pickler.fast = True
    try:
        pickler.dump(described)
    except Exception as error:
        raise TypeError(f"inputs: the labels, dtypes or attrs of the DataFrame cannot be pickled: {error}") from None
    return sink.getvalue()


def _plain(dtype):
    """Returns the dtype of dense values, as new: pandas notes in a dtype what it computes when a column is used, and
    the pickles of equal frames would differ."""
    import pandas

    if isinstance(dtype, pandas.SparseDtype):
        return _plain(dtype.subtype)
    if "_cache" in getattr(dtype, "__dict__", ()):
        dtype = copy.copy(dtype)
        dtype.__dict__.pop("_cache", None)
    return dtype


def _add(columns, missing, series, name):
    """Adds a column of a frame, and the object for its missing values if the dtype does not determine it. Pickles cells
    that Arrow would change. ``name`` is the column's, for messages."""
    import pandas
    import pyarrow

    if isinstance(series.dtype, pandas.SparseDtype):
        series = series.sparse.to_dense()
    missing.append(None)
    if isinstance(series.dtype, pandas.CategoricalDtype):
        columns.append(_of_categories(series))
        return
    if series.dtype != object:
        try:
            columns.append(_one_array(pyarrow.array(series, from_pandas=True)))
            return
        except (pyarrow.ArrowException, TypeError, ValueError):
            pass  # Complex numbers, and dtypes of other packages.
    cells, lost = list(series), list(series[series.isna()])
    if series.dtype == object and all(_is_same(cell, lost[0]) for cell in lost):
        try:
            array = _one_array(pyarrow.array(cells, from_pandas=True))
            is_text = pandas.api.types.infer_dtype(series, skipna=True) == "string"
            kept = array if is_text else [lost[0] if cell is None else cell for cell in array.to_pylist()]
            if is_text or all(map(_is_same, kept, cells)):
                columns.append(array)
                missing[-1] = lost[0] if lost else None
                return
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
            pass
    from gristmill.api.same import by_value

    # As the function, which would else have other classes.
    with by_value():
        pickled = [_cell(cell, name) for cell in cells]
    columns.append(pyarrow.array(pickled, pyarrow.large_binary()))


def _one_array(array):
    import pyarrow

    return array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array


def _of_categories(series):
    """Returns a dictionary of numbers or texts, which people can read, and for other categories their codes."""
    import pyarrow

    try:
        array = pyarrow.array(series.array)
        if _is_plain(array.type.value_type):
            return array
    except (pyarrow.ArrowException, TypeError, ValueError):
        pass
    return pyarrow.array(series.cat.codes)


def _is_missing(cell):
    import pandas

    return cell is pandas.NA or cell is pandas.NaT or (isinstance(cell, float) and cell != cell)


def _is_same(one, other):
    """Returns whether two objects are equal, and all their parts are of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_is_same, one.values(), other.values()))
    return one is other or (_is_missing(one) and _is_missing(other)) or bool(one == other)


def _cell(value, name):
    from gristmill.api.same import dumps

    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(f"inputs: {name} has a {type(value).__name__}, which cannot be pickled: {error}") from None


def _series(column, dtype, missing):
    """Returns a column as a Series of its dtype, with its own memory: others may change that of the table."""
    import pandas
    import pyarrow

    if isinstance(dtype, pandas.CategoricalDtype):
        codes = [chunk.indices if pyarrow.types.is_dictionary(column.type) else chunk for chunk in column.chunks]
        codes = pyarrow.chunked_array(codes or [[]], codes[0].type if codes else "int8").fill_null(-1).to_numpy()
        return pandas.Series(pandas.Categorical.from_codes(codes, dtype=dtype))
    if column.type == pyarrow.large_binary() and not isinstance(dtype, pandas.ArrowDtype):
        return pandas.Series([pickle.loads(cell.as_buffer()) for cell in column], dtype=dtype)
    if pandas.api.types.is_object_dtype(dtype):
        return pandas.Series([missing if cell is None else cell for cell in column.to_pylist()], dtype=object)
    if hasattr(dtype, "__from_arrow__"):
        return pandas.Series(dtype.__from_arrow__(column)).copy(deep=True)
    return column.to_pandas().astype(dtype).copy(deep=True)
