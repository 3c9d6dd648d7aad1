"""Fixtures of the whole-job tests."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from components import Components
from harness import Workplace
from targets import Target, lend

ROOT = Path(__file__).resolve().parent.parent


def find_executable() -> Path:
    """`GRISTMILL`, else what scripts/build makes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    target = Path(os.environ.get("CARGO_TARGET_DIR", cache / "gristmill" / "target"))
    executable = Path(os.environ.get("GRISTMILL", target / "debug" / "gristmill"))
    if not executable.exists():
        pytest.exit(f"There is no {executable}: run scripts/build first.", returncode=2)
    return executable


EXECUTABLE = find_executable()


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """A fresh folder to run jobs in."""
    workplace = Workplace(tmp_path, EXECUTABLE, Path(sys.executable))
    yield workplace
    workplace.kill_what_still_runs()


@pytest.fixture(scope="session")
def components() -> Components:
    """LocalStack, RabbitMQ and moto, which run already. The test fails if they do not."""
    return Components.from_environment()


@pytest.fixture
def sqlite(workplace: Workplace, components: Components) -> Iterator[Target]:
    """A target in a folder."""
    yield from lend("sqlite", workplace, components)


@pytest.fixture
def sqs(workplace: Workplace, components: Components) -> Iterator[Target]:
    """A target in LocalStack."""
    yield from lend("sqs", workplace, components)


@pytest.fixture
def rabbitmq(workplace: Workplace, components: Components) -> Iterator[Target]:
    """A target in RabbitMQ, with its store in LocalStack."""
    yield from lend("rabbitmq", workplace, components)


def crash_points() -> list[str]:
    """Every step of the write path, as the executable itself lists them."""
    listed = subprocess.run([EXECUTABLE, "crash-points"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "crash_point" in metafunc.fixturenames:
        metafunc.parametrize("crash_point", crash_points())


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a process of pytest-xdist the id of a test ends with its group, or the group does not hold."""
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            group = item.get_closest_marker("xdist_group")
            assert not group or item.nodeid.endswith(f"@{group.args[0]}"), f"{item.nodeid} runs outside its group"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests of faults did, and what came of it."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    told = [(report.nodeid.partition("::")[2], dict(report.user_properties).get("faults")) for report in reports]
    for test, faults in sorted(line for line in told if line[1]):
        terminalreporter.write_line(f"{test}: {faults}")
