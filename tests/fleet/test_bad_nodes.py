"""No node may eat a job, and no job may fail another."""

import signal
import threading

from harness import file_names, wait_until

FILES = 300
# A process of the good node waits in its last file until the bad node has left the job.
NEEDS_A_MOUNT = f"""
    import os, time
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if os.environ["MOUNT"] == "missing":
            raise FileNotFoundError("/mnt/shared is not mounted")
        time.sleep(0.02)
        if name == "{FILES - 1:03}.txt":
            wait_for(lambda: recorded("left"))
        return [name]
    def shutdown():
        if os.environ["MOUNT"] == "missing":
            record("left")
"""


def excluded(result) -> list[str]:
    """Returns the notes about workers that the job has excluded."""
    return [note for note in result.get("notes", []) if "excluded" in note]


def test_worker_that_fails_where_another_succeeds_leaves_the_job(workplace, sqlite):
    workplace.data(FILES)
    sqlite.reducer()
    sqlite.worker("--process-count", 2, MOUNT="there")
    sqlite.worker("--process-count", 2, MOUNT="missing")
    job_id = sqlite.enqueue(workplace.job(NEEDS_A_MOUNT, speculation=False, run_max_try=3))
    result = sqlite.wait_for_end(job_id)
    assert sqlite.output(result).decode().splitlines() == file_names(FILES)
    assert result["mini_batches"]["failed"] == 0
    (note,) = excluded(result)
    assert "mini-batches in a row failed there" in note, note
    assert note in sqlite.command("status", job_id).stdout


# In each process, the first of every ONE_OF runs fails; 0: none. A good node waits in one file for a failure elsewhere.
FAILS_SOMETIMES = """
    import os
    from recorder import record, recorded, wait_for
    runs, one_of = 0, int(os.environ["ONE_OF"])
    def run(files):
        global runs
        runs += 1
        name = os.path.basename(files[0])
        if one_of and runs % one_of == 1 % one_of:
            record("failed")
            raise OSError("the cache of this machine is full")
        if not one_of and name == "005.txt":
            wait_for(lambda: recorded("failed"))
        return [name]
"""


def test_worker_on_which_every_tenth_run_fails_stays_and_no_mini_batch_is_lost(workplace, sqlite):
    workplace.data(100)
    sqlite.reducer()
    sqlite.worker("--process-count", 1, ONE_OF="0")
    sqlite.worker("--process-count", 1, ONE_OF="10")
    result = sqlite.wait_for_end(sqlite.enqueue(workplace.job(FAILS_SOMETIMES, speculation=False, run_max_try=3)))
    assert sqlite.output(result).decode().splitlines() == file_names(100)
    assert result["mini_batches"]["failed"] == 0
    assert excluded(result) == []


def await_workers(target, *names):
    """Waits until the target lists these workers."""
    wait_until(lambda: {f"workers/{name}" for name in names} <= {*target.objects("workers/")}, f"{names}")


def test_worker_without_a_usable_python_fails_no_job_that_another_can_run(workplace, sqlite):
    sqlite.create_store()
    sqlite.reducer()
    sqlite.worker("--node", "bad", "--process-count", 1, GRISTMILL_PYTHON="/nowhere/python")
    sqlite.worker("--node", "good", "--process-count", 1)
    await_workers(sqlite, "bad", "good")
    job_ids = [sqlite.enqueue(workplace.job_of_its_own(f"job{number}", 4, INNOCENT)) for number in range(4)]
    for job_id in job_ids:
        assert sqlite.wait_for_end(job_id)["mini_batches"]["succeeded"] == 4
    assert any("/logs/sys/node/bad/" in name for name in sqlite.objects("jobs/")), "it has tried"


def test_job_that_starts_on_no_worker_fails_and_names_the_cause(workplace, sqlite):
    workplace.data(10)
    sqlite.create_store()
    sqlite.reducer()
    for node in ("one", "two"):
        sqlite.worker("--node", node)
    await_workers(sqlite, "one", "two")
    job_id = sqlite.enqueue(workplace.job("import no_such_module\ndef run(files): return files"))
    result = sqlite.wait_for_end(job_id, state="Failed")
    assert "No module named 'no_such_module'" in result["cause"] and "(2 nodes stopped)" in result["cause"], result


def test_fleet_on_which_every_run_fails_excludes_no_worker_and_fails_the_job(workplace, sqlite):
    workplace.data(30)
    sqlite.reducer()
    for _ in range(2):
        sqlite.worker("--process-count", 1, ONE_OF="1")
    job_id = sqlite.enqueue(workplace.job(FAILS_SOMETIMES, run_max_try=2, error_threshold=0))
    result = sqlite.wait_for_end(job_id, state="Failed")
    assert "error threshold 0" in result["cause"], result["cause"]
    assert excluded(result) == []


def test_status_quotes_the_installer_of_an_environment_that_fails(workplace, sqlite):
    workplace.data(1)
    workplace.write({"bad.txt": "no-such-package-gristmill @ file:///nowhere/at/all\n"})
    sqlite.reducer()
    sqlite.worker()
    job_id = sqlite.enqueue(workplace.job(INNOCENT, environment="bad.txt"))

    def said():
        return sqlite.command("status", job_id).stdout

    wait_until(lambda: "/nowhere/at/all" in said(), f"status quotes pip: {said()}", seconds=120)
    (line,) = [line for line in said().splitlines() if "/nowhere/at/all" in line][:1]
    assert "No such file or directory" in line, line


KILLS_THE_WORKER = """
    import os, signal
    def run(files):
        if files[0].endswith("001.txt"):
            os.kill(os.getppid(), signal.SIGKILL)
        return [os.path.basename(files[0])]
"""
INNOCENT = """
    import os, time
    def run(files):
        time.sleep(1)
        return [os.path.basename(files[0])]
"""
# As many as `lost_delivery_max` would take.
DEATHS_MAX = 10


def test_job_that_kills_its_worker_does_not_fail_another(workplace, sqlite):
    """A supervisor restarts the worker. The mini-batch that kills it is found, and the other job goes on."""
    sqlite.reducer()
    innocent = sqlite.enqueue(workplace.job_of_its_own("innocent", 12, INNOCENT, speculation=False))
    poison = sqlite.enqueue(workplace.job_of_its_own("poison", 3, KILLS_THE_WORKER, speculation=False))
    deaths, is_over = [], threading.Event()

    def supervise():
        while not is_over.is_set():
            worker = sqlite.start("worker", "--process-count", 2, GRISTMILL_LEASE_SECONDS="2")
            while worker.process.poll() is None and not is_over.wait(0.1):
                pass
            if worker.process.poll() is None:
                worker.send(signal.SIGTERM)
            if worker.wait().exit_status == -signal.SIGKILL:
                deaths.append(worker)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        ended = sqlite.wait_for_end(poison, seconds=240)
        assert sqlite.lines(innocent) == file_names(12)
    finally:
        is_over.set()
        supervisor.join()
    assert (ended["mini_batches"]["succeeded"], ended["mini_batches"]["failed"]) == (2, 1)
    (failed,) = ended["failed_mini_batches"]
    assert "nothing else ran there" in str(failed), failed
    assert len(deaths) < DEATHS_MAX
