"""What a worker keeps for later jobs: shared by jobs with the same content, evicted when it is too much."""

import os
import signal
from pathlib import Path

from harness import go, is_alive, wait_until, write_wheel

READS_SIDE_INPUT = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        record("run", folder=os.environ["FOLDER"])
        wait_for(lambda: os.environ["WAITS"] == "no" or recorded("go"))
        with open(os.path.join(os.environ["FOLDER"], "labels.txt")) as file:
            return [str(len(file.read()))]
"""


def caches(workplace, kind):
    """Returns the entries of one kind."""
    folder = workplace.home / "fleet" / kind
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.exists() else []


def job(workplace, number, waits="no", **settings):
    """A job with a script of its own, and a megabyte of reference data behind a URL."""
    workplace.write({f"reference{number}/labels.txt": "x" * (1 << 20)})
    url = f"file://{workplace.folder}/reference{number}"
    variables = {"FOLDER": url, "WAITS": waits}
    settings = {"side_inputs": {"reference": url}, "environment_variables": variables, **settings}
    return workplace.job_of_its_own(f"job{number}", 1, READS_SIDE_INPUT, **settings)


def test_least_recently_used_entry_is_evicted_unless_a_job_uses_it(workplace, sqlite):
    workplace.data(1)
    sqlite.reducer()
    worker = sqlite.worker("--cache-size", "2500KB", "--process-count", 2, GRISTMILL_LOG="info")
    waiting = sqlite.enqueue(job(workplace, 0, waits="yes"))
    worker.wait_for_record("run")
    for number in (1, 2, 3):
        assert sqlite.lines(sqlite.enqueue(job(workplace, number))) == ["1048576"]
    used = Path(workplace.recorded("run")[0]["folder"])
    first, *_, last = (Path(fact["folder"]) for fact in workplace.recorded("run")[1:])
    wait_until(lambda: not first.exists(), "the eviction of the copy that was used first")
    assert used.exists() and last.exists(), "that of the running job is older"
    go(workplace)
    sqlite.wait_for_end(waiting)
    ended = worker.stop()
    evicted = [line for line in ended.stderr.splitlines() if "evicted the copy of a side input" in line]
    assert evicted and "the caches would exceed 2.44 MB" in evicted[0] and "last used" in evicted[0], str(ended)


def test_entries_older_than_the_cache_age_are_evicted(workplace, sqlite):
    workplace.data(1)
    workplace.add_conda_tool()
    sqlite.reducer()
    sqlite.worker("--cache-age", "3s")
    sqlite.wait_for_end(sqlite.enqueue(job(workplace, 0, environment="env.yml")))
    kinds = ("side-inputs", "snapshots", "environments")
    assert all(caches(workplace, kind) for kind in kinds)
    wait_until(lambda: not any(caches(workplace, kind) for kind in kinds), "the evictions")


LEAVES_FILES = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        with open("left", "wb") as file:
            file.write(os.urandom(1 << 20))
        record("left", path=os.path.abspath("left"))
        wait_for(lambda: os.environ["WAITS"] == "no" or recorded("go"))
        return [str(os.path.getsize("left"))]
"""


def test_files_of_scripts_are_evicted_once_their_job_has_ended(workplace, sqlite):
    """Those of a job that runs are older, and stay."""
    workplace.data(1)
    sqlite.reducer()
    worker = sqlite.worker("--cache-size", "1500KB", "--process-count", 2, GRISTMILL_LOG="info")

    def leaving(name, waits):
        variables = {"WAITS": waits}
        return workplace.job_of_its_own(name, 1, LEAVES_FILES, environment_variables=variables)

    running = sqlite.enqueue(leaving("running", "yes"))
    (kept,) = worker.wait_for_record("left")
    for name in ("first", "second"):
        sqlite.wait_for_end(sqlite.enqueue(leaving(name, "no")))
    _, first, second = (Path(fact["path"]) for fact in workplace.recorded("left"))
    wait_until(lambda: not first.exists(), "the eviction of the files of the job that ended first")
    assert Path(kept["path"]).exists() and second.exists()
    go(workplace)
    assert sqlite.lines(running) == ["1048576"]
    ended = worker.stop()
    assert "evicted the files of a script in" in ended.stderr, str(ended)


def test_jobs_and_workers_share_entries(workplace, sqlite):
    """Two workers on one machine start three jobs with the same content at the same time."""
    workplace.data(4)
    package = write_wheel(workplace.folder, "tiny_package", "VALUE = 'from the environment'")
    workplace.write({"requirements.txt": f"{package}\n"})
    script = """
        import sys, tiny_package
        from recorder import record
        def run(files):
            record("run", prefix=sys.prefix)
            return [tiny_package.VALUE]
    """
    job_ids = []
    for number in range(3):
        settings = {"file": f"{number}.yaml", "name": f"job{number}", "output": f"output/{number}"}
        job_ids.append(sqlite.enqueue(workplace.job(script, environment="requirements.txt", **settings)))
    sqlite.reducer()
    workers = [sqlite.worker("--process-count", 1, GRISTMILL_LOG="info") for _ in range(2)]
    for job_id in job_ids:
        sqlite.wait_for_end(job_id)
    for worker in workers:
        worker.send(signal.SIGTERM)
    logs = "".join(worker.wait().stderr for worker in workers)
    assert logs.count("creating a Python environment from") == 1, logs
    assert len({fact["prefix"] for fact in workplace.recorded("run")}) == 1
    assert len(caches(workplace, "environments")) == 1
    assert len(caches(workplace, "snapshots")) == 2, "the script, and the requirements file"


def test_killed_worker_leaves_no_partial_environment(workplace, sqlite):
    """The next worker ends the process that still writes to the environment, and creates it again."""
    workplace.data(1)
    workplace.add_conda_tool()
    tool = workplace.folder / "bin/micromamba"
    first = """mkdir -p "$2/bin"
if [ ! -e "$MARK" ]; then touch "$2/half"; sleep 600 & echo $! > "$MARK"; wait; fi
exec """
    tool.write_text(tool.read_text().replace("exec ", first))
    mark = workplace.folder / "begun"
    script = """
        import os, sys
        def run(files):
            return [str(os.path.exists(os.path.join(sys.prefix, "half")))]
    """
    job_id = sqlite.enqueue(workplace.job(script, environment="env.yml"))
    variables = {"MARK": str(mark), "GRISTMILL_LEASE_SECONDS": "3"}
    sqlite.reducer()
    worker = sqlite.worker(**variables)
    pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "an environment that is half created"))
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.wait()
    assert is_alive(pid), "its parent alone dies with the worker"
    sqlite.worker(**variables)
    assert sqlite.lines(job_id) == ["False"]
    assert not is_alive(pid)
