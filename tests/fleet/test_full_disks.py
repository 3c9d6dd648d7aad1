"""A script that fills the disk of a node: jobs whose processes run go on, and lose only log lines."""

from __future__ import annotations

import subprocess

import pytest

from harness import wait_until

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


def job(workplace, name: str, count: int, script: str):
    workplace.data(count, name)
    return workplace.job(
        script,
        file=f"{name}.yaml",
        name=name,
        entry_script=f"{name}.py",
        inputs=[{"name": "data", "type": "file", "path": name}],
        output=f"output/{name}",
        speculation=False,
    )


def worker_on_a_small_disk(workplace, **environment: str) -> None:
    """Starts a worker whose home and temporary files are on a disk of 16 megabytes."""
    probe = "mkdir probe && mount -t tmpfs -o size=1m tmpfs probe"
    if subprocess.run(["unshare", "--mount", "sh", "-c", probe], cwd=workplace.folder, capture_output=True).returncode:
        pytest.skip("mounting needs privileges")
    small = workplace.folder / "small"
    mount = 'mkdir -p small && mount -t tmpfs -o size=16m tmpfs small && mkdir small/tmp && exec "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, str(workplace.executable)]
    homes = {"GRISTMILL_HOME": str(small / "home"), "TMPDIR": str(small / "tmp")}
    process = subprocess.Popen(
        [*command, "worker", "--target", "sqlite", "--process-count", "3"],
        cwd=workplace.folder,
        env={**workplace.environment, **homes, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    workplace.started.append(process)


def test_job_goes_on_while_the_script_of_another_fills_the_disk(workplace, sqlite):
    release = workplace.folder / "release"
    sqlite.reducer()
    worker_on_a_small_disk(workplace, RELEASE=str(release))
    neighbour = sqlite.enqueue(job(workplace, "neighbour", 4, GOES_ON))
    wait_until(lambda: workplace.recorded("neighbour began"), "the neighbour")
    filler = sqlite.enqueue(job(workplace, "filler", 1, FILLS))
    wait_until(lambda: workplace.recorded("full"), "a full disk")

    result = sqlite.wait_for_end(neighbour)
    assert sqlite.output(result).decode() == "".join(f"{number:03}.txt\n" for number in range(4))
    assert len(workplace.recorded("neighbour began")) == 4, "no mini-batch ran twice"

    release.touch()
    result = sqlite.wait_for_end(filler)
    assert sqlite.output(result).decode() == "filled\n"
    assert result["retrying"] == 0 and result["mini_batches"]["failed"] == 0, result
