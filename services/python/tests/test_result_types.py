"""What a function returns is what its output gives back: labels, indexes and types of pandas, and values that a format
or a library lacks. `test_round_trip.py` has the types of Arrow, and knows the differences that are left.
"""

import datetime
import decimal
import pathlib
import random
import warnings

import numpy
import pandas
import polars
import pyarrow
import pytest
from calls import run

import gristmill

ROWS = 23
FORMATS = ["csv", "jsonl", "parquet"]
SEED_OF_FORM = [("csv", 1), ("jsonl", 2), ("parquet", 5)]
DAY = datetime.date(1999, 12, 31)
MONEY = [decimal.Decimal(text) for text in ("-99999999.99", "0.01", "12.50", "0.00")]


def size_of(seed):
    return f"{random.Random(seed).choice([1, 3, 7, ROWS])} rows"


def pandas_frame_of(seed):
    """Returns a DataFrame with a column of each dtype, an index, and missing values at random."""
    drawn = random.Random(seed)

    def cells(*values, missing=None):
        return [missing if drawn.random() < 0.2 else drawn.choice(values) for _ in range(ROWS)]

    whole = [drawn.choice([1, 2**60 + 1]) for _ in range(ROWS)]
    frame = pandas.DataFrame(
        {
            "int64": whole,
            "float64": cells(0.5, 2.0, missing=float("nan")),
            "float32": pandas.Series(cells(0.5, 2.0, missing=float("nan")), dtype="float32"),
            "bool": [drawn.random() < 0.5 for _ in range(ROWS)],
            "Int64": pandas.array(cells(2**60 + 1, -7, missing=pandas.NA), dtype="Int64"),
            "UInt8": pandas.array(cells(0, 255, missing=pandas.NA), dtype="UInt8"),
            "Float64": pandas.array(cells(0.25, 3.0, missing=pandas.NA), dtype="Float64"),
            "boolean": pandas.array(cells(True, False, missing=pandas.NA), dtype="boolean"),
            "string": pandas.array(cells("007", "NA", "", missing=pandas.NA), dtype="string"),
            "category": pandas.Categorical(cells("low", "high"), categories=["low", "mid", "high"], ordered=True),
            "numbers": pandas.Categorical(cells(3, 1), categories=[3, 2, 1]),
            "shares": pandas.Categorical(cells(0.1, 2.0), categories=[2.0, 0.1, 1e300]),
            "flags": pandas.Categorical(cells(True, False), categories=[True, False]),
            "timestamp": pandas.Series(
                cells(pandas.Timestamp("2024-02-29 12:30:59.123456789"), pandas.Timestamp("1700-01-01").as_unit("ns"))
            ),
            "zoned": pandas.to_datetime(pandas.Series(cells("2024-07-01 12:00", "2024-01-01 00:00"))).dt.tz_localize(
                "Europe/Berlin"
            ),
            "timedelta": pandas.to_timedelta(pandas.Series(cells("1 days 00:00:00.000000001", "-5s"))),
            "period": pandas.PeriodIndex(cells("2024-01", "1999-12"), freq="M"),
            "arrow_int": pandas.array(cells(2**60 + 1, 5), dtype=pandas.ArrowDtype(pyarrow.int64())),
            "decimal": pandas.Series(cells(*MONEY), dtype=object),
            "date": pandas.Series(cells(DAY), dtype=object),
            "list": pandas.Series(cells([1, 2], []), dtype=object),
            "dict": pandas.Series(cells({"a": 2**60 + 1}), dtype=object),
        }
    )
    return frame


@pytest.mark.parametrize(("form", "seed"), SEED_OF_FORM)
def test_pandas_frame_round_trips(home, form, seed):
    frame = pandas_frame_of(seed)
    frame.index = pandas.Index([f"row {number}" for number in range(ROWS)], name="key")

    def make(numbers):
        return frame.iloc[numbers]

    found = run(make, list(range(ROWS)), output=f"pandas.{form}", mini_batch_size=size_of(seed)).to_pandas()
    assert list(found.columns) == list(frame.columns)
    pandas.testing.assert_index_equal(found.index, frame.index)
    for name in frame.columns:
        left, right = found[name], frame[name]
        if name in ("list", "dict"):
            assert [value if value is None or isinstance(value, dict) else list(value) for value in left] == list(right)
            continue
        pandas.testing.assert_series_equal(left, right, check_freq=False, obj=name)


