"""Functions as a data scientist writes them: any inputs, any number of rows, one item at a time, prints and errors."""

import asyncio
import contextlib
import decimal
import enum
import os
import threading
import time
import warnings
import xml.dom.minidom
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from calls import run

import gristmill


def mapped(function, inputs, **settings):
    return gristmill.map(function, inputs, progress=False, process_count_per_node=1, **settings)


def test_submodules_that_only_inner_code_uses_are_imported(home):
    def names(texts):
        def name(text):
            return xml.dom.minidom.parseString(text).documentElement.tagName

        return [name(text) for text in texts]

    assert run(names, gristmill.items(["<a/>", "<b/>"])).to_pandas()["value"].tolist() == ["a", "b"]


# ---- arguments of a function -----------------------------------------------------------------------------------------


def kinds(column):
    return [f"{type(column).__module__.split('.')[0]}.{type(column).__name__}"]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pd.Series([1, None], name=("a", 1), dtype="Int64"), "pandas.Series"),
        (pd.Series(["x", "y"], index=[5, 7]), "pandas.Series"),
        (pl.Series("n", [1, None]), "polars.Series"),
        (pa.array([[1], None]), "pyarrow.ChunkedArray"),
        (pa.chunked_array([[1], [2]]), "pyarrow.ChunkedArray"),
        (np.arange(3.0), "numpy.ndarray"),
        (np.array(["ab", "c"]), "numpy.ndarray"),
        (np.array(["2020-01-01"], "M8[D]"), "numpy.ndarray"),
        (np.arange(24, dtype="<i2").reshape(2, 3, 4)[::-1], "numpy.ndarray"),
        ([np.float32(1.5), {"a": 1}], "builtins.list"),
        (({"n": number} for number in range(3)), "builtins.list"),
        (range(3), "builtins.list"),
    ],
)
def test_values_in_memory_arrive_as_they_are(home, tmp_path, column, kind):
    kept = tmp_path / "kept.pickle"

    def keep(values):
        pd.to_pickle(values, kept)
        return kinds(values)

    expected = column if hasattr(column, "__len__") else None
    assert run(keep, column, mini_batch_size=100).to_pandas()["value"].tolist() == [kind]
    got = pd.read_pickle(kept)
    if isinstance(column, pd.Series):
        pd.testing.assert_series_equal(got, column)
    elif isinstance(column, np.ndarray):
        np.testing.assert_array_equal(got, column)
        assert got.dtype == column.dtype and got.flags.writeable
    elif isinstance(column, pl.Series):
        assert got.equals(column, check_names=True, check_dtypes=True)
    elif isinstance(column, (pa.Array, pa.ChunkedArray)):
        assert got.to_pylist() == column.to_pylist() and got.type == column.type
    else:
        assert got == (list(expected) if expected is not None else [{"n": 0}, {"n": 1}, {"n": 2}])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pieces_of_an_array_are_the_array(home, size):
    values = np.arange(20, dtype="f4").reshape(5, 4)
    total = run(lambda piece: piece.sum(axis=1), values, mini_batch_size=size).to_pandas()["value"].tolist()
    assert total == values.sum(axis=1).tolist()


def test_function_with_a_hint_gets_another_column(home):
    def takes_series(column: pd.Series):
        return column

    with pytest.raises(TypeError, match="takes_series takes another kind of mini-batches than inputs, a ndarray"):
        run(takes_series, np.arange(3))
    with pytest.raises(TypeError, match="takes_series takes a column, and inputs is a table"):
        run(takes_series, pd.DataFrame({"x": [1]}))


@pytest.mark.parametrize("hint", [str, "str", dict, int, "Path"])
def test_function_of_one_item_is_for_map(home, hint):
    def score(item):
        return str(item)

    score.__annotations__["item"] = Path if hint == "Path" else hint
    with pytest.raises(
        TypeError, match=r"score takes one item, and run passes it a mini-batch: call gristmill\.map\(sco"
    ):
        run(score, gristmill.items(["a"]))
    assert mapped(score, gristmill.items(["a"])).to_pandas()["value"].tolist() == ["a"]


# ---- results of a function -------------------------------------------------------------------------------------------


def test_rows_are_free(home):
    table = pd.DataFrame({"x": [3, 1, 2]})
    few = run(lambda frame: frame[frame["x"] > 1], table, mini_batch_size=1)
    assert few.to_pandas()["x"].tolist() == [3, 2]
    assert few.result["items"]["failed"] == 0 and few.result["state"] == "Completed"
    more = run(lambda frame: frame.loc[frame.index.repeat(frame["x"])], table)
    assert more.to_pandas()["x"].tolist() == [3, 3, 3, 1, 2, 2]
    assert run(lambda frame: [frame["x"].sum()], table, mini_batch_size=3).to_pandas()["value"].tolist() == [6]
    none = run(lambda frame: frame[frame["x"] > 9], table)
    assert none.to_pandas().dtypes.to_dict() == {"x": np.dtype("int64")} and len(none.to_pandas()) == 0


