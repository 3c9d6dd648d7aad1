"""A job reads a file `MLTable` as `mltable.load` in a script reads it."""

import json
import textwrap

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


def write(workplace, path, *transformations):
    """Writes the folder of a table, and the script of a job that returns its rows."""
    table = {"paths": [path], "transformations": transformations}
    workplace.write({"sales/MLTable": json.dumps(table), "code/rows.py": ROWS})


@pytest.fixture
def loaded(workplace, executable, monkeypatch):
    """Returns the rows that `mltable` reads."""
    monkeypatch.syspath_prepend(executable.parent / "python")
    monkeypatch.chdir(workplace.folder)
    made = {}
    exec(textwrap.dedent(ROWS), made)

    def loaded():
        from gristmill import mltable

        return [json.loads(row) for row in made["rows"](mltable.load("sales").to_pandas_dataframe())]

    return loaded


def read(workplace, **settings):
    """Returns the rows that a job reads."""
    ended = workplace.job("from rows import rows as run", inputs=INPUTS, **settings).run()
    return [json.loads(row) for row in ended.lines]


@pytest.mark.parametrize("steps", [[], [{"skip": 1}], [{"take": 6}, {"skip": 2}]], ids=str)
@pytest.mark.parametrize(
    "header", ["no_header", "from_first_file", "all_files_different_headers", "all_files_same_headers"]
)
def test_rows_are_those_of_mltable(workplace, loaded, header, steps):
    workplace.write({f"sales/{name}": text for name, text in FILES.items()})
    write(workplace, {"pattern": "./*.csv"}, {"read_delimited": {"header": header}}, *steps)
    expected = loaded()
    for size in ("1MB", "2 rows"):
        assert read(workplace, mini_batch_size=size) == expected, size


def test_settings_of_a_reader_are_those_of_mltable(workplace, loaded):
    workplace.write({"sales/a.csv": '1;"two\nlines";\n02;caf\xe9;x\n'.encode("latin-1")})
    settings = {"delimiter": ";", "encoding": "latin1", "header": "no_header", "infer_column_types": False}
    reader = {"read_delimited": {**settings, "support_multi_line": True, "empty_as_string": True}}
    write(workplace, {"file": "a.csv"}, reader)
    names = ["Column1", "Column2", "Column3"]
    expected = [dict(zip(names, row, strict=True)) for row in (("1", "two\nlines", ""), ("02", "café", "x"))]
    assert read(workplace, mini_batch_size="1MB") == loaded() == expected


@pytest.mark.parametrize("steps", [[], [{"drop_columns": ["Path", "t"]}], [{"skip": 1}, {"take": 2}]], ids=str)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_column_of_paths_is_that_of_mltable(workplace, loaded, ending, steps):
    """The first column, with the whole path of the file of each row."""
    reader = {"csv": "read_delimited", "jsonl": "read_json_lines", "parquet": "read_parquet"}[ending]
    partition = {"extract_columns_from_partition_format": {"partition_format": "{shop}/{file}." + ending}}
    for name, number in (("a/1", 1), ("b/2", 2)):
        path = workplace.folder / f"sales/{name}.{ending}"
        path.parent.mkdir(parents=True)
        frame = pandas.DataFrame({"n": [number, number + 0.5], "t": ["x", "y"]})
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path)
    write(workplace, {"pattern": f"./*/*.{ending}"}, {reader: {"include_path_column": True}}, partition, *steps)
    expected = loaded()
    assert read(workplace) == expected
    assert len(expected) == (2 if {"take": 2} in steps else 4)
    names = list(expected[0])
    assert (names[0] == "Path") == (not any("drop_columns" in step for step in steps)), names
    if names[0] == "Path":
        assert expected[0]["Path"] == str(workplace.folder / f"sales/a/1.{ending}")


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
