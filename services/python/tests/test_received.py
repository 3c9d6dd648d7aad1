"""What functions receive of tables in memory and of Parquet files: each value, type and label as in the table itself,
or as the library of the function reads the file.

Each example is one job with a column of every type, nulls at random, and mini-batches of a random size. The function
pickles what it gets.
"""

import datetime
import decimal
import os
import pickle
import random
import uuid

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from calls import run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from polars.testing import assert_frame_equal as assert_polars_equal

import gristmill

pytestmark = pytest.mark.usefixtures("home")

EXAMPLES = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SEEDS = st.integers(0, 2**32)
ROWS = st.integers(2, 20)
SIZES = st.integers(1, 9)
HINTS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table}


def received(inputs, folder, library=None, **options):
    """Returns what a function receives, in order. Without a library it has no type hint."""
    folder = folder / f"received-{len(os.listdir(folder))}"
    folder.mkdir()

    def keep(table, context):
        with open(folder / str(context.minibatch_index), "wb") as file:
            pickle.dump(table, file)
        return [0] * len(table)

    if library is not None:
        keep.__annotations__["table"] = HINTS[library]
    run(keep, inputs, **options)
    return [pickle.loads((folder / name).read_bytes()) for name in sorted(os.listdir(folder), key=int)]


def spans(pieces):
    """Returns each piece with the rows that it has of the whole."""
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece)
        yield piece, start, end


def assert_pieces(pieces, frame, table=None):
    """Compares pieces of a DataFrame with the whole.

    :param table: the same in Arrow, if pandas has no nullable types for it: then missing values decide about types.
    """
    for piece, start, end in spans(pieces):
        expected = frame.iloc[start:end].copy()
        if table is not None:
            decide_types(piece, expected, table.slice(start, end - start))
        assert_frame_equal(piece, expected, check_freq=False, check_index_type="exact", check_column_type="exact")
        assert list(map(type, piece.columns)) == list(map(type, frame.columns))
    assert sum(map(len, pieces)) == len(frame)


def decide_types(piece, frame, table):
    """Gives columns the types that pandas has for their values. Whole numbers that it would round are nullable."""
    for name in set(frame.columns) & set(table.column_names):
        column = table[name]
        if pa.types.is_dictionary(column.type) and b"pandas" not in (table.schema.metadata or {}):
            # Polars writes the categories of each row group.
            assert set(piece[name].cat.categories) <= set(frame[name].cat.categories)
            frame[name] = frame[name].cat.set_categories(piece[name].cat.categories)
        if column.type == pa.bool8():
            frame[name] = column.to_pandas().set_axis(frame.index)
        if pa.types.is_boolean(column.type) and frame[name].dtype == object:
            frame[name] = column.to_pandas().set_axis(frame.index)
        if pa.types.is_integer(column.type) and frame[name].dtype == float:
            largest = pa.compute.max(column).as_py()
            is_rounded = column.null_count and largest is not None and largest > 2**53
            values = pd.array(column.to_pylist(), "Int64") if is_rounded else column.to_pandas().array
            frame[name] = pd.Series(values, frame.index)


DAY = datetime.datetime(2020, 2, 29, 12, 30, 15)


def cells(chance, rows, value, missing=None):
    """Returns values of random numbers, some of which are missing."""
    return [missing if chance.random() < 0.3 else value(chance.randrange(9)) for _ in range(rows)]


