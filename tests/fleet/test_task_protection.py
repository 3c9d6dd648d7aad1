"""Scale-in does not stop a worker on ECS while it has work. The ECS agent is a small server."""

import json
import signal

import pytest

from harness import go, wait_until
from http_server import HttpServer

HOLDS = """
    from recorder import record, recorded, wait_for
    def run(files):
        record("begun")
        wait_for(lambda: recorded("go"))
        return ["done"]
"""
REFUSED = {"requestID": "1", "failure": {"Arn": "arn:aws:ecs:task", "Reason": "TASK_NOT_VALID", "Detail": None}}


class Agent(HttpServer):
    """Answers as ECS does, and records each request with the number of mini-batches started before it."""

    def __init__(self, workplace):
        self.workplace, self.asked, self.refusal = workplace, [], None
        super().__init__(self.protect)
        self.uri = f"{self.url}/api/0123456789"

    def protect(self, request):
        body = json.loads(request.body)
        self.asked.append((request.path, body, len(self.workplace.recorded("begun"))))
        protection = {"ProtectionEnabled": body["ProtectionEnabled"], "TaskArn": "arn:aws:ecs:task"}
        return 200, {}, json.dumps(self.refusal or {"protection": protection}).encode()


@pytest.fixture
def agent(workplace):
    with Agent(workplace) as agent:
        yield agent


@pytest.fixture
def target(sqlite):
    return sqlite


def finish(workplace, target, job_id):
    go(workplace)
    return target.output(target.wait_for_end(job_id))


def test_task_is_protected_while_it_has_work(workplace, target, agent):
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI=agent.uri)
    for turn in (1, 2):
        workplace.record_file.write_text("")
        workplace.data(4)
        job_id = target.enqueue(workplace.job(HOLDS, run_invocation_timeout=600, name=f"turn-{turn}"))
        worker.wait_for_record("begun")
        on = {"ProtectionEnabled": True, "ExpiresInMinutes": 30}
        assert agent.asked == [("/api/0123456789/task-protection/v1/state", on, 0)], "asked before anything ran"
        assert finish(workplace, target, job_id) == b"done\n" * 4
        wait_until(lambda: len(agent.asked) == 2, "the end of the protection")
        assert agent.asked.pop()[1] == {"ProtectionEnabled": False}
        agent.asked.clear()
    worker.send(signal.SIGTERM)
    assert worker.wait().exit_status == 0


def test_refused_protection_does_not_stop_the_work(workplace, target, agent):
    """Tasks without a service cannot be protected. The worker logs that once."""
    agent.refusal = REFUSED
    workplace.data(2)
    job_id = target.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI=agent.uri)
    worker.wait_for_record("begun")
    assert finish(workplace, target, job_id) == b"done\n" * 2
    wait_until(lambda: len(agent.asked) == 2, "the end of the protection, even of a refused one")
    worker.send(signal.SIGTERM)
    ended = worker.wait()
    assert ended.exit_status == 0
    assert ended.stderr.count("cannot be protected") == 1 and "TASK_NOT_VALID" in ended.stderr, ended.stderr


def test_worker_outside_ecs_requests_no_protection(workplace, target, agent):
    workplace.data(1)
    job_id = target.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI="")
    worker.wait_for_record("begun")
    finish(workplace, target, job_id)
    worker.send(signal.SIGTERM)
    ended = worker.wait()
    assert (ended.exit_status, agent.asked) == (0, [])
    assert "protected" not in ended.stderr
