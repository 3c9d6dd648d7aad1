"""Rows of frames equal those of pandas, byte for byte, for any content."""

import csv
import io
import json

import numpy
import pandas
import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill import delimited, json_lines, rows

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(' "\n\r\t,;\0'), max_size=8)
finite = st.floats(width=64) | st.sampled_from(
    [0.1, -0.0, 1e16, 1e15, 9999999999999998.0, 1e-4, 9.999e-5, 5e-324, 1e22]
)
cells = (
    st.none() | texts | finite | st.booleans() | st.integers() | st.integers(-(2**63), 2**63 - 1)
    | st.lists(st.integers(), max_size=2) | st.tuples(texts) | st.dates()
)  # fmt: skip


def column_of(size):
    def array(dtype, values):
        return st.lists(values, min_size=size, max_size=size).map(lambda cells: numpy.array(cells, dtype=dtype))

    integers = [
        array(dtype, st.integers(int(numpy.iinfo(dtype).min), int(numpy.iinfo(dtype).max)))
        for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    ]
    objects = st.lists(cells, min_size=size, max_size=size).map(lambda cells: pandas.Series(cells, dtype=object))
    words = st.lists(texts | st.none(), min_size=size, max_size=size).map(
        lambda cells: pandas.Series(cells, dtype=pandas.StringDtype(na_value=numpy.nan) if MAJOR >= 3 else "string")
    )
    instants = st.tuples(
        st.lists(st.integers(-(2**33), 2**33), min_size=size, max_size=size),
        st.sampled_from([86_400 * 10**9, 10**9, 10**6, 10**3, 1]),
        st.sampled_from(["s", "ms", "us", "ns"]),
        st.booleans(),
    ).map(instants_of)
    return st.one_of(
        *integers,
        array("float64", st.floats(width=64)),
        array("float64", finite),
        array("float32", st.floats(width=32)),
        array("float16", st.floats(width=16)),
        array("bool", st.booleans()),
        objects,
        words,
        instants,
        st.lists(texts, min_size=size, max_size=size).map(lambda cells: pandas.Series(cells, dtype="category")),
        st.lists(st.none() | st.integers(0, 9), min_size=size, max_size=size).map(
            lambda cells: pandas.Series(cells, dtype="Int64")
        ),
    )


MAJOR = int(pandas.__version__.split(".")[0])


def instants_of(drawn):
    """Generates instants of one precision and one unit, with or without a missing first value."""
    numbers, factor, unit, is_first_missing = drawn
    nanoseconds = [number * factor % 2**62 - 2**61 for number in numbers]
    if factor == 86_400 * 10**9:
        nanoseconds = [number // factor * factor for number in nanoseconds]
    array = numpy.array(nanoseconds, dtype="datetime64[ns]").astype(f"datetime64[{unit}]")
    if is_first_missing and numbers:
        array[0] = "NaT"
    return pandas.Series(array)


@st.composite
def frames(draw):
    size = draw(st.integers(0, 4))
    columns = draw(st.lists(column_of(size), max_size=4))
    frame = pandas.DataFrame({position: pandas.Series(column) for position, column in enumerate(columns)})
    frame.columns = ["same"] * len(columns)
    return frame


def expected(frame, **arguments):
    text = frame.to_csv(None, **{"header": False, "index": False, "sep": " ", **arguments})
    return text.encode("utf-8", "surrogateescape")


@settings(max_examples=600, deadline=None)
@given(frames(), st.sampled_from([" ", ",", "\t", ";", "|"]))
def test_delimited_text_equals_that_of_pandas(frame, separator):
    try:
        text = expected(frame, sep=separator)
    except csv.Error as error:
        # Before Python 3.11, a text with a NUL character.
        with pytest.raises(csv.Error, match=str(error)):
            rows.Text({"sep": separator}).of_frame(frame)
        return
    assert rows.Text({"sep": separator}).of_frame(frame) == (text, ["same"] * frame.shape[1])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(width=64) | finite, min_size=1))
@example(
    [float(f"{digits}e{exponent}") for digits in ("1", "1.5", "9.999999999999999") for exponent in range(-320, 309, 1)]
)
def test_floats_equal_those_of_pandas_and_repr(values):
    frame = pandas.DataFrame({"f": values})
    assert natively(frame) == expected(frame)
    assert natively(pandas.DataFrame({"f": pandas.Series(values, dtype=object)})) == expected(frame)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1))
@example([float(numpy.float32(f"1.1e{exponent}")) for exponent in range(-45, 39)])
def test_short_floats_equal_those_of_pandas(values):
    frame = pandas.DataFrame({"f": numpy.array(values, dtype="float32")})
    assert natively(frame) == expected(frame)


def natively(frame, separator=" "):
    """Returns the text of the extension; tests of it must not pass by falling back to pandas."""
    text = delimited.format_natively(frame, delimited.probe_dialect(separator))
    assert text is not None
    return text


