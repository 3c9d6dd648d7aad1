"""A job that takes all memory of a node loses a process of its own, and the job beside it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import Running, as_user

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

GROUPS = Path("/sys/fs/cgroup")
LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}


def memory_of_jobs(workplace, executable: Path) -> str:
    """Returns what `doctor` says about it."""
    told = subprocess.run([executable, "doctor", "--json"], env=workplace.environment, capture_output=True, check=False)
    report = json.loads(told.stdout)
    (message,) = [check["message"] for check in report["checks"] if check["check"] == "memory of jobs"]
    return message


def needs_groups(workplace) -> None:
    """Skips the test where a worker cannot limit memory."""
    message = memory_of_jobs(workplace, workplace.executable)
    if not message.startswith("a worker started here limits it"):
        pytest.skip(message)


def own_group() -> tuple[Path, int]:
    """Returns the group of this process that limits memory, and the version of its hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return GROUPS / "memory" / path.lstrip("/"), 1
        if not controllers:
            unified = GROUPS / path.lstrip("/")
    return unified, 2


@contextmanager
def small_machine(workplace, limit: int, *, delegated: bool = True, within: str = "", owner: int = 0) -> Iterator[Path]:
    """What it yields starts `gristmill` in a group with this memory, such as systemd makes for a unit."""
    outer, version = own_group()
    group = outer / f"test-{uuid.uuid4().hex[:12]}"
    try:
        if version == 2:
            (outer / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot create a control group: {error}")
    script = workplace.folder / "in-group"
    script.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {within} {workplace.executable} "$@"\n')
    script.chmod(0o755)
    try:
        (group / LIMITS[version]).write_text(str(limit))
        if owner:
            for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                os.chown(group / name, owner, -1)
        if delegated and version == 2:
            os.setxattr(group, "trusted.delegate", b"1")
        yield script
    finally:
        # The worker's own leaf stays (version 2).
        for folder in [*(inner for inner in group.iterdir() if inner.is_dir()), group]:
            folder.rmdir()


def worker_of(workplace, sqlite, executable: Path, **environment: str) -> Running:
    with workplace.commands_by(executable):
        return sqlite.worker("--process-count", 2, **environment)


def greedy_beside_patient(workplace, sqlite, executable: Path, **greedy: object) -> str:
    """Runs both jobs on one worker of this executable. Returns what the greedy one failed with."""
    greedy_ended = workplace.folder / "greedy_ended"
    workplace.data(3)
    worker = worker_of(workplace, sqlite, executable, GREEDY_ENDED=str(greedy_ended))
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
    worker.stop()
    assert not list(GROUPS.rglob(f"gristmill-jobs-{worker.process.pid}")), "its groups are removed"
    (failed,) = result["failed_mini_batches"]
    return failed["error"]


def test_job_above_its_max_memory_fails_alone_and_says_so(workplace, sqlite):
    needs_groups(workplace)
    error = greedy_beside_patient(workplace, sqlite, workplace.executable, max_memory="300MB")
    assert "was killed (SIGKILL) in run(), by the kernel, because the processes of the job on this node" in error
    assert "more than its max_memory, 300 MB: raise max_memory" in error, error


def test_job_that_takes_all_memory_of_its_node_fails_alone(workplace, sqlite):
    needs_groups(workplace)
    with small_machine(workplace, 1 << 30) as executable:
        error = greedy_beside_patient(workplace, sqlite, executable)
    assert "by the kernel, because the jobs of this node together need more than the 972.8 MB" in error, error


def needs_version_2() -> None:
    if own_group()[1] != 2:
        pytest.skip("the memory of this machine has control groups of version 1")


def container_fails_alone(workplace, sqlite, become: str, owner: int) -> None:
    needs_version_2()
    mount = f'umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec {become} "$0" "$@"'
    container = f"unshare --cgroup --mount sh -c '{mount}'"
    with small_machine(workplace, 1 << 30, delegated=False, within=container, owner=owner) as executable:
        message = memory_of_jobs(workplace, executable)
        assert message == "a worker started here limits it (cgroup v2, in /sys/fs/cgroup/)", message
        error = greedy_beside_patient(workplace, sqlite, executable)
    assert "by the kernel, because the jobs of this node together need more than the 972.8 MB" in error, error


def test_job_in_a_container_fails_alone(workplace, sqlite):
    """The container sees its own group as the root of all groups."""
    container_fails_alone(workplace, sqlite, "", 0)


@contextmanager
def belonging_to(user: int, folder: Path) -> Iterator[None]:
    """What the reducer creates, which runs as root, belongs to the user, too."""
    ended = threading.Event()

    def give() -> None:
        is_over = False
        while not is_over:
            subprocess.run(["chown", "-R", str(user), folder], check=False, capture_output=True)
            is_over = ended.wait(0.2)

    giving = threading.Thread(target=give)
    giving.start()
    try:
        yield
    finally:
        ended.set()
        giving.join()


def test_job_in_a_container_without_root_fails_alone(workplace, sqlite):
    """As in a pod whose control groups are writable: runc gives the group, and what the kernel delegates of it, to the
    user of the container."""
    user = 10001
    before = os.umask(0)
    try:
        with belonging_to(user, workplace.folder):
            container_fails_alone(workplace, sqlite, as_user(user), user)
    finally:
        os.umask(before)


def test_group_that_systemd_does_not_delegate_is_left_alone(workplace, sqlite):
    needs_version_2()
    with small_machine(workplace, 1 << 30, delegated=False) as executable:
        message = memory_of_jobs(workplace, executable)
        assert message.endswith("; set Delegate=yes in the unit of the worker"), message
        worker = worker_of(workplace, sqlite, executable)
        (own,) = (line[4:] for line in Path(f"/proc/{worker.process.pid}/cgroup").read_text().splitlines())
        assert own.startswith("test-") and not list((GROUPS / own).glob("*/")), "it creates no groups there"
        worker.stop()
