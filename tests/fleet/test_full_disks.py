"""Full disks of a node: jobs whose processes run go on, and jobs that begin there wait for room. None loses a try."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness import Running, file_names, wait_until

FILLS = """
    import os
    from recorder import record, wait_for
    def run(files):
        with open("filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * (1 << 16))
            except OSError:
                record("full")
            wait_for(lambda: os.path.exists(os.environ["RELEASE"]))
        os.remove("filler")
        return ["filled"]
"""

GOES_ON = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        record("neighbour began")
        wait_for(lambda: recorded("full"))
        print("x" * 1_000_000)
        return [os.path.basename(files[0])]
"""


def worker_on_a_small_disk(workplace, sqlite) -> Running:
    """Starts a worker whose home and temporary files are on a disk of 16 megabytes. It logs into `worker.log`."""
    probe = "mkdir probe && mount -t tmpfs -o size=1m tmpfs probe"
    if subprocess.run(["unshare", "--mount", "sh", "-c", probe], cwd=workplace.folder, capture_output=True).returncode:
        pytest.skip("mounting needs privileges")
    small, script = workplace.folder / "small", workplace.folder / "on-small-disk"
    mount = 'mkdir -p small && mount -t tmpfs -o size=16m tmpfs small && mkdir small/tmp && exec "$0" "$@"'
    command = f"exec unshare --mount sh -c '{mount}' {workplace.executable}"
    script.write_text(f'#!/bin/sh\n{command} "$@" 2>worker.log\n')
    script.chmod(0o755)
    homes = {"GRISTMILL_HOME": str(small / "home"), "TMPDIR": str(small / "tmp")}
    with workplace.commands_by(script):
        return sqlite.worker("--process-count", 3, "--node", "here", **homes)


def test_job_that_begins_on_a_full_disk_waits_for_room_and_says_so(workplace, sqlite):
    sqlite.reducer()
    worker = worker_on_a_small_disk(workplace, sqlite)
    # The disk as the worker sees it.
    filler = Path(f"/proc/{worker.process.pid}/root{workplace.folder}/small/filler")
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(b"x" * (16 << 20))
    script = """
        from recorder import record
        def run(files):
            record("ran")
            return [open(file).read() for file in files]
    """
    # More than what the node can free of its own.
    workplace.write({"code/weights.bin": os.urandom(1 << 20)})
    running = sqlite.start("enqueue", workplace.job_of_its_own("starts", 3, script).file, "--wait")
    lines = map(bytes.decode, running.process.stderr)
    line = next(line for line in lines if "cannot prepare the job" in line)
    assert line.startswith("waiting: the only worker that fits cannot prepare the job"), line
    (job_id,) = (name.split("/")[1] for name in sqlite.objects("open"))
    log = (workplace.folder / "worker.log").read_text()
    assert "the job cannot start on this node: " in log and job_id in log and "is full: " in log, log
    assert "set GRISTMILL_HOME of the worker" in log, log
    hint = sqlite.status(job_id)["hint"]
    assert hint.startswith("the only worker that fits cannot prepare the job") and "is full" in hint, hint
    assert workplace.recorded("ran") == []

    filler.unlink()
    ended = running.wait()
    assert ended.exit_status == 0, str(ended)
    result = sqlite.status(job_id)["result"]
    assert sqlite.output(result).decode() == "000\n001\n002\n"
    assert len(workplace.recorded("ran")) == 3 and result["retrying"] == 0, result


def test_job_goes_on_while_the_script_of_another_fills_the_disk(workplace, sqlite):
    sqlite.reducer()
    worker_on_a_small_disk(workplace, sqlite)
    neighbour = sqlite.enqueue(workplace.job_of_its_own("neighbour", 4, GOES_ON))
    wait_until(lambda: workplace.recorded("neighbour began"), "the neighbour")
    filler = sqlite.enqueue(workplace.job_of_its_own("filler", 1, FILLS))
    wait_until(lambda: workplace.recorded("full"), "a full disk")

    assert sqlite.lines(neighbour) == file_names(4)
    assert len(workplace.recorded("neighbour began")) == 4, "no mini-batch ran twice"

    workplace.release("filler")
    result = sqlite.wait_for_end(filler)
    assert sqlite.output(result).decode() == "filled\n"
    assert result["retrying"] == 0 and result["mini_batches"]["failed"] == 0, result
