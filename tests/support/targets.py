"""Compute targets for tests: separate queues and store, and the roles that use them."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from components import Components
from harness import DEADLINE_SECONDS, Ended, Job, Running, Workplace, wait_until

KINDS = ["sqlite", "sqs", "rabbitmq"]
OWN_QUEUES = ("control", "dead-letters")
"""The queues that a target has without any job."""


def lend(kind: str, workplace: Workplace, components: Components) -> Iterator[Target]:
    """Yields a target for the lifetime of a fixture."""
    target = Target(kind, workplace, components)
    yield target
    workplace.kill_what_still_runs()
    target.remove()


class Target:
    """`[targets.NAME]` in the gristmill.toml of a workplace. Its name is its kind."""

    def __init__(self, kind: str, workplace: Workplace, components: Components) -> None:
        self.name = self.kind = kind
        self.workplace = workplace
        self.components = components
        self.enqueued = 0
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.folder = workplace.folder / self.prefix
        broker = components.amqp_url.partition("?")[0]
        self.settings = {
            "sqlite": {"queue": f"sqlite:{self.prefix}/queues", "store": f"{self.prefix}/store"},
            "sqs": {"queue": f"sqs://{self.prefix}", "store": f"s3://{self.prefix}/jobs"},
            "rabbitmq": {"queue": f"{broker}?prefix={self.prefix}", "store": f"s3://{self.prefix}/jobs"},
        }[kind]
        if kind != "sqlite":
            self.settings["endpoint"] = components.aws_endpoint
        self.write()
        workplace.environment.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1")
        if kind != "sqlite":
            components.create_target(kind, self.prefix)

    def write(self, **settings: str) -> None:
        """Writes gristmill.toml; `settings` replace those of the target."""
        keys = {**self.settings, **settings}.items()
        lines = [f"[targets.{self.name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys)]
        (self.workplace.folder / "gristmill.toml").write_text("\n".join(lines) + "\n")

    def command(self, name: str, *arguments: object, expect: int | None = None, **environment: str) -> Ended:
        """Runs `gristmill NAME … --target` to its end."""
        if name == "enqueue":
            arguments = (*arguments, *self._own_output(*arguments))
        ended = self.workplace.command(name, *arguments, "--target", self.name, **environment)
        assert expect is None or ended.exit_status == expect, str(ended)
        return ended

    def _own_output(self, *arguments: object) -> list[str]:
        """Returns another output for a job with the usual one that is enqueued again: open jobs do not share one."""
        file = next((argument for argument in arguments if isinstance(argument, Path)), None)
        settings = json.loads(file.read_text()) if file is not None and file.suffix == ".yaml" else {}
        if settings.get("output") != "output" or settings.get("allow_reuse"):
            return []
        self.enqueued += 1
        return [] if self.enqueued == 1 else ["--set", f"output=output/{self.enqueued}"]

    def start(self, name: str, *arguments: object, **environment: str) -> Running:
        return self.workplace.start(name, *arguments, "--target", self.name, **environment)

    def role(self, name: str, *arguments: object, **environment: str) -> Running:
        return self.workplace.role(name, *arguments, "--target", self.name, **environment)

    def create_store(self) -> None:
        """Creates the folder of its store, as the first `enqueue` does. Until then, no worker is listed."""
        if self.kind == "sqlite":
            self.command("doctor", "--create", expect=0)

    def worker(self, *arguments: object, **environment: str) -> Running:
        return self.role("worker", *arguments, **environment)

    def reducer(self, *arguments: object, **environment: str) -> Running:
        return self.role("reducer", *arguments, **environment)

    def run(self, job: Job, *arguments: object, expect: int = 0, **environment: str) -> Ended:
        """Runs `gristmill run --target` to the expected end."""
        running = self.start("run", job.file, "--json", *arguments, **environment)
        running.job = job
        ended = running.wait()
        assert ended.exit_status == expect, str(ended)
        return ended

    def enqueue(self, job: Job, *arguments: object) -> str:
        """Publishes a job and returns its id."""
        return self.command("enqueue", job.file, *arguments, expect=0).stdout.strip()

    def status(self, job_id: str) -> dict[str, Any]:
        return json.loads(self.command("status", job_id, "--json", expect=0).stdout)

    def wait_for_end(self, job_id: str, state: str = "Completed", seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Waits for the expected end of the job and returns its result."""
        # A look at the store takes less of a processor than a process.
        wait_until(lambda: self.objects(f"jobs/{job_id}/result.json"), f"the end of {job_id}", seconds)
        result = self.status(job_id)["result"]
        assert result["state"] == state, result
        return result

    def progress(self, job_id: str) -> dict[str, Any]:
        """Returns the latest progress in the store, an empty object before the first."""
        found = self.objects(f"jobs/{job_id}/progress.json").values()
        progress: dict[str, Any] = json.loads(next(iter(found), b"{}"))
        return progress

    def committed(self, job_id: str) -> int:
        """Returns the number of mini-batches whose success a reducer has committed."""
        return self.progress(job_id).get("mini_batches", {}).get("succeeded", 0)

    def output(self, result: dict[str, Any]) -> bytes:
        return Path(result["output"]).read_bytes()

    def lines(self, job_id: str) -> list[str]:
        """Waits for the end of a job that completes, and returns the lines of its output."""
        return self.output(self.wait_for_end(job_id)).decode().splitlines()

    def _client(self, service: str) -> Any:
        """Returns a client of LocalStack, which all tests share: those that wait ask it some times a second."""
        time.sleep(0.05)
        return self.components.client(service)

    def queues(self, part: str = "") -> list[str]:
        """Returns the queues of jobs at the service, without the prefix of the target. `part`: of their names.

        Names of SQS contain only the beginning of the id of a job.
        """
        if self.kind == "sqlite":
            found = [file.stem for file in (self.folder / "queues").glob("*.db")]
        else:
            if self.kind == "sqs":
                listed = self._client("sqs").list_queues(QueueNamePrefix=f"{self.prefix}-")
                found = [url.rpartition("/")[2] for url in listed.get("QueueUrls", [])]
            else:
                found = [queue["name"] for queue in self.components.manage_rabbitmq("queues/%2f")]
            own = f"{self.prefix}-"
            found = [queue.removeprefix(own) for queue in found if queue.startswith(own)]
        jobs = sorted(queue for queue in found if queue not in OWN_QUEUES)
        return [queue for queue in jobs if part in queue]

    def _named(self, queue: str) -> list[str]:
        """Returns the queues that a name means: `tasks` and `results` are those of all jobs."""
        if queue not in ("tasks", "results"):
            return [queue]
        return [name for name in self.queues() if name.endswith(f"-{queue}")]

    def wait_for_queues(self) -> None:
        """Waits until a job has its queues."""
        wait_until(lambda: self._named("tasks") and self._named("results"), "the queues of a job")

    def send(self, queue: str, body: str | bytes) -> None:
        """Sends any text to one of the queues, or any bytes with RabbitMQ. `tasks`, `results`: of the only job."""
        (queue,) = self._named(queue)
        if self.kind == "sqs":
            sqs = self._client("sqs")
            url = sqs.get_queue_url(QueueName=f"{self.prefix}-{queue}")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody=body)
        elif self.kind == "rabbitmq":
            text = isinstance(body, str)
            publish = {"properties": {}, "routing_key": f"{self.prefix}-{queue}"}
            publish["payload"] = body if text else base64.b64encode(body).decode()
            publish["payload_encoding"] = "string" if text else "base64"
            answer = self.components.manage_rabbitmq("exchanges/%2f/amq.default/publish", "POST", publish)
            assert answer["routed"], answer

    def purge(self, queue: str) -> None:
        """Removes every visible message of a queue; `tasks`, `results`: of those of all jobs."""
        for name in self._named(queue):
            if self.kind == "sqs":
                sqs = self._client("sqs")
                sqs.purge_queue(QueueUrl=sqs.get_queue_url(QueueName=f"{self.prefix}-{name}")["QueueUrl"])
            elif self.kind == "rabbitmq":
                self.components.manage_rabbitmq(f"queues/%2f/{self.prefix}-{name}/contents", "DELETE")
            else:
                self.query(name, "delete from message")

    def query(self, queue: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Returns the answer of the database that is a queue of a SQLite target."""
        file = self.folder / "queues" / f"{queue}.db"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True, timeout=30)) as database, database:
            return database.execute(statement, values).fetchall()

    def waiting(self, queue: str) -> int:
        """Returns the number of visible messages of a queue; `tasks`, `results`: of those of all jobs."""
        return sum(self._waiting_in(name) for name in self._named(queue))

    def _waiting_in(self, queue: str) -> int:
        if self.kind == "sqs":
            sqs = self._client("sqs")
            name = "ApproximateNumberOfMessages"
            with contextlib.suppress(sqs.exceptions.QueueDoesNotExist):
                url = sqs.get_queue_url(QueueName=f"{self.prefix}-{queue}")["QueueUrl"]
                return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])
            return 0
        if self.kind == "rabbitmq":
            # The broker itself, because the data of its management plugin is seconds old.
            connection = pika.BlockingConnection(pika.URLParameters(self.components.amqp_url))
            try:
                declared = connection.channel().queue_declare(f"{self.prefix}-{queue}", passive=True)
                return declared.method.message_count
            except pika.exceptions.ChannelClosedByBroker:
                return 0
            finally:
                connection.close()
        # A reducer may create or delete it.
        with contextlib.suppress(sqlite3.OperationalError):
            ((count,),) = self.query(queue, "select count(*) from message where visible_at <= ?", time.time() * 1000)
            return count
        return 0

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Returns every object of the store with this prefix, by name."""
        found = {}
        if self.kind == "sqlite":
            store = self.folder / "store"
            folder, _, beginning = prefix.rpartition("/")
            for top in (store / folder).glob(f"{beginning}*"):
                for path in (top, *top.rglob("*")):
                    # `NAME#1` is a file in progress, to be renamed to NAME.
                    if not re.search(r"#\d+$", path.name) and path.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            found[str(path.relative_to(store))] = path.read_bytes()
            return found
        s3 = self._client("s3")
        for item in s3.list_objects_v2(Bucket=self.prefix, Prefix=f"jobs/{prefix}").get("Contents", []):
            # It may have been removed since the listing.
            with contextlib.suppress(s3.exceptions.NoSuchKey):
                body = s3.get_object(Bucket=self.prefix, Key=item["Key"])["Body"]
                found[item["Key"].removeprefix("jobs/")] = body.read()
        return found

    def remove(self) -> None:
        """Removes all queues and objects."""
        if self.kind == "sqlite":
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self.components.remove(self.prefix)