def test_generators_yield_rows_and_tables(home):
    def rows(numbers):
        for number in numbers:
            yield {"n": number}

    async def later(numbers):
        for number in numbers:
            await asyncio.sleep(0)
            yield {"n": number}

    def tables(frame):
        yield frame
        yield frame.assign(x=frame["x"] * 10)

    assert run(rows, [1, 2]).to_pandas()["n"].tolist() == [1, 2]
    assert run(later, [1, 2]).to_pandas()["n"].tolist() == [1, 2]
    for table in (pd.DataFrame({"x": [1, 2]}), pl.DataFrame({"x": [1, 2]}), pa.table({"x": [1, 2]})):
        if isinstance(table, pa.Table):

            def function(table):
                yield table
                yield table.set_column(0, "x", [[10, 20]])
        elif isinstance(table, pl.DataFrame):

            def function(table):
                yield table
                yield table * 10
        else:
            function = tables
        assert run(function, table, mini_batch_size=2).to_arrow()["x"].to_pylist() == [1, 2, 10, 20]


TABLES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


@pytest.mark.parametrize("library", TABLES)
def test_none_beside_tables_is_a_table_without_rows(home, library):
    def rows(pieces):
        table = TABLES[library]({"x": list(range(100))})
        return tuple(table if piece else None for piece in pieces)

    for pieces, count in (([1, 0], 100), ([0, 1, 0, 1], 200)):
        found = run(rows, pieces, mini_batch_size=9, output="rows.parquet").to_arrow()
        assert found.column_names == ["x"] and found["x"].to_pylist() == list(range(100)) * (count // 100)


@pytest.mark.parametrize("library", TABLES)
def test_tables_beside_something_else_are_refused(home, library):
    """Their texts leave out most rows."""

    def table():
        return TABLES[library]({"x": list(range(100))})

    def beside(numbers):
        return [None, {"x": 1}, table()]

    def of_libraries(numbers):
        return [table(), table(), {"pandas": pl, "polars": pd, "pyarrow": pd}[library].DataFrame({"x": [1]})]

    for function, first, second in ((beside, 2, 1), (of_libraries, 0, 2)):
        said = rf"element {first} of the list that \w+\(\) returned is a {library}.*, and element {second} is a .*: "
        with pytest.raises(gristmill.JobFailed, match=said + "return tables of one library alone, or rows alone"):
            run(function, [1])


def test_input_without_rows_gives_an_output_with_columns(home):
    table = pd.DataFrame({"x": pd.Series([], dtype="int64"), "t": pd.Series([], dtype="datetime64[ns, UTC]")})
    out = run(lambda frame: frame.assign(y=frame["x"] / 2), table).to_pandas()
    assert out.dtypes.astype(str).to_dict() == {"x": "int64", "t": "datetime64[ns, UTC]", "y": "float64"}
    assert run(lambda frame: frame, pl.DataFrame({"x": []}, schema={"x": pl.UInt8})).to_polars().schema == {
        "x": pl.UInt8
    }
    for nothing in ([], iter(()), np.zeros((0, 2)), pd.Series([], dtype="str")):
        assert len(run(lambda values: values, nothing).to_pandas()) == 0
    assert len(mapped(lambda item: 1 / 0, []).to_pandas()) == 0
    with pytest.raises(ValueError, match="inputs is empty"):
        run("score.py", pd.DataFrame({"x": []}))


def test_files_without_rows_give_the_columns_of_the_function(home, tmp_path):
    def halves(frame):
        return frame.assign(half=frame["x"] / 2)

    (tmp_path / "one.csv").write_text("x,t\n")
    (tmp_path / "nameless.csv").write_text("")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "many").mkdir()
    for number in range(70):
        (tmp_path / "many" / f"{number}.csv").write_text("x,t\n")
    table = pa.table({"x": pa.array([], pa.int32()), "t": pa.array([], pa.timestamp("us", "UTC"))})
    pq.write_table(table, "groupless.parquet")
    with pq.ParquetWriter("one_group.parquet", table.schema) as writer:
        writer.write_batch(pa.record_batch(table.to_pydict(), schema=table.schema), row_group_size=1)
    for path in ("one.csv", "many/*.csv"):
        got = run(halves, gristmill.read_csv(path, dtype={"x": "int64"})).to_pandas()
        # A column without a value is text.
        expected = halves(pd.read_csv("one.csv", dtype={"x": "int64"})).astype({"t": "str"})
        assert got.dtypes.to_dict() == expected.dtypes.to_dict(), path
    for path in ("groupless.parquet", "one_group.parquet"):
        schema = run(lambda table: table, gristmill.read_parquet(path)).to_arrow().schema
        assert schema.names == ["x", "t"], path
        kept = run(lambda frame: frame.assign(y=1), gristmill.read_parquet(path, columns=["t"])).to_pandas()
        assert list(kept.columns) == ["t", "y"] and str(kept["t"].dtype).endswith("UTC]"), path
    names = run(halves, gristmill.read_csv("nameless.csv", names=["x", "t"], dtype={"x": "float64"})).to_pandas()
    assert list(names.columns) == ["x", "t", "half"] and len(names) == 0
    assert len(mapped(lambda row: 1 / 0, gristmill.read_csv("one.csv")).to_pandas()) == 0
    assert len(mapped(lambda row: 1 / 0, gristmill.read_json("none.jsonl")).to_pandas()) == 0

    (tmp_path / "many" / "69.csv").write_text("x,t\n3,a\n")
    seen = run(lambda frame: frame.assign(rows=len(frame)), "many/*.csv").to_pandas()
    assert seen.to_dict("list") == {"x": [3], "t": ["a"], "rows": [1]}, "files without rows do not run beside others"

    with pytest.raises(gristmill.GristmillError, match="all of its files are empty"):
        run(halves, "nameless.csv")
    with pytest.raises(gristmill.GristmillError, match="KeyError: 'missing'"):
        run(lambda frame: frame["missing"], "one.csv")
    with pytest.raises(gristmill.GristmillError, match="The inputs contain no items"):
        run(halves, "one.csv", run_without_rows=False)


