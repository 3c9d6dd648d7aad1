"""`gristmill clean --target`: removes ended jobs of a store by age, state, name and size, and never an open one."""

import json
import os
import signal

import pytest

from harness import next_second

TARGETS = ["sqlite", "sqs"]

RETURN = "def run(files): return files"
FAIL = "def run(files): raise ValueError('bad')"


@pytest.fixture
def jobs(workplace, target):
    """A completed, a failed and an open job, which no role serves any more."""
    workplace.data(2)
    roles = [target.reducer(), target.worker("--process-count", 1)]
    ended = {}
    for name, script, state in [("good", RETURN, "Completed"), ("bad", FAIL, "Failed")]:
        job = workplace.job(script, name=name, file=f"{name}.yaml", output=name, error_threshold=0)
        ended[name] = target.enqueue(job)
        target.wait_for_end(ended[name], state)
        next_second()
    for role in roles:
        role.send(signal.SIGTERM)
        role.wait()
    job = workplace.job(RETURN, name="open", file="open.yaml", output="open")
    return {**ended, "open": target.enqueue(job)}


def cleaned(target, *flags):
    """Returns the ids of the jobs that a clean-up removes, as `--json` shows them."""
    ended = target.command("clean", *flags, "--json", expect=0)
    report = json.loads(ended.stdout)
    assert report["dry_run"] == ("--dry-run" in flags)
    assert all(job["bytes"] > 0 for job in report["removed"]), report
    return {job["name"] for job in report["removed"]}


def described(target):
    """Returns the ids of the jobs that the store describes."""
    return {name.split("/")[1] for name in target.objects("jobs/") if name.endswith("/spec.json")}


def test_dry_run_selects_by_age_state_name_and_size_and_removes_nothing(target, jobs):
    good, bad, still_open = jobs["good"], jobs["bad"], jobs["open"]
    before = target.objects("jobs/").keys()
    selected = {
        ("--all",): {good, bad},
        ("--older-than", "0s"): {good, bad},
        ("--older-than", "1h"): set(),
        ("--state", "completed"): {good},
        ("--state", "failed"): {bad},
        ("--state", "interrupted"): set(),
        ("--name", "b*"): {bad},
        ("--name", "o*"): set(),
        ("--name", "good", "--state", "failed"): set(),
        ("--keep", "1"): {good},
        ("--keep", "2"): set(),
        ("--keep-size", "1GB"): set(),
        ("--keep-size", "1KB"): {good, bad},
        (good,): {good},
        (still_open,): set(),
    }
    for flags, expected in selected.items():
        assert cleaned(target, *flags, "--dry-run") == expected, flags
    assert target.objects("jobs/").keys() == before


def test_open_job_is_kept_and_ends_after_the_others_are_removed(target, jobs):
    assert cleaned(target, "--state", "failed") == {jobs["bad"]}
    assert described(target) == {jobs["good"], jobs["open"]}
    refused = target.command("clean", jobs["open"], expect=0)
    assert "removed 0 jobs" in refused.stdout and "has not ended" in refused.stderr, str(refused)
    removed = target.command("clean", "--all", expect=0)
    assert jobs["good"] in removed.stdout and "removed 1 job" in removed.stdout, str(removed)
    assert described(target) == {jobs["open"]}
    assert not target.objects(f"jobs/{jobs['good']}") and not target.objects(f"jobs/{jobs['bad']}")
    gone = target.command("status", jobs["good"], expect=1)
    assert "there is no job" in gone.stderr, str(gone)
    target.reducer()
    target.worker("--process-count", 1)
    assert target.wait_for_end(jobs["open"])["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_age_is_the_time_since_the_last_change(target, jobs):
    """Gives a job another id and other times, which a folder allows."""
    folder = target.folder / "store/jobs"
    old = folder / "good-20200101-000000-0123456789abcdef"
    (folder / jobs["good"]).rename(old)
    for name in ("spec.json", "result.json"):
        document = json.loads((old / name).read_text())
        (old / name).write_text(json.dumps({**document, "job_id": old.name}))
    assert cleaned(target, "--older-than", "7d", "--dry-run") == set(), "it has just changed"
    for path in [old, *old.rglob("*")]:
        os.utime(path, (0, 0))
    assert cleaned(target, "--older-than", "7d") == {old.name}
    assert described(target) == {jobs["bad"], jobs["open"]}
