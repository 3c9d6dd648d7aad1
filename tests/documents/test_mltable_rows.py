"""A job reads a file `MLTable` as `mltable.load` in a script reads it."""

import json
import subprocess
import sys

import pytest

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
