"""Old jobs do not slow down new ones, appear in lists, and are removed by `gristmill clean`."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import INVALID, next_second, wait_until
from old_job_folders import add_old_jobs

RETURN = "def run(files): return files"
WAIT = """
    import os, time
    from recorder import record
    def run(files):
        record("run")
        time.sleep(float(os.environ["PAUSE"]))
        return files
"""
FAIL = "def run(files): raise ValueError('bad')"


def calls_on_jobs(workplace, tmp_path: Path, own: str, *command: object) -> int:
    """Returns how often a command opens or inspects jobs in the home, except for its own job and `own`."""
    trace = tmp_path / "trace"
    calls = "open,openat,stat,lstat,newfstatat,statx,access,faccessat2,readlink,rename"
    before = set(workplace.job_ids())
    traced = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", trace, workplace.executable, *command]
    ended = subprocess.run(
        [*map(str, traced)], cwd=workplace.folder, env=workplace.environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    not_counted = {*filter(None, [own]), *(set(workplace.job_ids()) - before)}
    lines = [line for line in trace.read_text().splitlines() if str(workplace.home / "jobs") in line]
    return sum(not any(job_id in line for job_id in not_counted) for line in lines)


@pytest.mark.parametrize("same", [False, True])
def test_number_of_old_jobs_does_not_slow_down_new_ones(workplace, tmp_path, same):
    workplace.data(1)
    job = workplace.job(RETURN)

    def calls_beside(count: int) -> tuple[int, int]:
        workplace.home = workplace.folder / f"home-{count}"
        workplace.environment["GRISTMILL_HOME"] = str(workplace.home)
        first = job.run()
        spec = json.loads((workplace.home / "jobs" / first.job_id / "spec.json").read_text())
        kept = ("fingerprint", "name", "output") if same else ()
        add_old_jobs(workplace.home, first.job_id, count, **{name: spec[name] for name in kept})
        for folder in ("index", "open"):
            # As in a folder that was restored without them.
            subprocess.run(["rm", "-r", workplace.home / folder], check=True)
        second = job.run()
        assert (workplace.home / "index/complete").exists()
        return (
            calls_on_jobs(workplace, tmp_path, second.job_id, "run", job.file),
            calls_on_jobs(workplace, tmp_path, "", "jobs", "--limit", "3"),
        )

    (run_beside_few, jobs_beside_few), (run_beside_many, jobs_beside_many) = map(calls_beside, (100, 1000))
    assert run_beside_few == run_beside_many < 320
    # How far the list reads ahead of what it shows is up to the scheduler.
    assert jobs_beside_few < 100 and jobs_beside_many < 100


def test_jobs_lists_and_clean_removes_those_that_flags_select(workplace):
    workplace.data(2)
    completed = workplace.job(RETURN).run()
    failed = workplace.job(FAIL, name="bad", error_threshold=0).run(expect=42)
    rows = json.loads(workplace.command("jobs", "--json").stdout)
    assert [row["job_id"] for row in rows] == [failed.job_id, completed.job_id], "the newest first"
    assert {row["state"] for row in rows} == {"Completed", "Failed"}
    assert all(row["started_at"] and row["elapsed_seconds"] > 0 for row in rows)

    def listed(*flags: object) -> list[str]:
        return [line.split()[0] for line in workplace.command("jobs", *flags).stdout.splitlines()[1:]]

    assert listed("--state", "failed") == [failed.job_id]
    assert listed("--state", "Failed,completed") == [row["job_id"] for row in rows]
    assert listed("--name", "t*t") == [completed.job_id] and listed("--name", "t") == []
    none = workplace.command("jobs", "--state", "running")
    assert none.stdout == "" and "these flags select no job" in none.stderr, str(none)
    table = workplace.command("jobs", "--limit", "1")
    assert "1 older job is not shown" in table.stderr and len(table.stdout.splitlines()) == 2
    oldest = workplace.command("jobs", "--limit", "1", "--state", "completed")
    assert completed.job_id in oldest.stdout and oldest.stderr == "", "the state selects only this job"
    assert re.match(r"JOB +STATE +AGE +DURATION +MINI-BATCHES +ITEMS", table.stdout)
    assert workplace.command("jobs", "--state", "sleeping").exit_status == 2

    assert workplace.command("clean").exit_status == INVALID, "nothing is removed by accident"
    dry = workplace.command("clean", "--all", "--dry-run", "--json")
    assert {line["name"] for line in json.loads(dry.stdout)["removed"]} == {completed.job_id, failed.job_id}
    assert workplace.job_ids() == sorted([completed.job_id, failed.job_id])
    assert "removed 0 jobs" in workplace.command("clean", "--older-than", "1h").stdout
    assert "removed 0 jobs" in workplace.command("clean", "--name", "te", "--state", "completed").stdout
    assert "removed 0 jobs" in workplace.command("clean", "--keep", "2").stdout
    ended = workplace.command("clean", "--name", "b*", "--state", "failed")
    assert ended.exit_status == 0 and failed.job_id in ended.stdout and "removed 1 job," in ended.stdout, str(ended)
    assert workplace.job_ids() == [completed.job_id]
    for command in ("status", "retry", "logs"):
        gone = workplace.command(command, failed.job_id)
        assert gone.exit_status == 1 and "there is no job" in gone.stderr, str(gone)
        assert "(those of a target: --target NAME)" in gone.stderr, str(gone)
    assert completed.output, "outputs stay"
    assert "removed 1 job," in workplace.command("clean", "--keep-size", "1KB").stdout
    assert workplace.job_ids() == []
    assert workplace.job(RETURN).run().lines, "a job of the same fingerprint begins anew"


def test_old_jobs_are_removed_by_the_time_since_their_last_change(workplace):
    workplace.data(1)
    young = workplace.job(RETURN).run()
    add_old_jobs(workplace.home, young.job_id, 2)
    old, changed = (job_id for job_id in workplace.job_ids() if job_id != young.job_id)
    for path in [*(workplace.home / "jobs" / old).rglob("*")]:
        os.utime(path, (time.time() - 7200,) * 2)
    assert "removed 0 jobs" in workplace.command("clean", "--older-than", "3h").stdout
    removed = workplace.command("clean", "--older-than", "1h")
    assert "removed 1 job," in removed.stdout and old in removed.stdout, str(removed)
    assert workplace.job_ids() == sorted([changed, young.job_id])


KEEPS = """
    import os
    def run(files):
        print("hello from", os.path.basename(files[0]))
        if os.environ["BAD"] and files[0].endswith("001.txt"):
            raise ValueError("bad")
        # A row that becomes a part.
        return ["x" * 100_000]
