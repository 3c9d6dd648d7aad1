"""The guide in examples/notebooks: every notebook runs, and shows what its stored form shows."""

import json
import os
import shutil
import subprocess

import pytest

from harness import ROOT
from notebooks import environment, interpreter

FOLDER = ROOT / "examples/notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, sys.argv[1])
"""


def kinds(notebook):
    """Returns the kinds of output of each cell. Bars depend on the speed of the machine, and so do notes."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = []
    for cell in cells:
        found = [sorted(output["data"]) for output in cell["outputs"] if "data" in output]
        shown.append([one for one in found if "application/vnd.jupyter.widget-view+json" not in one])
    return shown


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(600)
def test_notebook_shows_what_its_stored_form_shows(name, executable, tmp_path, components):
    path = tmp_path / "work" / f"{name}.ipynb"
    path.parent.mkdir()
    shutil.copy(FOLDER / path.name, path)
    ended = subprocess.run(
        [interpreter(), "-c", RUN, path],
        cwd=path.parent,
        env=environment(executable, tmp_path),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-8000:]
    stored = json.loads((FOLDER / path.name).read_text())
    shown, code = kinds(stored), [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert kinds(json.loads(path.read_text())) == shown
    assert any("image/png" in kind for cell in shown for kind in cell)
    assert all(cell["execution_count"] for cell in code)
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    assert os.path.isdir(tmp_path / "home/jobs") or name == "fleet_on_localstack"
