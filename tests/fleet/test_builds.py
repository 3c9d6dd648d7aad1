"""Two builds in one target: each names itself, commands show who runs which, and a roll-out loses nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from harness import HOLDS, Workplace, file_names, go, wait_until
from scrape import Role
from targets import Target

FILES = 40


def named(executable: Path) -> str:
    """Returns the build that an executable says it is."""
    told = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    return told.removeprefix("gristmill ").strip()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, executable: Path) -> Path:
    """A build of another commit: the same executable, with other digits in its name."""
    build = named(executable)
    found = re.fullmatch(r"[0-9.]+ \(([0-9a-f]{12})\)", build)
    if found is None:
        pytest.skip(f"{build} names no commit: it was not built in a clone")
    folder = tmp_path_factory.mktemp("build")
    content = executable.read_bytes()
    assert content.count(build.encode()) > 0, build
    copy = folder / "gristmill"
    copy.write_bytes(content.replace(build.encode(), build.replace(found[1], "f" * 12).encode()))
    copy.chmod(0o755)
    (folder / "python").symlink_to(executable.parent / "python")
    assert named(copy) == build.replace(found[1], "f" * 12)
    return copy


def check_of_builds(target: Target) -> dict[str, str]:
    checks = json.loads(target.command("doctor", "--json").stdout)["checks"]
    return next(check for check in checks if check["check"] == "builds")


def test_every_view_shows_a_fleet_of_two_builds_and_a_roll_out_loses_nothing(
    workplace: Workplace, sqlite: Target, other: Path
) -> None:
    own, theirs = named(workplace.executable), named(other)
    workplace.data(FILES)
    job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600, speculation=False))
    # The last mini-batch is held.
    workplace.environment["HOLD"] = file_names(FILES)[-1]
    old = Role(sqlite, "reducer"), Role(sqlite, "worker", "--process-count", 2)
    assert all(role.scrape().value("gristmill_build_info", build=own) == 1 for role in old)
    old[1].running.wait_for_record("run")
    assert check_of_builds(sqlite)["state"] == "ok", check_of_builds(sqlite)
    assert sqlite.status(job_id)["builds"] == [own]

    with workplace.commands_by(other):
        new = Role(sqlite, "reducer"), Role(sqlite, "worker", "--process-count", 2)
    assert all(role.scrape().value("gristmill_build_info", build=theirs) == 1 for role in new)
    wait_until(lambda: sqlite.status(job_id)["builds"] == sorted([own, theirs]), "a schedule with both builds", 30)
    told = sqlite.command("status", job_id).stdout
    assert f"note: several builds are at work: {', '.join(sorted([own, theirs]))}; `gristmill doctor --target" in told
    check = check_of_builds(sqlite)
    assert check["state"] == "warning", check
    # Either reducer may have made the last schedule, and its build says so.
    said = dict(part.split(": ", 1) for part in check["message"].split("; ") if ": " in part)
    assert "1 worker (" in said[theirs] and said[own].startswith("this command"), check

    # As in a roll-out: the old ones end in order, while the held mini-batch is returned or ends.
    for role in old:
        role.running.process.send_signal(signal.SIGTERM)
    go(workplace)
    assert sqlite.lines(job_id) == file_names(FILES)
    for role in old:
        assert role.running.wait().exit_status == 0
    wait_until(lambda: theirs in check_of_builds(sqlite)["message"], "the remaining build", 30)


def test_job_of_another_format_is_left_to_builds_that_can_read_it(workplace: Workplace, sqlite: Target) -> None:
    workplace.data(4)
    job = workplace.job("def run(files): return files")
    job_id = sqlite.enqueue(job)
    spec = sqlite.folder / "store" / "jobs" / job_id / "spec.json"
    written = spec.read_text()
    spec.write_text(written.replace('"format": 1', '"format": 2'))
    refused = sqlite.command("status", job_id)
    assert refused.exit_status == 1 and "has format 2, and this build reads format 1" in refused.stderr, str(refused)
    reducer, worker = sqlite.reducer(), sqlite.worker("--process-count", 1)
    assert len(sqlite.lines(sqlite.enqueue(job))) == 4, "the jobs that they can read go on"
    assert not (spec.parent / "result.json").exists()
    spec.write_text(written)
    assert len(sqlite.lines(job_id)) == 4
    assert reducer.process.poll() is None and worker.process.poll() is None
