"""Jobs of two teams on one worker: scripts that try to reach the other job, and the secrets of the worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import RECORDER, Workplace, write_wheel

FOLDERS = {"snapshots": "theirs.py", "environments": "tiny_package.py", "side-inputs": "labels.txt"}
"""What the job of the other team has in each cache: the file that the hostile script looks for."""

THEIRS = """
    import os, tiny_package
    def run(files):
        with open(os.path.join(os.environ["FOLDER"], "labels.txt")) as file:
            return [f"mine {tiny_package.VALUE} {file.read()}"]
"""

CHANGES = """
    import os
    from pathlib import Path
    from recorder import record
    def run(files):
        for path in Path(os.environ["FLEET"]).joinpath(os.environ["KIND"]).rglob(os.environ["FILE"]):
            try:
                for folder in [path, *path.parents[:3]]:
                    folder.chmod(0o777)
                with path.open("a") as file:
                    file.write("VALUE = 'changed'\\ndef run(files): return ['changed']\\n")
                record("changed", path=str(path))
            except OSError as error:
                record("refused", path=str(path), error=str(error))
        return []
"""


def job(workplace: Workplace, name: str, script: str, **settings):
    """Returns a job whose code has a folder of its own."""
    workplace.write({f"{name}-code/{name}.py": script, f"{name}-code/recorder.py": RECORDER})
    return workplace.job_of_its_own(name, 1, script, source_directory=f"{name}-code", **settings)


def theirs(workplace: Workplace):
    package = write_wheel(workplace.folder, "tiny_package", "VALUE = 'good'")
    workplace.write({"requirements.txt": f"{package}\n", "reference/labels.txt": "labels"})
    url = f"file://{workplace.folder}/reference"
    settings = {"environment": "requirements.txt", "side_inputs": {"reference": url}}
    return job(workplace, "theirs", THEIRS, environment_variables={"FOLDER": url}, **settings)


def changes(workplace: Workplace, kind: str):
    variables = {"FLEET": str(workplace.home / "fleet"), "KIND": kind, "FILE": FOLDERS[kind]}
    settings = {"append_row_file_name": None, "output_action": "summary_only"}
    return job(workplace, "hostile", CHANGES, environment_variables=variables, **settings)


@pytest.mark.parametrize("kind", FOLDERS)
def test_script_cannot_change_what_other_jobs_run(workplace, sqlite, kind):
    """Here it has the user of the worker, so it can write. The next job gets what it sent, with the same worker and with
    another."""
    other, expected = theirs(workplace), ["mine good labels"]
    sqlite.reducer()
    worker = sqlite.worker(GRISTMILL_JOB_USERS="none")
    assert sqlite.lines(sqlite.enqueue(other)) == expected
    for restarts in (False, True):
        sqlite.wait_for_end(sqlite.enqueue(changes(workplace, kind)))
        assert len(workplace.recorded("changed")) == 1 + restarts, workplace.recorded("refused")
        if restarts:
            worker.send(signal.SIGTERM)
            assert worker.wait().exit_status == 0
            worker = sqlite.worker(GRISTMILL_JOB_USERS="none")
        assert sqlite.lines(sqlite.enqueue(other)) == expected
    worker.send(signal.SIGTERM)
    told = [line for line in worker.wait().stderr.splitlines() if "has changed since it was made" in line]
    assert len(told) == 1 and f"/{kind}/" in told[0], told


SPIES = """
    import os
    from recorder import record
    def read(path):
        try:
            with open(path, "rb") as file:
                return file.read(1 << 20).decode(errors="replace")
        except OSError as error:
            return f"refused: {error}"
    def run(files):
        worker = f"/proc/{os.getppid()}"
        record("spied", environ=dict(os.environ), of_worker={name: read(f"{worker}/{name}") for name in ("environ", "mem")})
        try:
            record("descriptors", names=os.listdir(f"{worker}/fd"))
        except OSError as error:
            record("descriptors", refused=str(error))
        return []
"""


@contextmanager
def without_root(workplace: Workplace, user: int = 10001) -> Iterator[None]:
    """Commands run as another user, unless the tests do. It reads the files of these tests wherever they are; it writes only
    what belongs to it, or what belongs to all."""
    if os.geteuid() != 0:
        yield
        return
    subprocess.run(["chown", "-R", str(user), workplace.folder], check=True)
    reads = "-all,+dac_read_search"
    become = f"setpriv --reuid {user} --regid {user} --clear-groups --inh-caps {reads} --ambient-caps {reads}"
    script = workplace.folder / "without-root"
    script.write_text(f'#!/bin/sh\numask 0\nexec {become} {workplace.executable} "$@"\n')
    script.chmod(0o755)
    usual, workplace.executable = workplace.executable, script
    try:
        yield
    finally:
        workplace.executable = usual


def test_script_finds_no_secret_of_its_worker(workplace, sqlite):
    """Neither in its environment, nor in the memory and the environment of the worker, which has the same user."""
    word = "secret-of-the-worker"
    secrets = {
        "GRISTMILL_STORE": sqlite.settings["store"],
        "BROKER_PASSWORD": word,
        "AWS_SECRET_ACCESS_KEY": word,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": word,
        "ANYTHING": word,
        "TEAM_KEY": "for scripts",
        "GRISTMILL_PASS_ENVIRONMENT": "RECORD,TEAM_*",
    }
    settings = {"append_row_file_name": None, "output_action": "summary_only"}
    spy = job(workplace, "spy", SPIES, environment_variables={"MODE": "spy"}, **settings)
    before = os.umask(0)
    try:
        job_id = sqlite.enqueue(spy)
    finally:
        os.umask(before)
    sqlite.reducer(**secrets)
    with without_root(workplace):
        sqlite.worker("--pass-environment", "CHOSEN", CHOSEN="by a flag", **secrets)
    sqlite.wait_for_end(job_id)
    (spied,), (descriptors,) = workplace.recorded("spied"), workplace.recorded("descriptors")
    environ = spied["environ"]
    assert word not in json.dumps(spied)
    assert "AWS_ACCESS_KEY_ID" not in environ and "GRISTMILL_STORE" not in environ, sorted(environ)
    assert (environ["TEAM_KEY"], environ["CHOSEN"], environ["MODE"]) == ("for scripts", "by a flag", "spy")
    assert environ["PATH"] == os.environ["PATH"], "what says where things are"
    assert all(text.startswith("refused: ") for text in spied["of_worker"].values()), spied["of_worker"]
    assert "refused" in descriptors, descriptors


def test_own_script_gets_the_environment_of_its_user_without_brokers(workplace):
    """On this machine, `gristmill run` and the script belong to the same person."""
    workplace.write({"gristmill.toml": '[targets.prod]\nqueue = "amqp://me:${BROKER_PASSWORD}@broker/"\n'})
    script = """
        import os
        def run(files):
            return [os.environ.get(name, "-") for name in ("MY_KEY", "BROKER_PASSWORD", "GRISTMILL_QUEUE")]
    """
    workplace.data(1)
    ended = workplace.job(script).run(MY_KEY="mine", BROKER_PASSWORD="theirs", GRISTMILL_PASS_ENVIRONMENT="")
    assert ended.lines == ["mine", "-", "-"]
