"""The outputs of jobs, read with the types that their rows had.

A Parquet file has its types. Those of CSV and JSON lines are in a hidden file beside the output, which the reducer
writes (``reducer/src/output/schema_file.rs``): no value is guessed from its text.
"""

import base64
import json
import os
import re
import warnings
from decimal import Decimal

from gristmill.api.errors import GristmillError
from gristmill.missing import exact_integers
from gristmill.results import PERIOD

BATCH_LINES = 65_536
"""Lines of JSON that become one record batch."""
CATEGORIES = b"gristmill.categories"
"""Key of the metadata of a field with its categories in order, as a list in JSON."""
JSON_EXTENSION = "arrow.json"
EXTENSION_NAME = b"ARROW:extension:name"
DURATION = re.compile(r"(-?)P(\d+)DT(\d+)H(\d+)M(\d+)(?:\.(\d+))?S")
"""A duration, as the reducer writes it."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
ABSENT = object()
"""Stands for the value of a key that a row lacks."""


def read_table(path):
    """Returns the output at a path or URL as an Arrow table."""
    import pyarrow

    schema, batches = _opened(path)
    return _with_categories(pyarrow.Table.from_batches(batches, schema))


def read_batches(path):
    """Returns the rows of an output in batches, each read on demand."""
    return _opened(path)[1]


def to_pandas(table, path):
    """Returns the table of an output as a DataFrame. Values of JSON lines without a common type are Python objects, and
    so are nested integers if some are missing."""
    import pandas
    import pyarrow

    frame = _frame_of(table)
    index = _known_of(table).get("index_columns", ())
    places = [place for place, name in enumerate(table.column_names) if name not in index]
    if len(places) != frame.shape[1]:
        places = range(table.num_columns)  # pandas has not read the index.
    # By position: labels may be other objects than texts, and several columns may share one.
    for position, place in enumerate(places):
        column, kind = table.column(place), table.schema.field(place).type
        if pyarrow.types.is_integer(kind):
            if frame.dtypes.iloc[position] == "float64" and (integers := exact_integers(column)) is not None:
                frame.isetitem(position, pandas.Series(integers, frame.index))
        elif path.endswith(".jsonl") and _has_extension(table.schema.field(place), JSON_EXTENSION):
            texts = _storage(column).to_pylist()
            values = [None if text is None else json.loads(text) for text in texts]
            frame.isetitem(position, pandas.Series(values, frame.index, dtype=object))
        elif frame.dtypes.iloc[position] == "object" and _pandas_changes(column.combine_chunks()):
            frame.isetitem(position, pandas.Series(column.to_pylist(), frame.index, dtype=object))
    return frame


def _known_of(table):
    """Returns the metadata that pandas keeps in a table."""
    return json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))


def _with_known(table, known):
    """Returns the table with other metadata of pandas."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), b"pandas": json.dumps(known).encode()})


def _frame_of(table):
    """Returns a table as a DataFrame with the labels, the index and the types that its metadata describes."""
    import pandas

    known = _known_of(table)
    dtypes = {column["field_name"]: _dtype_of(column) for column in known.get("columns", ())}
    if any(dtype.startswith("period[") for dtype in dtypes.values()):
        table = _with_periods(table, known, dtypes)
    index = known.get("index_columns", ())
    of_arrow = {
        name: table[name]
        for name, dtype in dtypes.items()
        if dtype.endswith("[pyarrow]") and name in table.column_names and name not in index
    }
    labels = [level.get("pandas_type") for level in known.get("column_indexes", ())]
    try:
        frame = _without_columns(table, known, of_arrow).to_pandas()
    except Exception as error:
        return _frame_without_labels(table, known, error)
    if labels == ["bool"]:
        # Arrow reads every text as true.
        truths = [label == "True" for label in table.column_names if label not in index]
        frame.columns = frame.columns.__class__(truths, name=frame.columns.name)
    _restore_index(frame, table, index, dtypes)
    places = [place for place, name in enumerate(table.column_names) if name not in index]
    for position, place in enumerate(places):
        column = of_arrow.get(table.column_names[place])
        if column is not None:
            frame.isetitem(position, pandas.Series(pandas.arrays.ArrowExtensionArray(column), frame.index))
    return frame