@pytest.mark.parametrize(
    "index",
    [
        pandas.RangeIndex(ROWS),
        pandas.RangeIndex(10, 10 + 5 * ROWS, 5),
        pandas.Index([10 * number for number in range(ROWS)]),
        pandas.date_range("2024-01-01", periods=ROWS, tz="UTC", name="at"),
        pandas.MultiIndex.from_product([["a"], range(ROWS)], names=["letter", None]),
    ],
    ids=["counting", "range", "numbers", "times", "levels"],
)
def test_index_of_an_input_round_trips(home, index):
    frame = pandas.DataFrame({3: range(ROWS), 0: 1.5}, index=index)

    def same_frame(frame: pandas.DataFrame):
        return frame

    for form in FORMATS:
        found = run(same_frame, frame, output=f"same.{form}", mini_batch_size=size_of(3), fresh=True).to_pandas()
        pandas.testing.assert_frame_equal(found, frame, check_freq=False, check_index_type="equiv")


def test_index_that_counts_rows_continues_across_mini_batches(home):
    frame = pandas.DataFrame({"a": range(6)})
    frame.to_parquet("a.parquet", row_group_size=2)

    def labels(frame: pandas.DataFrame):
        return frame[~frame.index.isin([0])].assign(label=frame.index[~frame.index.isin([0])])

    for inputs in (frame, pyarrow.table(frame), "a.parquet"):
        for size in (2, 100) if not isinstance(inputs, str) else (None,):
            found = run(labels, inputs, mini_batch_size=size).to_pandas()
            assert found.to_dict("list") == {"a": [1, 2, 3, 4, 5], "label": [1, 2, 3, 4, 5]}, size
            # Rows of a DataFrame in memory keep their labels; those of files and tables are counted from 0.
            assert list(found.index) == list(range(1, 6) if inputs is frame else range(5))
    series = run(lambda column: column.index.tolist(), pandas.Series(range(6)), mini_batch_size=2)
    assert series.to_pandas()["value"].tolist() == list(range(6))


@pytest.mark.parametrize(("form", "size"), [("csv", 1), ("csv", 2), ("csv", 100), ("jsonl", 2), ("parquet", 2)])
def test_labels_of_a_frame_are_those_that_pandas_would_leave(home, form, size):
    frame = pandas.DataFrame({"a": [4, 1, 3, 2, 5]})

    def result(function):
        return run(function, frame, output=f"labels.{form}", mini_batch_size=size, fresh=True)

    kept = result(lambda part: part[part["a"] > 2])
    pandas.testing.assert_frame_equal(kept.to_pandas(), frame[frame["a"] > 2], check_index_type="equiv")
    assert kept.to_arrow().column_names == ["a", "__index_level_0__"]
    ordered = result(lambda part: part.sort_values("a"))
    assert ordered.to_pandas()["a"].to_dict() == frame["a"].to_dict()
    means = result(lambda part: pandas.DataFrame({"mean": [part["a"].mean()]}))
    assert isinstance(means.to_pandas().index, pandas.RangeIndex)
    assert len(result(lambda part: part[part["a"] > 9]).to_pandas()) == 0
    for function in (lambda part: part, lambda part: part.assign(b=1), lambda part: part.reset_index(drop=True)):
        job = result(function)
        assert "__index_level_0__" not in job.to_arrow().column_names
        assert isinstance(job.to_pandas().index, pandas.RangeIndex) and len(job.to_pandas()) == 5
    if form == "csv":
        assert pathlib.Path("labels.csv").read_text().splitlines()[0] == "a"


def test_column_with_the_name_of_a_level_of_the_index_is_named(home):
    frame = pandas.DataFrame({"__index_level_0__": [2, 3]}, index=["z", "y"])
    said = "column '__index_level_0__', which is the name of a level of its index"
    with pytest.raises(gristmill.JobFailed, match=said):
        run(lambda part: part, frame)


