"""Jobs of two teams on one worker: scripts that try to reach the other job, and the secrets of the worker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from harness import ERROR, INVALID, RECORDER, Workplace, as_user, is_alive, wait_until, write_wheel

FOLDERS = {"snapshots": "theirs.py", "environments": "tiny_package.py", "side-inputs": "labels.txt"}
"""What the job of the other team has in each cache: the file that the hostile script looks for."""
NO_ROWS = {"append_row_file_name": None, "output_action": "summary_only"}

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
        folder = Path(os.environ["FLEET"])
        for path in [path for name in os.environ["NAMES"].split() for path in folder.glob(name)]:
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


def test_script_cannot_change_what_other_jobs_run(workplace, sqlite):
    """Here it has the user of the worker, so it can write. The next job gets what it sent, with the same worker and
    with another."""
    other, expected = theirs(workplace), ["mine good labels"]
    names = " ".join(f"{kind}/**/{name}" for kind, name in FOLDERS.items())
    variables = {"FLEET": str(workplace.home / "fleet"), "NAMES": names}
    hostile = job(workplace, "hostile", CHANGES, environment_variables=variables, **NO_ROWS)
    sqlite.reducer()
    worker = sqlite.worker(GRISTMILL_JOB_USERS="none")
    assert sqlite.lines(sqlite.enqueue(other)) == expected
    for round_ in (1, 2):
        sqlite.wait_for_end(sqlite.enqueue(hostile))
        assert len(workplace.recorded("changed")) == round_ * len(FOLDERS), workplace.recorded("refused")
        if round_ == 2:
            worker.stop()
            worker = sqlite.worker(GRISTMILL_JOB_USERS="none")
        assert sqlite.lines(sqlite.enqueue(other)) == expected
    worker.send(signal.SIGTERM)
    told = [line for line in worker.wait().stderr.splitlines() if "has changed since it was made" in line]
    assert len(told) == len(FOLDERS), told
    assert all(any(f"/{kind}/" in line for line in told) for kind in FOLDERS), told


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
        names = ["environ", "maps", *(f"fd/{number}" for number in range(100))]
        of_worker = {name: text for name in names if "No such file" not in (text := read(f"{worker}/{name}"))}
        record("spied", environ=dict(os.environ), of_worker=of_worker)
        return []
"""


@contextmanager
def commands_through(workplace: Workplace, become: str, umask: str) -> Iterator[None]:
    """Commands run through another command, which changes their user or rights."""
    script = workplace.folder / "through"
    script.write_text(f'#!/bin/sh\numask {umask}\nexec {become} {workplace.executable} "$@"\n')
    script.chmod(0o755)
    with workplace.commands_by(script):
        yield


@contextmanager
def without_root(workplace: Workplace, user: int = 10001) -> Iterator[None]:
    """Commands run as another user, unless the tests do. It writes only what belongs to it, or to all."""
    if os.geteuid() != 0:
        yield
        return
    subprocess.run(["chown", "-R", str(user), workplace.folder], check=True)
    with commands_through(workplace, as_user(user), "0"):
        yield


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
    spy = job(workplace, "spy", SPIES, environment_variables={"MODE": "spy"}, **NO_ROWS)
    before = os.umask(0)
    try:
        job_id = sqlite.enqueue(spy)
    finally:
        os.umask(before)
    sqlite.reducer(**secrets)
    # Then they belong to the user of the worker.
    sqlite.wait_for_queues()
    with without_root(workplace):
        sqlite.worker("--pass-environment", "CHOSEN", CHOSEN="by a flag", **secrets)
    sqlite.wait_for_end(job_id)
    (spied,) = workplace.recorded("spied")
    environ = spied["environ"]
    assert word not in json.dumps(spied)
    assert "AWS_ACCESS_KEY_ID" not in environ and "GRISTMILL_STORE" not in environ, sorted(environ)
    assert (environ["TEAM_KEY"], environ["CHOSEN"], environ["MODE"]) == ("for scripts", "by a flag", "spy")
    assert environ["PATH"] == os.environ["PATH"], "what says where things are"
    assert spied["of_worker"].keys() > {"environ", "maps"}, "it has descriptors"
    assert all("Permission denied" in text for text in spied["of_worker"].values()), spied["of_worker"]


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


FIRST = 100_000 + 10 * (os.getpid() % 10_000)
RANGE = range(FIRST, FIRST + 10)
"""Of this process alone: a worker ends what else runs with these users."""

SYSTEM_PYTHON = Path("/usr/bin/python3")