def _without_columns(table, known, names):
    """Returns the table without the values of these columns. They have types of Arrow, whose names pandas can write but
    not read."""
    import pyarrow

    if not names:
        return table
    for column in known["columns"]:
        if column["field_name"] in names:
            column.update(numpy_type="object", pandas_type="empty")
    for position, name in enumerate(table.column_names):
        if name in names:
            table = table.set_column(position, name, pyarrow.nulls(table.num_rows))
    return _with_known(table, known)


def _frame_without_labels(table, known, error):
    """Returns a table as a DataFrame although pandas cannot read all its own metadata of labels and types."""
    try:
        frame, lost = _with_known(table, {**known, "column_indexes": []}).to_pandas(), "labels of the columns"
    except Exception:
        frame, lost = table.replace_schema_metadata(None).to_pandas(), "labels and types"
    warnings.warn(
        f"pandas cannot read the {lost} that it wrote, so they are plain texts and types; to_arrow() has every value "
        f"as it is ({type(error).__name__}: {error})",
        stacklevel=5,
    )
    return frame


def _dtype_of(column):
    """Returns the type that a column has in pandas. For other readers, periods are texts."""
    return (column.get("metadata") or {}).get(PERIOD, column["numpy_type"])


def _with_periods(table, known, dtypes):
    """Returns the table with the numbers of periods in place of their texts, as pandas expects them, and with metadata
    to match."""
    import pyarrow

    columns = {column["field_name"]: column for column in known.get("columns", ())}
    for position, field in enumerate(table.schema):
        dtype = dtypes.get(field.name, "")
        if not (dtype.startswith("period[") and pyarrow.types.is_string(field.type)):
            continue
        numbers = _numbers_of_periods(table.column(position).to_pylist(), dtype)
        if numbers is None:
            # Rows of other mini-batches have texts that are not periods.
            dtypes[field.name] = "object"
        else:
            table = table.set_column(position, field.name, numbers)
        columns[field.name].update(numpy_type=dtypes[field.name], pandas_type="object", metadata=None)
    return _with_known(table, known)


def _numbers_of_periods(texts, dtype):
    """Returns the numbers of periods, or ``None`` if one of the texts is not such a period."""
    import pandas
    import pyarrow

    try:
        periods = pandas.array(texts, dtype=dtype)
    except ValueError:
        return None
    if any(text is not None and str(period) != text for text, period in zip(texts, periods, strict=True)):
        return None
    return pyarrow.array(periods.asi8, pyarrow.int64(), mask=periods.isna())


def _restore_index(frame, table, index, dtypes):
    """Replaces levels of the index that pandas does not read as it wrote them: periods, intervals, and whole numbers
    that it rounds because others are missing."""
    import pandas
    import pyarrow

    levels = {}
    for level, name in enumerate(index):
        column = table[name] if isinstance(name, str) and name in table.column_names else None
        if column is None:
            continue
        if dtypes.get(name, "").startswith(("period[", "interval[")):
            levels[level] = pandas.api.types.pandas_dtype(dtypes[name]).__from_arrow__(column)
        elif pyarrow.types.is_integer(column.type) and (integers := exact_integers(column)) is not None:
            levels[level] = integers
    if not levels:
        return
    names = frame.index.names
    arrays = [levels.get(level, frame.index.get_level_values(level)) for level in range(frame.index.nlevels)]
    if len(arrays) == 1:
        frame.index = pandas.Index(arrays[0], name=names[0])
    else:
        frame.index = pandas.MultiIndex.from_arrays(arrays, names=names)


def _pandas_changes(array):
    """Returns whether pandas would turn nested integers into floating-point numbers, because some are missing."""
    import pyarrow

    types = pyarrow.types
    if types.is_struct(array.type):
        return any(_pandas_changes(array.field(position)) for position in range(array.type.num_fields))
    if types.is_map(array.type):
        return _pandas_changes(array.items)
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        return _pandas_changes(array.flatten())
    return bool(types.is_integer(array.type) and array.null_count)


