"""A job of a target whose result is there already is not run again, by the rules of one machine."""

import json
import time
from pathlib import Path

import pytest

from harness import RECORDS_ITS_FILES as ROWS
from harness import go, next_second

REUSED = "same script, settings and inputs (allow_reuse: false runs it again)"


@pytest.fixture
def roles(sqlite):
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    return sqlite


def enqueue(target, job, *arguments):
    return target.command("enqueue", job.file, *arguments, expect=0)


def test_completed_job_is_reused(workplace, roles):
    workplace.data(3)
    job = workplace.job(ROWS, allow_reuse=True)
    first = roles.enqueue(job)
    result = roles.wait_for_end(first)
    again = enqueue(roles, job)
    assert again.stdout.strip() == first
    assert f"reused the result of job {first}: {REUSED}" in again.stderr, str(again)
    document = json.loads(enqueue(roles, job, "--json").stdout)
    assert document == {"job_id": first, "target": "sqlite", "reused": True}
    waited = json.loads(enqueue(roles, job, "--wait", "--json").stdout)
    assert (waited["job_id"], waited["reused"], waited["output"]) == (first, True, result["output"])
    ran = json.loads(roles.command("run", job.file, "--json", expect=0).stdout)
    assert (ran["job_id"], ran["reused"]) == (first, True)
    assert len(workplace.recorded("run")) == 3, "nothing ran again"
    assert len(roles.objects("jobs/")) and len({name.split("/")[1] for name in roles.objects("jobs/")}) == 1

    fresh = enqueue(roles, job, "--fresh").stdout.strip()
    assert fresh != first
    roles.wait_for_end(fresh)
    assert len(workplace.recorded("run")) == 6
    never = workplace.job(ROWS, allow_reuse=False)
    assert roles.enqueue(never) not in (first, fresh)


def test_changed_job_runs_and_says_why(workplace, roles):
    workplace.data(2)
    workplace.write({"labels/a.txt": "a"})
    settings = {"allow_reuse": True, "side_inputs": {"labels": "labels"}}
    last = roles.enqueue(workplace.job(ROWS, **settings))
    output = Path(roles.wait_for_end(last)["output"])
    script = ROWS.replace("return [name]", "return [name.upper()]")
    changes = [
        ("entry.py has changed", lambda: None),
        ("the files of input data have changed", lambda: workplace.write({"data/001.txt": "other"})),
        ("rows.txt is missing, or was changed since", lambda: output.write_text("by hand")),
        ("error_threshold is 5 and was -1", lambda: settings.update(error_threshold=5)),
        ("side input labels has changed", lambda: workplace.write({"labels/a.txt": "another"})),
    ]
    for number, (reason, change) in enumerate(changes, 2):
        change()
        ended = enqueue(roles, workplace.job(script, **settings))
        assert f"job {last} has completed, and this is a new job, because" in ended.stderr, str(ended)
        assert reason in ended.stderr and ended.stdout.strip() != last, str(ended)
        last = ended.stdout.strip()
        roles.wait_for_end(last)
        assert len(workplace.recorded("run")) == 2 * number
        next_second()
    assert [path.read_text() for path in output.parent.glob("*.edited-*")] == ["by hand"], "the edited output is kept"


def test_job_that_has_not_completed_is_not_reused(workplace, roles):
    workplace.data(2)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def run(files):
            record("run")
            wait_for(lambda: recorded("go"))
            if files[0].endswith("001.txt") and len(recorded("run")) < 4:
                raise ValueError("no")
            return [os.path.basename(files[0])]
    """
    job = workplace.job(script, allow_reuse=True)
    first = roles.enqueue(job)
    refused = roles.command("enqueue", job.file)
    assert f"job {first} has not ended and writes the same output" in refused.stderr, str(refused)
    go(workplace)
    result = roles.wait_for_end(first)
    assert result["mini_batches"]["failed"] == 1
    third = enqueue(roles, job)
    assert f"job {first} has failures, and this is a new job" in third.stderr, str(third)
    roles.wait_for_end(third.stdout.strip())


def test_job_in_a_bucket_is_reused(workplace, sqs):
    """Input, output and store are in S3."""
    s3 = sqs.components.client("s3")
    s3.put_object(Bucket=sqs.prefix, Key="in/a.txt", Body=b"a")
    url = f"s3://{sqs.prefix}"
    inputs = [{"name": "data", "type": "file", "path": f"{url}/in/"}]
    job = workplace.job(ROWS, allow_reuse=True, inputs=inputs, output=f"{url}/out")
    sqs.worker("--process-count", 1)
    sqs.reducer()
    first = sqs.enqueue(job)
    sqs.wait_for_end(first)
    assert enqueue(sqs, job).stdout.strip() == first
    # Times of objects are whole seconds.
    time.sleep(1.1)
    s3.put_object(Bucket=sqs.prefix, Key="out/rows.txt", Body=b"by hand")
    second = enqueue(sqs, job)
    assert f"output {url}/out/rows.txt is missing, or was changed since" in second.stderr, str(second)
    sqs.wait_for_end(second.stdout.strip())
    assert len(workplace.recorded("run")) == 2