VICTIM = """
    import json, os, subprocess, sys, tempfile
    from pathlib import Path
    from recorder import record, recorded, wait_for
    def run(files):
        kept = [Path("mine.txt"), Path(tempfile.gettempdir(), "mine.txt"), Path.home() / "mine.txt"]
        for path in kept:
            path.write_text("private")
        logs = Path(os.getcwd(), "../../logs/user/mine.txt").resolve()
        logs.write_text("private")
        private = [str(path.resolve()) for path in kept] + [str(logs), f"/proc/{os.getpid()}/environ"]
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        lines = [line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines()]
        status = {line[0]: line[-1] for line in lines}
        record(
            "held", private=private, script=__file__, child=child.pid, uids=os.getresuid(), gids=os.getresgid(),
            groups=os.getgroups(), home=str(Path.home()),
            no_new_privs=status["NoNewPrivs"], capabilities=status["CapEff"],
        )
        wait_for(lambda: recorded("tried"))
        return [path.read_text() for path in kept]
"""

THIEF = """
    import os, signal
    from pathlib import Path
    from recorder import record, recorded, wait_for
    def attempt(what, act):
        try:
            record("succeeded", what=what, got=repr(act())[:200])
        except OSError as error:
            record("refused", what=what, error=str(error))
    def run(files):
        wait_for(lambda: recorded("held"))
        (held,) = recorded("held")
        for path in map(Path, held["private"]):
            attempt(f"read {path}", path.read_bytes)
        script, fleet = Path(held["script"]), Path(os.environ["FLEET"])
        attempt("change the script", lambda: script.open("a"))
        attempt("make the script writable", lambda: script.chmod(0o777))
        attempt("put a module beside the script", lambda: (script.parent / "recorder2.py").touch())
        attempt("replace the script", lambda: script.rename(script.with_suffix(".old")))
        attempt("hold the lock of the cache", lambda: script.parent.with_name(script.parent.name + ".lock").open())
        attempt("list the code of others", lambda: os.listdir(script.parents[1]))
        attempt("list the jobs of the worker", lambda: os.listdir(Path.cwd().parents[2]))
        attempt("list the environments", lambda: os.listdir(fleet / "environments"))
        for pid in (held["pid"], held["child"], os.getppid()):
            attempt(f"kill {pid}", lambda: os.kill(pid, signal.SIGKILL))
            for name in ("environ", "maps", "cwd/mine.txt", "fd"):
                path = f"/proc/{pid}/{name}"
                attempt(f"read {path}", lambda: os.listdir(path) if name == "fd" else open(path, "rb").read(10))
        attempt("become root", lambda: os.setuid(0))
        record("tried", uid=os.getuid(), secrets=[name for name in os.environ if "PASSWORD" in name])
        return ["nothing"]
"""


@pytest.fixture
def users(workplace: Workplace) -> dict[str, str]:
    """Variables of a worker that gives each job a user. All users reach the files of this test."""
    if os.geteuid() != 0:
        pytest.skip("only root may change users")
    if not SYSTEM_PYTHON.exists():
        pytest.skip(f"there is no {SYSTEM_PYTHON}, which all users can run")
    beside = workplace.executable.parent / "python"
    package = workplace.folder / "package"
    shutil.copytree(beside, package)
    for folder in [workplace.folder, *workplace.folder.parents]:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    workplace.record_file.touch()
    workplace.record_file.chmod(0o666)
    return {
        "GRISTMILL_JOB_USERS": f"{RANGE.start}-{RANGE.stop - 1}",
        "GRISTMILL_PYTHON": str(SYSTEM_PYTHON),
        "GRISTMILL_PYTHON_PACKAGE": str(package),
        "BROKER_PASSWORD": "secret",
        "GRISTMILL_PASS_ENVIRONMENT": "RECORD",
    }


@contextmanager
def with_rights_of_the_unit(workplace: Workplace) -> Iterator[None]:
    """Commands have no more rights than the unit of systemd leaves a worker that gives each job a user."""
    unit = (Path(__file__).parents[2] / "infra/packaging/systemd/gristmill-worker.service").read_text()
    (capabilities,) = re.findall(r"^#   CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    (umask,) = re.findall(r"^UMask=(.*)$", unit, re.MULTILINE)
    assert "NoNewPrivileges=yes" in unit
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities.split())
    become = f"setpriv --bounding-set -all,{kept} --inh-caps=-all --no-new-privs"
    with commands_through(workplace, become, umask):
        yield