# ---- one item at a time ----------------------------------------------------------------------------------------------


def test_map_gets_one_item(home, tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("three")
    files = mapped(
        lambda path: {"name": os.path.basename(path), "size": len(Path(path).read_text())}, gristmill.files("*.txt")
    )
    assert files.to_pandas().to_dict("list") == {"name": ["a.txt", "b.txt"], "size": [3, 5]}
    (tmp_path / "rows.csv").write_text("id,n\n007,1\n8,\n")
    rows = gristmill.read_csv("rows.csv", dtype={"id": str, "n": "int64"})
    got = mapped(lambda row: {"kinds": " ".join(type(value).__name__ for value in row.values()), **row}, rows)
    assert got.to_arrow().to_pylist() == [
        {"kinds": "str int", "id": "007", "n": 1},
        {"kinds": "str NoneType", "id": "8", "n": None},
    ]
    for table in (pd.DataFrame({"x": [1, 2]}), pl.DataFrame({"x": [1, 2]}), pa.table({"x": [1, 2]})):
        assert mapped(lambda row: row["x"] + 1, table).to_pandas()["value"].tolist() == [2, 3]
    assert mapped(lambda word: word.upper(), gristmill.items(w for w in "ab")).to_pandas()["value"].tolist() == [
        "A",
        "B",
    ]
    assert mapped(lambda n: n if n % 2 else None, range(6)).to_pandas()["value"].tolist() == [1, 3, 5]
    assert mapped(lambda n, state: n + state, [1, 2], init=lambda: 10).to_pandas()["value"].tolist() == [11, 12]


def test_map_gets_the_value_of_a_line_of_json(home, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"t": ["a", "b"], "o": {"k": 1.5}, "n": 9007199254740993}\n{"t": [], "o": null}\n'
    )
    job = mapped(lambda row: {"kinds": " ".join(type(value).__name__ for value in row.values()), **row}, "a.jsonl")
    assert job.to_arrow().to_pylist() == [
        {"kinds": "list dict int", "t": ["a", "b"], "o": {"k": 1.5}, "n": 9007199254740993},
        {"kinds": "list NoneType", "t": [], "o": None, "n": None},
    ]

    def arrow(table: pa.Table):
        return [str(table.schema.field("t").type)]

    def lazy(frame: pl.LazyFrame):
        return frame.select(pl.col("t").list.len().alias("size"))

    assert run(arrow, "a.jsonl").to_pandas()["value"].tolist() == ["list<item: string>"]
    assert run(lazy, "a.jsonl").to_pandas()["size"].tolist() == [2, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(lazy, pl.LazyFrame({"t": [[1], [1, 2]]})).to_pandas()["size"].tolist() == [1, 2]


def test_large_integers_within_json_are_exact_or_refused(home, tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"n": 1, "a": {{"id": {2**64 - 1}}}}}\n')

    def with_arrow(table: pa.Table):
        return table

    def with_polars(frame: pl.DataFrame):
        return frame

    for function in (with_arrow, with_polars):
        with pytest.raises(
            gristmill.JobFailed, match=r"column 'a' has a whole number that does not fit int64.*: take a"
        ):
            run(function, "a.jsonl")

    def with_pandas(frame: pd.DataFrame):
        return [str(value["id"]) for value in frame["a"]]

    assert run(with_pandas, "a.jsonl").to_pandas()["value"].tolist() == [str(2**64 - 1)]
    assert mapped(lambda row: str(row["a"]["id"]), "a.jsonl").to_pandas()["value"].tolist() == [str(2**64 - 1)]


def test_map_of_a_generator_adds_its_rows(home):
    def repeated(number):
        for _ in range(number):
            yield number

    job = mapped(repeated, [2, 0, 1], mini_batch_size=3)
    assert job.to_pandas()["value"].tolist() == [2, 2, 1] and job.result["items"]["failed"] == 0


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_rows_without_columns_are_not_lost_silently(home, form):
    def empty(numbers):
        return [{} if number else {"a": 1} for number in numbers]

    def frame(numbers):
        return pd.DataFrame(index=range(len(numbers)))

    # Next to rows with columns they are kept, even if those are in other mini-batches.
    assert run(empty, [1, 0], mini_batch_size=2, output=f"rows.{form}").to_arrow()["a"].to_pylist() == [None, 1]
    for function in (empty, frame):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            job = run(function, [1, 2], output=f"rows.{form}", mini_batch_size=2, fresh=True)
        said = [str(warning.message) for warning in caught]
        if form == "parquet":
            assert len(said) == 1 and "() returned rows without columns (2 in one mini-batch): a Parquet" in said[0]
        else:
            assert said == [] and job.to_arrow().num_rows == 2 and job.to_pandas().shape == (2, 0)
    none = run(lambda numbers: pd.DataFrame(), [1], output=f"none.{form}")
    assert none.to_pandas().shape == (0, 0)