def series_of_pandas(chance, rows):
    """Yields a Series of each dtype of pandas."""
    whole = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
    for dtype in whole:
        yield pd.Series([chance.randrange(9) for _ in range(rows)]).astype(dtype)
    for dtype in ["float16", "float32", "float64", "complex128"]:
        yield pd.Series(cells(chance, rows, lambda n: n / 2, np.nan), dtype=dtype)
    for dtype in ["Int8", "Int64", "UInt64", "boolean", "Float32", "Float64"]:
        yield pd.Series(cells(chance, rows, lambda n: n % 2, pd.NA), dtype=dtype)
    yield pd.Series(cells(chance, rows, lambda n: 2**60 + n, pd.NA), dtype="Int64")
    for dtype in ["string", "string[python]", "str"]:
        yield pd.Series(cells(chance, rows, lambda n: "é" * n), dtype=dtype)
    for unit in ["s", "ms", "us", "ns"]:
        yield pd.Series(cells(chance, rows, lambda n: n, pd.NaT), dtype=f"datetime64[{unit}]")
        yield pd.Series(cells(chance, rows, lambda n: n, pd.NaT), dtype=f"timedelta64[{unit}]")
        yield pd.Series(cells(chance, rows, lambda n: n, pd.NaT)).astype(f"datetime64[{unit}, Europe/Berlin]")
    for categories in [["c", "a", "b"], [5, 3, 8], [1.5, 0.5], [pd.Timestamp("2020"), pd.Timestamp("1999")]]:
        codes = cells(chance, rows, lambda n, of=categories: n % len(of), -1)
        yield pd.Series(pd.Categorical.from_codes(codes, categories, ordered=chance.random() < 0.5))
    codes = cells(chance, rows, lambda n: n % 3, -1)
    yield pd.Series(pd.Categorical.from_codes(codes, pd.interval_range(0, 3)))
    yield pd.Series(cells(chance, rows, lambda n: pd.Period(f"202{n}-01", "M")), dtype="period[M]")
    yield pd.Series(cells(chance, rows, lambda n: pd.Interval(n, n + 1), np.nan), dtype="interval")
    yield pd.Series(pd.arrays.SparseArray([n % 2 for n in range(rows)]))
    lists = pd.ArrowDtype(pa.list_(pa.int8()))
    yield pd.Series(cells(chance, rows, lambda n: [n]), dtype=lists)
    yield pd.Series(cells(chance, rows, lambda n: DAY), dtype=pd.ArrowDtype(pa.timestamp("s")))
    yield pd.Series(cells(chance, rows, lambda n: decimal.Decimal(n)), dtype=pd.ArrowDtype(pa.decimal128(9, 2)))
    for value in [
        lambda n: "text" * n, lambda n: b"\xff" * n, lambda n: decimal.Decimal(n) / 4, lambda n: DAY.date(),
        lambda n: DAY.time(), lambda n: n * 2**70, lambda n: n > 3, lambda n: [n, None], lambda n: {"a": n},
        lambda n: {str(n): n}, lambda n: (n, "x"), lambda n: {n}, lambda n: [n, "x", 0.5, b"", None][n % 5],
        lambda n: n if n % 2 else float(n), lambda n: "\ud800", lambda n: uuid.UUID(int=n), lambda n: DAY,
        lambda n: pd.Timestamp(DAY), lambda n: None, lambda n: np.arange(n), lambda n: {}, lambda n: 1j * n,
    ]:  # fmt: skip
        missing = chance.choice([None, np.nan])
        yield pd.Series(cells(chance, rows, value, missing), dtype=object)