def _opened(path):
    """Returns the schema of an output, and its rows."""
    if path.endswith(".parquet"):
        import pyarrow.parquet

        with _open(path) as file:
            return pyarrow.parquet.read_schema(file), _parquet_batches(path)
    if path.endswith(".csv"):
        schema, _ = _schema_of(path)
        return schema, _csv_batches(path, schema)
    if path.endswith(".jsonl"):
        schema, shape = _schema_of(path)
        return schema, _json_batches(path, schema, shape)
    raise GristmillError(
        f"{path} is text without columns: read it with open(), or run the job with `output_format: native`"
    )


def _open(path):
    """Opens a file, which may be in a store that Arrow supports."""
    if "://" not in path:
        return open(path, "rb")
    import pyarrow.fs

    system, inside = pyarrow.fs.FileSystem.from_uri(path)
    return system.open_input_file(inside)


def _schema_of(path):
    """Returns the schema of a CSV or JSON lines file, and the shape of its rows."""
    import pyarrow

    folder, slash, name = path.rpartition("/")
    beside = f"{folder}{slash}.{name}.schema.json"
    try:
        with _open(beside) as file:
            described = json.loads(file.read())
    except FileNotFoundError:
        with _open(path):  # The error names the output if that is missing.
            pass
        raise GristmillError(
            f"{path} has no schema. If the job had `output_format: native`, {beside} is missing; else it is text "
            "without types, which pandas.read_csv and pandas.read_json guess"
        ) from None
    stream = base64.b64decode(described["arrow"])
    return pyarrow.ipc.open_stream(stream).schema, described["rows"]


def _parquet_batches(path):
    import pyarrow.parquet

    with _open(path) as file:
        yield from pyarrow.parquet.ParquetFile(file).iter_batches()


# ---- CSV -------------------------------------------------------------------------------------------------------


def _csv_batches(path, schema):
    import pyarrow
    import pyarrow.csv

    if not schema.names:
        with _open(path) as file:
            yield _rows_without_columns(file.read().count(b"\n"))
        return
    text = {name: pyarrow.string() for name in schema.names}
    with _open(path) as file:
        file.seek(0, os.SEEK_END)
        # A row must fit a block.
        size = min(max(file.tell(), 1 << 20), (1 << 31) - 1)
        file.seek(0)
        reader = pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(block_size=size),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=text, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        # Closes the reader even if a value is refused: its threads must not outlive the file.
        with reader:
            if reader.schema.names != schema.names:
                raise GristmillError(f"{path} was overwritten by another program: its columns are not those of its job")
            for batch in reader:
                columns = [
                    _converted(_of_texts, batch.column(position), field, path) for position, field in enumerate(schema)
                ]
                yield pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _converted(convert, values, field, path):
    """Converts the values of a column with a function of this module. Fails, naming the column, if the file has values
    that its job did not write."""
    import pyarrow

    try:
        return convert(values, field)
    except (pyarrow.ArrowException, GristmillError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        kind = getattr(field.type, "extension_name", field.type)
        reader = "read_csv" if path.endswith(".csv") else "read_json"
        raise GristmillError(
            f"{path}: a value of column {field.name!r} is not of the type {kind} ({error}): the file has changed since "
            f"the job wrote it. Run the job again, or read the file with pandas.{reader}"
        ) from None


def _rows_without_columns(count):
    """Returns a batch of this many rows without columns."""
    import pyarrow

    return pyarrow.record_batch([pyarrow.nulls(count)], names=["row"]).select([])


def _of_texts(texts, field):
    """Returns the values of a column of CSV."""
    import pyarrow
    import pyarrow.compute

    kind = _storage_type(field.type)
    if _has_extension(field, JSON_EXTENSION) or pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return _as_extension(texts.cast(kind), field)
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)):
        # In a file with one column, a missing value is in quotes.
        texts = pyarrow.compute.if_else(pyarrow.compute.equal(texts, ""), pyarrow.scalar(None, pyarrow.string()), texts)
    if pyarrow.types.is_dictionary(kind):
        values = _of_texts(texts, pyarrow.field(field.name, kind.value_type))
        return values.dictionary_encode().cast(kind)
    if pyarrow.types.is_nested(kind):
        values = [ABSENT if text is None else json.loads(text) for text in texts.to_pylist()]
        return _of_json(values, field)
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind):
        return texts.cast(kind) if kind != pyarrow.float16() else texts.cast(pyarrow.float32()).cast(kind)
    return _as_extension(_of_words(texts.to_pylist(), kind, field), field)


