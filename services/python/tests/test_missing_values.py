"""Missing values in lists of rows are what pandas makes of the same rows in a DataFrame; objects without a form in JSON
are refused."""

import datetime
import decimal
import enum
import fractions
import io
import json
import pathlib
import uuid

import numpy
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

from gristmill import rows
from gristmill.missing import is_missing
from gristmill.results import IllegalResult

NAN, NAT, NA = float("nan"), pandas.NaT, pandas.NA
NOON = pandas.Timestamp("2024-06-01 12:00:00.5")
BERLIN = pandas.Timestamp("2024-06-01 12:00", tz="Europe/Berlin")
COLUMNS = {
    "text": ["nancy", None, NAN, NAT, NA],
    "number": [1.5, None, NAN, numpy.float32("nan"), numpy.float64("nan")],
    "time": [NOON, None, NAN, NAT, NAT],
    "zoned": [BERLIN, NAT, None, NAT, BERLIN],
    "day": [datetime.date(2024, 1, 1), NAT, None, NAN, NA],
    "money": [decimal.Decimal("1.50"), decimal.Decimal("NaN"), None, NAN, NA],
    "flag": [True, NA, None, NAN, NAT],
    "list": [["a", None], ["nan", "Hernandez"], None, NAN, NA],
}
MISSING = [None, NAN, NAT, NA, numpy.float32("nan"), numpy.datetime64("NaT"), numpy.timedelta64("NaT"), complex("nan")]


def rows_of(*names):
    return pandas.DataFrame({name: pandas.Series(COLUMNS[name], dtype=object) for name in names}).to_dict("records")


@pytest.mark.parametrize("value", [*MISSING, decimal.Decimal("NaN"), numpy.float16("nan")])
def test_missing_values_are_recognized(value):
    assert is_missing(value) and pandas.isna(value)


@pytest.mark.parametrize(
    "value",
    ["nan", "NaT", "", 0, 0.0, float("inf"), False, [], {}, (), b"", numpy.int64(1), numpy.array([NAN]),
     numpy.str_("nan"), numpy.datetime64("2024-01-01"), decimal.Decimal(1), NOON, pandas.Series([NAN]), object(), len],
)  # fmt: skip
def test_other_values_are_not_missing(value):
    assert not is_missing(value)


def of_pandas(result):
    file = io.BytesIO()
    pandas.DataFrame(result).to_parquet(file)
    return parquet.read_table(file)


def table_of(result):
    return pyarrow.ipc.open_stream(rows.Tables().of_list(result)[0]).read_all()


@pytest.mark.parametrize("names", [[name] for name in COLUMNS] + [list(COLUMNS)], ids="-".join)
def test_table_has_the_nulls_of_pandas(names):
    table = table_of(rows_of(*names))
    expected = of_pandas(rows_of(*names))
    assert table.to_pydict() == expected.to_pydict()
    kinds = [str(one).replace("large_", "").replace("element", "item") for one in table.schema.types]
    assert kinds == [str(one).replace("large_", "").replace("element", "item") for one in expected.schema.types]


def test_table_of_a_list_of_values():
    assert table_of([NOON, NAT, None]).to_pydict() == {"value": [NOON, None, None]}