LABELS = [
    lambda n: [f"column {i}" for i in range(n)],
    lambda n: pd.RangeIndex(n),
    lambda n: pd.Index([i if i % 2 else f"c{i}" for i in range(n)], name="labels"),
    lambda n: pd.MultiIndex.from_tuples([("a" if i % 2 else "b", i) for i in range(n)], names=["x", None]),
    lambda n: pd.date_range("2020", periods=n),
]
INDEXES = [
    lambda n: pd.RangeIndex(n),
    lambda n: pd.RangeIndex(5, 5 + 3 * n, 3, name="rows"),
    lambda n: pd.Index([f"row {i % 3}" for i in range(n)], name="name"),
    lambda n: pd.date_range("2020", periods=n, tz="Europe/Berlin"),
    lambda n: pd.MultiIndex.from_arrays([list(range(n)), list("ab" * n)[:n]], names=["x", None]),
    lambda n: pd.CategoricalIndex(["b", "a"] * (n // 2) + ["a"] * (n % 2), categories=["b", "a", "c"]),
    lambda n: pd.Index([i % 2 for i in range(n)], dtype="Int64", name=3),
]


@EXAMPLES
@given(seed=SEEDS, rows=ROWS, size=SIZES)
def test_dataframe_arrives_as_it_was(tmp_path, seed, rows, size):
    chance = random.Random(seed)
    series = list(series_of_pandas(chance, rows))
    for labels, index in zip(chance.sample(LABELS, 3), chance.sample(INDEXES, 3), strict=True):
        frame = pd.concat(series, axis=1)
        frame.columns, frame.index = labels(len(series)), index(rows)
        frame.attrs = {"source": "test"}
        pieces = received(frame, tmp_path, mini_batch_size=size)
        dense = frame.copy()
        for position, dtype in enumerate(frame.dtypes):
            if isinstance(dtype, pd.SparseDtype):
                dense.isetitem(position, frame.iloc[:, position].sparse.to_dense())
        assert_pieces(pieces, dense)
        assert all(piece.attrs == frame.attrs for piece in pieces)


def test_received_frame_may_be_changed(tmp_path):
    def change(frame):
        for label in frame.columns:
            frame.loc[frame.index[0], label] = frame[label].iloc[-1]
        frame["new"] = 1
        return frame

    frame = pd.DataFrame({"x": [1, 2], "f": [0.5, 1.5], "text": ["a", "b"], "n": pd.array([1, None], "Int64")})
    frame.to_parquet(tmp_path / "frame.parquet")
    for inputs in (frame, str(tmp_path / "frame.parquet")):
        result = run(change, inputs, mini_batch_size=2).to_pandas()
        assert result["x"].tolist() == [2, 2] and result["text"].tolist() == ["b", "b"]


def columns_of_polars(chance, rows):
    """Yields a column of each dtype of Polars."""
    for dtype in [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Boolean]:
        yield pl.Series(cells(chance, rows, lambda n: n)).cast(dtype)
    for dtype in [pl.Float32, pl.Float64]:
        yield pl.Series(cells(chance, rows, lambda n: float("nan") if n == 0 else n / 2), dtype=dtype)
    yield pl.Series(cells(chance, rows, lambda n: "é" * n), dtype=pl.String)
    yield pl.Series(cells(chance, rows, lambda n: b"\xff" * n), dtype=pl.Binary)
    yield pl.Series(cells(chance, rows, lambda n: DAY.date()), dtype=pl.Date)
    # Whole microseconds: pandas holds no others.
    yield pl.Series(cells(chance, rows, lambda n: 1000 * n)).cast(pl.Int64).cast(pl.Time)
    for unit in ["ms", "us", "ns"]:
        whole = pl.Series(cells(chance, rows, lambda n: n), dtype=pl.Int64)
        yield whole.cast(pl.Datetime(unit))
        yield whole.cast(pl.Datetime(unit, "Europe/Berlin"))
        yield whole.cast(pl.Duration(unit))
    yield pl.Series(cells(chance, rows, lambda n: decimal.Decimal(n) / 4), dtype=pl.Decimal(12, 3))
    texts = cells(chance, rows, lambda n: "abc"[n % 3])
    yield pl.Series(texts, dtype=pl.Categorical)
    yield pl.Series(texts, dtype=pl.Enum(["c", "unused", "b", "a"]))
    yield pl.Series(cells(chance, rows, lambda n: [[n], None, []]), dtype=pl.List(pl.List(pl.Int8)))
    yield pl.Series(cells(chance, rows, lambda n: [n, None]), dtype=pl.Array(pl.Int16, 2))
    yield pl.Series(cells(chance, rows, lambda n: {"a": n, "b": [str(n)]}))
    yield pl.Series([None] * rows, dtype=pl.Null)


def frame_of_polars(chance, rows):
    return pl.DataFrame(
        [column.alias(f"{column.dtype} {i}") for i, column in enumerate(columns_of_polars(chance, rows))]
    )


@EXAMPLES
@given(seed=SEEDS, rows=ROWS, size=SIZES)
def test_polars_frame_arrives_as_it_was(tmp_path, seed, rows, size):
    frame = frame_of_polars(random.Random(seed), rows)
    for piece, start, end in spans(received(frame, tmp_path, mini_batch_size=size)):
        assert piece.schema == frame.schema
        assert_polars_equal(piece, frame[start:end], categorical_as_str=True)


def test_polars_type_that_arrow_lacks_is_named():
    frame = pl.DataFrame({"x": [1], "wide": pl.Series([1], dtype=pl.Int128)})
    with pytest.raises(TypeError, match="column 'wide' of the type Int128 has no type of Arrow; cast it"):
        run(lambda table: [0] * len(table), frame)


def arrays_of_arrow(chance, rows):
    """Yields an array of each type of Arrow."""

    def array(kind, value=lambda n: n):
        return pa.array(cells(chance, rows, value), kind)

    whole = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    yield from map(array, whole)
    yield array(pa.bool_(), lambda n: n > 4)
    for kind in [pa.float16(), pa.float32(), pa.float64()]:
        yield array(kind, lambda n: n / 2)
    for kind in [pa.decimal32(5, 2), pa.decimal64(9, 2), pa.decimal128(20, 2), pa.decimal256(50, 2)]:
        yield array(kind, decimal.Decimal)
    for kind in [pa.string(), pa.large_string(), pa.string_view()]:
        yield array(kind, lambda n: "é" * n)
    for kind in [pa.binary(), pa.large_binary(), pa.binary_view()]:
        yield array(kind, lambda n: b"\xff" * n)
    yield array(pa.binary(2), lambda n: b"%02d" % n)
    yield from map(array, [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.date32()])
    yield array(pa.date64(), lambda n: n * 86_400_000)
    for unit in ["s", "ms", "us", "ns"]:
        yield from map(array, [pa.timestamp(unit), pa.timestamp(unit, "Europe/Berlin"), pa.duration(unit)])
    yield array(pa.month_day_nano_interval(), lambda n: (n, 1, 2))
    for kind in [pa.list_(pa.timestamp("s")), pa.large_list(pa.int8()), pa.list_view(pa.int8())]:
        yield array(kind, lambda n: [None, n])
    yield array(pa.list_(pa.int8(), 2), lambda n: [n, None])
    yield array(pa.map_(pa.string(), pa.int64()), lambda n: [("a", n)])
    yield array(pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]), lambda n: {"a": [{"b": str(n)}, None]})
    yield array(pa.struct([]), lambda n: {})
    yield pa.nulls(rows)
    yield array(pa.string(), lambda n: "ab"[n % 2]).dictionary_encode()
    yield array(pa.int64()).dictionary_encode()
    yield array(pa.timestamp("s")).dictionary_encode()
    indices = array(pa.int8(), lambda n: n % 3)
    yield pa.DictionaryArray.from_arrays(indices, pa.array(["z", "y", "unused", "x"]), ordered=True)
    yield pa.StructArray.from_arrays([array(pa.string(), str).dictionary_encode()], ["coded"])
    yield pa.compute.run_end_encode(array(pa.int64()))
    types, offsets = pa.array([n % 2 for n in range(rows)], pa.int8()), pa.array(range(rows), pa.int32())
    yield pa.UnionArray.from_dense(types, offsets, [array(pa.int64()), array(pa.string(), str)])
    yield pa.ExtensionArray.from_storage(pa.uuid(), array(pa.binary(16), lambda n: uuid.UUID(int=n).bytes))
    yield pa.ExtensionArray.from_storage(pa.json_(), array(pa.string(), lambda n: f'{{"a": {n}}}'))
    yield pa.ExtensionArray.from_storage(pa.bool8(), array(pa.int8(), lambda n: n % 2))


