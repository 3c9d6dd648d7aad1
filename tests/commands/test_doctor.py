"""`gristmill doctor` against real queues and stores: each line says ok or names one thing to fix."""

import json
import urllib.parse
import uuid
from collections.abc import Iterator

import pytest

from components import Components
from harness import Workplace, wait_until
from http_server import Answer, HttpServer, Request, forward

OWN = ["control", "dead-letters"]
OF_A_JOB = ["tasks of a job", "results of a job"]


class Target:
    """A separate target in a fresh `gristmill.toml`."""

    def __init__(self, workplace: Workplace, components: Components) -> None:
        self.workplace = workplace
        self.components = components
        self.prefix = f"doctor-{uuid.uuid4().hex[:12]}"
        self.settings = {"queue": f"sqs://{self.prefix}", "store": f"s3://{self.prefix}/jobs"}
        self.settings["endpoint"] = components.aws_endpoint
        self.environment = {**components.environment_of_aws, "AWS_EC2_METADATA_DISABLED": "true"}
        del self.environment["AWS_ENDPOINT_URL"]

    def rabbitmq(self, user: str = "guest", password: str = "guest") -> None:
        broker = urllib.parse.urlsplit(self.components.amqp_url)
        address = f"{user}:{password}@{broker.hostname}:{broker.port}"
        self.settings["queue"] = f"amqp://{address}{broker.path}?prefix={self.prefix}"
        management = urllib.parse.urlsplit(self.components.environment["GRISTMILL_TEST_AMQP_MANAGEMENT"])
        self.settings["management"] = f"http://{management.hostname}:{management.port}"
        self.settings["store"] = str(self.workplace.folder / "store")

    def doctor(self, *arguments: str, expect: int) -> dict[str, tuple[str, str]]:
        """Returns state and message of each check, without the prefix in their names."""
        lines = ["[targets.t]", *(f"{key} = {json.dumps(value)}" for key, value in self.settings.items())]
        self.workplace.write({"gristmill.toml": "\n".join(lines)})
        ended = self.workplace.command("doctor", "--target", "t", "--json", *arguments, **self.environment)
        assert ended.exit_status == expect, ended
        report = json.loads(ended.stdout)
        assert report["ok"] == (expect == 0), report
        checks = report["checks"]
        return {check["check"].replace(f"{self.prefix}-", ""): (check["state"], check["message"]) for check in checks}

    def doctor_of_a_slow_job(self, expect: int) -> dict[str, tuple[str, str]]:
        """Compares the deadlines of a job with the limits of the queues, too."""
        job = {
            "name": "demo",
            "entry_script": "score.py",
            "arguments": ["--rank_mini_batch_count", "3"],
            "output_action": "summary_only",
            "run_invocation_timeout": 25_000,
        }
        script = "def run(mini_batch):\n    return mini_batch\n"
        self.workplace.write({"score.py": script, "job.yaml": json.dumps(job)})
        return self.doctor("--job", "job.yaml", expect=expect)

    def queue_url(self, queue: str) -> str:
        return self.components.client("sqs").get_queue_url(QueueName=f"{self.prefix}-{queue}")["QueueUrl"]

    def queues(self) -> list[str]:
        """Returns the queues of SQS, without the prefix."""
        listed = self.components.client("sqs").list_queues(QueueNamePrefix=self.prefix).get("QueueUrls", [])
        return sorted(url.rpartition("/")[2].removeprefix(f"{self.prefix}-") for url in listed)


@pytest.fixture
def target(workplace: Workplace, components: Components) -> Iterator[Target]:
    target = Target(workplace, components)
    yield target
    components.remove(target.prefix)