@pytest.mark.parametrize("form", FORMATS)
def test_labels_that_pandas_writes_and_cannot_read_round_trip(home, form):
    months = pandas.period_range("2020-01", periods=3, freq="M")
    weeks = pandas.period_range("2020-01-06", periods=3, freq="W-SUN")
    spans = pandas.interval_range(0, 3, closed="left")
    large = pandas.Index([2**53 + 1, None, 5], dtype="Int64", name="id")
    plain = pandas.DataFrame({"v": [1, 2, 3]})
    frames = {
        "period index": plain.set_axis(months.rename("month"), axis="index"),
        "weeks": plain.set_axis(weeks, axis="index"),
        "interval index": plain.set_axis(spans.rename("span"), axis="index"),
        "levels": plain.set_axis(pandas.MultiIndex.from_arrays([months, large], names=["m", "id"]), axis="index"),
        "large index": plain.set_axis(large, axis="index"),
        "numbers with a name": plain.assign(id=[30, 10, 20]).set_index("id"),
        "period column": plain.assign(m=months, w=[weeks[0], pandas.NaT, weeks[2]]).astype({"w": weeks.dtype}),
        "interval column": plain.assign(s=spans),
        "boolean labels": pandas.DataFrame({False: [1], True: [2]}).rename_axis("p", axis="columns"),
    }
    for name, frame in frames.items():

        def made(_numbers, frame=frame):
            return frame

        job = run(made, [1], output=f"{name}.{form}".replace(" ", "_"))
        pandas.testing.assert_frame_equal(job.to_pandas(), frame, check_freq=False, obj=name)
    if form == "csv":
        text = pathlib.Path("period_column.csv").read_text()
        assert text.splitlines()[:3] == ["v,m,w", "1,2020-01,2020-01-06/2020-01-12", "2,2020-02,"]


def test_periods_are_texts_for_other_readers(home):
    """A reader that takes the metadata at its word would read the texts as the numbers of periods."""
    months = pandas.period_range("2020-01", periods=3, freq="M")
    frame = pandas.DataFrame({"m": months, "v": [1, 2, 3]})

    def made(numbers):
        # The same texts are other periods in each mini-batch.
        days = pandas.PeriodIndex(["2020-01-06"], freq=["D", "s", "W-SUN"][numbers[0] % 3])
        return frame.iloc[numbers].assign(d=days, p="2020-01-06")

    for size in (1, 3):
        job = run(lambda _: frame, [1], output="p.parquet", mini_batch_size=size, fresh=True)
        for found in (pandas.read_parquet("p.parquet"), gristmill.read("p.parquet").to_pandas()):
            assert found["m"].tolist() == ["2020-01", "2020-02", "2020-03"] and found["v"].tolist() == [1, 2, 3]
        assert job.to_pandas()["m"].tolist() == months.tolist()
    index = run(lambda _: frame.set_index("m"), [1], output="i.parquet", fresh=True)
    assert pandas.read_parquet("i.parquet").index.tolist() == ["2020-01", "2020-02", "2020-03"]
    assert index.to_pandas().index.tolist() == months.tolist()
    mixed = run(made, [0, 1, 2], output="m.parquet", mini_batch_size=1, fresh=True).to_pandas()
    assert mixed["m"].tolist() == months.tolist()
    assert mixed["d"].tolist() == ["2020-01-06", "2020-01-06 00:00:00", "2020-01-06/2020-01-12"]

    def partly(numbers):
        return frame.iloc[:1] if numbers == [0] else [{"m": "2020-01-31", "v": 0}]

    texts = run(partly, [0, 1], output="t.parquet", mini_batch_size=1).to_pandas()
    assert texts["m"].tolist() == ["2020-01", "2020-01-31"], "no day becomes its month"


def test_unsupported_categories_become_texts(home):
    frame = pandas.DataFrame({"a": range(6)})
    cut = frame.assign(
        c=pandas.cut(frame["a"], [0, 3, 6], right=False),
        m=pandas.Categorical(pandas.PeriodIndex(["2020-01", "2020-02"] * 3, freq="M")),
    )
    for form in FORMATS:
        found = run(lambda _: cut, [1], output=f"cut.{form}", fresh=True).to_pandas()
        assert found["c"].cat.ordered and list(found["c"].cat.categories) == ["[0, 3)", "[3, 6)"]
        assert found["c"].tolist() == ["[0, 3)"] * 3 + ["[3, 6)"] * 3
        assert found["m"].tolist() == ["2020-01", "2020-02"] * 3

        def summed(_):
            return cut.groupby("c", observed=True)["a"].sum().to_frame()

        sums = run(summed, [1], output=f"sums.{form}").to_pandas()
        assert sums["a"].to_dict() == {"[0, 3)": 3, "[3, 6)": 12}