# ---- JSON lines ------------------------------------------------------------------------------------------------


def _json_batches(path, schema, shape):
    import pyarrow

    def batch(lines):
        rows = [json.loads(line) for line in lines]
        if shape == "record":
            columns = [[row.get(name, ABSENT) for row in rows] for name in schema.names]
        elif shape == "tuple":
            width = range(len(schema.names))
            columns = [[row[position] if position < len(row) else ABSENT for row in rows] for position in width]
        else:
            columns = [rows]
        arrays = [_converted(_of_json, values, field, path) for values, field in zip(columns, schema, strict=True)]
        if not arrays:
            return _rows_without_columns(len(rows))
        return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    with _open(path) as file:
        lines = []
        for line in _lines(file):
            lines.append(line)
            if len(lines) == BATCH_LINES:
                yield batch(lines)
                lines = []
        if lines:
            yield batch(lines)


def _lines(file):
    rest = b""
    while piece := file.read(1 << 20):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _of_json(values, field):
    """Returns a column of values that were parsed from JSON."""
    import pyarrow

    kind = _storage_type(field.type)
    if _has_extension(field, JSON_EXTENSION):
        # In a table, a value that is null and one that is absent look the same.
        texts = [
            None if value is ABSENT or value is None else json.dumps(value, ensure_ascii=False) for value in values
        ]
        return _as_extension(pyarrow.array(texts, kind), field)
    values = [None if value is ABSENT else value for value in values]
    mask = pyarrow.array([value is None for value in values], pyarrow.bool_())
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _of_json(values, pyarrow.field(field.name, kind.value_type)).dictionary_encode().cast(kind)
    if types.is_struct(kind):
        parts = [kind.field(position) for position in range(kind.num_fields)]
        columns = [
            _of_json([ABSENT if value is None else value.get(part.name, ABSENT) for value in values], part)
            for part in parts
        ]
        return pyarrow.StructArray.from_arrays(columns, fields=parts, mask=mask)
    if types.is_map(kind):
        pairs = [value or [] for value in values]
        keys = _of_json([key for each in pairs for key, _ in each], pyarrow.field("key", kind.key_type))
        items = _of_json([item for each in pairs for _, item in each], kind.item_field)
        offsets = _offsets([len(each) for each in pairs], values)
        return pyarrow.MapArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), keys, items, type=kind)
    if types.is_list(kind) or types.is_large_list(kind):
        items = _of_json([item for value in values for item in value or []], kind.value_field)
        offsets = _offsets([len(value or []) for value in values], values)
        make = pyarrow.ListArray if types.is_list(kind) else pyarrow.LargeListArray
        width = pyarrow.int32() if types.is_list(kind) else pyarrow.int64()
        return make.from_arrays(pyarrow.array(offsets, width), items, type=kind)
    if types.is_fixed_size_list(kind):
        empty = [None] * kind.list_size
        items = _of_json([item for value in values for item in (empty if value is None else value)], kind.value_field)
        return pyarrow.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    if kind == pyarrow.float16():
        return pyarrow.array(values, pyarrow.float32()).cast(kind)
    if types.is_integer(kind) and float in {*map(type, values)}:
        # Arrow would cut off their fractions.
        for value in values:
            if isinstance(value, float) and not value.is_integer():
                raise GristmillError(f"{value!r} is not a whole number")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return pyarrow.array(values, kind)
    if types.is_string(kind) or types.is_large_string(kind):
        # In a column of texts, the file may have other values: `1` next to `"one"`.
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        return pyarrow.array(texts, kind)
    return _as_extension(_of_words(values, kind, field), field)


def _offsets(lengths, values):
    """Returns the offsets of lists, with ``None`` where a list is missing."""
    offsets = []
    end = 0
    for length, value in zip(lengths, values, strict=True):
        offsets.append(None if value is None else end)
        end += length
    return [*offsets, end]


# ---- both ------------------------------------------------------------------------------------------------------