@pytest.mark.parametrize("rights", [nullcontext, with_rights_of_the_unit])
def test_job_cannot_reach_another_job(workplace, sqlite, users, rights):
    victim = job(workplace, "victim", VICTIM)
    thief = job(workplace, "thief", THIEF, environment_variables={"FLEET": str(workplace.home / "fleet")})
    sqlite.reducer()
    with rights(workplace):
        worker = sqlite.worker("--process-count", 2, **users)
    job_ids = [sqlite.enqueue(one) for one in (victim, thief)]
    assert sqlite.lines(job_ids[0]) == ["private"] * 3
    assert sqlite.lines(job_ids[1]) == ["nothing"]
    (held,), (tried,) = workplace.recorded("held"), workplace.recorded("tried")
    assert workplace.recorded("succeeded") == []
    assert len(workplace.recorded("refused")) > 20
    assert tried["secrets"] == []
    user = held["uids"][0]
    assert {user, tried["uid"]} < set(RANGE) and user != tried["uid"]
    assert set(held["uids"] + held["gids"]) == {user} and 0 not in held["groups"]
    assert held["no_new_privs"] == "1" and int(held["capabilities"], 16) == 0
    wait_until(lambda: not is_alive(held["child"]), "what the script has started ends with its job")
    left = Path(held["private"][0])
    wait_until(
        lambda: left.exists() and left.parents[2].stat().st_mode & 0o777 == 0o700, "no later job reaches its files"
    )
    assert not Path(held["home"]).exists(), "its home goes with the job"
    worker.stop()


PLANTS = """
    import os
    from pathlib import Path
    from recorder import record
    def run(files):
        folder, secret = Path.cwd().parents[1], os.environ["SECRET"]
        for place in ("logs/user/leak.txt", "logs/user/stdout/leak.txt", "checkpoints/0/leak", "checkpoints/7/leak"):
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(secret)
        (folder / "checkpoints/8").symlink_to(Path(secret).parent)
        for place in ("logs/sys/leak.txt", "inputs", "scratch/process999", "leak"):
            try:
                (folder / place).symlink_to(secret)
                record("planted", place=place)
            except OSError:
                pass
        record("ran")
        print("a log that arrives")
        return ["ran"]
"""


def test_worker_follows_no_link_of_a_script(workplace, sqlite, users):
    """The worker is root, and uploads logs and results that a script has handed back."""
    secrets = workplace.folder / "of-root"
    secrets.mkdir(mode=0o700)
    (secrets / "secret.txt").write_text("what only root may read")
    planting = job(workplace, "plants", PLANTS, environment_variables={"SECRET": str(secrets / "secret.txt")})
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 1, **users)
    assert sqlite.lines(sqlite.enqueue(planting)) == ["ran"]
    worker.stop()
    assert workplace.recorded("planted") == []
    objects = sqlite.objects()
    assert any(b"a log that arrives" in content for content in objects.values())
    leaked = [name for name, content in objects.items() if b"what only root may read" in content]
    assert leaked == []


def test_environment_of_job_users_belongs_to_the_worker(workplace, sqlite, users):
    package = write_wheel(workplace.folder, "tiny_package", "VALUE = 'good'")
    workplace.write({"requirements.txt": f"{package}\n"})
    script = """
        import os, sys, tiny_package
        from recorder import record
        def run(files):
            module = os.stat(tiny_package.__file__)
            record("seen", owner=module.st_uid, writable=os.access(sys.prefix, os.W_OK), prefix=sys.prefix)
            return [tiny_package.VALUE]
    """
    sqlite.reducer()
    sqlite.worker("--process-count", 1, **users)
    for number in range(2):
        one = job(workplace, f"job{number}", script, environment="requirements.txt")
        assert sqlite.lines(sqlite.enqueue(one)) == ["good"]
    first, second = workplace.recorded("seen")
    assert (first["owner"], first["writable"]) == (0, False)
    assert first["prefix"] == second["prefix"], "jobs with different users share it"


def test_results_handed_back_survive_with_job_users(workplace, sqlite, users):
    """The second process of the job reads what the first one has written."""
    script = """
        import os
        from recorder import record, recorded
        def run(files, context):
            for name in files:
                record("item", name=os.path.basename(name))
                context.done(name, os.path.basename(name))
                if len(recorded("item")) == 2:
                    os.abort()
    """
    workplace.data(4, "data")
    one = job(workplace, "keeps", script, mini_batch_size=4, run_max_try=3)
    workplace.data(4, "keeps")
    sqlite.reducer()
    sqlite.worker("--process-count", 1, **users)
    assert sqlite.lines(sqlite.enqueue(one)) == ["000.txt", "001.txt", "002.txt", "003.txt"]
    assert len(workplace.recorded("item")) == 4, "no item ran twice"


def test_wrong_range_of_users_is_named(sqlite):
    for given in ("1000", "0-5"):
        ended = sqlite.command("worker", "--job-users", given, expect=INVALID)
        assert f'"{given}" must be the first and the last id of a range of users, such as 20000-29999' in ended.stderr


def test_folder_that_users_cannot_reach_is_named_with_the_remedy(workplace, sqlite, users):
    workplace.home.mkdir(mode=0o700)
    ended = sqlite.command("worker", **users)
    assert ended.exit_status == ERROR, str(ended)
    assert f"cannot read {workplace.home}/fleet" in ended.stderr and "--job-users none" in ended.stderr, str(ended)