"""


@pytest.mark.parametrize("bad", ["", "1"])
def test_finished_job_keeps_what_is_documented(workplace, bad):
    """Printed output stays until `clean`; what `retry` needs goes if nothing failed."""
    workplace.data(3)
    ended = workplace.job(KEEPS).run(BAD=bad)
    folder = workplace.home / "jobs" / ended.job_id
    for name in ("spec.json", "result.json", "progress.json", "plan/complete.json"):
        assert (folder / name).is_file(), name
    assert (folder / "ledger").is_dir(), "a small ledger stays"
    assert (folder / "parts").is_dir() == bool(bad)
    assert not list(folder.glob("nodes/*/held.json")), "nothing is held"
    printed = "user/stdout/0/process000.stdout.txt"
    said = [f"hello from {number:03}.txt" for number in range(3)]
    # Later commands and jobs leave it alone.
    workplace.job(RETURN, name="later").run()
    workplace.command("jobs")
    workplace.command("clean", "--older-than", "1d")
    assert ended.log(printed).splitlines() == said
    workplace.job(KEEPS).retry(ended.job_id, BAD="")
    assert not (folder / "parts").exists(), "no retry needs them"
    assert "removed 1 job," in workplace.command("clean", ended.job_id).stdout
    assert not folder.exists() and ended.output, "the output stays"


def test_running_and_interrupted_jobs_are_kept_and_measured_without_the_files_of_their_script(workplace):
    workplace.data(3)
    job = workplace.job(WAIT)
    workplace.write({"code/large.bin": "x" * 1_000_000})
    # A home beside the script is where the links of the job lead back to.
    os.symlink(workplace.home, workplace.folder / "code" / "home")
    running = job.start(PAUSE="600")
    running.wait_for_record("run")
    (job_id,) = workplace.job_ids()
    for flags in (["--all"], [job_id], ["--state", "interrupted"], ["--older-than", "0s"]):
        kept = workplace.command("clean", *flags)
        assert "removed 0 jobs" in kept.stdout, str(kept)
    assert "has not ended" in workplace.command("clean", job_id).stderr
    assert workplace.command("clean", "--state", "running").exit_status == INVALID
    assert "is running" in workplace.command("clean", "--caches").stderr
    running.kill()
    assert "removed 0 jobs" in workplace.command("clean", "--all").stdout, "it can be continued"
    dry = workplace.command("clean", job_id, "--dry-run", "--json")
    assert dry.exit_status == 0, str(dry)
    (measured,) = json.loads(dry.stdout)["removed"]
    assert measured["bytes"] < 1_000_000
    assert "removed 1 job," in workplace.command("clean", "--state", "interrupted").stdout
    assert workplace.job_ids() == []


def test_killed_clean_leaves_only_whole_jobs(workplace, tmp_path):
    workplace.data(1)
    first = workplace.job(RETURN).run()
    add_old_jobs(workplace.home, first.job_id, 20)
    inject = "inject=unlinkat:signal=KILL:when=25"
    command = ["strace", "-f", "-o", tmp_path / "trace", "-e", inject, workplace.executable, "clean", "--all"]
    killed = subprocess.run([*map(str, command)], cwd=workplace.folder, env=workplace.environment, capture_output=True)
    assert killed.returncode != 0
    assert list((workplace.home / "removed").iterdir()), "it was killed while it removed a job"
    for row in json.loads(workplace.command("jobs", "--json", "--limit", "0").stdout):
        assert row["state"] == "Completed", row
        assert workplace.command("status", row["job_id"]).exit_status == 0
    assert workplace.command("clean", "--all").exit_status == 0
    assert not list((workplace.home / "removed").iterdir())
    assert workplace.job_ids() == []


def test_output_in_the_job_folder_is_kept(workplace):
    workplace.data(1)
    script = """
        import os
        from azureml_user.parallel_run import EntryScript
        def run(files):
            with open(os.path.join(EntryScript().output_dir, "own.txt"), "w") as file:
                file.write("mine")
            return files
    """
    ended = workplace.job(script, output=None, output_action="summary_only", append_row_file_name=None).run()
    kept = workplace.command("clean", "--all")
    assert "output is in its folder" in kept.stderr and workplace.job_ids() == [ended.job_id]
    assert "removed 1 job," in workplace.command("clean", ended.job_id).stdout


def test_caches_are_removed_when_no_job_runs(workplace):
    workplace.data(1)
    workplace.add_conda_tool()
    job = workplace.job(RETURN, environment="env.yml")
    job.run()
    ended = workplace.command("clean", "--caches")
    assert "environments/" in ended.stdout and workplace.job_ids(), "jobs stay"
    assert not list((workplace.home / "environments").iterdir())
    assert job.run().lines


def test_files_of_calls_are_removed_once_no_job_names_them(workplace):
    """As Python writes them."""
    functions = workplace.home / "functions"
    named = ["functions/inputs/named.parquet", "functions/score/named", "document-files/named.yml"]
    unnamed = ["functions/inputs/old.parquet", "functions/score/old", "functions/other/old", "document-files/old.txt"]
    kept = ["functions/inputs/new.parquet", "functions/score/new", "functions/outputs/old"]
    for name in [*named, *unnamed, *kept]:
        workplace.write({f"home/{name}" if "." in name else f"home/{name}/entry.py": "# nothing"})
    workplace.add_conda_tool()
    (workplace.folder / "env.yml").rename(workplace.home / "document-files/named.yml")
    job = workplace.job(
        RETURN,
        source_directory=str(functions / "score/named"),
        inputs=[{"name": "data", "type": "file", "path": str(functions / "inputs/named.parquet")}],
        environment=str(workplace.home / "document-files/named.yml"),
        allow_reuse=True,
    )
    (functions / "score/named/entry.py").write_text(RETURN)

    def run() -> str:
        """Runs the job, long ago."""
        ended = job.run()
        for name in there():
            if not name.endswith(("new", "new.parquet")):
                os.utime(workplace.home / name, (0, 0))
        return ended.job_id

    def there() -> list[str]:
        return [name for name in [*named, *unnamed, *kept] if (workplace.home / name).exists()]

    def cleaned(*flags: str) -> set[str]:
        report = json.loads(workplace.command("clean", *flags, "--json").stdout)
        return {removed["name"] for removed in report["caches"]}

    run()
    ran = run()
    assert cleaned("--all", "--dry-run") == {str(workplace.home / name) for name in [*named, *unnamed]}
    assert there() == [*named, *unnamed, *kept]
    assert cleaned("--keep", "5") == {str(workplace.home / name) for name in unnamed}
    assert there() == [*named, *kept] and not (functions / "other").exists()
    assert run() == ran, "its script and its inputs are the same"
    assert cleaned("--all") == {str(workplace.home / name) for name in named}
    assert there() == kept


def test_caches_of_workers_are_removed_when_no_worker_runs(sqlite):
    workplace = sqlite.workplace
    workplace.data(1)
    workplace.add_conda_tool()
    sqlite.run(workplace.job(RETURN, environment="env.yml"))
    fleet = workplace.home / "fleet"
    assert list((fleet / "snapshots").iterdir()) and list((fleet / "environments").iterdir())
    worker = sqlite.worker()
    uses = f"kept {fleet}: a worker of this machine uses them"
    wait_until(lambda: uses in workplace.command("clean", "--caches", "--dry-run").stderr, "a worker that has begun")
    assert uses in workplace.command("clean", "--caches").stderr
    assert list((fleet / "snapshots").iterdir())
    worker.send(signal.SIGKILL)
    worker.process.wait()
    assert "would remove" in workplace.command("clean", "--caches", "--dry-run").stdout
    assert "/fleet/snapshots/" in workplace.command("clean", "--caches").stdout
    for cache in ("snapshots", "environments"):
        assert not list((fleet / cache).iterdir()), cache


def test_job_name_means_the_running_job_first(workplace):
    workplace.data(3)
    slow = workplace.job(WAIT, file="slow.yaml", output="slow", entry_script="wait.py").start(PAUSE="600")
    slow.wait_for_record("run")
    (running,) = workplace.job_ids()
    next_second()
    ended = workplace.job(RETURN).run()
    assert ended.job_id != running
    assert running in workplace.command("status", "test").stdout
    retried = workplace.command("retry", "test")
    assert retried.exit_status == 75 and f"job {running} is running" in retried.stderr, str(retried)
    assert running in workplace.command("cancel", "test").stdout
    assert slow.wait().state == "Canceled"
    assert ended.job_id in workplace.command("status", "test").stdout, "the newest"


def test_ambiguous_interrupted_job_is_rejected(workplace):
    workplace.data(3)
    slow = workplace.job(WAIT, file="slow.yaml", output="slow", entry_script="wait.py").start(PAUSE="600")
    slow.wait_for_record("run")
    (interrupted,) = workplace.job_ids()
    slow.kill()
    next_second()
    ended = workplace.job(RETURN).run()
    for command in ("retry", "cancel"):
        refused = workplace.command(command, "test")
        assert refused.exit_status == 1 and interrupted in refused.stderr and ended.job_id in refused.stderr
    assert workplace.command("cancel", interrupted).exit_status == 0
    assert "Canceled" in workplace.command("jobs", "--name", "test").stdout


def test_two_jobs_never_write_one_output(workplace):
    workplace.data(3)
    stopped = workplace.job(WAIT, file="stopped.yaml", name="stopped", entry_script="wait.py").start(PAUSE="600")
    stopped.wait_for_record("run")
    (old,) = workplace.job_ids()
    stopped.kill()
    running = workplace.job(WAIT, entry_script="wait.py", file="new.yaml").start(PAUSE="600")
    running.wait_for_record("run", 2)
    other = workplace.job(RETURN, name="other", file="other.yaml").start().wait()
    assert other.exit_status == 75 and "writes the same output" in other.stdout + other.stderr, str(other)
    retried = workplace.command("retry", old)
    assert retried.exit_status != 0 and "writes the same output" in retried.stderr, str(retried)
    running.send(signal.SIGKILL)


def test_history_of_a_large_completed_job_is_removed(workplace):
    workplace.data(12)
    job = workplace.job("def run(files): return ['x' * 100_000]", allow_reuse=True, arguments=["--nice", "0"])
    assert not (workplace.home / "jobs" / job.run().job_id / "parts").exists()
    inline = workplace.job("def run(files): return ['x' * 60_000]", mini_batch_size=1, allow_reuse=True)
    workplace.data(30)
    ended = inline.run()
    folder = workplace.home / "jobs" / ended.job_id
    assert len(ended.output) > 1 << 20
    assert not (folder / "ledger").exists() and not list((folder / "plan").glob("0*"))
    assert workplace.command("status", ended.job_id).exit_status == 0
    assert inline.retry(ended.job_id).result == ended.result
    assert inline.run().result["reused"]
    assert os.path.getsize(folder / "result.json")