def not_ok(checks: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {check: message for check, (state, message) in checks.items() if state != "ok"}


def all_ok(checks: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {} if not_ok(checks) else checks


def test_doctor_creates_missing_queues_compares_deadlines_and_leaves_waiting_messages_unchanged(target: Target):
    checks = target.doctor(expect=1)
    assert "bucket" in checks["store"][1] and checks["store"][0] == "failed", checks
    assert (
        "control cannot be used: it does not exist" in checks["queues"][1] and "doctor --create" in checks["queues"][1]
    ), checks
    target.doctor("--create", expect=0)
    checks = target.doctor(expect=0)
    assert not not_ok(checks), checks
    for request in ["put", "get", "list", "multipart upload", "delete", "conditional put"]:
        assert f"store, {request}" in checks
    assert {f"queue {queue}" for queue in OWN} <= checks.keys() and "queue control, publish" in checks
    for queue in OF_A_JOB:
        assert f"{queue}, publish" in checks and f"{queue}, receive, extend, delete" in checks
    assert checks["queues of jobs"][1] == "created and deleted"
    assert checks["store, conditional put"][1] == "of 16 concurrent writers of one object, one succeeded"
    listed = target.components.client("s3").list_objects_v2(Bucket=target.prefix)
    assert listed["KeyCount"] == 0, "nothing is left behind"
    assert target.queues() == OWN, "those of a job were deleted again"
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    letters = target.queue_url("dead-letters")
    sqs = target.components.client("sqs")
    assert set(sqs.get_queue_attributes(QueueUrl=letters, AttributeNames=names)["Attributes"].values()) == {"0"}

    checks = target.doctor_of_a_slow_job(expect=1)
    assert list(not_ok(checks)) == ["lease"] and "SQS allows 12 h" in checks["lease"][1], checks

    sqs.send_message(QueueUrl=letters, MessageBody="somebody's")
    checks = target.doctor(expect=0)
    assert checks["queue dead-letters"][1] == "1 messages", checks
    received = []
    asked = {"QueueUrl": letters, "AttributeNames": ["ApproximateReceiveCount"], "MaxNumberOfMessages": 10}
    while not any(message["Body"] == "somebody's" for message in received):
        received += sqs.receive_message(WaitTimeSeconds=5, **asked).get("Messages", [])
    theirs = next(message for message in received if message["Body"] == "somebody's")
    assert theirs["Attributes"]["ApproximateReceiveCount"] == "1"


def test_rabbitmq_queues_are_checked_with_deadlines_without_management_and_for_a_classic_one(target: Target):
    target.rabbitmq()
    for _ in range(2):
        # The first must not create what the second looks for: the prefix may be mistyped.
        state, message = target.doctor(expect=1)["queues"]
        assert state == "failed" and "control at" in message, message
        assert "does not exist" in message and "doctor --create" in message, message
    target.doctor("--create", expect=0)
    # The broker may handle the acknowledgements of one `doctor` after the start of the next.
    checks = wait_until(lambda: all_ok(target.doctor(expect=0)), "checks that are all ok")
    assert checks["tasks of a job, type"][1] == "quorum"
    assert checks["queues of jobs"][1] == "created and deleted"
    assert "30 min" in checks["consumer timeout"][1]

    state, message = target.doctor_of_a_slow_job(expect=0)["consumer timeout"]
    # The client cannot read the server's value, so it is a warning.
    assert state == "warning" and "consumer_timeout = " in message and "rabbitmq.conf" in message, message

    management = target.settings["management"]
    target.settings["management"] = "http://127.0.0.1:9"
    checks = target.doctor(expect=0)
    assert list(not_ok(checks)) == ["broker"], checks
    assert checks["broker"][0] == "not_checked" and "http://127.0.0.1:9/ does not answer" in checks["broker"][1]

    target.settings["management"] = management
    path = f"queues/%2f/{target.prefix}-dead-letters"
    target.components.manage_rabbitmq(path, "DELETE")
    target.components.manage_rabbitmq(path, "PUT", {"durable": True, "arguments": {"x-queue-type": "classic"}})
    checks = target.doctor(expect=1)
    assert list(not_ok(checks)) == ["queues"], checks
    message = checks["queues"][1]
    assert f"queue {target.prefix}-dead-letters" in message and "a different kind of queue has this name" in message


def test_empty_endpoint_counts_as_unset(target: Target):
    """The next source applies: the endpoint for all services, then the profile's."""
    endpoint = target.settings.pop("endpoint")
    nothing = {"AWS_ENDPOINT_URL_SQS": "", "AWS_ENDPOINT_URL_S3": ""}
    target.environment |= {**nothing, "AWS_ENDPOINT_URL": endpoint}
    target.doctor("--create", expect=0)
    target.workplace.write({"aws.ini": f"[default]\nendpoint_url = {endpoint}\n"})
    profile = target.workplace.folder / "aws.ini"
    target.environment |= {"AWS_ENDPOINT_URL": "", "AWS_CONFIG_FILE": str(profile)}
    target.doctor(expect=0)


def test_wrong_password_is_reported_and_not_shown(target: Target):
    target.rabbitmq(password="s3cr3t")
    checks = target.doctor(expect=1)
    assert "guest" in checks["queues"][1] and checks["queues"][0] == "failed", checks
    assert checks["broker"][0] == "not_checked" and "rejects user guest" in checks["broker"][1]
    assert "s3cr3t" not in json.dumps(checks)


def test_store_that_ignores_conditions_or_is_without_credentials_is_rejected(target: Target):
    target.doctor("--create", expect=0)

    def without_condition(request: Request) -> Answer:
        del request.headers["If-None-Match"]
        return forward(target.components.aws_endpoint, request)

    endpoint = target.settings["endpoint"]
    with HttpServer(without_condition) as proxy:
        target.settings["endpoint"] = proxy.url
        checks = target.doctor(expect=1)
    assert list(not_ok(checks)) == ["store, conditional put"], checks
    message = checks["store, conditional put"][1]
    assert "does not honour conditional creates (If-None-Match: *)" in message and "two reducers" in message

    target.settings["endpoint"] = endpoint
    for settings in [target.environment, target.workplace.environment]:
        for name in [name for name in settings if name.startswith("AWS_") and name != "AWS_REGION"]:
            del settings[name]
    target.environment["AWS_EC2_METADATA_DISABLED"] = "true"
    # No profile and no other source.
    target.environment["HOME"] = str(target.workplace.folder)
    checks = target.doctor(expect=1)
    assert "credentials" in checks["store"][1] and checks["store"][0] == "failed", checks
    assert "credentials" in checks["queues"][1], checks


def test_store_that_is_not_mounted_is_named_and_not_created(target: Target):
    target.rabbitmq()
    store = target.workplace.folder / "store"
    state, message = target.doctor(expect=1)["store"]
    assert state == "failed" and "is not the folder of a store; mount it, or create it" in message, message
    assert not store.exists()
    # A mount point is a folder without its disk, too.
    store.mkdir()
    assert target.doctor(expect=1)["store"] == (state, message)
    assert not [*store.iterdir()]
    listed, known = (target.workplace.command(*words, "--target", "t") for words in (["jobs"], ["status", "a-job"]))
    for said in (listed.stderr, known.stderr):
        assert "is not the folder of a store: it is not mounted, or nothing was enqueued yet" in said, said
    assert target.doctor("--create", expect=0)["store"][0] == "ok"
    assert target.doctor(expect=0)["store"][0] == "ok"


def test_variable_that_is_not_set_blocks_only_its_target(workplace: Workplace):
    lines = ["[targets.prod]", "store = 'prod'", "[targets.office]", "queue = 'amqp://u:${NO_SUCH_PASSWORD}@h/'"]
    workplace.write({"gristmill.toml": "\n".join([*lines, "store = 'office'"])})
    prod, office = (workplace.command("jobs", "--target", name) for name in ("prod", "office"))
    assert prod.exit_status == 0, str(prod)
    said = "gristmill.toml:4: targets.office.queue: the environment variable NO_SUCH_PASSWORD is not set"
    assert office.exit_status == 2 and said in office.stderr, str(office)
