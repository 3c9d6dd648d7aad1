"""A worker that is a task of ECS: while it has work, scaling in does not stop it. Its agent is a small server."""

import http.server
import json
import signal
import threading

import pytest

from harness import wait_until

HOLDS = """
    from recorder import record, recorded, wait_for
    def run(files):
        record("begun")
        wait_for(lambda: recorded("go"))
        return ["done"]
"""
REFUSED = {"requestID": "1", "failure": {"Arn": "arn:aws:ecs:task", "Reason": "TASK_NOT_VALID", "Detail": None}}


class Agent(http.server.BaseHTTPRequestHandler):
    """Answers as ECS does, and notes what was asked, and how many mini-batches had begun by then."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        begun = len(self.server.workplace.recorded("begun"))
        self.server.asked.append((self.path, body, begun))
        protection = {"ProtectionEnabled": body["ProtectionEnabled"], "TaskArn": "arn:aws:ecs:task"}
        answer = json.dumps(self.server.answer or {"protection": protection}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def agent(workplace):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    server.workplace, server.asked, server.answer = workplace, [], None
    server.uri = f"http://127.0.0.1:{server.server_port}/api/0123456789"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def target(sqlite):
    return sqlite


def finish(workplace, target, job_id):
    workplace.record_file.open("a").write('{"event": "go"}\n')
    return target.output(target.wait_for_end(job_id))


def test_a_task_is_protected_before_its_first_mini_batch_and_not_any_more_when_there_is_no_work(
    workplace, target, agent
):
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI=agent.uri)
    for turn in (1, 2):
        workplace.record_file.write_text("")
        workplace.data(4)
        job_id = target.enqueue(workplace.job(HOLDS, name=f"turn-{turn}"))
        worker.wait_for_record("begun")
        on = {"ProtectionEnabled": True, "ExpiresInMinutes": 30}
        assert agent.asked == [("/api/0123456789/task-protection/v1/state", on, 0)], "asked before anything ran"
        assert finish(workplace, target, job_id) == b"done\n" * 4
        wait_until(lambda: len(agent.asked) == 2, "the protection is given back")
        assert agent.asked.pop()[1] == {"ProtectionEnabled": False}
        agent.asked.clear()
    worker.send(signal.SIGTERM)
    assert worker.wait().exit_status == 0


def test_without_protection_the_work_is_done_all_the_same(workplace, target, agent):
    """Tasks that belong to no service cannot be protected. It is told once."""
    agent.answer = REFUSED
    workplace.data(2)
    job_id = target.enqueue(workplace.job(HOLDS))
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI=agent.uri)
    worker.wait_for_record("begun")
    assert finish(workplace, target, job_id) == b"done\n" * 2
    wait_until(lambda: len(agent.asked) == 2, "given back, in case it was given after all")
    worker.send(signal.SIGTERM)
    ended = worker.wait()
    assert ended.exit_status == 0
    assert ended.stderr.count("cannot be protected") == 1 and "TASK_NOT_VALID" in ended.stderr, ended.stderr


def test_elsewhere_nobody_is_asked(workplace, target, agent):
    workplace.data(1)
    job_id = target.enqueue(workplace.job(HOLDS))
    target.reducer()
    worker = target.worker("--process-count", 1, ECS_AGENT_URI="")
    worker.wait_for_record("begun")
    finish(workplace, target, job_id)
    worker.send(signal.SIGTERM)
    ended = worker.wait()
    assert (ended.exit_status, agent.asked) == (0, [])
    assert "protected" not in ended.stderr
