"""Queues of brokers that a person deletes: jobs go on, and roles keep running."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from harness import HOLDS, file_names, go, wait_until

TARGETS = ["sqs", "rabbitmq"]
COUNT = 40


def delete(target, queue: str) -> None:
    """Deletes a queue, named without the prefix of the target."""
    name = f"{target.prefix}-{queue}"
    if target.kind == "sqs":
        sqs = target.components.client("sqs")
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
    else:
        target.components.manage_rabbitmq(f"queues/%2f/{name}", "DELETE")


def queue_of(target, job_id: str, part: str) -> str:
    """Returns the queue of a job with its tasks or its results."""
    # Names of queues may contain only the beginning of an id.
    (queue,) = [queue for queue in target.queues(job_id[:30]) if queue.endswith(f"-{part}")]
    return queue


def begin(workplace, target, **environment: str):
    """Enqueues a job, and returns its id and a worker that works on it."""
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(HOLDS, speculation=False, run_max_try=3, run_invocation_timeout=600))
    worker = target.worker("--process-count", 2, "--grace", 2, **environment)
    worker.wait_for_record("held", 2)
    return job_id, worker


@pytest.mark.parametrize("part", ["tasks", "results"])
def test_deleted_queue_of_a_job_is_created_again(workplace, target, part):
    """The job continues without a person, and the roles keep running."""
    reducer = target.reducer()
    job_id, worker = begin(workplace, target)
    delete(target, queue_of(target, job_id, part))
    go(workplace)
    assert target.lines(job_id) == file_names(COUNT)
    assert target.status(job_id)["result"]["mini_batches"] == {"total": COUNT, "succeeded": COUNT, "failed": 0}
    assert reducer.process.poll() is None and worker.process.poll() is None


@pytest.mark.parametrize("part", ["tasks", "results"])
def test_messages_of_an_emptied_queue_are_published_again(workplace, target, part):
    reducer = target.reducer()
    job_id, worker = begin(workplace, target)
    if part == "results":
        reducer.stop()
        go(workplace)
        worker.wait_for_record("run", COUNT)
        wait_until(lambda: target.waiting("results") > 0, "results")
        target.purge(part)
        reducer = target.reducer()
    else:
        target.purge(part)
        go(workplace)
    assert target.lines(job_id) == file_names(COUNT)
    assert worker.process.poll() is None
    reducer.send(signal.SIGTERM)
    assert "has lost its messages" in reducer.wait().stderr


def test_deleted_queues_of_a_job_delay_no_other_job(workplace, target):
    target.reducer()
    job_id, _ = begin(workplace, target)
    for part in ("tasks", "results"):
        delete(target, queue_of(target, job_id, part))
    other = target.enqueue(workplace.job_of_its_own("other", 5, "def run(files): return files"))
    assert len(target.lines(other)) == 5
    go(workplace)
    assert target.lines(job_id) == file_names(COUNT)


def test_deleted_queues_of_the_target_need_no_other_roles(workplace, target):
    """A command or `doctor --create` creates them again, as the message says."""
    reducer, worker = target.reducer(), target.worker("--process-count", 1)
    for queue in ("control", "dead-letters"):
        delete(target, queue)
    job = workplace.job_of_its_own("job", 5, "def run(files): return files")
    if target.kind == "sqs":
        refused = target.command("enqueue", job.file, expect=1)
        assert f"{target.prefix}-control" in refused.stderr and "doctor --create" in refused.stderr, str(refused)
        target.command("doctor", "--create", expect=0)
    assert len(target.lines(target.enqueue(job))) == 5
    assert reducer.process.poll() is None and worker.process.poll() is None


def test_outcomes_of_a_deleted_queue_are_computed_again(workplace, target):
    """Only those that no reducer had committed."""
    reducer = target.reducer()
    job_id, worker = begin(workplace, target, HOLD="030.txt")
    # Both processes are held now.
    kept = {fact["file"] for fact in workplace.recorded("run")}

    wait_until(lambda: target.committed(job_id) == len(kept), f"{len(kept)} committed mini-batches")
    reducer.stop()
    go(workplace)
    worker.wait_for_record("run", COUNT)
    worker.stop()
    assert target.waiting("results") > 0
    delete(target, queue_of(target, job_id, "results"))
    target.reducer()
    target.worker("--process-count", 2)
    target.command("retry", job_id, "--republish", expect=0)
    assert target.lines(job_id) == file_names(COUNT)
    runs = Counter(fact["file"] for fact in workplace.recorded("run"))
    assert runs == {name: 1 if name in kept else 2 for name in file_names(COUNT)}
