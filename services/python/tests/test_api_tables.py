"""Tables as arguments and results of functions: `pyarrow.Table` and `polars.DataFrame`."""

import pandas
import polars as pl
import pyarrow as pa
import pytest
from calls import frame, run

pytestmark = pytest.mark.usefixtures("home")


class Pieces:
    """The tables that a function of these tests keeps between mini-batches."""


def keeping(table: pa.Table, state):
    """Returns whether the tables of earlier mini-batches are unchanged."""
    kept = state.__dict__.setdefault("tables", [])
    kept.append((table, table["x"].to_pylist()))
    return [f"{len(kept)} {all(one['x'].to_pylist() == values for one, values in kept)}"] * table.num_rows


def test_table_that_is_kept_does_not_change():
    seen = set(run(keeping, frame(4000), init=Pieces, mini_batch_size=1000).to_pandas()["value"])
    assert seen == {"1 True", "2 True", "3 True", "4 True"}


def addresses(table: pa.Table):
    buffers = [
        buffer
        for column in table.select(["x"]).columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer
    ]
    with open("/proc/self/maps") as file:
        ranges = [line.split(maxsplit=1) for line in file]
    found = set()
    for buffer in buffers:
        for where, rest in ranges:
            begin, end = (int(number, 16) for number in where.split("-"))
            if begin <= buffer.address < end:
                found.add("gristmill-table" in rest)
    return [str(found)] * table.num_rows


def as_polars(table: pl.DataFrame):
    return addresses(table.to_arrow(compat_level=pl.CompatLevel.newest()))


@pytest.mark.parametrize("function", [addresses, as_polars])
def test_table_is_read_where_the_agent_wrote_it(function):
    assert set(run(function, frame(5000)).to_pandas()["value"]) == {"{True}"}


def test_functions_get_the_types_of_pandas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"label,id,v,t\n1,{2**53 + 1},NA,NA\n0,,1.5,x\n")

    def types(table: pandas.DataFrame):
        return [f"{list(map(str, table.dtypes))} {table['t'].isna().tolist()}"] * len(table)

    text = str(pandas.Series([""]).dtype)
    expected = f"['int64', 'Int64', 'float64', '{text}'] [True, False]"
    assert run(types, str(path)).to_pandas()["value"].tolist() == [expected] * 2

    def arrow(table: pa.Table):
        return [repr(row) for row in table.to_pylist()]

    assert run(arrow, str(path)).to_pandas()["value"].tolist() == [
        f"{{'label': 1, 'id': {2**53 + 1}, 'v': None, 't': None}}",
        "{'label': 0, 'id': None, 'v': 1.5, 't': 'x'}",
    ]

    def nulls(table: pl.DataFrame):
        return [f"{table.null_count().row(0)} {table.schema['id']}"] * len(table)

    assert run(nulls, str(path)).to_pandas()["value"].tolist() == ["(0, 1, 1, 1) Int64"] * 2


def test_one_column_without_a_type_leaves_the_others_theirs(tmp_path):
    frame = pandas.DataFrame(
        {
            "period": pandas.period_range("2020-01", periods=2, freq="M"),
            "whole": pandas.array([1, None], "Int64"),
            "between": pandas.arrays.IntervalArray.from_breaks(range(3)),
            "text": pandas.array(["a", None], "string"),
            "mixed": pandas.Categorical([1, "a"]),
            "complex": [1j, 2j],
        }
    )
    found = run(lambda frame: frame, frame, output=tmp_path / "rows.parquet").to_pandas()
    known = ["period", "whole", "between", "text"]
    pandas.testing.assert_frame_equal(found[known], frame[known])
    assert found["complex"].tolist() == ["1j", "2j"]