def test_table_needs_no_pyarrow_for_missing_values(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    written, _ = rows.Tables().of_list(rows_of(*COLUMNS))
    monkeypatch.undo()
    table = pyarrow.ipc.open_stream(written).read_all()
    assert table.to_pydict() == of_pandas(rows_of(*COLUMNS)).to_pydict()


def test_nested_missing_values_are_null():
    result = [{"in": [value, {"w": value}]} for value in [*MISSING, decimal.Decimal("NaN")]]
    column = table_of(result).column("in")
    # A list of missing values and dictionaries is a union, whose values the reducer writes.
    assert {json.dumps(row) for row in column.to_pylist()} == {'[null, {"w": null}]'}


def test_lines_of_text_match_azure_ml():
    assert rows.Text({}).of_list([NAN, NAT, NA, None])[0] == b"nan\nNaT\n<NA>\nNone\n"


class Colour(enum.Enum):
    RED = 1


class Named:
    def __str__(self):
        return "<named>"


class Plain:
    pass


@pytest.mark.parametrize(
    "value, kept",
    [
        (decimal.Decimal("1.50"), decimal.Decimal("1.50")),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (Colour.RED, "Colour.RED"),
        (datetime.date(2024, 1, 31), datetime.date(2024, 1, 31)),
        (datetime.timedelta(hours=1), datetime.timedelta(hours=1)),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.array([1.5, 2.0]), [1.5, 2.0]),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (numpy.datetime64("2024-01-31T12:00"), datetime.datetime(2024, 1, 31, 12)),
        (pandas.Series([1, 2]), [1, 2]),
        (pyarrow.scalar(7), 7),
        (fractions.Fraction(1, 3), "1/3"),
        (b"x", b"x"),
        ({1}, "{1}"),
        (ValueError("bad"), "bad"),
        (Named(), "<named>"),
        (2**63, 2**63),
        (-(10**30), -(10**30)),
        (10**100, str(10**100)),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_values_are_kept_or_become_their_text(value, kept):
    assert table_of([{"v": value}]).to_pylist() == [{"v": kept}]
    assert table_of([{"v": [value]}]).to_pylist() == [{"v": [kept]}]


@pytest.mark.parametrize(
    "value, kind",
    [
        (lambda: 1, "function"),
        (len, "builtin_function_or_method"),
        ((number for number in [1]), "generator"),
        (Plain(), f"{__name__}.Plain"),
        (int, "type"),
        (json, "module"),
        ({Plain()}, "set"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_objects_without_a_text_are_refused(value, kind):
    tables = rows.Tables()
    with pytest.raises(IllegalResult, match=rf"returned a {kind} in the field v of a row, which has no form in a file"):
        tables.of_list([{"n": 1, "v": value}])
    with pytest.raises(IllegalResult, match=rf"returned a {kind} in the field a.b\[1\] of a row"):
        tables.of_list([{"a": {"b": [NAN, value]}}])
    with pytest.raises(IllegalResult, match=rf"returned a {kind} as a row"):
        tables.of_list([value])
    with pytest.raises(IllegalResult, match=rf"returned a {kind} in the field v of a row"):
        tables.of_frame(pandas.DataFrame({"v": pandas.Series([value], dtype=object)}))
    assert rows.Text({}).of_list([value])[0] == f"{value}\n".encode(), "lines of text are those of the original"


@pytest.mark.parametrize("library", [pandas, polars])
def test_frames_within_rows_are_refused(library):
    """Their texts leave out most rows."""
    frame, tables = library.DataFrame({"x": range(100)}), rows.Tables()
    said = "and a row holds no table: return all rows as one table, or as a list of rows of plain values, such as frame"
    for result, where in (([1, frame], "as row 1"), ([{"a": {"b": [1, frame]}}], r"in the field a.b\[1\] of row 0")):
        with pytest.raises(IllegalResult, match=rf"returned a \S*DataFrame {where}, {said}"):
            tables.of_list(result)
    with pytest.raises(IllegalResult, match=rf"returned a \S*DataFrame in the field v of row 0, {said}"):
        tables.of_frame(pandas.DataFrame({"v": pandas.Series([frame], dtype=object)}))
    assert rows.Text({}).of_list([frame])[0] == f"{frame}\n".encode(), "lines of text are those of the original"


def test_object_without_a_text_fails_the_mini_batch(start):
    agent = start(
        "def run(mini_batch): return [{'path': path, 'f': run} for path in mini_batch]", output_format="jsonl"
    )
    event = agent.run("ab")
    assert event["status"] == "illegal_result"
    assert event["error"]["message"].startswith("run() returned a function in the field f of a row")