def test_native_writer_is_in_use():
    formatter = rows.Text({})
    formatter.of_frame(pandas.DataFrame({"a": [1]}))
    assert formatter._frames._dialect is not None


@pytest.mark.parametrize(
    "cells",
    [
        [numpy.float64(0.1), numpy.int64(3)],
        [pandas.NaT, pandas.Timestamp("2020-01-01")],
        [pandas.NA, 1],
        [__import__("decimal").Decimal("NaN"), __import__("decimal").Decimal("1.50")],
        [numpy.datetime64("NaT"), numpy.datetime64("2020-01-01")],
        [float("nan"), complex("nan")],
    ],
    ids=range(6),
)
def test_pandas_formats_odd_objects(cells):
    frame = pandas.DataFrame({"a": pandas.Series(cells, dtype=object)})
    assert rows.Text({}).of_frame(frame)[0] == expected(frame)


def test_dates_match_azure_ml():
    frame = pandas.DataFrame(
        {
            "day": pandas.to_datetime(["2020-01-01", None]),
            "time": pandas.to_datetime(["2020-01-01 01:02:03", "2020-01-02 00:00:00"]),
            "delta": pandas.to_timedelta(["1s", "2s"]),
        }
    )
    written = rows.Text({}).of_frame(frame)[0].decode()
    assert written == '2020-01-01 "2020-01-01 01:02:03" "0 days 00:00:01"\n "2020-01-02 00:00:00" "0 days 00:00:02"\n'


def test_instants_of_all_times_are_written_natively():
    # Releases of pandas that have only nanoseconds cover fewer years.
    first, end, unit = ("1000-01-01", "9999-12-31", "us") if MAJOR >= 2 else ("1700-01-01", "2250-01-01", "ns")
    days = numpy.arange(first, end, 13, dtype="datetime64[D]")
    frame = pandas.DataFrame({"t": days.astype(f"datetime64[{unit}]")})
    assert natively(frame) == expected(frame)
    fine = pandas.DataFrame({"t": numpy.array([0, 1, 10**15 + 10**3], dtype="datetime64[ns]")})
    assert natively(fine, ",") == expected(fine, sep=",")


def test_precision_of_instants_is_decided_chunk_by_chunk():
    first_day = numpy.datetime64("2020-01-01", "ns")
    times = numpy.full(120_000, first_day)
    times[-1] += numpy.timedelta64(1, "ms")
    frame = pandas.DataFrame({"a": times, "b": 1})
    text = expected(frame, sep=",")
    assert natively(frame, ",") == text
    assert text.startswith(b"2020-01-01,1\n") and text.endswith(b"2020-01-01 00:00:00.001,1\n")