def _of_words(words, kind, field):
    """Returns the values of a type that both formats write as text."""
    import pyarrow

    types = pyarrow.types
    if types.is_decimal(kind):
        return _array(words, Decimal, kind)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        is_uuid = _has_extension(field, "arrow.uuid")
        return _array(
            words, lambda word: bytes.fromhex(word.replace("-", "")) if is_uuid else base64.b64decode(word), kind
        )
    if types.is_duration(kind):
        return _array(words, lambda word: _ticks(word, kind.unit), kind)
    if types.is_date(kind) or types.is_timestamp(kind):
        return (
            _array(words, lambda word: _instant(word, kind), pyarrow.int64())
            .cast(pyarrow.timestamp("ms" if types.is_date64(kind) else "s" if types.is_date(kind) else kind.unit))
            .cast(kind, safe=False)
        )
    if types.is_time(kind):
        return (
            _array(words, lambda word: _time_of_day(word, kind.unit), pyarrow.int64())
            .cast(pyarrow.int32() if types.is_time32(kind) else pyarrow.int64())
            .cast(kind)
        )
    return pyarrow.array(words, pyarrow.string()).cast(kind)


def _array(words, read, kind):
    """Returns the values of texts, of which some are missing."""
    import pyarrow

    return pyarrow.array([None if word is None else read(word) for word in words], kind)


def _time_of_day(word, unit):
    hours, minutes, seconds = word.split(":")
    whole, _, fraction = seconds.partition(".")
    total = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return total * PER_SECOND[unit] + int(fraction.ljust(9, "0")) * PER_SECOND[unit] // 10**9


def _ticks(word, unit):
    match = DURATION.fullmatch(word)
    if match is None:
        raise GristmillError(f"{word!r} is not a duration")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    nanoseconds = whole * 10**9 + int((fraction or "").ljust(9, "0"))
    ticks = nanoseconds * PER_SECOND[unit] // 10**9
    return -ticks if sign else ticks


INSTANT = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d+))?)?(?:([+-])(\d\d):(\d\d))?")


def _instant(word, kind):
    """Returns a day or an instant of any year as a number of its unit since 1970."""
    import pyarrow

    match = INSTANT.fullmatch(word)
    if match is None:
        raise GristmillError(f"{word!r} is not a time")
    year, month, day = (int(part) for part in match.group(1, 2, 3))
    # Days since 1970-01-01; years are counted from March.
    year -= month <= 2
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468
    hours, minutes, seconds = (int(part or 0) for part in match.group(4, 5, 6))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match[8]:
        offset = (int(match[9]) * 60 + int(match[10])) * 60
        total += offset if match[8] == "-" else -offset
    if pyarrow.types.is_date64(kind):
        return total * 1000
    if pyarrow.types.is_date(kind):
        return total
    per_second = PER_SECOND[kind.unit]
    return total * per_second + int((match[7] or "").ljust(9, "0")) * per_second // 10**9


def _has_extension(field, name):
    """Returns whether a field has an extension type, which interpreters without that type have only in its metadata."""
    of_metadata = (field.metadata or {}).get(EXTENSION_NAME, b"").decode()
    return name in (getattr(field.type, "extension_name", None), of_metadata)


def _storage_type(kind):
    """Returns the type of the values of an extension type."""
    return getattr(kind, "storage_type", kind)


def _storage(column):
    import pyarrow

    if not isinstance(column.type, pyarrow.BaseExtensionType):
        return column
    return pyarrow.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _as_extension(array, field):
    import pyarrow

    if isinstance(field.type, pyarrow.BaseExtensionType):
        return field.type.wrap_array(array)
    return array


def _with_categories(table):
    """Returns the table with the categories of its columns in their order, including those that no row has."""
    import pyarrow
    import pyarrow.compute

    known = _known_of(table)
    ordered = {
        column.get("field_name", column.get("name"))
        for column in known.get("columns", ())
        if (column.get("metadata") or {}).get("ordered")
    }
    for position, field in enumerate(table.schema):
        names = (field.metadata or {}).get(CATEGORIES)
        if names is None:
            continue
        # Arrow reads only categories of texts from a Parquet file as categories.
        kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
        categories = pyarrow.array(json.loads(names), kind)
        values = table.column(position).cast(kind).combine_chunks()
        indices = pyarrow.compute.index_in(values, value_set=categories)
        column = pyarrow.DictionaryArray.from_arrays(indices, categories, ordered=field.name in ordered)
        table = table.set_column(position, field.name, column)
    return table