@EXAMPLES
@given(seed=SEEDS, rows=ROWS, size=SIZES, cut=st.integers(0, 20))
def test_arrow_table_arrives_as_it_was(tmp_path, seed, rows, size, cut):
    arrays = list(arrays_of_arrow(random.Random(seed), rows))
    fields = [pa.field(f"{i}", array.type, metadata={"note": "é"}) for i, array in enumerate(arrays)]
    whole = pa.table(arrays, pa.schema(fields, {"of": "the table"}))
    table = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    for piece, start, end in spans(received(table, tmp_path, mini_batch_size=size)):
        expected = whole.slice(start, end - start)
        assert piece.schema.equals(expected.schema, check_metadata=True)
        for name in whole.column_names:
            assert piece[name].to_pylist() == expected[name].to_pylist(), piece.schema.field(name)
        piece.validate(full=True)


def test_tables_arrive_as_the_hint_asks(tmp_path):
    frame = pd.DataFrame({"x": [1, 2], "c": pd.Categorical(["b", "a"])}, index=[5, 7])
    [table] = received(frame, tmp_path, "pyarrow", mini_batch_size=2)
    assert table.equals(pa.Table.from_pandas(frame))
    [table] = received(frame, tmp_path, "polars", mini_batch_size=2)
    assert_polars_equal(table, pl.from_pandas(frame))
    table = pa.table({"x": pa.array([1, None], pa.int32()), "c": pa.array(["b", "a"]).dictionary_encode()})
    [received_frame] = received(table, tmp_path, "pandas", mini_batch_size=2)
    assert_frame_equal(received_frame, table.to_pandas())