def test_map_refuses_tables_of_one_item(home):
    said = "returned a DataFrame for one item: return a dict, or call gristmill"
    with pytest.raises(gristmill.JobFailed, match=said):
        mapped(lambda number: pd.DataFrame({"x": [number]}), [1])


def test_map_of_a_frame_gets_values_of_any_kind(home):
    frame = pd.DataFrame({"o": ["a", 1, None], "at": pd.to_datetime(["2020-01-01", None, "2020-01-02"])})
    job = mapped(lambda row: f"{row['o']!r} {type(row['at']).__name__}", frame)
    assert job.to_pandas()["value"].tolist() == ["'a' Timestamp", "1 NaTType", "None Timestamp"]


def test_decimals_with_a_negative_scale_keep_their_values(home, tmp_path):
    """Neither Parquet nor Polars has such a type."""
    values = [decimal.Decimal(100), None, decimal.Decimal(1200)]
    table = pa.table({"v": pa.array(values, pa.decimal128(5, -2))})

    def with_polars(frame: pl.DataFrame):
        return frame

    def texts(table):
        return [str(table.schema.field("v").type)] * len(table)

    for form in ("csv", "jsonl", "parquet"):
        for function in (lambda table: table, with_polars):
            found = run(function, table, output=f"v.{form}", mini_batch_size=2, fresh=True).to_arrow()
            assert found["v"].to_pylist() == values and pa.types.is_decimal(found["v"].type)
    assert run(texts, table, mini_batch_size=3).to_arrow()["value"].to_pylist() == ["decimal128(5, -2)"] * 3
    assert mapped(lambda row: {"v": row["v"]}, table).to_arrow()["v"].to_pylist() == values
    nested = pa.table({"n": pa.array([values], pa.list_(pa.decimal128(5, -2)))})
    with pytest.raises(TypeError, match=r"inputs: column 'n' of the type list<.*> cannot be written to a table"):
        mapped(lambda row: row, nested)


def test_columns_keep_type_and_name(home):
    table = pd.DataFrame({"v": [1.5, 2.5], "k": pd.Categorical(["a", "b"])})
    assert run(lambda frame: frame["v"].astype("float32"), table).to_pandas().dtypes.to_dict() == {"v": np.dtype("f4")}
    assert run(lambda frame: frame["k"], table).to_pandas()["k"].dtype == table["k"].dtype
    column = pl.Series("c", [1, 2], dtype=pl.Int8)
    assert run(lambda series: series, column).to_polars().schema == {"c": pl.Int8}
    assert run(lambda array: array, pa.array([1, 2], pa.uint8())).to_arrow().schema.field("value").type == pa.uint8()
    assert run(lambda array: array, np.array([1, 2], "u1")).to_arrow().schema.field("value").type == pa.uint8()


class Files(str, enum.Enum):
    TRAIN = "train.csv"
    TEST = "test.csv"


def test_members_of_an_enumeration_of_texts_are_objects_and_one_alone_is_a_path(home, tmp_path):
    named = mapped(lambda file: f"{file.name} {file.value}", [*Files]).to_pandas()["value"].tolist()
    assert named == ["TRAIN train.csv", "TEST test.csv"]
    (tmp_path / "train.csv").write_text("a\n1\n")
    for inputs in (Files.TRAIN, gristmill.read_csv(Files.TRAIN)):
        assert run(lambda frame: frame, inputs).to_pandas()["a"].tolist() == [1]


def test_map_rejects_items_alone(home):
    numbers = list(range(20))
    job = mapped(lambda number: 1 / (number % 10 - 3), numbers, mini_batch_size=10, error_threshold=-1)
    assert job.to_pandas()["value"].tolist() == [1 / (n % 10 - 3) for n in numbers if n % 10 != 3]
    assert [(reject["items"], reject["values"], reject["path"]) for reject in job.rejects] == [
        (1, 3, "inputs"),
        (1, 13, "inputs"),
    ]
    with pytest.raises(gristmill.JobFailed, match=r"(?s)in item 3 of the mini-batch: 3"):
        mapped(lambda number: 1 / (number - 3), numbers, mini_batch_size=20)


def test_map_of_a_coroutine_function_runs_several_items_at_a_time(home):
    async def most(number):
        running.append(number)
        await asyncio.sleep(0.05)
        count = len(running)
        running.remove(number)
        return count

    running = []
    job = mapped(most, list(range(8)), concurrency=3, mini_batch_size=8)
    assert job.to_pandas()["value"].max() == 3


def test_concurrency_of_a_plain_function_is_its_processes(home):
    job = gristmill.run(lambda numbers: [os.getpid()], list(range(4)), mini_batch_size=1, concurrency=1, progress=False)
    assert job.to_pandas()["value"].nunique() == 1


# ---- isolation -------------------------------------------------------------------------------------------------------


def centred(frame):
    if (frame["x"] == 3).any():
        raise ValueError("no threes")
    return frame - frame["x"].mean()


