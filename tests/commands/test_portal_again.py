"""One mini-batch again, from the portal: a job of its own with the same items, which leaves the first one as it was.

Of a target, `test_portal_cases.py` does it.
"""

from __future__ import annotations

from pathlib import Path

from harness import FAILED, Workplace, wait_until
from portal_client import Portal

FAILS_ON_ANY = """
    def run(files):
        if any(file.endswith("003.txt") for file in files):
            raise ValueError("three is <b>bad</b>")
        return files
"""
WRITES_ELSEWHERE = """
    import os, sys
    def run(files):
        extra = sys.argv[sys.argv.index("--extra") + 1]
        for file in files:
            open(os.path.join(extra, os.path.basename(file)), "w").write(os.environ["EXTRA"])
        return [open(file).read() for file in files]
"""
COUNTS_ROWS = """
    def run(rows):
        if 7 in set(rows["a"]):
            raise ValueError(f"seven is among {len(rows)} rows")
        return rows
"""


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a job and its output. Looking at a job creates its lock."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def again(workplace: Workplace, portal: Portal, job_id: str, number: int) -> dict:
    """Runs a mini-batch again, and returns the new job when it has ended. The first job must not change."""
    watched = [workplace.home / "jobs" / job_id, workplace.folder / "output"]
    before = [contents(folder) for folder in watched]
    status, answer = portal.post(f"/jobs/{job_id}/mini-batches/{number}/run")
    assert status == 202, answer
    new = answer["job_id"]
    assert new != job_id and new in answer["message"]

    def ended() -> dict | None:
        job = portal.get(f"/jobs/{new}")
        return job if job["state"] in ("Completed", "Failed") else None

    job = wait_until(ended, "the end of the new job")
    assert [contents(folder) for folder in watched] == before
    return job


def test_failed_mini_batch_runs_again_alone_until_its_script_is_mended(workplace, portal):
    workplace.data(6)
    ended = workplace.job(FAILS_ON_ANY, isolate="off", mini_batch_size=2, run_max_try=3).run()
    assert portal.get(f"/jobs/{ended.job_id}/mini-batches/1")["can_run_again"]
    job = again(workplace, portal, ended.job_id, 1)
    assert (job["state"], job["name"]) == ("Failed", "test-1"), job
    assert job["mini_batches"] == {"total": 1, "succeeded": 0, "failed": 1}, job
    assert job["description"] == f"Mini-batch 1 of job {ended.job_id}, run again alone."
    mini_batch = portal.get(f"/jobs/{job['job_id']}/mini-batches/0")
    assert [attempt["error"]["message"] for attempt in mini_batch["attempts"]] == ["three is <b>bad</b>"], "one try"
    assert [Path(item["path"]).name for item in mini_batch["items"]["shown"]] == ["002.txt", "003.txt"]

    # A file that was changed since is read as it is now.
    workplace.write({"code/entry.py": "def run(files): return [open(file).read() for file in files]"})
    workplace.write({"data/002.txt": "mended"})
    job = again(workplace, portal, ended.job_id, 1)
    assert job["state"] == "Completed", job
    output = portal.get(f"/jobs/{job['job_id']}/output")
    assert output["cells"] == [["mended"], ["003"]] and job["job_id"] in output["path"], output
    assert {row["state"] for row in portal.get("/jobs")["jobs"]} == {"Completed", "Failed"}

    # The first job can still be run as before, and is not taken for the new ones.
    later = workplace.job(FAILS_ON_ANY, isolate="off", mini_batch_size=2, run_max_try=3).run()
    assert later.job_id not in (ended.job_id, job["job_id"])


def test_range_of_a_table_runs_again(workplace, portal):
    workplace.write({"table.csv": "a,b\n" + "".join(f"{number},x\n" for number in range(20))})
    inputs = [{"name": "table", "type": "tabular", "path": "table.csv"}]
    ended = workplace.job(COUNTS_ROWS, isolate="off", inputs=inputs, mini_batch_size=20).run()
    [row] = portal.get(f"/jobs/{ended.job_id}/mini-batches?state=failed")["rows"]
    job = again(workplace, portal, ended.job_id, row["mini_batch"])
    assert job["failures"][0]["error"] == row["error"], job
    other = 0 if row["mini_batch"] else 1
    job = again(workplace, portal, ended.job_id, other)
    assert job["state"] == "Completed" and job["items"]["succeeded"] > 0, job

    # The rows of another version of the table are others: the job says so instead of running them.
    workplace.write({"table.csv": "a,b\n" + "".join(f"{number}0,y\n" for number in range(30))})
    job = again(workplace, portal, ended.job_id, other)
    assert job["state"] == "Failed" and "changed since" in job["failures"][0]["error"], job


def test_folders_that_the_script_writes_to_are_new_ones(workplace, portal):
    workplace.data(2)
    settings = {
        "outputs": {"extra": "more"},
        "arguments": ["--extra", "${{outputs.extra}}"],
        "environment_variables": {"EXTRA": "in ${{outputs.extra}}"},
    }
    ended = workplace.job(WRITES_ELSEWHERE, **settings).run()
    more = workplace.folder / "more"
    assert sorted(file.name for file in more.iterdir()) == ["000.txt", "001.txt"]
    before = contents(more)
    job = again(workplace, portal, ended.job_id, 1)
    assert job["state"] == "Completed", job
    assert contents(more) == before
    extra = workplace.home / "jobs" / job["job_id"] / "outputs/extra"
    assert [file.name for file in extra.iterdir()] == ["001.txt"]


def test_mini_batches_that_cannot_run_alone_are_refused(workplace, portal):
    workplace.data(1)
    ranks = workplace.job(
        "def run(rank): return [1]", inputs=None, mini_batch_size=None, arguments=["--rank_mini_batch_count", 2]
    ).run()
    assert not portal.get(f"/jobs/{ranks.job_id}/mini-batches/0")["can_run_again"]
    status, answer = portal.post(f"/jobs/{ranks.job_id}/mini-batches/0/run")
    assert status == 409 and "has no items" in answer["error"], answer
    status, answer = portal.post(f"/jobs/{ranks.job_id}/mini-batches/99/run")
    assert status == 409 and "has no mini-batch 99" in answer["error"], answer
    failed = workplace.job("def run(files): raise ValueError('x')", error_threshold=0).run(expect=FAILED)
    read_only = Portal(workplace, "--read-only")
    assert read_only.post(f"/jobs/{failed.job_id}/mini-batches/0/run")[0] == 403
    assert len(workplace.job_ids()) == 2, "nothing was started"
