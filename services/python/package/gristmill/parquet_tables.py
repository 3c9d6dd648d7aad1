"""Tables of Parquet files, as the library of a function reads such a file itself.

The agent reads columns in a few plain types, and sends the schema that the file declares with them. A pandas function
gets what ``pandas.read_parquet`` returns: index, categories, nullable types. Whole numbers that pandas would round,
because others are missing, get a nullable type instead.
"""

import base64
import contextlib
import functools
import importlib
import json

from gristmill.missing import exact_integers
from gristmill.rows import is_range
from gristmill.stored_tables import FRAME, POSITIONS, TABLE, frame_of_table, part_of_range, prototype_of, restored
from gristmill.tables import LoadError

DECLARED = b"ARROW:schema"
"""Metadata of the agent's table: the schema that the file declares."""
PLACES = b"gristmill.places"
"""Metadata of the agent's table: for each piece of it, ``first count`` of its rows in the file."""
HAS_PATHS = b"gristmill.has_paths"
"""Metadata of the agent's table: its first column is not in the file, and holds the path of the file of each row."""
INDEX = b"gristmill.index"
"""Metadata of the agent's table: the columns of the index of a DataFrame that the call did not list, in JSON."""


def declared_table(table, rows=None):
    """Returns a table of the agent with the types that its file declares, or some of its rows. Columns from the path
    follow those of the file.

    :param rows: a slice with both ends, or a list.
    """
    import pyarrow

    metadata = table.schema.metadata or {}
    declared, prototype = _declared(metadata.get(DECLARED))
    first = int(HAS_PATHS in metadata)
    table = _part(table, rows)
    columns, fields = [_plain(column) for column in table.columns], list(table.schema)
    if declared is None:
        fields = [field.with_type(column.type) for field, column in zip(fields, columns, strict=True)]
        return pyarrow.table(columns, schema=pyarrow.schema(fields))
    for position, field in enumerate(declared, first):
        known = -1 if prototype is None else prototype.schema.get_field_index(field.name)
        if known < 0:
            columns[position] = _as_type(table.column(position), field.type)
        else:
            field = prototype.schema.field(known)
            columns[position] = restored(columns[position], prototype.column(known))
        fields[position] = field.with_type(columns[position].type)
    metadata = (declared if prototype is None else prototype.schema).metadata
    return pyarrow.table(columns, schema=pyarrow.schema(fields, metadata))


def arrow_table(table, rows=None):
    """Returns a table of the agent, or some of its rows, as ``pyarrow.parquet.read_table`` reads its file."""
    index = json.loads((table.schema.metadata or {}).get(INDEX, b"[]"))
    table = declared_table(table, rows).drop_columns(index)
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key != FRAME}
    return table.replace_schema_metadata(kept or None)


def pandas_frame(table, rows=None, is_of_memory=False):
    """Returns a table of the agent, or some of its rows, as ``pandas.read_parquet`` reads its file; and whether its
    index says more than the positions of the rows in the file.

    :param rows: a slice with both ends, or a list.
    :param is_of_memory: the file is a DataFrame that ``gristmill.run`` has written. Only then are its pickles read,
        because those in other files could run any code.
    """
    _register_types_of_pandas()
    places = [tuple(map(int, place.split())) for place in table.schema.metadata[PLACES].split(b",")]
    rows_of_file = _rows_of_file(places, slice(0, table.num_rows) if rows is None else rows)
    table = declared_table(table, rows)
    metadata = table.schema.metadata or {}
    if is_of_memory and FRAME in metadata:
        return frame_of_table(table, metadata[FRAME], rows_of_file)
    frame = _to_pandas(table)
    counted = POSITIONS if is_range(frame.index) else None
    index = json.loads(metadata.get(b"pandas", b"{}")).get("index_columns", [])
    _keep_whole_numbers(frame, table, index)
    for level in index:
        if isinstance(level, dict) and level.get("kind") == "range":
            counted = level["start"], level["step"], level["name"]
    if counted is not None:
        frame.index = part_of_range(*counted, rows_of_file)
    if b"PANDAS_ATTRS" in metadata:
        frame.attrs = json.loads(metadata[b"PANDAS_ATTRS"])
    return frame, counted != POSITIONS