@pytest.mark.parametrize(
    "arguments",
    [
        {"sep": "."}, {"sep": "1"}, {"sep": "-"}, {"sep": "e"}, {"na_rep": "NULL"}, {"quoting": 1},
        {"float_format": "%.2f"}, {"decimal": ","}, {"lineterminator": "\r\n"}, {"date_format": "%Y"},
        {"index": True}, {"columns": ["b"]}, {"quotechar": "'"}, {"header": True, "mode": "a", "encoding": "latin-1"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_to_csv_are_kept(arguments):
    frame = pandas.DataFrame({"a": [1.5, None], "b": ['x."1-e', "y z"]})
    written, names = rows.Text(arguments).of_frame(frame)
    kept = {name: value for name, value in arguments.items() if name not in ("header", "mode", "encoding")}
    assert written == expected(frame, **kept)
    assert names == {"index": ["", "a", "b"], "columns": ["b"]}.get(next(iter(arguments)), ["a", "b"])


def test_file_names_of_any_bytes_are_written_unchanged():
    name = b"/data/\xff\xfe x".decode("utf-8", "surrogateescape")
    assert rows.Text({}).of_list([name])[0] == b"/data/\xff\xfe x\n"
    assert rows.Text({}).of_frame(pandas.DataFrame({"a": [name]}, dtype=object))[0] == b'"/data/\xff\xfe x"\n'


def test_text_of_a_str_subclass_is_its_format():
    class Loud(str):
        def __format__(self, _):
            return self.upper()

    assert rows.Text({}).of_list(["a", Loud("b")])[0] == b"a\nB\n"


@settings(max_examples=200, deadline=None)
@given(st.lists(texts | st.integers() | st.floats() | st.none(), max_size=5))
def test_lists_are_lines_of_format(elements):
    if elements:
        assert rows.Text({}).of_list(elements)[0] == "".join(f"{element}\n" for element in elements).encode()


def table_of(written):
    return pyarrow.ipc.open_stream(written[0]).read_all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4).flatmap(lambda size: st.lists(column_of(size), min_size=1, max_size=3)))
def test_json_lines_equal_the_frame(columns):
    """``result_schema`` checks rows in this form."""
    frame = pandas.DataFrame({f"c{position}": pandas.Series(column) for position, column in enumerate(columns)})
    written = json_lines.lines_of_frame(frame)
    lines = [json.loads(line, parse_constant=None) for line in written.decode().split("\n")[:-1]]
    assert len(lines) == len(frame)
    for line, row in zip(lines, frame.astype(object).where(frame.notna(), None).to_dict("records"), strict=True):
        assert list(line) == list(frame.columns)
        for name, value in row.items():
            if value is None or isinstance(value, (str, bool, int)):
                assert line[name] == value
            elif isinstance(value, float):
                exact = frame[name].dtype.type if frame[name].dtype.kind == "f" else float
                assert exact(line[name]) == value if numpy.isfinite(value) else line[name] is None


def test_json_lines_of_lists():
    elements = [
        "é",
        1,
        {"a": float("nan"), "b": numpy.float32(0.5)},
        [numpy.array([1, 2])],
        pandas.Timestamp("2020-01-01"),
    ]
    lines = b"".join(map(json_lines.json_line, elements)).decode().splitlines()
    assert lines == ['"é"', "1", '{"a": null, "b": 0.5}', "[[1, 2]]", '"2020-01-01T00:00:00"']


def test_columns_need_names_of_their_own():
    frame = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(rows.RowsError, match="several columns named 'a': give each column a name of its own"):
        rows.Tables().of_frame(frame)
    table = pyarrow.table([[1], [2]], names=["a", "a"])
    with pytest.raises(rows.RowsError, match="several columns named 'a'"):
        rows.Tables().of_table(table)
    with pytest.raises(rows.RowsError, match='two keys of a row have the text "1"'):
        rows.Tables().of_list([{1: "a", "1": "b"}])


def test_types_of_a_frame():
    frame = pandas.DataFrame(
        {
            "i": numpy.array([1, 2], "int32"),
            "f": [0.5, None],
            "b": [True, False],
            "text": pandas.Series(["é", None], dtype=object),
            "new": pandas.Series(["x", None]),
            "t": pandas.to_datetime(["2020-01-01", None]),
            "flag": pandas.Series([True, None], dtype=object),
            "none": pandas.Series([None, None], dtype=object),
        }
    )
    written, names = rows.Tables().of_frame(frame)
    table = table_of((written, names))
    assert names is None and table.column_names == list(frame.columns)
    assert [str(field.type).split("[")[0] for field in table.schema] == [
        "int32", "double", "bool", "string", "string", "timestamp", "bool", "null",
    ]  # fmt: skip
    assert table.column("f").to_pylist() == [0.5, None]
    assert table.column("t").to_pylist()[1] is None
    assert table.column("new").to_pylist() == ["x", None]


def test_frame_without_pyarrow_has_the_same_table(monkeypatch):
    Decimal = __import__("decimal").Decimal
    frame = pandas.DataFrame(
        {
            "ok": ["x", None],
            "money": [Decimal("1.50"), Decimal("100")],
            "whole": pandas.array([2**60 + 1, None], dtype="Int64"),
            "zoned": pandas.to_datetime(["2024-01-01", None]).tz_localize("Europe/Berlin"),
            "mixed": [b"bytes", 3],
        }
    )
    with_pyarrow = table_of(rows.Tables().of_frame(frame)).to_pylist()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    written = rows.Tables().of_frame(frame)
    monkeypatch.undo()
    assert table_of(written).to_pylist() == with_pyarrow
    assert with_pyarrow[0]["whole"] == 2**60 + 1 and with_pyarrow[1]["money"] == Decimal("100.00")


def test_tables_of_lists():
    def columns(result):
        return table_of(rows.Tables().of_list(result)).to_pydict()

    Point = __import__("collections").namedtuple("Point", "x y")
    assert columns(["a", "b"]) == {"value": ["a", "b"]}
    assert columns([{"a": 1}, {"b": numpy.float64(2)}]) == {"a": [1, None], "b": [None, 2.0]}
    assert columns([[1], [2, 3]]) == {"value": [[1], [2, 3]]}
    assert columns([("a", 1), ("b", None)]) == {"0": ["a", "b"], "1": [1, None]}
    assert columns([Point(1, 2)]) == {"x": [1], "y": [2]}
    assert columns(["a,b", 1]) == {"value": ["a,b", 1]}
    assert columns([None, {"a": 1}]) == {"a": [None, 1]}
    assert table_of(rows.Tables().of_list([None, None])).schema.metadata == {b"gristmill.rows": b"missing"}


def test_probe_of_csv_quoting_matches_this_interpreter():
    quoted = delimited.probe_dialect(" ").quoted
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", delimiter=" ").writerow(["a\rb", "c"])
    assert (b"\r" in quoted) == text.getvalue().startswith('"')
    assert set(b' "\n') <= set(quoted)
