"""DataFrames as delimited text, byte for byte what ``DataFrame.to_csv`` of this interpreter writes.

The extension writes common column types many times faster than pandas, which writes the others. The first frame
triggers a probe of the rules of ``csv`` and the notation of NumPy, because they have changed between releases.
"""

import csv
import functools
import io
from collections import namedtuple

from gristmill import _native
from gristmill.errors import valid_text


def encode(text):
    """Returns UTF-8, with bytes that ``os.fsdecode`` could not decode unchanged."""
    return text.encode("utf-8", "surrogateescape")


def column_names(frame):
    """Returns column names as valid text."""
    return [valid_text(str(name)) for name in frame.columns]


class DelimitedFrames:
    """Formats frames as ``DataFrame.to_csv`` does: natively if that produces the same bytes, else with pandas."""

    ENGINE_ARGUMENTS = ("path_or_buf", "header", "mode", "encoding", "errors", "compression", "storage_options")
    """Arguments that the engine sets: it opens the file, and writes the header once."""

    def __init__(self, separator, to_csv_arguments):
        given = {name: value for name, value in to_csv_arguments.items() if name not in self.ENGINE_ARGUMENTS}
        self._arguments = {"sep": separator, "header": False, "index": False, **given}
        self._index = bool(self._arguments["index"])
        self._columns = given.get("columns")
        self._is_plain = not given.keys() - {"sep"}
        self._dialect = None
        self._instants = False
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
            self._probe(self._arguments["sep"])
            self._probed = True
        if self._dialect is None:
            return None
        return format_natively(frame, self._dialect, self._instants)

    def _probe(self, separator):
        """Probes how this interpreter writes, and whether the native writer agrees with pandas on samples."""
        dialect = probe_dialect(separator) if is_plain_separator(separator) else None
        if dialect is not None and self._agrees(probe_frame(), dialect):
            self._dialect = dialect
            self._instants = self._agrees(probe_instants(), dialect)

    def _agrees(self, sample, dialect):
        return format_natively(sample, dialect) == encode(sample.to_csv(None, **self._arguments))


def is_plain_separator(separator):
    """Returns whether the separator is one byte that no number, boolean or quote contains."""
    return (
        isinstance(separator, str)
        and len(separator) == 1
        and (separator == "\t" or " " <= separator <= "~")
        and not separator.isalnum()
        and separator not in '+-."'
    )


TO_CSV_CHUNK_CELLS = 100_000
"""Number of cells in a chunk of ``to_csv``, which decides for each chunk of a column how to write its instants."""


Dialect = namedtuple("Dialect", ("separator", "quoted", "declined", "float32_positional"))
"""Conventions of this interpreter's ``csv`` and NumPy; see the extension's type of this name."""


def format_natively(frame, dialect, instants=True):
    """Returns the rows of a frame, or ``None`` if pandas must write it."""
    from gristmill.frame_cells import native_columns

    columns = native_columns(frame)
    if any(kind is None or (not instants and kind.startswith("datetime64")) for kind, _ in columns):
        return None
    chunk_rows = TO_CSV_CHUNK_CELLS // len(columns) or 1
    return _native.format_delimited(columns, len(frame), dialect, chunk_rows)


def probe_float32_positional():
    import numpy

    def is_positional(value):
        return "e" not in str(numpy.array([value]).astype(str)[0])

    powers = numpy.array([float(f"1e{exponent}") for exponent in range(-9, 39)])
    infinity = numpy.float32(numpy.inf)
    bounds = [power for power in powers if is_positional(numpy.nextafter(numpy.float32(power), infinity))]
    return float(bounds[0]), float(bounds[-1]) * 10


@functools.cache
def probe_dialect(separator):
    """Probes conventions that differ between releases: what ``csv`` quotes or rejects, and how NumPy writes. Returns
    ``None`` if the rule of ``csv`` depends on more than single ASCII characters."""

    def written(field):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", delimiter=separator).writerow([field, "z"])
        return text.getvalue()

    quoted, declined = bytearray(), bytearray()
    for character in map(chr, range(128)):
        in_quotes = character.replace('"', '""')
        answers = set()
        for before, after in (("", ""), ("a", "b"), ("", "b"), ("a", "")):
            try:
                line = written(before + character + after)
            except csv.Error:
                line = None
            if line == f'"{before}{in_quotes}{after}"{separator}z\n':
                answers.add("quoted")
            elif line == f"{before}{character}{after}{separator}z\n":
                answers.add("plain")
            else:
                answers.add("neither")
        if answers == {"quoted"}:
            quoted.append(ord(character))
        elif answers != {"plain"}:
            declined.append(ord(character))
    beyond_ascii = "é\u0085\u2028😀"
    if written(beyond_ascii) != f"{beyond_ascii}{separator}z\n" or written("") != f"{separator}z\n":
        return None
    return Dialect(ord(separator), bytes(quoted), bytes(declined), probe_float32_positional())


def probe_frame():
    """Returns one cell of every kind that the native writer handles."""
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


def probe_instants():
    """Returns instants of every precision, with a missing one in each column."""
    import numpy
    import pandas

    columns = [
        ["2020-01-31", "1969-12-31", "NaT"],
        ["2020-01-31", "NaT", "1999-12-31T23:59:59"],
        ["2020-02-29T01:02:03.004", "2020-01-31", "NaT"],
        ["2020-02-29T01:02:03.000004", "NaT", "2020-01-31T00:00:00.5"],
        ["1700-03-01T01:02:03.000000004", "NaT", "2020-01-31"],
    ]
    arrays = [numpy.array(column, dtype="datetime64[ns]") for column in columns]
    return pandas.DataFrame(dict(enumerate(arrays)))
