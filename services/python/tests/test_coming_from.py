"""The page "If you come from …": each task has the same result with the other library and with Gristmill."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import gristmill

PAGE = Path(__file__).parents[1] / "COMING_FROM.md"
BLOCK = re.compile(r"^```python(?: peer=(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PEERS = os.environ.get("GRISTMILL_PEERS")
END = """
import json
import sys
records = results if "results" in globals() else frame.sort_values("id").to_dict("records")
print("RESULT", json.dumps(records, sort_keys=True, default=str))
"""


def tasks():
    """Returns the block of each peer, and that of Gristmill after it."""
    blocks = BLOCK.findall(PAGE.read_text())
    return {peer: (theirs, ours) for (peer, theirs), (none, ours) in zip(blocks[::2], blocks[1::2], strict=True)}


@pytest.fixture
def folder(home, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "docs").mkdir()
    texts = ["one", "three", "seven of them", "ä", 'with "quotes", and commas']
    for part, rows in enumerate((texts[:2], texts[2:])):
        frame = pd.DataFrame({"id": [10 * part + row for row in range(len(rows))], "text": rows})
        frame.to_csv(tmp_path / "data" / f"{part}.csv", index=False)
    for number, text in enumerate(texts):
        (tmp_path / "docs" / f"{number}.txt").write_text(text)
    return tmp_path


def result_of(code, folder, python):
    package = str(Path(gristmill.__file__).parents[1])
    started = f"import sys\nsys.path.insert(0, {package!r})\n" if python == sys.executable else ""
    (folder / "task.py").write_text(f"{started}{code}\n{END}")
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [python, "task.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.parametrize("peer", tasks())
def test_task_has_the_same_result(folder, peer):
    theirs, ours = tasks()[peer]
    result = result_of(ours, folder, sys.executable)
    assert [row["letters"] for row in result] == [3, 5, 13, 1, 25]
    if peer != "pandas" and PEERS is None:
        pytest.skip("GRISTMILL_PEERS names no interpreter that has the other libraries")
    assert result == result_of(theirs, folder, sys.executable if peer == "pandas" else PEERS)
