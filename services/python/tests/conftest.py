"""Makes the worker package importable and starts worker processes for tests."""

import os
import subprocess
import sys
import textwrap

import pytest
from agent import PACKAGE, Agent

sys.path.insert(0, str(PACKAGE))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A separate home folder for the jobs of a test, which runs in the parent of that folder."""
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def start(tmp_path):
    """Starts a worker process with a script; `start(script, ...)` waits until it is ready, unless `ready=False`."""
    agents = []

    def start(script, *, ready=True, **options):
        folder = tmp_path / f"agent{len(agents)}"
        agent = Agent(folder, textwrap.dedent(script), **options)
        agents.append(agent)
        if ready:
            agent.ready()
        return agent

    yield start
    for agent in agents:
        agent.close()


@pytest.fixture
def script(tmp_path):
    """Runs a script with the stand-in for ``azureml``; returns what it printed, or the last line of its error.

    `files` are written beside it before.
    """

    def run(text, fails=False, files=None, **environment):
        for name, content in {"entry.py": text, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(textwrap.dedent(content))
        code = "from gristmill.script import *; extend_search_path('.', 'entry.py'); import_script('entry', 'entry.py')"
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE), "GRISTMILL_HOME": str(tmp_path / "home"), **environment},
        )  # fmt: skip
        assert (ended.returncode != 0) == fails, ended.stderr
        return ended.stderr.strip().splitlines()[-1] if fails else ended.stdout

    return run