def test_mini_batches_of_tables_are_not_divided_unless_asked_for(home):
    table = pd.DataFrame({"x": range(8)})
    job = run(centred, table, mini_batch_size=4, error_threshold=-1)
    assert job.to_pandas()["x"].tolist() == [-1.5, -0.5, 0.5, 1.5]
    assert [reject["items"] for reject in job.rejects] == [4]
    with pytest.raises(gristmill.JobFailed, match=r'(?s)no threes.*isolate="items" they run again in smaller pieces'):
        run(centred, table, mini_batch_size=4)
    job = run(centred, table, mini_batch_size=4, error_threshold=-1, isolate="items")
    assert [reject["items"] for reject in job.rejects] == [1]
    # Lists are divided.
    job = run(lambda numbers: [1 / number for number in numbers], [1, 0, 2], mini_batch_size=3, error_threshold=-1)
    assert job.to_pandas()["value"].tolist() == [1.0, 0.5]


# ---- modules ---------------------------------------------------------------------------------------------------------


def test_modules_imported_inside_a_function_travel(home, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    (folder / "travelling.py").write_text("def twice(number):\n    return 2 * number\n")

    def doubled(numbers):
        from travelling import twice

        return list(map(twice, numbers))

    job = gristmill.submit(doubled, [4])
    assert job.wait(progress=False).to_pandas()["value"].tolist() == [8]
    source = job.status["source_directory"]
    assert (folder / "travelling.py").read_text() == Path(source, "modules", "travelling.py").read_text()


# ---- errors and prints -----------------------------------------------------------------------------------------------


def test_error_shows_the_line_of_the_function(home, tmp_path):
    (tmp_path / "typed.py").write_text("def score(numbers):\n    # divides\n    return [1 / n for n in numbers]\n")
    code = compile((tmp_path / "typed.py").read_text(), "/gone/typed.py", "exec")
    import linecache

    lines = (tmp_path / "typed.py").read_text().splitlines(keepends=True)
    linecache.cache["/gone/typed.py"] = (1, None, lines, "/gone/typed.py")
    names = {}
    exec(code, names)
    with pytest.raises(gristmill.JobFailed) as caught:
        run(names["score"], [0])
    said = str(caught.value)
    assert "score() of mini-batch 0, try 1: ZeroDivisionError: division by zero" in said
    assert "return [1 / n for n in numbers]" in said
    assert "entry script" not in said and "run()" not in said and ".parquet" not in said
    assert "(item 0 of inputs)" in said
    assert caught.value.job.failures[0]["input"] == "item 0 of inputs"
    assert "functions/inputs" not in repr(caught.value.job)
    own = ["gristmill/api" in str(frame.path) for frame in caught.traceback]
    assert own == sorted(own)


def test_timeout_is_about_what_was_asked_for(home):
    def sleepy(numbers):
        time.sleep(60)

    with pytest.raises(gristmill.JobFailed, match=r"sleepy\(\) did not end within 6 seconds"):
        run(sleepy, [1], run_invocation_timeout=1)


def test_options_of_the_engine_join_the_arguments(home):
    from gristmill.api.document import document_of

    given = {"each": False, "init": None, "mini_batch_size": None, "name": None, "target": None}
    for arguments in ("--mode 'a b'", ["--mode", "a b"]):
        settings = {"arguments": arguments, "run_invocation_timeout": 9}
        document = document_of(len, [1], settings=settings, **given)
        assert document["arguments"] == ["--mode", "a b", "--task_overhead_timeout", "5"]


def test_inputs_are_of_one_kind(home):
    both = {"a": gristmill.read_csv("a.csv"), "b": gristmill.files("b.txt")}
    with pytest.raises(TypeError, match="inputs are tables and files of any content: a function gets one kind"):
        run(len, both)
    with pytest.raises(TypeError, match="inputs is a list of inputs: give each a name"):
        run(len, list(both.values()))


def test_call_may_take_long(home):
    from gristmill.api.document import document_of

    given = {"each": False, "init": None, "mini_batch_size": None, "name": None}
    here, there = (document_of(len, [1], target=target, settings={}, **given) for target in (None, "prod"))
    # SQS lends a message for 12 hours at most.
    assert (here["run_invocation_timeout"], there["run_invocation_timeout"]) == (86_400, 900)


def test_relative_paths_are_those_of_the_caller(home, tmp_path):
    (tmp_path / "model.txt").write_text("weights")
    job = run(lambda numbers: [Path("model.txt").read_text()], [1])
    assert job.to_pandas()["value"].tolist() == ["weights"]
    with pytest.raises(gristmill.JobFailed, match=r"'absent\.txt' \(in the working folder .*"):
        run(lambda numbers: [Path("absent.txt").read_text()], [1])


def test_output_and_errors_of_a_function_are_shown(home, capfd):
    def chatty(numbers):
        import sys
        import warnings

        warnings.warn("careful", stacklevel=1)
        for number in numbers:
            print("number", number)
            sys.stderr.write(f"\r{number + 1} of 3")
        sys.stderr.write("\n")
        return numbers

    run(chatty, list(range(3)), mini_batch_size=3)
    shown = capfd.readouterr()
    assert shown.out == "number 0\nnumber 1\nnumber 2\n"
    assert "UserWarning: careful" in shown.err
    assert shown.err.splitlines()[-1] == "3 of 3", "a progress bar is shown as it ended"
    run(chatty, list(range(3, 6)), verbose=False)
    shown = capfd.readouterr()
    assert shown.out == "" and "careful" not in shown.err

    def long(numbers):
        for number in numbers:
            print("number", number)
        return numbers

    job = run(long, list(range(1000)), mini_batch_size=1000)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] + lines[199:] == [
        "number 0",
        "number 1",
        "number 199",
        f'… more is in gristmill.attach("{job.id}").logs("user/stdout")',
    ]