# Parquet files.


def plain_frame(chance, rows):
    """Returns a DataFrame of types that each library writes."""
    frame = pd.DataFrame(
        {
            "i": pd.Series(range(rows), dtype="int32"),
            "missing": pd.Series(cells(chance, rows, lambda n: n, np.nan), dtype="float64"),
            "nullable": pd.Series(cells(chance, rows, lambda n: 2**60 + n, pd.NA), dtype="Int64"),
            "flag": pd.Series(cells(chance, rows, lambda n: n > 4, pd.NA), dtype="boolean"),
            # DuckDB writes a column without values without a type.
            "text": pd.Series(["first", *cells(chance, rows - 1, lambda n: "é" * n)]),
            "kind": pd.Categorical(cells(chance, rows, lambda n: "abc"[n % 3]), ["c", "unused", "b", "a"]),
            "time": pd.Series(cells(chance, rows, lambda n: DAY), dtype="datetime64[us]"),
        }
    )
    frame.index = chance.choice(INDEXES[:3])(rows)
    return frame


def by_pandas(chance, rows, path, group):
    frame = plain_frame(chance, rows)
    zone = "datetime64[s, Asia/Tokyo]"
    frame["zone"] = pd.Series(cells(chance, rows, lambda n: n, pd.NaT), frame.index, dtype=zone)
    frame["period"] = pd.Series(
        cells(chance, rows, lambda n: pd.Period("2020-01", "M")), frame.index, dtype="period[M]"
    )
    frame.attrs = {"source": "pandas"}
    frame.to_parquet(path, row_group_size=group)


def by_fastparquet(chance, rows, path, group):
    fastparquet = pytest.importorskip("fastparquet")
    fastparquet.write(str(path), plain_frame(chance, rows), row_group_offsets=group)


def by_polars(chance, rows, path, group):
    frame_of_polars(chance, rows).write_parquet(path, row_group_size=group)


def by_pyarrow(chance, rows, path, group):
    arrays = [array for array in arrays_of_arrow(chance, rows) if can_be_parquet(array)]
    pq.write_table(pa.table(arrays, [f"{i}" for i in range(len(arrays))]), path, row_group_size=group)


