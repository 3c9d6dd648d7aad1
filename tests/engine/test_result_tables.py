"""Outputs of native formats are tables: columns by name, one type for each, whatever the division into mini-batches."""

import csv
import io
import json

import pyarrow
import pytest
from pyarrow import parquet

ID = 2**60 + 1


def test_ids_beside_missing_ones_stay_exact(workplace):
    """pandas makes floating-point numbers of a column with a missing value, and the other mini-batches keep theirs."""
    (workplace.folder / "data").mkdir()
    ids = pyarrow.table({"id": pyarrow.array([ID, ID + 2, 5, None], pyarrow.int64()), "v": [1.0, 2.0, 3.0, 4.0]})
    parquet.write_table(ids, workplace.folder / "data" / "a.parquet", row_group_size=2)
    script = """
        def run(df):
            df["score"] = df.v * 2
            return df
    """
    inputs = [{"name": "d", "type": "tabular", "path": "data"}]
    job = workplace.job(script, inputs=inputs, append_row_file_name="rows.parquet", output_format="native")
    table = parquet.read_table(job.run().result["output"])
    assert table.schema.field("id").type == pyarrow.int64()
    assert table["id"].to_pylist() == [ID, ID + 2, 5, None]


@pytest.mark.parametrize("types", ["original", "pandas"])
def test_ids_of_text_beside_missing_ones_stay_exact(workplace, types):
    ids = [*(ID + 2 * number for number in range(300)), *range(300), None]
    lines = [f"{'' if one is None else one},{place}" for place, one in enumerate(ids)]
    workplace.write({"data/a.csv": "\n".join(["id,v", *lines]) + "\n"})
    script = """
        def run(df):
            df["score"] = df.v * 2
            return df
    """
    inputs = [{"name": "d", "type": "tabular", "path": "data", "types": types}]
    settings = {"append_row_file_name": "rows.parquet", "output_format": "native"}
    table = parquet.read_table(
        workplace.job(script, inputs=inputs, mini_batch_size="300 rows", **settings).run().result["output"]
    )
    assert table.schema.field("id").type == pyarrow.int64()
    assert table["id"].to_pylist() == ids


@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_are_aligned_by_name(workplace, size):
    workplace.data(4)
    script = """
        import os
        def run(files):
            rows = []
            for file in files:
                name = os.path.basename(file)
                rows.append({"label": "L", "file": name} if name == "002.txt" else {"file": name, "label": "L"})
                if name == "003.txt":
                    rows[-1]["error"] = "e"
            return rows
    """
    job = workplace.job(script, append_row_file_name="rows.csv", output_format="native", mini_batch_size=size)
    ended = job.run()
    rows = list(csv.reader(io.StringIO(ended.output.decode())))
    assert rows == [
        ["file", "label", "error"],
        ["000.txt", "L", ""],
        ["001.txt", "L", ""],
        ["002.txt", "L", ""],
        ["003.txt", "L", "e"],
    ]
    assert ended.result["columns"] == [{"name": name, "type": "string"} for name in rows[0]]


def test_tuples_have_a_header(workplace):
    workplace.data(4)
    script = "def run(files): return [(file[-7:], 1.5) for file in files]"
    job = workplace.job(script, append_row_file_name="rows.csv", output_format="native")
    assert job.run().output.decode().splitlines()[:2] == ["0,1", "000.txt,1.5"]


MIXED = {
    "empty": ("{}", ["{}"] * 4),
    "bytes": ("b'x' if n else 'x'", ["x"] * 4),
    "list": ("[1] if n else {'a': 1}", ['{"a": 1}', "[1]", "[1]", "[1]"]),
    "numbers": ("n or 'none'", ["none", "1", "2", "3"]),
    "huge": ("10**30 + n if n else 0.5", ["0.5", str(10**30 + 1), str(10**30 + 2), str(10**30 + 3)]),
}


def test_nothing_that_rows_hold_fails_the_finished_job(workplace):
    workplace.data(4)
    row = ", ".join(f"{name!r}: {value}" for name, (value, _) in MIXED.items())
    script = f"""
        def run(files):
            return [{{{row}}} for n in [int(file[-7:-4]) for file in files]]
    """
    tables = {}
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        for size in (1, 4):
            job = workplace.job(script, append_row_file_name=name, output_format="native", mini_batch_size=size)
            ended = job.run("--fresh")
            tables[name, size] = ended.output
            said = " ".join(ended.result["first_warnings"])
            assert [column for column in MIXED if f'column "{column}"' in said] == list(MIXED)[1:], said
        assert tables[name, 1] == tables[name, 4], "the size of mini-batches changes nothing"
    expected = {name: values for name, (_, values) in MIXED.items()}
    assert parquet.read_table(io.BytesIO(tables["rows.parquet", 1])).to_pydict() == expected
    names, *rows = csv.reader(io.StringIO(tables["rows.csv", 1].decode()))
    assert dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) == expected
    values = [json.loads(line)["numbers"] for line in tables["rows.jsonl", 1].splitlines()]
    assert values == ["none", 1, 2, 3], "JSON lines keep each value"


def test_two_columns_of_one_name_fail_their_mini_batch(workplace):
    workplace.data(2)
    script = """
        import pandas
        def run(files): return pandas.DataFrame([[1, 2]], columns=["a", "a"])
    """
    job = workplace.job(script, append_row_file_name="rows.parquet", output_format="native", run_max_try=1)
    assert "several columns named 'a'" in str(job.run(expect=42)), "at once, and by name"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.txt"])
@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_entry_script_returns_tables_of_other_libraries(workplace, library, name):
    workplace.data(2)
    frame = {"polars": "polars.DataFrame(columns)", "pyarrow": "pyarrow.table(columns)"}[library]
    script = f"""
        import {library}
        def run(files):
            columns = {{"id": [{ID}, None], "file": [files[0][-7:], ""]}}
            return {frame}
    """
    native = {} if name.endswith("txt") else {"output_format": "native"}
    ended = workplace.job(script, append_row_file_name=name, mini_batch_size=1, error_threshold=-1, **native).run()
    if name == "rows.parquet":
        table = parquet.read_table(io.BytesIO(ended.output))
        assert table["id"].to_pylist() == [ID, None] * 2 and table["file"].to_pylist() == ["000.txt", "", "001.txt", ""]
    elif name == "rows.csv":
        assert ended.output.decode() == f'id,file\n{ID},000.txt\n,""\n{ID},001.txt\n,""\n'
    else:
        assert ended.output.decode().splitlines()[0] == f"{ID} 000.txt", "whole numbers stay whole"