@pytest.mark.parametrize(
    ("name", "job"), [("f", "function-f"), ("ab", "function-ab"), ("score", "score"), ("_1", "function")]
)
def test_job_is_named_after_its_function(name, job):
    from gristmill.api.function import job_name

    assert job_name(name) == job


# ---- inputs in the words of pandas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding", "options"),
    [
        ("zip;city\n00501;Köln\n", "latin-1", {"sep": ";", "dtype": {"zip": str}, "encoding": "latin-1"}),
        ("a,b\n1,\n2,NA\n", "utf-8", {}),
        ("# made\n# by hand\na,b\n1,x\n", "utf-8", {"skiprows": 2}),
        ("1,x\n2,y\n", "utf-8", {"names": ["n", "letter"]}),
        ("1,x\n2,y\n", "utf-8", {"names": ["n", "letter"], "header": None}),
        ("a,b,c\n1,2,3\n", "utf-8", {"usecols": ["a", "c"]}),
        ("a,b,c\n1,2,3\n", "utf-8", {"usecols": ["c", "a"]}),
        ("1,2,3\n", "utf-8", {"names": ["a", "b", "c"], "usecols": ["c", "a"]}),
        ("a,b\n1,2\n3,4\n5,6\n", "utf-8", {"nrows": 2}),
        ("a,b\n1,2\n", "utf-8", {"dtype": "float64"} and {"dtype": {"a": "float64", "b": "str"}}),
        ("a,b\n1,2\n", "utf-8", {"dtype": str}),
        (f"a,b\n{2**60 + 1},x\n,\n", "utf-8", {"dtype": {"a": "Int64", "b": "string"}}),
        ("a,b,c\n1,True,1.5\n,,\n", "utf-8", {"dtype": {"a": "UInt64", "b": "boolean", "c": "Float64"}}),
        ("a,b\n1,x\n,\n", "utf-8", {"dtype": {"a": pd.Int64Dtype(), "b": "string[pyarrow]"}}),
        ("a\n1\n\n2\n", "utf-8", {"dtype": {"a": "int64[pyarrow]"}}),
        ("a,b\n2020-01-02,2\n", "utf-8", {"parse_dates": ["a"]}),
        ("a,b\n20200131,2\n,3\n", "utf-8", {"parse_dates": ["a"]}),
        ("a,b\n31/01/2020,2\n01/02/2020,3\n", "utf-8", {"parse_dates": ["a"], "dayfirst": True}),
        ('a,b\n"one\ntwo",2\n', "utf-8", {}),
        ("a\tb\n1\t2\n", "utf-8", {"sep": "\t"}),
    ],
)
def test_read_csv_matches_pandas(home, tmp_path, text, encoding, options):
    (tmp_path / "a.data").write_bytes(text.encode(encoding))
    got = run(lambda frame: frame, gristmill.read_csv("a.data", **options)).to_pandas()
    expected = pd.read_csv("a.data", **options)
    for name in expected.select_dtypes("datetime").columns:
        expected[name] = expected[name].astype("datetime64[ns]")
    pd.testing.assert_frame_equal(got, expected, check_dtype=not options.get("parse_dates"))


@pytest.mark.parametrize("dtype", [str, object, "string", "string[python]", "string[pyarrow]", "Int64"])
def test_function_gets_the_dtype_that_it_asks_for(home, tmp_path, dtype):
    (tmp_path / "a.csv").write_text("t,n\n1,1\n,2\n")
    expected = pd.read_csv("a.csv", dtype={"t": dtype})

    def shown(frame):
        return [repr((frame["t"].dtype, frame["t"].tolist(), frame["n"].dtype, frame.columns))]

    found = run(shown, gristmill.read_csv("a.csv", dtype={"t": dtype}), mini_batch_size="1MB").to_pandas()
    assert found["value"].tolist() == shown(expected)


@pytest.mark.parametrize(("dtype", "nullable"), [("int64", "Int64"), ("uint64", "UInt64"), (bool, "boolean")])
def test_missing_value_fails_a_type_that_has_none(home, tmp_path, dtype, nullable):
    values = "True\n\nFalse\n" if dtype is bool else "1\n\n3\n"
    (tmp_path / "a.csv").write_text("t\n" + values.replace("\n\n", "\nNA\n"))
    with pytest.raises(ValueError):
        pd.read_csv("a.csv", dtype={"t": dtype})
    with pytest.raises(gristmill.JobFailed) as failed:
        run(lambda frame: frame, gristmill.read_csv("a.csv", dtype={"t": dtype}))
    assert 'column "t" has missing values' in str(failed.value) and f'"{nullable}"' in str(failed.value)
    expected = pd.read_csv("a.csv", dtype={"t": nullable})
    got = run(lambda frame: frame, gristmill.read_csv("a.csv", dtype={"t": nullable})).to_pandas()
    pd.testing.assert_frame_equal(got, expected)
    allowed = gristmill.read_csv("a.csv", dtype={"t": dtype}, on_type_mismatch="missing")
    assert run(lambda frame: [int(frame["t"].isna().sum())], allowed).to_pandas()["value"].tolist() == [1]


