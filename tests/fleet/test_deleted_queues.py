"""Queues of brokers that a person deletes: each role names the queue, and the remedy loses nothing."""

from __future__ import annotations

import signal
from collections import Counter

import pika

from harness import HOLDS, file_names, go, wait_until

TARGETS = ["sqs", "rabbitmq"]
COUNT = 40
SECONDS = 60
"""A role whose queue was deleted ends within this time."""

REMEDIES = {
    "sqs": "it does not exist in region us-east-1; create it",
    "rabbitmq": "it was deleted with its messages; restart this command to create it, then retry the jobs",
}


def delete(target, name: str) -> None:
    if target.kind == "sqs":
        sqs = target.components.client("sqs")
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
    else:
        target.components.manage_rabbitmq(f"queues/%2f/{name}", "DELETE")


def create(target) -> None:
    """Creates what is missing, as the message says. Each command does so on RabbitMQ."""
    if target.kind == "sqs":
        target.command("doctor", "--create", expect=0)


def queue_of_tasks(target) -> str:
    """Returns the name of the queue that holds the tasks of the only job: with RabbitMQ, its lane."""
    connection = pika.BlockingConnection(pika.URLParameters(target.components.amqp_url))
    try:
        channel = connection.channel()
        waiting = {
            name: channel.queue_declare(name, passive=True).method.message_count for name in target.lanes("tasks")
        }
    finally:
        connection.close()
    (name,) = [name for name, count in waiting.items() if count]
    return name


def ends_and_names(running, name: str, remedy: str) -> None:
    """The role fails, and prints one line that names the queue and the remedy."""
    ended = running.wait(SECONDS)
    assert ended.exit_status == 1, str(ended)
    error = [line for line in ended.stderr.splitlines() if line.startswith("gristmill: ")]
    assert len(error) == 1, str(ended)
    assert name in error[0] and remedy in error[0], error


def begin(workplace, target, **environment: str):
    """Enqueues a job, and returns its id and a worker that works on it."""
    workplace.data(COUNT)
    job_id = target.enqueue(workplace.job(HOLDS, speculation=False))
    worker = target.worker("--process-count", 2, "--grace", 2, **environment)
    worker.wait_for_record("held", 2)
    return job_id, worker


def test_deleted_task_queue_is_named_and_created_again(workplace, target):
    target.reducer()
    job_id, worker = begin(workplace, target)
    name = queue_of_tasks(target) if target.kind == "rabbitmq" else f"{target.prefix}-tasks"
    delete(target, name)
    go(workplace)
    ends_and_names(worker, name, REMEDIES[target.kind])
    create(target)
    target.worker("--process-count", 2)
    target.command("retry", job_id, "--republish", expect=0)
    assert target.lines(job_id) == file_names(COUNT)


def test_deleted_lane_of_other_jobs_needs_only_another_worker(workplace, rabbitmq):
    """A worker also ends when somebody deletes a lane that its job does not use: it may hold messages of others."""
    rabbitmq.reducer()
    job_id, worker = begin(workplace, rabbitmq)
    other = next(name for name in rabbitmq.lanes("tasks") if name != queue_of_tasks(rabbitmq))
    delete(rabbitmq, other)
    ends_and_names(worker, other, REMEDIES["rabbitmq"])
    go(workplace)
    rabbitmq.worker("--process-count", 2)
    assert rabbitmq.lines(job_id) == file_names(COUNT), "its messages were in another lane"


def test_deleted_result_queue_is_named_and_created_again(workplace, target):
    """The worker must not compute mini-batches repeatedly when no reducer can receive their outcomes."""
    reducer = target.reducer()
    job_id, worker = begin(workplace, target)
    delete(target, name := f"{target.prefix}-results")
    ends_and_names(reducer, name, REMEDIES[target.kind])
    go(workplace)
    ends_and_names(worker, name, "it does not exist")
    create(target)
    target.reducer()
    target.worker("--process-count", 2)
    target.command("retry", job_id, "--republish", expect=0)
    assert target.lines(job_id) == file_names(COUNT)


def test_outcomes_of_a_deleted_queue_are_computed_again(workplace, target):
    """Only those that no reducer had committed."""
    reducer = target.reducer()
    job_id, worker = begin(workplace, target, HOLD="030.txt")
    # Both processes are held now.
    kept = {fact["file"] for fact in workplace.recorded("run")}

    wait_until(lambda: target.committed(job_id) == len(kept), f"{len(kept)} committed mini-batches")
    reducer.send(signal.SIGTERM)
    assert reducer.wait().exit_status == 0
    go(workplace)
    worker.wait_for_record("run", COUNT)
    worker.send(signal.SIGTERM)
    assert worker.wait().exit_status == 0
    assert target.waiting("results") > 0
    delete(target, f"{target.prefix}-results")
    create(target)
    target.reducer()
    target.worker("--process-count", 2)
    target.command("retry", job_id, "--republish", expect=0)
    assert target.lines(job_id) == file_names(COUNT)
    runs = Counter(fact["file"] for fact in workplace.recorded("run"))
    assert runs == {name: 1 if name in kept else 2 for name in file_names(COUNT)}
