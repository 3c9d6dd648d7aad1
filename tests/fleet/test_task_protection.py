"""Scale-in does not stop a worker on ECS while it has work. The ECS agent is a small server."""

import json
import signal

from harness import HOLDS, file_names, go, wait_until
from http_server import HttpServer


def test_task_is_protected_while_it_has_work(workplace, sqlite):
    asked = []

    def protect(request):
        """Answers as ECS does, and records the request with the number of mini-batches started before it."""
        body = json.loads(request.body)
        asked.append((request.path, body, len(workplace.recorded("held"))))
        protection = {"ProtectionEnabled": body["ProtectionEnabled"], "TaskArn": "arn:aws:ecs:task"}
        return 200, {}, json.dumps({"protection": protection}).encode()

    with HttpServer(protect) as agent:
        sqlite.reducer()
        worker = sqlite.worker("--process-count", 1, ECS_AGENT_URI=f"{agent.url}/api/0123456789")
        for turn in (1, 2):
            workplace.record_file.write_text("")
            workplace.data(4)
            job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600, name=f"turn-{turn}"))
            worker.wait_for_record("held")
            on = {"ProtectionEnabled": True, "ExpiresInMinutes": 30}
            assert asked == [("/api/0123456789/task-protection/v1/state", on, 0)], "asked before anything ran"
            go(workplace)
            assert sqlite.output(sqlite.wait_for_end(job_id)) == "".join(f"{name}\n" for name in file_names(4)).encode()
            wait_until(lambda: len(asked) == 2, "the end of the protection")
            assert asked.pop()[1] == {"ProtectionEnabled": False}
            asked.clear()
        worker.send(signal.SIGTERM)
        assert worker.wait().exit_status == 0