def _to_pandas(table):
    import pyarrow

    try:
        return table.to_pandas()
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        for name, column in zip(table.column_names, table.columns, strict=True):
            try:
                column.to_pandas()
            except (pyarrow.ArrowException, ValueError, OverflowError) as cause:
                raise LoadError(f"column '{name}' of the type {column.type} cannot become pandas: {cause}") from None
        raise LoadError(f"the table cannot become pandas: {error}") from None


def _part(table, rows):
    if rows is None:
        return table
    return table.take(rows) if isinstance(rows, list) else table.slice(rows.start, rows.stop - rows.start)


def _rows_of_file(places, rows):
    """Returns the numbers of some rows in their file, from 0: a slice, or a list if they are not consecutive."""
    [(first, _), *others] = places
    if not others:
        return [first + row for row in rows] if isinstance(rows, list) else slice(first + rows.start, first + rows.stop)
    numbers = [row for first, count in places for row in range(first, first + count)]
    return [numbers[row] for row in rows] if isinstance(rows, list) else numbers[rows]


def _plain(column):
    """Returns a column without the dictionary that the agent uses for texts that recur."""
    import pyarrow

    return column.cast(column.type.value_type) if pyarrow.types.is_dictionary(column.type) else column


def _as_type(column, kind):
    """Returns a column of the agent in the type that its file declares, as ``pyarrow.parquet.read_table`` does."""
    import pyarrow

    # If no row has a value, the file has no dictionary, and the agent sends one of an empty text.
    if column.null_count == len(column) and all(map(_has_placeholder, column.chunks)):
        column = _plain(column)
    if column.type == kind:
        return column
    if isinstance(kind, pyarrow.BaseExtensionType):
        chunks = _as_type(column, kind.storage_type).chunks
        return pyarrow.chunked_array([pyarrow.ExtensionArray.from_storage(kind, chunk) for chunk in chunks], kind)
    if not pyarrow.types.is_dictionary(kind):
        try:
            return _plain(column).cast(kind)
        except pyarrow.ArrowInvalid:
            # More text than 32-bit offsets hold.
            return _plain(column)
    if pyarrow.types.is_primitive(kind.value_type) or pyarrow.types.is_decimal(kind.value_type):
        return column.cast(kind.value_type)
    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = [
        pyarrow.DictionaryArray.from_arrays(
            chunk.indices.cast(kind.index_type), chunk.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
        for chunk in column.chunks
    ]
    return pyarrow.chunked_array(chunks, kind)


def _has_placeholder(chunk):
    import pyarrow

    return pyarrow.types.is_dictionary(chunk.type) and chunk.dictionary.to_pylist() == [""]


def _keep_whole_numbers(frame, table, index):
    """Replaces columns of a frame in which pandas has rounded whole numbers."""
    import pandas
    import pyarrow

    columns = [column for name, column in zip(table.column_names, table.columns, strict=True) if name not in index]
    for position, column in enumerate(columns):
        is_float = pyarrow.types.is_integer(column.type) and frame.dtypes.iloc[position] == "float64"
        if is_float and (integers := exact_integers(column)) is not None:
            frame.isetitem(position, pandas.Series(integers, frame.index))


@functools.lru_cache(maxsize=2)
def _declared(text):
    """Returns the schema that a file declares, and the prototype of a table that ``gristmill.run`` wrote, if any."""
    import pyarrow

    if text is None:
        return None, None
    message = base64.b64decode(text)
    if b"pandas." in message:
        _register_types_of_pandas()
    declared = pyarrow.ipc.read_schema(pyarrow.py_buffer(message))
    prototype = (declared.metadata or {}).get(TABLE)
    return declared, None if prototype is None else prototype_of(prototype)


def _register_types_of_pandas():
    """Registers the extension types of pandas with Arrow."""
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas.core.arrays.arrow.extension_types")