def can_be_parquet(array):
    # Polars reads no wider decimals and no views of lists, and pandas no times with nanoseconds.
    if array.type in (pa.decimal256(50, 2), pa.list_view(pa.int8()), pa.time64("ns")):
        return False
    try:
        pq.write_table(pa.table([array], ["x"]), pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return not pa.types.is_struct(array.type) or not pa.types.is_dictionary(array.type.field(0).type)


def by_duckdb(chance, rows, path, group):
    duckdb = pytest.importorskip("duckdb")
    table = pa.Table.from_pandas(plain_frame(chance, rows), preserve_index=False)
    table = table.append_column("money", pa.array(cells(chance, rows, decimal.Decimal), pa.decimal128(9, 2)))
    table = table.append_column("id", pa.array([str(uuid.UUID(int=n)) for n in range(rows)]))
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.sql(
            "select * replace (id::uuid as id), [i, null] as list, {'a': text} as struct from given"
        ).to_parquet(str(path), row_group_size=group)


WRITERS = [by_pandas, by_fastparquet, by_polars, by_pyarrow, by_duckdb]


@pytest.mark.parametrize("write", WRITERS)
@EXAMPLES
@given(seed=SEEDS, rows=ROWS, size=st.none() | SIZES, group=st.integers(3, 12))
def test_parquet_file_is_read_as_the_library_of_the_function_reads_it(tmp_path, write, seed, rows, size, group):
    path = tmp_path / f"{seed}-{rows}.parquet"
    write(random.Random(seed), rows, path, group)
    table = pq.read_table(path)
    assert_pieces(received(str(path), tmp_path, mini_batch_size=size), pd.read_parquet(path), table)
    for piece, start, end in spans(received(str(path), tmp_path, "pyarrow", mini_batch_size=size)):
        assert list(map(as_pyarrow_reads, piece.schema)) == list(map(as_pyarrow_reads, table.schema))
        # As text, because NaN is not equal to itself.
        assert repr(piece.to_pylist()) == repr(table.slice(start, end - start).to_pylist())
    frame = pl.read_parquet(path)
    for piece, start, end in spans(received(str(path), tmp_path, "polars", mini_batch_size=size)):
        assert_polars_equal(piece, frame[start:end], categorical_as_str=True)


def as_pyarrow_reads(field):
    """Returns a field as pyarrow reads it, which forgets `date64` and 64-bit offsets of texts in a dictionary."""
    if pa.types.is_date64(field.type):
        return field.with_type(pa.date32())
    if pa.types.is_dictionary(field.type) and pa.types.is_large_string(field.type.value_type):
        return field.with_type(pa.dictionary(field.type.index_type, pa.string(), field.type.ordered))
    return field


def test_whole_numbers_beside_missing_ones_are_exact(tmp_path):
    path = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"id": [2**53 + 1, None], "small": [1, None]}), path)
    [frame] = received(str(path), tmp_path)
    assert frame["id"].tolist() == [2**53 + 1, pd.NA] and frame.dtypes.tolist() == ["Int64", "float64"]


@pytest.mark.parametrize("index", [pa.int8(), pa.int32()])
def test_categories_without_a_value_are_none(tmp_path, index):
    path = tmp_path / "nothing.parquet"
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(2, index), pa.array([], pa.string()))
    pq.write_table(pa.table({"c": nothing}), path)
    [frame] = received(str(path), tmp_path)
    assert frame["c"].isna().all() and list(frame["c"].cat.categories) == []


def test_listed_columns_keep_the_index(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": [1, 2, 3], "b": list("xyz")}, index=pd.Index([7, 5, 9], name="id")).to_parquet(path)
    listed = gristmill.read_parquet(str(path), columns=["b"])
    assert_frame_equal(pd.concat(received(listed, tmp_path)), pd.read_parquet(path, columns=["b"]))
    [table] = received(listed, tmp_path, "pyarrow")
    assert table.column_names == ["b"]
    [frame] = received(listed, tmp_path, "polars")
    assert frame.columns == ["b"]
    assert gristmill.map(dict, listed, progress=False).to_arrow().to_pylist() == [{"b": letter} for letter in "xyz"]


def test_column_that_arrow_lacks_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame({"n": [1], "big": pl.Series([2**70], dtype=pl.Int128)}).write_parquet(path)
    with pytest.raises(gristmill.GristmillError, match=r't\.parquet declares column "big" as integers of 128 bits'):
        run(lambda frame: frame, str(path))


def test_pickles_in_other_files_are_not_read(tmp_path):
    frame = pd.DataFrame({"x": [1, 2], "object": [{1}, {2}]}, index=[5, 7])
    received(frame, tmp_path)
    [written] = (tmp_path / "home" / "functions" / "inputs").iterdir()
    foreign = tmp_path / "foreign.parquet"
    foreign.write_bytes(written.read_bytes())
    [read, *_] = received(str(foreign), tmp_path)
    assert list(read.columns) == ["x", "object", "__index_level_0__"] and isinstance(read["object"].iloc[0], bytes)
