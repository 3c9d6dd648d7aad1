"""A job reads a file `MLTable` as `mltable.load` in a script reads it."""

import json
import textwrap
from itertools import product

import pandas
import pytest

from azure_documents import COMPONENT, run
from harness import FAILED, INVALID

FILES = {
    "1.csv": "a,b,c\n1,x,0\n2,,1\n",
    "2.csv": "a,d,c\n3,q,1\n",
    "3.csv": "",
    "4.csv": "c,a\n5,6\n7,8\n9,10\n",
}
ROWS = """
    import json, numbers

    def plain(value):
        if value is None or value != value:
            return None
        return format(float(value), "g") if isinstance(value, numbers.Number) else str(value)

    def rows(frame):
        return [json.dumps({name: plain(value) for name, value in zip(frame.columns, row)})
                for row in frame.astype(object).itertuples(index=False)]
"""
INPUTS = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]


STEPS = [[], [{"skip": 1}], [{"take": 6}, {"skip": 2}]]
HEADERS = ["no_header", "from_first_file", "all_files_different_headers", "all_files_same_headers"]


def write(workplace, path, *transformations, folder="sales"):
    """Writes the folder of a table, and the script of a job that returns its rows. Returns the input of this folder."""
    table = {"paths": [path], "transformations": transformations}
    workplace.write({f"{folder}/MLTable": json.dumps(table), "code/rows.py": ROWS})
    return {**INPUTS[0], "name": folder, "path": folder}


@pytest.fixture
def loaded(workplace, executable, monkeypatch):
    """Returns the rows that `mltable` reads."""
    monkeypatch.syspath_prepend(executable.parent / "python")
    monkeypatch.chdir(workplace.folder)
    made = {}
    exec(textwrap.dedent(ROWS), made)

    def loaded(folder="sales"):
        from gristmill import mltable

        return [json.loads(row) for row in made["rows"](mltable.load(folder).to_pandas_dataframe())]

    return loaded


def read(workplace, inputs=INPUTS, **settings):
    """Returns the rows that a job reads."""
    ended = workplace.job("from rows import rows as run", inputs=inputs, **settings).run()
    return [json.loads(row) for row in ended.lines]


def check_each(found, expected):
    """Compares the rows of a job with those of each of its inputs, in their order."""
    for case, rows in expected.items():
        assert found[: len(rows)] == rows, case
        found = found[len(rows) :]
    assert found == []


def test_rows_are_those_of_mltable(workplace, loaded):
    inputs, expected = [], {}
    for header, steps in product(HEADERS, STEPS):
        folder = f"sales{len(inputs)}"
        workplace.write({f"{folder}/{name}": text for name, text in FILES.items()})
        reader = {"read_delimited": {"header": header}}
        inputs.append(write(workplace, {"pattern": "./*.csv"}, reader, *steps, folder=folder))
        expected[f"{header}, {steps}"] = loaded(folder)
    for size in ("1MB", "2 rows"):
        check_each(read(workplace, inputs, mini_batch_size=size), expected)


def test_settings_of_a_reader_are_those_of_mltable(workplace, loaded):
    workplace.write({"sales/a.csv": '1;"two\nlines";\n02;caf\xe9;x\n'.encode("latin-1")})
    settings = {"delimiter": ";", "encoding": "latin1", "header": "no_header", "infer_column_types": False}
    reader = {"read_delimited": {**settings, "support_multi_line": True, "empty_as_string": True}}
    write(workplace, {"file": "a.csv"}, reader)
    names = ["Column1", "Column2", "Column3"]
    expected = [dict(zip(names, row, strict=True)) for row in (("1", "two\nlines", ""), ("02", "café", "x"))]
    assert read(workplace, mini_batch_size="1MB") == loaded() == expected


def test_column_of_paths_is_that_of_mltable(workplace, loaded):
    """The first column, with the whole path of the file of each row."""
    readers = {"csv": "read_delimited", "jsonl": "read_json_lines", "parquet": "read_parquet"}
    inputs, expected = [], {}
    for ending, steps in product(readers, [[], [{"drop_columns": ["Path", "t"]}], [{"skip": 1}, {"take": 2}]]):
        reader = {readers[ending]: {"include_path_column": True}}
        partition = {"extract_columns_from_partition_format": {"partition_format": "{shop}/{file}." + ending}}
        sales = f"sales{len(inputs)}"
        for name, number in (("a/1", 1), ("b/2", 2)):
            path = workplace.folder / f"{sales}/{name}.{ending}"
            path.parent.mkdir(parents=True)
            frame = pandas.DataFrame({"n": [number, number + 0.5], "t": ["x", "y"]})
            if ending == "csv":
                frame.to_csv(path, index=False)
            elif ending == "jsonl":
                frame.to_json(path, orient="records", lines=True)
            else:
                frame.to_parquet(path)
        inputs.append(write(workplace, {"pattern": f"./*/*.{ending}"}, reader, partition, *steps, folder=sales))
        expected[f"{ending}, {steps}"] = rows = loaded(sales)
        assert len(rows) == (2 if {"take": 2} in steps else 4)
        names = list(rows[0])
        assert (names[0] == "Path") == (not any("drop_columns" in step for step in steps)), names
        if names[0] == "Path":
            assert rows[0]["Path"] == str(workplace.folder / f"{sales}/a/1.{ending}")
    check_each(read(workplace, inputs), expected)


def test_files_with_a_column_of_the_same_name_are_refused(workplace):
    workplace.write({"sales/a.csv": "Path,n\nx,1\n"})
    write(workplace, {"file": "a.csv"}, {"read_delimited": {"include_path_column": True}})
    ended = workplace.job("def run(frame): return list(frame.n)", inputs=INPUTS).run(expect=FAILED)
    assert "the files have a column 'Path', which is also the name of the column of their paths" in str(ended)


@pytest.mark.parametrize("name", ["keep_columns", "drop_columns"])
def test_unknown_column_is_an_error_of_a_step_and_a_warning_of_a_script(workplace, loaded, name):
    workplace.write({"sales/a.csv": "store,price,n\n1,2,3\n"})
    write(workplace, {"file": "a.csv"}, "read_delimited", {name: ["store", "prise"]})
    ended = workplace.job("def run(frame): return list(frame.n)", inputs=INPUTS).run(expect=INVALID)
    assert 'found "prise"; allowed: store, price, n' in str(ended)
    with pytest.warns(UserWarning, match=f"{name}: the table has no column prise; did you mean price?"):
        loaded()


def test_pipeline_shows_each_note_once(workplace):
    """It is checked as a whole, and each step again before it runs."""
    workplace.write(
        {
            "data/a.csv": "a,b\n1,2\n",
            "data/b.csv": "c,d\n3,4\n",
            "data/MLTable": "paths: [{pattern: ./*.csv}]\ntransformations: [read_delimited: {delimiter: ','}]\n",
            "code/rate.py": "def run(frame):\n    return frame\n",
        }
    )
    step = {**COMPONENT, "inputs": {"data": {"type": "mltable", "path": "data"}}}
    document = {"type": "pipeline", "jobs": {"first": step, "second": step}}
    workplace.write({"pipeline.yml": json.dumps(document)})
    said = run(workplace, "pipeline.yml").stderr
    assert said.count("b.csv begins with another line than") == 1, said