def test_labels_that_pandas_cannot_read_are_texts_with_a_warning(home):
    days = pandas.DataFrame([[1, 2]], columns=[datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)])
    job = run(lambda _: days, [1])
    with pytest.warns(UserWarning, match="pandas cannot read the labels of the columns that it wrote"):
        found = job.to_pandas()
    assert found.to_dict("list") == {"2020-01-01": [1], "2020-01-02": [2]}
    job = run(lambda _: days.astype("int64[pyarrow]"), [1])
    with pytest.warns(UserWarning, match="pandas cannot read the labels of the columns that it wrote"):
        assert job.to_pandas().to_dict("list") == {"2020-01-01": [1], "2020-01-02": [2]}
    twice = pandas.DataFrame({"v": [1]}, index=pandas.MultiIndex.from_tuples([(1, 2)], names=["k", "k"]))
    with pytest.raises(gristmill.JobFailed, match="several levels of its index with one name"):
        run(lambda _: twice, [1])


def test_labelled_rows_are_records(home):
    frame = pandas.DataFrame({"a": [1, 2], "t": ["x", "y"]})

    def squared(row):
        return pandas.Series({"a": row["a"], "sq": row["a"] ** 2})

    assert gristmill.map(squared, frame).to_pandas().to_dict("list") == {"a": [1, 2], "sq": [1, 4]}

    def rows(frame):
        return [row for _, row in frame.iterrows()]

    assert run(rows, frame).to_arrow().to_pydict() == {"a": [1, 2], "t": ["x", "y"]}
    kinds = [("x", "i4"), ("u", "U3"), ("at", "datetime64[s]"), ("pair", "f4", (2,))]
    array = numpy.array([(1, "a", "2020-01-01", (0.5, 1)), (2, "b", "2021-01-01", (2, 3))], dtype=kinds)

    def as_given(array):
        assert array.dtype == numpy.dtype(kinds)
        return array

    found = run(as_given, array, mini_batch_size=1).to_arrow().to_pylist()
    assert [row["x"] for row in found] == [1, 2] and [row["u"] for row in found] == ["a", "b"]
    assert found[0]["at"] == datetime.datetime(2020, 1, 1) and found[1]["pair"] == [2, 3]
    times = [datetime.time(1, 2), datetime.time(1, 2, tzinfo=datetime.timezone.utc)]
    for time, expected in zip(times, (times[0], "01:02:00+00:00"), strict=True):
        [row] = run(lambda _, time=time: [{"v": time}], [1]).to_arrow().to_pylist()
        assert row == {"v": expected}


@pytest.mark.parametrize("form", FORMATS)
def test_declared_types_round_trip(home, form):
    columns = {"id": "integer", "share": "number?", "code": "string", "paid": "boolean?"}
    schema = {"columns": {**columns, "on": "date?", "at": "timestamp"}}
    values = [
        {"id": 3.0, "share": 1, "code": "007", "paid": True, "on": DAY, "at": "2024-02-29T12:30:59.123456Z"},
        {"id": 2**60 + 1, "share": None, "code": "", "paid": None, "on": None, "at": "2024-02-29T12:30:59+01:00"},
    ]

    def declared(numbers):
        return [values[number] for number in numbers]

    job = run(declared, [0, 1], output=f"declared.{form}", mini_batch_size=1, result_schema=schema)
    frame = job.to_pandas()
    assert frame["id"].tolist() == [3, 2**60 + 1] and frame["id"].dtype == "int64"
    assert frame["share"].dtype == "float64" and frame["share"].tolist()[0] == 1.0 and frame["share"].isna().tolist()[1]
    assert frame["code"].tolist() == ["007", ""]
    assert frame["paid"].tolist() == [True, None]
    assert frame["on"].tolist() == [DAY, None]
    assert [str(one) for one in frame["at"]] == ["2024-02-29 12:30:59.123456", "2024-02-29 11:30:59"]
    table = job.to_arrow()
    types = [str(table[name].type) for name in ("id", "share", "paid", "on")]
    assert types == ["int64", "double", "bool", "date32[day]"]


