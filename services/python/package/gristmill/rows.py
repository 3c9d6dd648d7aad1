"""Results as bytes, in the format of the job's output.

The formats are ``text`` (compatible with the original), ``csv``, ``jsonl`` and ``parquet``. Each is a class with
``of_list`` and ``of_frame``, which return the bytes and the column names, ``None`` where there are none.

Text carries file names of any bytes: undecodable ones come from ``os.fsdecode`` as surrogate escapes and go out as they
were.
"""

import csv
import functools
import io
import json
import math

from gristmill import _native
from gristmill.errors import valid_text


class RowsError(Exception):
    """The result is legal but cannot be written in the format of the output."""


def make_formatter(output_format, to_csv_arguments):
    """The formatter of a job."""
    if output_format == "text":
        return Text(to_csv_arguments)
    if output_format == "csv":
        return Csv(to_csv_arguments)
    return {"jsonl": JsonLines, "parquet": Parquet}[output_format]()


def encode(text):
    return text.encode("utf-8", "surrogateescape")


def column_names(frame):
    return [valid_text(str(name)) for name in frame.columns]


class Text:
    """``format(element)`` lines; frames as ``to_csv`` writes them, without header and index, blanks between cells."""

    separator = " "

    def __init__(self, to_csv_arguments):
        self._frames = DelimitedFrames(self.separator, to_csv_arguments)

    def of_list(self, result):
        if {*map(type, result)} == {str}:
            return encode("\n".join(result) + "\n"), None
        return encode("".join([f"{element}\n" for element in result])), None

    def of_frame(self, frame):
        return self._frames.format(frame)


class Csv(Text):
    """Comma-separated. A list of dicts or of sequences fills columns; of anything else, the column ``value``."""

    separator = ","

    def of_list(self, result):
        text = io.StringIO()
        if result and all(isinstance(element, dict) for element in result):
            names = list(dict.fromkeys(name for element in result for name in element))
            writer = csv.writer(text, lineterminator="\n")
            writer.writerows([element.get(name) for name in names] for element in result)
            return encode(text.getvalue()), [valid_text(str(name)) for name in names]
        writer = csv.writer(text, lineterminator="\n")
        if result and all(isinstance(element, (list, tuple)) for element in result):
            writer.writerows(result)
            return encode(text.getvalue()), None
        writer.writerows([element] for element in result)
        return encode(text.getvalue()), ["value"]


class DelimitedFrames:
    """Frames as ``DataFrame.to_csv`` writes them: natively where that gives the same bytes, else by pandas itself."""

    ENGINE_ARGUMENTS = ("path_or_buf", "header", "mode", "encoding", "errors", "compression", "storage_options")
    """What the engine decides: it opens the file, and writes the header once."""

    def __init__(self, separator, to_csv_arguments):
        given = {name: value for name, value in to_csv_arguments.items() if name not in self.ENGINE_ARGUMENTS}
        self._arguments = {"sep": separator, "header": False, "index": False, **given}
        self._index = bool(self._arguments["index"])
        self._columns = given.get("columns")
        self._is_plain = not given.keys() - {"sep"}
        self._always_quoted = None
        self._probed = False

    def format(self, frame):
        text = self._native(frame)
        if text is None:
            text = encode(frame.to_csv(None, **self._arguments))
        return text, self._names(frame)

    def _names(self, frame):
        names = column_names(frame) if self._columns is None else [valid_text(str(name)) for name in self._columns]
        if self._index:
            names = ["" if name is None else valid_text(str(name)) for name in frame.index.names] + names
        return names

    def _native(self, frame):
        if not self._is_plain or frame.shape[1] == 0:
            return None
        if not self._probed:
            self._always_quoted = self._probe()
            self._probed = True
        if self._always_quoted is None:
            return None
        return format_natively(frame, self._arguments["sep"], self._always_quoted)

    def _probe(self):
        """The bytes this interpreter's ``csv`` quotes, if the native writer agrees with pandas on a sample."""
        separator = self._arguments["sep"]
        if not is_plain_separator(separator):
            return None
        always_quoted = quoted_bytes(separator)
        if always_quoted is None:
            return None
        sample = probe_frame()
        expected = encode(sample.to_csv(None, **self._arguments))
        return always_quoted if format_natively(sample, separator, always_quoted) == expected else None


def is_plain_separator(separator):
    """Whether the separator is one byte that no number, boolean or quote contains."""
    return (
        isinstance(separator, str)
        and len(separator) == 1
        and (separator == "\t" or " " <= separator <= "~")
        and not separator.isalnum()
        and separator not in '+-."'
    )


def format_natively(frame, separator, always_quoted):
    from gristmill.frame_cells import native_columns

    columns = native_columns(frame)
    if any(kind is None or kind.startswith("datetime64") for kind, _ in columns):
        return None
    return _native.format_delimited(columns, len(frame), ord(separator), always_quoted, float32_positional())


@functools.cache
def float32_positional():
    """The magnitudes that this release of NumPy writes without an exponent in ``float32``: smallest, and first beyond
    the largest."""
    import numpy

    def is_positional(value):
        return "e" not in str(numpy.array([value]).astype(str)[0])

    powers = numpy.array([float(f"1e{exponent}") for exponent in range(-9, 39)])
    bounds = [
        power for power in powers if is_positional(numpy.nextafter(numpy.float32(power), numpy.float32(numpy.inf)))
    ]
    return float(bounds[0]), float(bounds[-1]) * 10


