"""Reads the files of a table into one DataFrame, with the number of the file of each row."""

import csv
import io
import json

import numpy
import pandas

from gristmill.mltable.conversion import converted
from gristmill.mltable.definition import ENCODINGS, InvalidTable, warn_of_unknown_column
from gristmill.mltable.inference import typed, untyped


def read(name, settings, files):
    """Returns the DataFrame of all files, and for each row the position of its file."""
    return {"read_delimited": _delimited, "read_json_lines": _json_lines, "read_parquet": _parquet}[name](
        settings, files
    )


def _text(path, encoding):
    try:
        with open(path, encoding=ENCODINGS[encoding], newline="") as file:
            return file.read().removeprefix("\ufeff")
    except UnicodeError as error:
        raise InvalidTable(f"{path} is not {encoding}: {error}") from None


def _delimited(settings, files):
    header = settings["header"]
    names, tables = None, []
    for position, (_, path) in enumerate(files):
        cells = split(_text(path, settings["encoding"]), settings["delimiter"], settings["support_multi_line"])
        has_header = header.startswith("all_files") or (header == "from_first_file" and position == 0)
        own = [cell and cell.strip() for cell in cells.iloc[0]] if has_header and len(cells) else None
        cells = cells.iloc[1:] if has_header else cells
        if own is not None and (names is None or header == "all_files_different_headers"):
            names = own
        width = max(cells.shape[1], len(names or ()))
        cells = cells.reindex(columns=range(width))
        cells.columns = column_names((names or []) + [None] * (width - len(names or ())))
        tables.append(cells.astype(object).where(cells.notna(), None))
    table = pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()
    table = table.astype(object).where(table.notna(), None)
    infer = settings["infer_column_types"]
    given = {name: to for names, *to in infer for name in names} if isinstance(infer, list) else {}
    warn_of_unknown_column("column types", list(given), table.columns)
    columns = []
    for place, name in enumerate(table.columns):
        read_as = typed if infer and name not in given else untyped
        column = read_as(table.iloc[:, place], settings["empty_as_string"])
        columns.append(converted(column, *given[name]) if name in given else column)
    return _joined(columns, table.columns, len(table)), _positions(tables)


def split(text, delimiter, multi_line):
    """Returns the cells of a text as a DataFrame of texts without names, ``None`` where a row is short."""
    if '"' not in text or multi_line or not _has_broken_quotes(text):
        try:
            return pandas.read_csv(
                io.StringIO(text), sep=delimiter, header=None, dtype=object, keep_default_na=False, na_filter=False
            )
        except pandas.errors.EmptyDataError:
            return pandas.DataFrame()
        except pandas.errors.ParserError:
            pass
    if multi_line:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    else:
        rows = [_cells(line, delimiter) for line in text.splitlines() if line.strip()]
    width = max(map(len, rows), default=0)
    return pandas.DataFrame([[*row, *[None] * (width - len(row))] for row in rows], dtype=object)


def _has_broken_quotes(text):
    return any(line.count('"') % 2 for line in text.splitlines() if '"' in line)


def _cells(line, delimiter):
    """Splits one line. A quote that does not end in it is a part of its cell."""
    if line.count('"') % 2:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter))


def column_names(cells):
    """Returns the names in a header: ``ColumnN`` for an empty one, ``a_1`` for a repeated one."""
    names = []
    for position, cell in enumerate(cells):
        name = base = cell if cell else f"Column{position + 1}"
        copy = 0
        while name in names:
            copy += 1
            name = f"{base}_{copy}"
        names.append(name)
    return names


def _json_lines(settings, files):
    rows, positions = [], []
    for position, (_, path) in enumerate(files):
        for number, line in enumerate(_text(path, settings["encoding"]).split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                if settings["invalid_lines"] == "drop":
                    continue
                raise InvalidTable(f"{path}, line {number} is not a JSON object: {error}") from None
            rows.append(row)
            positions.append(position)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [_of_json([row.get(name) for row in rows]) for name in names]
    return _joined(columns, names, len(rows)), numpy.array(positions, dtype=int)


def _of_json(values):
    kinds = {type(value) for value in values if value is not None}
    has_missing = any(value is None for value in values)
    if kinds and kinds <= {int, float}:
        is_whole = kinds == {int} and not has_missing and all(-(2**63) <= value < 2**63 for value in values)
        return pandas.Series(values, dtype="int64" if is_whole else "float64")
    if kinds == {bool} and not has_missing:
        return pandas.Series(values, dtype=bool)
    return pandas.Series(values, dtype=object)


def _parquet(settings, files):
    tables = [pandas.read_parquet(path) for _, path in files]
    table = pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()
    return _with_objects(table), _positions(tables)


def _with_objects(table):
    """Returns the table with texts as objects in every release of pandas, and ``None`` for missing objects."""
    columns = []
    for position in range(table.shape[1]):
        column = table.iloc[:, position]
        if pandas.api.types.is_string_dtype(column.dtype) or column.dtype == object:
            column = column.astype(object).where(column.notna(), None)
        columns.append(column)
    return _joined(columns, table.columns, len(table))


def _joined(columns, names, rows):
    frame = pandas.DataFrame(dict(enumerate(columns)), index=pandas.RangeIndex(rows))
    frame.columns = pandas.Index(list(names), dtype=object)
    return frame


def _positions(tables):
    return numpy.repeat(numpy.arange(len(tables)), [len(table) for table in tables])