@pytest.mark.parametrize("rows", [0, 2])
def test_texts_of_a_parquet_file_are_those_of_pandas(home, rows):
    pd.DataFrame({"t": ["a", None], "n": [1, 2]}).iloc[:rows].to_parquet("a.parquet")
    found = run(lambda frame: [repr((frame.dtypes.tolist(), frame.columns))], "a.parquet").to_pandas()
    expected = pd.read_parquet("a.parquet")
    assert rows == 0 or found["value"].tolist() == [repr((expected.dtypes.tolist(), expected.columns))]
    kept = run(lambda frame: frame, "a.parquet").to_pandas()
    assert kept.dtypes.tolist() == expected.dtypes.tolist()


def test_column_of_several_inputs_has_one_dtype_and_that_of_a_script_is_not_nullable(home, tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("a\n2\n")
    inputs = {path: gristmill.read_csv(f"{path}.csv", dtype={"a": "Int64"}) for path in "ab"}
    assert run(lambda frame: frame, inputs).to_pandas()["a"].dtype == "Int64"
    inputs["b"] = gristmill.read_csv("b.csv", dtype={"a": "string"})
    with pytest.raises(ValueError, match="dtype of 'a' is Int64 in one input and string in another"):
        run(lambda frame: frame, inputs)
    (tmp_path / "script.py").write_text("def run(frame):\n    return frame\n")
    with pytest.raises(TypeError, match="dtype of 'a': an entry script gets no Int64"):
        run("script.py", inputs["a"])


def test_output_that_a_later_job_has_written_is_not_read(home):
    first = run(lambda numbers: numbers, [1, 2], output="n.csv")
    again = first.to_pandas()
    assert first.to_pandas().equals(again)
    later = run(lambda numbers: [-number for number in numbers], [1, 2], output="n.csv")
    assert later.to_pandas()["value"].tolist() == [-1, -2]
    for read in (first.to_pandas, first.to_arrow, first.to_polars, lambda: list(first)):
        with pytest.raises(gristmill.GristmillError, match=f"the rows of job {first.id} are no longer in .*n.csv"):
            read()
    assert run(lambda numbers: numbers, [1, 2], output="n.csv").to_pandas().equals(again)
    assert gristmill.read("n.csv").to_pandas().equals(again)


def test_files_with_other_orders_of_columns_are_read_by_name(home, tmp_path):
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("b,a,c\n3,4,5\n")
    rows = run(lambda frame: frame, "*.csv").to_arrow().to_pylist()
    assert rows == [{"a": 1, "b": 2, "c": None}, {"a": 4, "b": 3, "c": 5}]


def test_other_formats(home, tmp_path):
    (tmp_path / "a.log").write_text('{"n": 1, "t": "x"}\n{"n": 2}\n')
    assert run(lambda frame: frame, gristmill.read_json("a.log")).to_pandas()["n"].tolist() == [1, 2]
    pd.DataFrame({"a": [1, 2], "b": [3, 4]}).to_parquet("a.bin")
    assert run(lambda frame: frame, gristmill.read_parquet("a.bin", columns=["b"])).to_arrow().column_names == ["b"]
    (tmp_path / "lines.txt").write_text("x")
    assert run(len_of, gristmill.files("lines.txt")).to_pandas()["value"].tolist() == [1]
    both = {"left": gristmill.read_parquet("a.bin", n_rows=1), "right": gristmill.read_parquet("a.bin")}
    assert run(lambda frame: frame, both).to_pandas()["a"].tolist() == [1, 1, 2]


def len_of(paths: list[str]):
    return [len(Path(path).read_text()) for path in paths]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: gristmill.read_csv("a", seperator=";"),
            TypeError,
            "read_csv has no keyword seperator: there are path, sep",
        ),
        (
            lambda: gristmill.read_csv("a", skip_rows=1),
            TypeError,
            "read_csv has no keyword skip_rows: did you mean skiprows",
        ),
        (lambda: gristmill.read_csv("a", header=None), ValueError, "header=None needs the names of the columns"),
        (lambda: gristmill.read_csv("a", header=3), ValueError, "pass skiprows=3, the lines before it"),
        (lambda: gristmill.read_csv("a", header=-1), ValueError, "header=-1 is not possible"),
        (lambda: gristmill.read_csv("a", skiprows=len), TypeError, "skiprows is the number of lines"),
        (lambda: gristmill.read_csv("a", usecols=len), TypeError, "a list of names"),
        (lambda: gristmill.read_csv("a", parse_dates=True), TypeError, "parse_dates is a list of names"),
        (lambda: run(len, [1], num_proc=2), TypeError, "num_proc: gristmill calls it concurrency"),
        (lambda: run(len, [1], concurrency=0), ValueError, "concurrency is the number of calls at a time, from 1"),
        (lambda: mapped(str.upper, ["a text"]), gristmill.InvalidJob, "pass gristmill.items"),
        (lambda: run(len, [1], isolate="item"), gristmill.InvalidJob, '^isolate: found "item"|^isolate: off, halves'),
        (lambda: gristmill.read_csv("a", sep=",", delimiter=","), TypeError, "sep and delimiter are the same"),
        (lambda: gristmill.read_csv("a", sep=r"\s+"), ValueError, r"sep='\\\\s\+' is not one ASCII character"),
        (
            lambda: gristmill.read_csv("a", dtype={"x": "int32"}),
            ValueError,
            "dtype of 'x': int32 is not one of .*int64",
        ),
        (lambda: gristmill.read_csv("a", dtype=float), TypeError, "pass a mapping of names to types"),
        (lambda: gristmill.read_csv("a", dtype="string"), TypeError, "only if this is str"),
        (lambda: gristmill.read_csv("a", usecols=[0]), TypeError, "a list of names"),
        (lambda: gristmill.read_csv(3), TypeError, "read_csv takes a path, pattern or URL"),
        (lambda: gristmill.read_json("a", lines=False), ValueError, "write one object a line"),
        (lambda: gristmill.read_parquet("a", filters=[]), TypeError, "read_parquet has no keyword filters"),
        (
            lambda: run(len_of, gristmill.read_csv("a")),
            TypeError,
            "len_of takes a list of paths, and inputs are tables",
        ),
    ],
)
def test_options_that_the_engine_lacks_name_the_nearest(home, call, error, said):
    with pytest.raises(error, match=said):
        call()