# A process does the same for JSON lines as for CSV.
@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("library", ["polars", "pandas", "pyarrow"])
def test_results_need_no_other_library(home, library, form):
    columns = {"n": [2**60 + 1, 2], "t": ["007", "é"]}

    def returned(numbers):
        import importlib
        import sys

        module = importlib.import_module(library)
        others = {"polars", "pandas", "pyarrow"} - {library}
        for name in [name for name in sys.modules if name.partition(".")[0] in others]:
            del sys.modules[name]

        class Absent:
            def find_spec(self, name, *_):
                if name.partition(".")[0] in others:
                    raise ModuleNotFoundError(f"no {name} here")

        sys.meta_path.insert(0, Absent())
        return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)

    job = run(returned, [1], output=f"only.{form}")
    assert job.to_arrow().to_pydict() == columns


@pytest.mark.parametrize("form", FORMATS)
def test_categories_among_plain_values_become_values(home, form):
    def mixed(numbers):
        frame = pandas.DataFrame({"v": ["low" if number % 2 else "high" for number in numbers]})
        return frame.astype("category") if numbers[0] < 2 else frame

    job = run(mixed, [0, 1, 2, 3], output=f"mixed.{form}", mini_batch_size=1)
    assert job.to_arrow()["v"].to_pylist() == ["high", "low", "high", "low"]
    assert [str(value) for value in job.to_pandas()["v"]] == ["high", "low", "high", "low"]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_output_without_its_schema_is_not_guessed(home, form):
    job = run(lambda numbers: [{"id": "007"} for _ in numbers], [1], output=f"ids.{form}")
    assert gristmill.read(job.output).to_pylist() == [{"id": "007"}]
    pathlib.Path(job.output).with_name(f".ids.{form}.schema.json").unlink()
    with pytest.raises(gristmill.GristmillError, match=rf"has no schema\. If .*\.ids\.{form}\.schema\.json is missing"):
        gristmill.read(job.output)
    with pytest.raises(FileNotFoundError):
        gristmill.read(f"absent.{form}")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_output_that_was_edited_names_the_column(home, form):
    def rows(numbers):
        return [{"n": 1, "d": decimal.Decimal("2.50"), "at": DAY, "s": [1], "t": "x"}]

    job = run(rows, [1], output=f"e.{form}")
    written = pathlib.Path(job.output).read_text()
    edits = {
        "n": ("1,", "1.5,", "int64"),
        "d": ("2.50", "two", r"decimal128\(.*"),
        "at": (str(DAY), "today", "date32.*"),
        "s": ("[1]", '[{"a": 1}]' if form == "jsonl" else "[1", "list<.*"),
    }
    for name, (old, new, kind) in edits.items():
        pathlib.Path(job.output).write_text(written.replace(old, new, 1))
        said = (
            rf"a value of column '{name}' is not of the type {kind} \(.*\): the file has changed since the "
            "job wrote it. Run the job again, "
        )
        with pytest.raises(gristmill.GristmillError, match=said):
            gristmill.read(job.output)


def test_values_without_a_common_type_are_those_of_python_in_json_lines(home):
    def mixed(letters):
        return [{"v": 1 if letter != "c" else {"bad": [1, "x"]}} for letter in letters]

    with pytest.warns(gristmill.GristmillWarning, match='column "v" has values without a common type'):
        job = run(mixed, gristmill.items("abc"), output="v.jsonl", mini_batch_size=1)
    assert job.to_pandas()["v"].tolist() == [1, 1, {"bad": [1, "x"]}]


def test_plain_values_and_missing_rows(home):
    def lengths(texts):
        return [None if text == "b" else len(text) for text in texts]

    for form in FORMATS:
        texts = gristmill.items(["a", "b", "cc"])
        job = run(lengths, texts, output=f"n.{form}", mini_batch_size=1)
        assert job.to_arrow().to_pydict() == {"value": [1, None, 2]}, form


