"""The guide in examples/notebooks: every notebook runs, and shows what its stored form shows."""

import json
import os
import shutil
import subprocess

import pytest

from harness import ROOT
from notebooks import environment, interpreter

FOLDER = ROOT / "examples/notebooks"
NAMES = ["images_to_labels", "table_scored_and_plotted", "fleet_on_localstack"]
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


def test_every_notebook_is_known():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(600)
def test_notebook_runs(name, executable, tmp_path, components):
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
    assert kinds(json.loads(path.read_text())) == kinds(stored)
    assert os.path.isdir(tmp_path / "home/jobs") or name == "fleet_on_localstack"


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebook_has_plots_and_no_failure(name):
    stored = json.loads((FOLDER / f"{name}.ipynb").read_text())
    shown = kinds(stored)
    assert sum("image/png" in kind for cell in shown for kind in cell) >= 1
    assert not [
        output for cell in stored["cells"] for output in cell.get("outputs", []) if output["output_type"] == "error"
    ]
    assert all(cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code")
