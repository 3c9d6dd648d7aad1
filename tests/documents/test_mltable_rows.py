"""A job reads a file `MLTable` as `mltable.load` in a script reads it."""

import json
import subprocess
import sys

import pytest

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
SCRIPT = "from rows import rows as run"
LOADED = """
    import sys
    from gristmill import mltable
    from rows import rows
    table = mltable.from_delimited_files([{"pattern": "sales/*.csv"}], header=sys.argv[1])
    for step in sys.argv[2:]:
        name, count = step.split(":")
        table = getattr(table, name)(int(count))
    print("\\n".join(rows(table.to_pandas_dataframe())))
"""


@pytest.mark.parametrize("size", ["1MB", "2 rows"])
@pytest.mark.parametrize("steps", [[], ["skip:1"], ["take:6", "skip:2"]], ids=str)
@pytest.mark.parametrize(
    "header", ["no_header", "from_first_file", "all_files_different_headers", "all_files_same_headers"]
)
def test_rows_are_those_of_mltable(workplace, executable, header, steps, size):
    limits = ({name: int(count)} for name, count in (step.split(":") for step in steps))
    transformations = [{"read_delimited": {"header": header}}, *limits]
    table = {"paths": [{"pattern": "./*.csv"}], "transformations": transformations}
    workplace.write({f"sales/{name}": text for name, text in FILES.items()})
    workplace.write({"sales/MLTable": json.dumps(table), "code/rows.py": ROWS, "load.py": LOADED})
    inputs = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]
    ended = workplace.job(SCRIPT, inputs=inputs, mini_batch_size=size).run()
    path = f"{executable.parent / 'python'}:{workplace.folder / 'code'}"
    loaded = subprocess.run(
        [sys.executable, "load.py", header, *steps],
        cwd=workplace.folder,
        env={**workplace.environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert [json.loads(row) for row in ended.lines] == [json.loads(row) for row in loaded.stdout.splitlines()]


ALL = """
    import sys
    from gristmill import mltable
    from rows import rows
    print("\\n".join(rows(mltable.load("sales").to_pandas_dataframe())))
"""
WRITE = """
    import pandas
    for name, n in (("a/1", 1), ("b/2", 2)):
        frame = pandas.DataFrame({"n": [n, n + 0.5], "t": ["x", "y"]})
        frame.to_csv(f"sales/{name}.csv", index=False)
        frame.to_json(f"sales/{name}.jsonl", orient="records", lines=True)
        frame.to_parquet(f"sales/{name}.parquet")
"""


@pytest.mark.parametrize("steps", [[], [{"drop_columns": ["Path", "t"]}], [{"skip": 1}, {"take": 2}]], ids=str)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_column_of_paths_is_that_of_mltable(workplace, executable, ending, steps):
    """The first column, with the whole path of the file of each row."""
    reader = {"csv": "read_delimited", "jsonl": "read_json_lines", "parquet": "read_parquet"}[ending]
    partition = {"extract_columns_from_partition_format": {"partition_format": "{shop}/{file}." + ending}}
    transformations = [{reader: {"include_path_column": True}}, partition, *steps]
    table = {"paths": [{"pattern": f"./*/*.{ending}"}], "transformations": transformations}
    for folder in "ab":
        (workplace.folder / "sales" / folder).mkdir(parents=True)
    workplace.write({"sales/MLTable": json.dumps(table), "code/rows.py": ROWS, "load.py": ALL, "write.py": WRITE})
    subprocess.run([sys.executable, "write.py"], cwd=workplace.folder, check=True)
    inputs = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]
    ended = workplace.job(SCRIPT, inputs=inputs).run()
    path = f"{executable.parent / 'python'}:{workplace.folder / 'code'}"
    environment = {**workplace.environment, "PYTHONPATH": path}
    loaded = subprocess.run(
        [sys.executable, "load.py"], cwd=workplace.folder, env=environment, capture_output=True, text=True
    )
    assert loaded.returncode == 0, loaded.stderr
    expected = [json.loads(row) for row in loaded.stdout.splitlines()]
    assert [json.loads(row) for row in ended.lines] == expected
    assert len(expected) == (2 if {"take": 2} in steps else 4)
    names = list(expected[0])
    assert (names[0] == "Path") == (not any("drop_columns" in step for step in steps)), names
    if names[0] == "Path":
        assert expected[0]["Path"] == str(workplace.folder / f"sales/a/1.{ending}")


def test_files_with_a_column_of_the_same_name_are_refused(workplace):
    table = {"paths": [{"file": "a.csv"}], "transformations": [{"read_delimited": {"include_path_column": True}}]}
    workplace.write({"sales/a.csv": "Path,n\nx,1\n", "sales/MLTable": json.dumps(table)})
    inputs = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]
    ended = workplace.job("def run(frame): return list(frame.n)", inputs=inputs).run(expect=FAILED)
    assert "the files have a column 'Path', and so has the column of their paths" in str(ended)


@pytest.mark.parametrize("name", ["keep_columns", "drop_columns"])
def test_unknown_column_is_an_error_of_a_step_and_a_warning_of_a_script(workplace, executable, name):
    table = {"paths": [{"file": "a.csv"}], "transformations": ["read_delimited", {name: ["store", "prise"]}]}
    workplace.write({"sales/a.csv": "store,price,n\n1,2,3\n", "sales/MLTable": json.dumps(table)})
    workplace.write({"code/rows.py": ROWS, "load.py": ALL})
    inputs = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]
    ended = workplace.job("def run(frame): return list(frame.n)", inputs=inputs).run(expect=INVALID)
    assert 'found "prise"; allowed: store, price, n' in str(ended)
    path = f"{executable.parent / 'python'}:{workplace.folder / 'code'}"
    environment = {**workplace.environment, "PYTHONPATH": path}
    loaded = subprocess.run(
        [sys.executable, "load.py"], cwd=workplace.folder, env=environment, capture_output=True, text=True
    )
    assert loaded.returncode == 0
    assert f"{name}: the table has no column prise; did you mean price?" in loaded.stderr