def test_integers_that_pandas_would_round_are_nullable(home):
    """``pandas.read_csv`` makes floating-point numbers of a column with a missing value, which rounds its ids."""
    pathlib.Path("ids.csv").write_text(f"id,u,small\n{2**60 + 1},{2**64 - 1},1\n,,\n{-(2**60) - 1},7,2\n")

    def types(frame: pandas.DataFrame):
        return frame.assign(types=" ".join(map(str, frame.dtypes)))

    def as_arrow(table: pyarrow.Table):
        return table

    rows = gristmill.read_csv("ids.csv", dtype={"u": "UInt64"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (types, as_arrow):
            table = run(function, rows).to_arrow()
            assert table["id"].to_pylist() == [2**60 + 1, None, -(2**60) - 1]
            assert table["u"].to_pylist() == [2**64 - 1, None, 7]
        assert run(types, rows).to_arrow()["types"][0].as_py() == "Int64 UInt64 float64"


def test_integers_beside_missing_ones_are_exact_in_pandas(home):
    def some(numbers):
        return [{"p": None if number % 2 else 2**60 + number, "small": None if number else 1} for number in numbers]

    for form in FORMATS:
        job = run(some, list(range(4)), output=f"p.{form}", mini_batch_size=3)
        frame = job.to_pandas()
        assert frame["p"].tolist() == [2**60, pandas.NA, 2**60 + 2, pandas.NA] and frame["p"].dtype == "Int64"
        assert frame["small"].dtype == "float64", "as pandas has it, where nothing is lost"


def test_columns_with_several_levels_of_labels_round_trip(home):
    """One label of the first level stands for several columns, and may be the name of the index, too."""
    table = pandas.DataFrame({"v": [1, 1, 2], "w": [1.0, 2.0, 3.0], "big": [2**60 + 1, 2, 3]})

    def by(*names):
        def grouped(frame):
            found = frame.groupby(list(names)).agg({"v": ["sum", "mean"], "w": ["max"], "big": ["min"]})
            return found.astype({("big", "min"): "Int64"})

        return grouped

    for form in FORMATS:
        for names in (("v",), ("v", "w")):
            job = run(by(*names), table, output=f"g.{form}", mini_batch_size=3, fresh=True)
            pandas.testing.assert_frame_equal(job.to_pandas(), by(*names)(table), check_index_type=False)

        def with_list(frame):
            return pandas.DataFrame({("v", "n"): pandas.Series([[1, None], [2**60 + 1]], dtype=object), ("v", "m"): 1})

        found = run(with_list, table, output=f"l.{form}", mini_batch_size=3, fresh=True)
        assert found.to_pandas()[("v", "n")].tolist() == [[1, None], [2**60 + 1]], "as numbers of Python"


def test_index_of_a_series_round_trips(home):
    def counts(frame: pandas.DataFrame):
        return frame["g"].value_counts()

    frame = pandas.DataFrame({"g": list("aabbbc")})
    job = run(counts, frame, mini_batch_size="6 rows", error_threshold=-1)
    pandas.testing.assert_frame_equal(job.to_pandas(), frame["g"].value_counts().to_frame())

    def lengths(frame: pandas.DataFrame):
        return frame["g"].str.len()

    job = run(lengths, frame, mini_batch_size="2 rows")
    assert job.to_arrow().to_pydict() == {"g": [1] * 6}, "positions are no labels"


@pytest.mark.parametrize("form", FORMATS)
def test_unsupported_values_get_another_form_or_fail_their_mini_batch(home, form):
    def returned(value):
        return run(lambda numbers: value, [1], output=f"r.{form}").to_arrow()

    interval = pyarrow.array([(1, 2, 3), None], pyarrow.month_day_nano_interval())
    text = "1 mons 2 days 0.000000003 secs"
    lists = pyarrow.array([[(1, 2, 3)], None], pyarrow.list_(pyarrow.month_day_nano_interval()))
    intervals = returned(pyarrow.table({"v": interval, "lists": lists}))
    assert intervals.to_pydict() == {"v": [text, None], "lists": [[text], None]}

    wide = polars.DataFrame({"v": polars.Series([2**70, None], dtype=polars.Int128)})
    assert returned(wide)["v"].to_pylist() == [decimal.Decimal(2**70), None]
    too_wide = polars.DataFrame({"v": polars.Series([2**127 - 1], dtype=polars.Int128)})
    nested = polars.DataFrame({"v": polars.Series([[1]], dtype=polars.List(polars.Int128))})
    for frame, said in ((too_wide, "is Int128, and has a number"), (nested, r"is List\(Int128\), which Arrow lacks")):
        with pytest.raises(gristmill.JobFailed, match=f"column 'v' of the Polars frame that .* {said}"):
            returned(frame)

    for complex_numbers in (pandas.DataFrame({"value": [1 + 2j]}), numpy.array([1 + 2j]), [1 + 2j]):
        assert returned(complex_numbers)["value"].to_pylist() == ["(1+2j)"]
    records = numpy.array([(1, 2.5), (2, 3.5)], dtype=[("a", "i4"), ("b", "f8")])
    assert returned(records).to_pylist() == [{"a": 1, "b": 2.5}, {"a": 2, "b": 3.5}]


def test_durations_that_no_column_holds_fail_their_mini_batch(home):
    with pytest.raises(gristmill.JobFailed, match="200000000 days, 0:00:00 is longer than a column of durations holds"):
        gristmill.map(lambda days: {"d": datetime.timedelta(days=days)}, [200_000_000])


def test_several_zones_become_utc(home):
    def zoned(frame: pandas.DataFrame):
        return pandas.DataFrame({"t": pandas.to_datetime(frame["t"]).dt.tz_localize(frame["zone"].iloc[0])})

    frame = pandas.DataFrame({"t": ["2024-01-01 12:00"] * 2, "zone": ["Europe/Berlin", "UTC"]})
    for form in FORMATS:
        job = run(zoned, frame, mini_batch_size="1 rows", output=f"t.{form}")
        found = job.to_pandas()["t"]
        assert found.tolist() == [pandas.Timestamp(f"2024-01-01 {hour}:00", tz="UTC") for hour in (11, 12)]
        assert str(found.dt.tz) == "UTC", form


def test_types_that_polars_lacks(home):
    letters = polars.DataFrame({"e": polars.Series(["b", "a"], dtype=polars.Enum(["a", "b", "c"]))})
    out = run(lambda frame: frame, letters).to_polars()
    assert out.schema["e"] == polars.Categorical and out["e"].to_list() == ["b", "a"]
    large = pyarrow.table({"d": pyarrow.array([decimal.Decimal(10) ** 50], pyarrow.decimal256(60, 0))})
    job = run(lambda table: table, large)
    assert job.to_arrow().equals(large)
    with pytest.raises(gristmill.GristmillError, match=r"column d is decimal256\(60, 0\), and Polars has no decimals"):
        job.to_polars()


@pytest.mark.parametrize("form", FORMATS)
def test_earliest_and_latest_instants_and_durations_round_trip_beside_masked_values(home, form):
    """In nanoseconds of 64 bits, the microseconds of the earliest ones alone do not fit."""
    rows = [
        {"at": pandas.Timestamp.min, "zoned": pandas.Timestamp.min.tz_localize("UTC"), "took": pandas.Timedelta.min},
        {"at": pandas.Timestamp.max, "zoned": pandas.Timestamp.max.tz_localize("UTC"), "took": pandas.Timedelta.max},
    ]

    def row(number):
        return {**rows[number], "masked": numpy.ma.array([1.5, -9999.0, number], mask=[False, True, False])}

    job = gristmill.map(row, [0, 1], output=f"out.{form}")
    assert job.to_pandas().drop(columns="masked").to_dict("records") == rows
    assert job.to_arrow()["masked"].to_pylist() == [[1.5, None, 0], [1.5, None, 1]]


def test_masked_array_reaches_a_function_with_its_mask(home):
    values = numpy.ma.array([1, -9999, 3], mask=[0, 1, 0])
    job = run(lambda some: [numpy.ma.is_masked(one) for one in some], values, mini_batch_size=3)
    assert job.to_arrow()["value"].to_pylist() == [False, True, False]


@pytest.mark.parametrize("labels", [[numpy.nan, "a"], [None, "a"], ["x", numpy.nan]])
def test_frame_with_a_missing_label_gets_no_column_of_its_index(home, labels):
    def labelled(frame):
        return pandas.DataFrame([[1, 2]], columns=labels)

    found = run(labelled, pandas.DataFrame({"a": [1]})).to_arrow()
    assert len(found.column_names) == 2, found.column_names


@pytest.mark.parametrize("form", FORMATS)
def test_extension_types_days_and_years_of_any_number_of_digits_round_trip(home, form):
    """From the Arrow library, which counts units since 1970."""
    missing = [None] * 3
    ids = pyarrow.array([b"0123456789abcdef", None, *missing], pyarrow.binary(16))
    texts = pyarrow.array(['{"a": [1, null]}', None, *missing], pyarrow.string())
    years = [-20_000, -1, 9_999, 10_000, 262_143]
    seconds = [int(numpy.datetime64(f"{year:05}-06-07T01:02:03", "s").astype("int64")) for year in years]
    days = [2_932_896, 2_932_897, -800_000, 2**28, 0]
    ticks = [2**62, -(2**62), 0, 253_402_300_800 * 10**6, 1]
    table = pyarrow.table(
        {
            "at": pyarrow.array(seconds, pyarrow.timestamp("s")),
            "day": pyarrow.array(days, pyarrow.int32()).cast(pyarrow.date32()),
            "zoned": pyarrow.array(ticks, pyarrow.timestamp("us", "UTC")),
            "days": pyarrow.array([[day] for day in days], pyarrow.list_(pyarrow.int32())).cast(
                pyarrow.list_(pyarrow.date32())
            ),
            "id": pyarrow.ExtensionArray.from_storage(pyarrow.uuid(), ids),
            "json": pyarrow.ExtensionArray.from_storage(pyarrow.json_(), texts),
            "milliseconds": pyarrow.array([DAY, None, *missing], pyarrow.date64()),
        }
    )
    for size in (1, 100):
        job = run(lambda table: table, table, output=f"out.{form}", mini_batch_size=size, fresh=True)
        found = job.to_arrow()
        assert gristmill.read(job.output).equals(found)
        for name in ("id", "json"):
            assert found[name].type == table[name].type and found[name].to_pylist() == table[name].to_pylist()
        assert pyarrow.types.is_date(found["milliseconds"].type)
        assert found["milliseconds"].to_pylist() == [DAY, None, *missing]
        years = ["at", "day", "zoned", "days"]
        assert found.select(years).cast(table.select(years).schema).equals(table.select(years)), found


@pytest.mark.parametrize("form", FORMATS)
def test_timestamp_of_pandas_may_have_any_year(home, form):
    at = pandas.Timestamp(numpy.datetime64("12345-06-07T01:02:03", "s"))
    found = gristmill.map(lambda number: {"at": at}, [1], output=f"out.{form}").to_arrow()["at"]
    assert found.cast(pyarrow.int64()).to_pylist() == [int(at.timestamp()) * 10**6]
    beyond = pandas.Timestamp(numpy.datetime64("300000-01-01", "s"))
    with pytest.raises(gristmill.JobFailed, match="is beyond those of a column of times"):
        gristmill.map(lambda number: {"at": beyond}, [1], output=f"beyond.{form}")


@pytest.mark.parametrize("form", FORMATS)
def test_narrow_numbers_among_wide_ones_have_the_same_value_in_each_format(home, form):
    def numbers(narrow):
        return [numpy.float32(0.1) if one else 0.25 for one in narrow]

    for size in (1, 2):
        job = run(numbers, [True, False], mini_batch_size=size, output=f"out{size}.{form}")
        assert job.to_arrow()["value"].to_pylist() == [float(numpy.float32(0.1)), 0.25]


def test_column_of_polars_without_a_name_keeps_it(home, tmp_path):
    def same(frame: polars.DataFrame):
        assert frame.columns == ["", "b"], frame.columns
        return frame

    frame = polars.DataFrame({"": [1, 2], "b": [3, 4]})
    frame.write_parquet(tmp_path / "in.parquet")
    for inputs in (frame, str(tmp_path / "in.parquet")):
        assert run(same, inputs).to_polars().equals(frame)