def quoted_bytes(separator):
    """The characters that make ``csv`` quote a field: they have changed between releases of Python. ``None`` if the
    rule is not one that looks at single ASCII characters."""

    def written(field):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", delimiter=separator).writerow([field, "z"])
        return text.getvalue()

    quoted = bytearray()
    for character in map(chr, range(128)):
        body = character.replace('"', '""')
        answers = set()
        for before, after in (("", ""), ("a", "b"), ("", "b"), ("a", "")):
            line = written(before + character + after)
            if line == f'"{before}{body}{after}"{separator}z\n':
                answers.add(True)
            elif line == f"{before}{character}{after}{separator}z\n":
                answers.add(False)
            else:
                return None
        if len(answers) != 1:
            return None
        if True in answers:
            quoted.append(ord(character))
    is_as_expected = written("é\u0085\u2028😀") == f"é\u0085\u2028😀{separator}z\n" and written("") == f"{separator}z\n"
    return bytes(quoted) if is_as_expected else None


def probe_frame():
    """One cell of every sort the native writer takes upon itself."""
    import numpy
    import pandas

    nan = float("nan")
    floats = [0.1, -0.0, 1e16, 123456789012345.6, 1e-5, 0.0001, 5e-324, 1.7976931348623157e308, nan, float("inf")]
    cells = ["", 'a"b', "a b", None, nan, 1, 1.5, True, [1, "x"], 10**30]
    rows = len(cells)
    return pandas.DataFrame(
        {
            "integers": numpy.arange(rows, dtype=numpy.int64) - 5,
            "small": numpy.arange(rows, dtype=numpy.uint8),
            "floats": numpy.array(floats),
            "short": numpy.array(floats, dtype=numpy.float64).clip(-3e38, 3e38).astype(numpy.float32),
            "bools": numpy.arange(rows) % 2 == 0,
            "objects": pandas.Series(cells, dtype=object),
        }
    )


def json_default(value):
    """Values the ``json`` module does not know: NumPy's as Python's own, instants in ISO form, the rest as text."""
    for method in ("tolist", "isoformat"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    return str(value)


def without_nan(value):
    """The value with ``None`` for every number JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if hasattr(value, "tolist"):
        return without_nan(value.tolist())
    return value


def json_line(value):
    try:
        line = json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
    except ValueError:
        line = json.dumps(without_nan(value), default=json_default, ensure_ascii=False)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(without_nan(value), default=json_default).encode() + b"\n"


class JsonLines:
    """One JSON value a line; a frame's rows are objects."""

    def of_list(self, result):
        return b"".join([json_line(element) for element in result]), None

    def of_frame(self, frame):
        from gristmill.frame_cells import native_columns

        names = column_names(frame)
        if len(set(names)) != len(names):
            raise RowsError("JSON lines need unique column names, and the DataFrame that run() returned has duplicates")
        columns = native_columns(frame)
        text = None
        if all(kind is not None and not kind.startswith("datetime64") for kind, _ in columns):
            text = _native.format_json_lines(names, columns, len(frame))
        if text is None:
            values = frame.astype(object).where(frame.notna(), None)
            rows = values.itertuples(index=False, name=None)
            text = b"".join([json_line(dict(zip(names, row, strict=True))) for row in rows])
        return text, names


class Parquet:
    """An Arrow IPC stream; the one who assembles the output makes Parquet of it. Lists as with ``csv``."""

    def of_list(self, result):
        if result and all(isinstance(element, dict) for element in result):
            names = list(dict.fromkeys(name for element in result for name in element))
            cells = [[_python_value(element.get(name)) for element in result] for name in names]
        else:
            names = ["value"]
            cells = [[_python_value(element) for element in result]]
        names = [valid_text(str(name)) for name in names]
        written = _native.write_table(names, [("list", column) for column in cells], len(result))
        if isinstance(written, bytes):
            return written, names
        pyarrow = _pyarrow(names[written], cells[written])
        try:
            table = pyarrow.table([pyarrow.array(column) for column in cells], names=names)
        except pyarrow.ArrowException as error:
            raise RowsError(f"the result cannot become columns of a Parquet file: {error}") from None
        return _arrow_stream(pyarrow, table), names

    def of_frame(self, frame):
        from gristmill.frame_cells import native_columns

        names = column_names(frame)
        columns = native_columns(frame)
        unknown = next((position for position, (kind, _) in enumerate(columns) if kind is None), None)
        written = unknown if unknown is not None else _native.write_table(names, columns, len(frame))
        if isinstance(written, bytes):
            return written, names
        pyarrow = _pyarrow(names[written], frame.iloc[:, written])
        try:
            arrays = [pyarrow.array(frame.iloc[:, position], from_pandas=True) for position in range(len(names))]
        except pyarrow.ArrowException as error:
            raise RowsError(f"the DataFrame cannot become columns of a Parquet file: {error}") from None
        return _arrow_stream(pyarrow, pyarrow.table(arrays, names=names)), names


def _python_value(value):
    is_scalar = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def _pyarrow(name, cells):
    try:
        import pyarrow
    except ImportError:
        kinds = ", ".join(sorted({type(cell).__name__ for cell in cells}))
        raise RowsError(
            f"column '{name}' holds values ({kinds}) that only pyarrow can write to Parquet: "
            "add pyarrow to the environment of the script, or convert the column"
        ) from None
    return pyarrow


def _arrow_stream(pyarrow, table):
    fields = [
        field.with_type(pyarrow.string()) if field.type == pyarrow.large_string() else field for field in table.schema
    ]
    table = table.cast(pyarrow.schema(fields)).combine_chunks()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