def test_remedies_are_those_of_the_call(home, tmp_path):
    rows = "".join(f"{row}\n" for row in range(20_000))
    (tmp_path / "a.csv").write_text(f"x\n{rows[:-30]}many\n{rows}")
    with pytest.warns(gristmill.GristmillWarning, match=r'set dtype=\{"x": "string"\}'):
        run(lambda frame: frame, "a.csv", error_threshold=-1)
    (tmp_path / "d.csv").write_text("d,v\n2024-01-01,1\nnot a day,2\n")
    said = '`parse_dates` makes it a time: correct the values, or leave "d" out of parse_dates'
    with pytest.warns(gristmill.GristmillWarning, match=said):
        run(lambda frame: frame, gristmill.read_csv("d.csv", parse_dates=["d"]), error_threshold=-1)
    with (
        pytest.warns(gristmill.GristmillWarning, match="`dtype` makes it int64"),
        contextlib.suppress(gristmill.JobFailed),
    ):
        run(lambda frame: frame, gristmill.read_csv("d.csv", dtype={"d": "int64"}))
    from gristmill.api.wording import Wording

    say = Wording("score()")
    for engine, python in [
        ("set columns: {a b: timestamp_day_first} if", 'set parse_dates=["a b"], dayfirst=True if'),
        ('columns: {"x: y": string}', 'dtype={"x: y": "string"}'),
        ("set support_multi_line: true", "set support_multi_line=True"),
        ("set header: all_files_different_headers", 'set header="all_files_different_headers"'),
        ("set infer_column_types: false", "set dtype=str"),
        ("set error_threshold: 10.", "set error_threshold=10."),
        ("isolate: off, halves or items (found", "isolate: off, halves or items (found"),
        ("inputs[0].columns: the files have no", "usecols, dtype or parse_dates: the files have no"),
        ("rerun() and run() of", "rerun() and score() of"),
        (
            'its name: set `partition_format: "k={k}/*"` if',
            'its name: use gristmill.read_csv(…, partition_format="k={k}/*"), or another',
        ),
    ]:
        assert say(engine).startswith(python)
    folder = tmp_path / "sales" / "y=2020"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("v\n1\n")
    for keyword, remedy in (("partition_format", "partition_format"), ("columns", "usecols"), ("encoding", "encoding")):
        with pytest.raises(TypeError, match=rf"pass inputs=gristmill.read_csv\(…, {remedy}=…\)"):
            run(lambda frame: frame, "sales/", **{keyword: "y={y}/a.csv"})
    job = run(lambda frame: frame, gristmill.read_csv("sales/", partition_format="y={y}/a.csv"))
    assert job.to_arrow().to_pydict() == {"v": [1], "y": ["2020"]}


# ---- cards -----------------------------------------------------------------------------------------------------------


def test_card_links_to_the_portal_that_runs(home, tmp_path):
    import json
    import subprocess

    from gristmill.api import command

    job = run(lambda numbers: numbers, [1])
    assert "<code>gristmill portal</code> shows it" in job._repr_html_()
    portal = subprocess.Popen(
        [command.executable(), "portal", "--no-open", "--listen", "127.0.0.1:0"],
        env=command.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while not (home / "portal.json").exists() and time.monotonic() < end:
            time.sleep(0.05)
        address = json.loads((home / "portal.json").read_text())["address"]
        assert (home / "portal.json").stat().st_mode & 0o777 == 0o600
        assert f"href='{address}#/jobs/{job.id}'" in job._repr_html_()
    finally:
        portal.terminate()
        portal.wait(60)
    assert not (home / "portal.json").exists()
    assert "<code>gristmill portal</code> shows it" in job._repr_html_()


# ---- threads and loops -----------------------------------------------------------------------------------------------


def test_calls_from_threads_and_loops(home):
    results = {}

    def call(number):
        results[number] = run(lambda numbers: [n + number for n in numbers], [1]).to_pandas()["value"].tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {0: [1], 1: [2], 2: [3]}

    async def main():
        jobs = [gristmill.submit(lambda numbers, k=k: [n * k for n in numbers], [1]) for k in (2, 3)]
        return [(await job).to_pandas()["value"].tolist() for job in jobs]

    assert asyncio.run(main()) == [[2], [3]]
