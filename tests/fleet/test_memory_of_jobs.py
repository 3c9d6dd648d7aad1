"""A job that takes all memory of a node loses a process of its own, and the job beside it goes on."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GREEDY = """
    from recorder import record
    def run(files):
        record("greedy began")
        hoard = []
        while True:
            hoard.append(b"x" * (8 << 20))
"""

PATIENT = """
    import os
    from recorder import record, wait_for
    def run(files):
        record("patient began")
        wait_for(lambda: os.path.exists(os.environ["GREEDY_ENDED"]))
        return [os.path.basename(files[0])]
"""

MEMORY = Path("/sys/fs/cgroup/memory")


def needs_groups(workplace) -> None:
    """Skips the test where `doctor` says that a worker cannot limit memory."""
    report = json.loads(workplace.command("doctor", "--json").stdout)
    (message,) = [check["message"] for check in report["checks"] if check["check"] == "memory of jobs"]
    if not message.startswith("a worker started here limits it"):
        pytest.skip(message)


def own_group() -> Path:
    """Returns the group of this process in the memory hierarchy of version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return MEMORY / path.lstrip("/")
    pytest.skip("memory has no hierarchy of version 1 here")


@contextmanager
def small_machine(limit: int) -> Iterator[None]:
    """Processes that start meanwhile have this memory together."""
    outer = own_group()
    group = outer / f"test-{uuid.uuid4().hex[:12]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot create a control group: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (outer / "cgroup.procs").write_text(str(os.getpid()))
        for pid in (group / "cgroup.procs").read_text().split():
            (outer / "cgroup.procs").write_text(pid)
        group.rmdir()


def greedy_beside_patient(workplace, sqlite, **greedy: object) -> str:
    """Runs both jobs on one worker. Returns what the greedy one failed with."""
    greedy_ended = workplace.folder / "greedy_ended"
    workplace.data(3)
    worker = sqlite.worker("--process-count", 2, GREEDY_ENDED=str(greedy_ended))
    sqlite.reducer()
    patient = sqlite.enqueue(workplace.job(PATIENT, name="patient", speculation=False))
    worker.wait_for_record("patient began")
    job = workplace.job_of_its_own("greedy", 1, GREEDY, run_max_try=2, **greedy)
    result = sqlite.wait_for_end(sqlite.enqueue(job), "Failed")
    assert len(workplace.recorded("greedy began")) == 2, "each try was made"
    greedy_ended.touch()
    output = sqlite.output(sqlite.wait_for_end(patient))
    assert output.decode() == "000.txt\n001.txt\n002.txt\n"
    assert len(workplace.recorded("patient began")) == 3, "no process of it was killed"
    worker.send(signal.SIGTERM)
    assert worker.wait().exit_status == 0
    assert not list(Path("/sys/fs/cgroup").rglob(f"gristmill-jobs-{worker.process.pid}")), "its groups are removed"
    (failed,) = result["failed_mini_batches"]
    return failed["error"]


def test_job_above_its_max_memory_fails_alone_and_says_so(workplace, sqlite):
    needs_groups(workplace)
    error = greedy_beside_patient(workplace, sqlite, max_memory="300MB")
    assert "was killed (SIGKILL) in run(), by the kernel, because the processes of the job on this node" in error
    assert "more than its max_memory, 300 MB: raise max_memory" in error, error


def test_job_that_takes_all_memory_of_its_node_fails_alone(workplace, sqlite):
    needs_groups(workplace)
    with small_machine(1 << 30):
        error = greedy_beside_patient(workplace, sqlite)
    assert "by the kernel, because the jobs of this node together need more than the 972.8 MB" in error, error
