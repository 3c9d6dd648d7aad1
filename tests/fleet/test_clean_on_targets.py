"""`gristmill clean --target`: removes ended jobs of a store by age, state, name and size, and never an open one."""

import json

from harness import next_second

TARGETS = ["sqlite", "sqs"]

RETURN = "def run(files): return files"
FAIL = "def run(files): raise ValueError('bad')"


def jobs_of(workplace, target):
    """Returns a completed, a failed and an open job, which no role serves."""
    workplace.data(2)
    roles = [target.reducer(), target.worker("--process-count", 1)]
    ended = {}
    for name, script, state in [("good", RETURN, "Completed"), ("bad", FAIL, "Failed")]:
        job = workplace.job(script, name=name, file=f"{name}.yaml", output=name, error_threshold=0)
        ended[name] = target.enqueue(job)
        target.wait_for_end(ended[name], state)
        next_second()
    for role in roles:
        role.stop()
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


def test_clean_removes_what_it_selects_by_age_state_name_and_size_and_never_an_open_job(workplace, target):
    jobs = jobs_of(workplace, target)
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
    assert target.objects("jobs/").keys() == before, "nothing is removed"

    assert cleaned(target, "--state", "failed") == {bad}
    assert described(target) == {good, still_open}
    refused = target.command("clean", still_open, expect=0)
    assert "removed 0 jobs" in refused.stdout and "has not ended" in refused.stderr, str(refused)
    removed = target.command("clean", "--all", expect=0)
    assert good in removed.stdout and "removed 1 job" in removed.stdout, str(removed)
    assert described(target) == {still_open}
    assert not target.objects(f"jobs/{good}") and not target.objects(f"jobs/{bad}")
    gone = target.command("status", good, expect=1)
    assert "there is no job" in gone.stderr, str(gone)
    target.reducer()
    target.worker("--process-count", 1)
    assert target.wait_for_end(still_open)["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
