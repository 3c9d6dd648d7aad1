"""Fixtures of the whole-job tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from components import Components
from harness import Workplace
from portal_client import Portal
from targets import Target, lend

pytest_plugins = ["page_fixtures"]


def find_executable() -> Path:
    """Returns `GRISTMILL`, else the executable of scripts/build."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    target = Path(os.environ.get("CARGO_TARGET_DIR", cache / "gristmill" / "target"))
    executable = Path(os.environ.get("GRISTMILL", target / "debug" / "gristmill"))
    if not executable.exists():
        pytest.exit(f"There is no {executable}: run scripts/build first.", returncode=2)
    return executable


EXECUTABLE = find_executable()
# Commands inherit these settings, and do not handle signals that are ignored, as SIGHUP is after `nohup` and SIGINT in
# the background of a shell.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def executable() -> Path:
    return EXECUTABLE


@pytest.fixture
def workplace(tmp_path: Path, executable: Path) -> Iterator[Workplace]:
    """A fresh folder to run jobs in."""
    with Workplace(tmp_path, executable, Path(sys.executable)) as workplace:
        yield workplace


@pytest.fixture(scope="module")
def shared_workplace(tmp_path_factory: pytest.TempPathFactory, executable: Path) -> Iterator[Workplace]:
    """A folder with jobs that several tests of a module look at."""
    with Workplace(tmp_path_factory.mktemp("shared"), executable, Path(sys.executable)) as workplace:
        yield workplace


@pytest.fixture(scope="session")
def components() -> Components:
    """LocalStack, RabbitMQ and moto. The test fails if they do not run."""
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


@pytest.fixture
def portal(workplace: Workplace) -> Portal:
    """A portal of the jobs of this machine."""
    return Portal(workplace)


def crash_points() -> list[str]:
    """Every step of the write path, as listed by the executable."""
    listed = subprocess.run([EXECUTABLE, "crash-points"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "crash_point" in metafunc.fixturenames:
        metafunc.parametrize("crash_point", [point for point in crash_points() if "Round" not in point])
    if "crash_point_of_a_round" in metafunc.fixturenames:
        metafunc.parametrize("crash_point_of_a_round", crash_points())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the tests with brokers, which mostly wait, evenly among the others, which occupy a core."""
    waiting = [item for item in items if "tests/fleet/" in item.path.as_posix()]
    busy = [item for item in items if "tests/fleet/" not in item.path.as_posix()]
    places = [(place / len(some), item) for some in (waiting, busy) for place, item in enumerate(some)]
    items[:] = [item for _, item in sorted(places, key=lambda each: each[0])]


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a pytest-xdist process the id of a test must end with its group, or the group has no effect."""
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            group = item.get_closest_marker("xdist_group")
            assert not group or item.nodeid.endswith(f"@{group.args[0]}"), f"{item.nodeid} runs outside its group"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the actions of the fault tests and their results."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    told = [(report.nodeid.partition("::")[2], dict(report.user_properties).get("faults")) for report in reports]
    for test, faults in sorted(line for line in told if line[1]):
        terminalreporter.write_line(f"{test}: {faults}")
