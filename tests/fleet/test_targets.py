"""The same job through queues and stores: SQLite and a folder, SQS and S3 (LocalStack), RabbitMQ and S3."""

import json
import re
import signal
import socket
import threading
from collections import Counter

import pytest

from harness import CANCELED, FAILED, HOLDS, INVALID, file_names, go, wait_until, wait_until_ended
from http_server import HttpServer

FILES = 40
ROWS = """
    import os
    from recorder import record
    def run(files, context):
        name = os.path.basename(files[0])
        record("run", file=name, node=context.node_id, job=os.path.basename(os.path.dirname(__file__)))
        # Messages carry most rows; some become parts.
        return [f"{name} {'x' * (300_000 if name.endswith('7.txt') else 5)}"]
"""


# The first 20 runs end, whichever they are: SQS keeps no order. The others wait for `go`.
HOLDS_THE_SECOND_HALF = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        if len(recorded("run")) >= 20:
            wait_for(lambda: recorded("go"))
        name = os.path.basename(files[0])
        record("run", file=name)
        return [name]
"""


def test_every_target_produces_the_output_of_a_local_run(workplace, target):
    workplace.data(FILES)
    job = workplace.job(ROWS, process_count_per_node=2)
    local = job.run()
    (workplace.folder / "output/rows.txt").unlink()
    through = target.run(job)
    assert through.output == local.output
    assert through.mini_batches == (FILES, FILES, 0)
    assert target.objects("open") == {}, "an ended job is not open"
    assert not any(name.startswith(f"jobs/{through.job_id}/parts") for name in target.objects("jobs"))


def test_workers_can_start_first_and_reducers_last(workplace, target):
    """Workers wait for a reducer, which creates the queues of the job, and another one can collect the rest."""
    workplace.data(FILES)
    workers = [target.worker("--process-count", 1) for _ in range(2)]
    job_id = target.enqueue(workplace.job(HOLDS_THE_SECOND_HALF, run_invocation_timeout=600, speculation=False))
    status = target.status(job_id)
    assert (status["state"], status["result"]) == ("Queued", None)
    assert status["hint"].startswith("no reducer has looked at it yet; start one with: gristmill reducer"), status
    assert target.queues() == []
    first = target.reducer()
    wait_until(lambda: target.committed(job_id), "the first commit")
    first.stop()
    go(workplace)
    wait_until(lambda: len(workplace.recorded("run")) >= FILES, "every run")
    wait_until(lambda: "no reducer has been heard from" in (target.status(job_id)["hint"] or ""), "the silence")
    assert target.status(job_id)["result"] is None
    target.reducer("--idle-exit", 1)
    assert target.lines(job_id) == file_names(FILES)
    runs = Counter(fact["file"] for fact in workplace.recorded("run"))
    assert runs == dict.fromkeys(file_names(FILES), 1), "a mini-batch ran twice"
    for worker in workers:
        worker.stop()


def test_enqueue_prints_the_job_id_and_wait_follows_the_job(workplace, sqlite):
    workplace.data(3)
    job = workplace.job(ROWS)
    shown = sqlite.command("enqueue", job.file, "--json", expect=0)
    assert json.loads(shown.stdout)["job_id"].startswith("test-")
    sqlite.worker()
    sqlite.reducer()
    waited = sqlite.command("enqueue", job.file, "--wait", "--json", expect=0)
    assert waited.result["mini_batches"] == {"total": 3, "succeeded": 3, "failed": 0}
    failing = workplace.job("def run(files): raise ValueError('no')", error_threshold=0, run_max_try=1)
    failed = sqlite.command("enqueue", failing.file, "--wait", "--json", expect=FAILED)
    assert failed.result["state"] == "Failed"


def test_compute_target_of_the_job_file_is_used(workplace, sqlite):
    workplace.data(3)
    job = workplace.job(ROWS, compute_target="sqlite")
    ended = job.run()
    assert workplace.job_ids() == [], "this machine has no such job"
    assert json.loads(sqlite.objects(f"jobs/{ended.job_id}/spec.json")[f"jobs/{ended.job_id}/spec.json"])
    here = workplace.command("run", job.file, "--json", "--target", "local")
    assert here.exit_status == 0 and workplace.job_ids() == [here.job_id]


def test_flags_or_variables_define_a_target(workplace, sqlite):
    """Flags or variables define the target; commands that read jobs need only the store."""
    workplace.data(3)
    job = workplace.job(ROWS)
    (workplace.folder / "gristmill.toml").unlink()
    store = ["--store", sqlite.settings["store"]]
    ended = workplace.command("run", job.file, "--json", "--queue", sqlite.settings["queue"], *store)
    assert ended.exit_status == 0, str(ended)
    variables = {"GRISTMILL_STORE": sqlite.settings["store"]}
    assert ended.job_id in workplace.command("jobs", **variables).stdout
    watched = workplace.command("status", "test", "--watch", *store)
    assert watched.exit_status == 0 and "completed" in watched.stdout
    refused = workplace.command("enqueue", job.file, *store)
    assert refused.exit_status == 1 and one_line(refused.stderr, "has no queue"), str(refused)
    nowhere = workplace.command("worker")
    assert nowhere.exit_status == 2 and one_line(nowhere.stderr, "--target NAME"), str(nowhere)


def test_two_jobs_at_once_share_two_workers(workplace, target):
    """The jobs have different scripts, timeouts and environments; the source of each travels."""
    workplace.data(12)
    workplace.add_conda_tool()
    workplace.write({"side/model.txt": "forty-two"})
    first = workplace.job(
        """
        import os, sys
        from recorder import record
        def run(files, context):
            record("first", node=context.node_id, prefix=sys.prefix, base=sys.base_prefix, file=__file__)
            return [os.path.basename(file) for file in files]
        """,
        name="first",
        file="first.yaml",
        entry_script="first.py",
        output="first",
        source_directory="code",
        environment="env.yml",
    )
    second = workplace.job(
        """
        import argparse, os, sys, time
        from recorder import record
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--model")
        model = open(parser.parse_known_args()[0].model).read()
        def run(files, context):
            name = os.path.basename(files[0])
            record("second", node=context.node_id, prefix=sys.prefix, base=sys.base_prefix, file=__file__)
            if name == "003.txt":
                time.sleep(1000)
            return [f"{name} {model}"]
        """,
        name="second",
        file="second.yaml",
        entry_script="second.py",
        output="second",
        side_inputs={"model": "side/model.txt"},
        arguments=["--model", "${{side_inputs.model}}", "--task_overhead_timeout", "5"],
        run_invocation_timeout=2,
    )
    ids = [target.enqueue(job) for job in (first, second)]
    # Workers run the snapshot: this change comes too late.
    workplace.write({"code/first.py": "raise ValueError", "code/second.py": "raise ValueError"})
    target.reducer()
    for _ in range(2):
        target.worker("--process-count", 1)
    results = [target.wait_for_end(job_id) for job_id in ids]
    assert target.output(results[0]).decode().splitlines() == file_names(12)
    rows = target.output(results[1]).decode().splitlines()
    assert rows == [f"{name} forty-two" for name in file_names(12) if name != "003.txt"]
    assert results[1]["mini_batches"] == {"total": 12, "succeeded": 11, "failed": 1}
    ran_first, ran_second = workplace.recorded("first"), workplace.recorded("second")
    assert {fact["prefix"] == fact["base"] for fact in ran_first} == {False}, "a virtual environment"
    assert len({fact["prefix"] for fact in ran_first}) == 1, "made once"
    assert {fact["prefix"] for fact in ran_first}.isdisjoint({fact["prefix"] for fact in ran_second})
    assert not any(fact["file"].startswith(str(workplace.folder / "code")) for fact in ran_first + ran_second)


def test_cancel_status_logs_and_retry(workplace, target):
    workplace.data(10)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    job_id = target.enqueue(job)
    queued = target.status(job_id)
    assert (queued["state"], "reducer" in queued["hint"]) == ("Queued", True)
    worker = target.worker("--process-count", 2)
    target.reducer()
    worker.wait_for_record("held", 2)
    wait_until(lambda: target.status(job_id)["state"] == "Running", "a node that the reducer knows of")
    listed = target.command("jobs", expect=0).stdout
    assert re.search(rf"{job_id} +Running", listed), listed
    canceled = target.command("cancel", job_id, expect=0)
    assert "canceled" in canceled.stdout and f"retry {job_id} --target {target.name}" in canceled.stdout
    assert target.wait_for_end(job_id, "Canceled")
    assert not workplace.recorded("run"), "nothing had ended"

    go(workplace)
    retried = target.command("retry", job_id, "--wait", "--json", expect=0)
    assert retried.result["state"] == "Completed"
    assert target.output(retried.result).decode().splitlines() == file_names(10)
    again = target.command("retry", job_id, expect=0)
    assert "nothing to do" in again.stderr
    printed = "process000.stdout.txt"
    wait_until(lambda: printed in target.command("logs", job_id, expect=0).stdout, "logs of the node")
    listing = target.command("logs", job_id, expect=0).stdout
    assert "job_result.txt" in listing, listing
    overview = target.command("logs", job_id, "job_result.txt", expect=0).stdout
    assert job_id in overview
    missing = target.command("logs", job_id, "no/such.txt")
    assert missing.exit_status == 1 and "there is no" in missing.stderr


def test_workers_leave_a_job_that_is_canceled_while_no_reducer_runs(workplace, sqlite):
    workplace.data(10)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    job_id = sqlite.enqueue(job)
    worker, reducer = sqlite.worker("--process-count", 2), sqlite.reducer()
    held = worker.wait_for_record("held", 2)
    reducer.kill()
    sqlite.command("cancel", job_id)
    wait_until_ended(fact["pid"] for fact in held)
    sqlite.reducer()
    assert sqlite.wait_for_end(job_id, "Canceled")
    go(workplace)
    retried = sqlite.command("retry", job_id, "--wait", "--json", expect=0).result
    assert sqlite.output(retried).decode().splitlines() == file_names(10)


def test_retry_works_on_another_target_with_the_same_store(workplace, sqs, components):
    workplace.data(10)
    job_id = sqs.enqueue(workplace.job(ROWS))
    broker = components.amqp_url.partition("?")[0]
    elsewhere = ["--queue", f"{broker}?prefix={sqs.prefix}"]
    sqs.worker(*elsewhere)
    sqs.reducer(*elsewhere)
    retried = sqs.command("retry", job_id, *elsewhere, "--wait", "--json", expect=0).result
    assert len(sqs.output(retried).splitlines()) == 10


def test_missing_queue_is_reported_with_the_remedy(workplace, sqs):
    workplace.data(1)
    job = workplace.job(ROWS)
    sqs.write(queue=f"sqs://{sqs.prefix}-typo")
    for command in (["enqueue", job.file], ["worker"], ["reducer"]):
        refused = sqs.command(*command)
        assert refused.exit_status == 1, str(refused)
        assert one_line(refused.stderr, f"{sqs.prefix}-typo-", "doctor --create"), str(refused)


def one_line(text, *parts):
    lines = [line for line in text.splitlines() if not line.startswith("warning")]
    return len(lines) == 1 and all(part in lines[0] for part in parts)


@pytest.fixture
def silent_service():
    """The address of a service that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_unreachable_services_are_reported_in_one_line_and_doctor_goes_on(workplace, sqs, silent_service):
    workplace.data(1)
    job = workplace.job(ROWS)
    cases = [
        ({"store": "s3://no-such-bucket-of-ours/jobs"}, ["s3://no-such-bucket-of-ours/jobs: there is no such bucket"]),
        ({"queue": "amqp://guest:guest@127.0.0.1:1/%2f"}, ["127.0.0.1:1"]),
        ({"endpoint": "http://127.0.0.1:1"}, ["http://127.0.0.1:1"]),
        (
            {"store": "store", "endpoint": "http://127.0.0.1:1"},
            ["-control does not answer", "no answer from its queues yet"],
        ),
        ({"queue": "sqlite:queues", "endpoint": "http://127.0.0.1:1"}, [" at http://127.0.0.1:1: "]),
        (
            {"queue": "sqlite:queues", "endpoint": silent_service},
            [f"its store cannot be used: no answer at {silent_service} within 30 s", "no answer from its store yet"],
        ),
    ]
    started = []
    for number, (settings, _) in enumerate(cases):
        sqs.write(**settings)
        (workplace.folder / "gristmill.toml").rename(workplace.folder / f"{number}.toml")
        # All at once, because each tries for a while.
        started.append(sqs.start("enqueue", job.file, GRISTMILL_CONFIG=str(workplace.folder / f"{number}.toml")))
    # With the last settings, whose store is silent.
    checking = sqs.start("doctor", "--create", "--json", GRISTMILL_CONFIG=str(workplace.folder / f"{number}.toml"))
    for running, (_, (part, *notices)) in zip(started, cases, strict=True):
        refused = running.wait()
        assert refused.exit_status == 1, str(refused)
        *before, line = refused.stderr.splitlines()
        assert part in line, str(refused)
        assert [notice for notice in notices if notice in "\n".join(before)] == notices, str(refused)
        assert all("yet; still trying" in notice for notice in before), str(refused)
    found = json.loads(checking.wait().stdout)["checks"]
    states = {check["check"]: (check["state"], check["message"]) for check in found}
    assert states.pop("store") == ("failed", f"no answer at {silent_service} within 30 s")
    assert "queues of jobs" in states and not any(state == "failed" for state, _ in states.values()), states


def test_secrets_are_never_printed_or_stored(workplace, rabbitmq, components):
    """All secrets contain the same word, in every place for secrets. All roles run a job with retries and failures."""
    word = "s3cr3t"
    user = rabbitmq.prefix
    components.manage_rabbitmq(f"users/{user}", "PUT", {"password": f"{word}/@broker", "tags": ""})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    components.manage_rabbitmq(f"permissions/%2f/{user}", "PUT", rights)
    rabbitmq.write(queue=re.sub(r"//[^@]*@", f"//{user}:${{BROKER_PASSWORD}}@", rabbitmq.settings["queue"]))
    secrets = {
        "BROKER_PASSWORD": f"{word}/@broker",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": f"{word}-aws",
        "AWS_SESSION_TOKEN": f"{word}-token",
        "AZURE_STORAGE_SAS_KEY": f"sv=2024&sig={word}-sas",
        "AZURE_STORAGE_ACCOUNT_KEY": f"{word}-azure",
        "GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{word}-google"}}',
        "HTTP_PROXY": f"http://proxy:{word}-proxy@127.0.0.1:1",
        "HTTPS_PROXY": f"http://proxy:{word}-proxy@127.0.0.1:1",
        "NO_PROXY": "127.0.0.1,localhost",
        "GRISTMILL_LOG": "trace",
    }
    workplace.data(3)
    script = """
        import os
        from recorder import record
        def run(files):
            if files[0].endswith("1.txt"):
                raise ValueError("as it should")
            return [os.path.basename(files[0])]
    """
    job = workplace.job(script, run_max_try=2, error_threshold=0)
    said = [rabbitmq.command("doctor", **secrets), rabbitmq.command("enqueue", job.file, expect=0, **secrets)]
    job_id = said[1].stdout.strip().splitlines()[-1]
    roles = [rabbitmq.start("reducer", "--idle-exit", 5, **secrets)]
    rabbitmq.wait_for_queues()
    rabbitmq.send("tasks", "no task")
    rabbitmq.send("results", "no result")
    roles.append(rabbitmq.start("worker", "--idle-exit", 5, **secrets))
    said += [role.wait() for role in roles]
    for command in (["status", job_id], ["logs", job_id], ["jobs"], ["dead-letters"], ["cancel", job_id]):
        said.append(rabbitmq.command(*command, **secrets))
    wrong = {**secrets, "BROKER_PASSWORD": f"{word}-wrong"}
    refused = [rabbitmq.start(*command, **wrong) for command in (["doctor"], ["enqueue", job.file], ["worker"])]
    said += [running.wait() for running in refused]
    rabbitmq.write(queue=rabbitmq.settings["queue"], endpoint="http://127.0.0.1:1")
    refused = [rabbitmq.start(command, **secrets) for command in ("jobs", "reducer")]
    said += [running.wait() for running in refused]
    rabbitmq.write()
    components.manage_rabbitmq(f"users/{user}", "DELETE")
    assert rabbitmq.status(job_id)["result"]["state"] == "Failed"
    assert all(len(ended.stderr) > 0 for ended in said[2:4]), "the finest level says something"
    letters = rabbitmq.command("dead-letters", "--json", expect=0).stdout
    assert len(json.loads(letters)) == 2
    objects = b"".join(rabbitmq.objects("").values()).decode(errors="replace")
    files = [file.read_text(errors="replace") for file in workplace.home.rglob("*") if file.is_file()]
    for text in [*(str(ended) for ended in said), letters, objects, *files]:
        found = text.find(word)
        assert found < 0, text[max(found - 200, 0) : found + 100]


def test_side_inputs_in_a_store_are_local_paths_for_the_script(workplace, sqs, components):
    """This holds on a node, and on this machine, which fetches changed side inputs again."""
    workplace.data(3)
    s3 = components.client("s3")

    def put(words):
        s3.put_object(Bucket=sqs.prefix, Key="reference/words.txt", Body=words.encode())

    put("zero one two")
    script = """
        import os, sys
        def init():
            global words
            options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
            words = open(os.path.join(options["--folder"], "words.txt")).read().split()
            assert open(options["--file"]).read().split() == words == open(os.environ["WORDS"]).read().split()
        def run(files):
            return [words[int(open(file).read())] for file in files]
    """
    folder = f"s3://{sqs.prefix}/reference/"
    settings = {
        "side_inputs": {"folder": folder, "file": f"{folder}words.txt"},
        "arguments": ["--folder", "${{side_inputs.folder}}", "--file", "${{side_inputs.file}}"],
        "environment_variables": {"WORDS": "${{side_inputs.file}}"},
    }
    job = workplace.job(script, **settings)
    there = sqs.run(job)
    assert sqs.output(there.result).decode().split() == ["zero", "one", "two"]
    here = {"AWS_ENDPOINT_URL_S3": components.aws_endpoint}
    assert job.run("--target", "local", "--fresh", **here).lines == ["zero", "one", "two"]
    put("null eins zwei")
    assert job.run("--target", "local", "--fresh", **here).lines == ["null", "eins", "zwei"]

    settings["side_inputs"]["file"] = f"{folder}nothing.txt"
    refused = workplace.command("run", workplace.job(script, **settings).file, "--target", "local", **here)
    assert refused.exit_status == INVALID, str(refused)
    assert f"side_inputs.file: {folder}nothing.txt cannot be read: it does not exist" in refused.stderr


def test_job_that_cannot_be_planned_fails_with_the_cause(workplace, sqs):
    job = workplace.job(ROWS, inputs=[{"name": "data", "type": "file", "path": f"s3://{sqs.prefix}/nothing/"}])
    told = sqs.command("enqueue", job.file)
    assert (told.exit_status, told.stdout) == (2, "") and "nothing/ holds no files" in told.stderr, str(told)

    # Only planning compares columns of the files with those of the path.
    workplace.write({"data/7.csv": "id\n1\n"})
    table = {"name": "data", "type": "tabular", "path": "data", "partition_format": "{id}.csv"}
    told = sqs.command("enqueue", workplace.job(ROWS, inputs=[table]).file)
    assert told.exit_status == FAILED and "the column 'id'" in told.stderr, str(told)
    sqs.reducer()
    result = sqs.wait_for_end(told.stdout.strip(), "Failed")
    assert "input 'data'" in result["cause"] and "the column 'id'" in result["cause"]


def test_sigterm_drains_a_node_without_a_try(workplace, target):
    """The node immediately returns waiting mini-batches and finishes running ones; the next node does the rest."""
    workplace.data(10)
    job_id = target.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    target.reducer()
    leaving = target.worker("--process-count", 1, "--node", "leaving", "--grace", 100)
    leaving.wait_for_record("held")
    leaving.send(signal.SIGTERM)
    wait_until(lambda: target.waiting("tasks") == 9, "returned mini-batches in the queue")
    staying = target.worker("--process-count", 1, "--node", "staying")
    wait_until(lambda: {fact["node"] for fact in workplace.recorded("held")} >= {"staying"}, "work elsewhere")
    go(workplace)
    ended = leaving.wait()
    assert ended.exit_status == 0, str(ended)
    assert target.lines(job_id) == file_names(10)
    begun = workplace.recorded("held")
    assert len(begun) == 10, "nothing ran twice"
    assert sum(fact["node"] == "leaving" for fact in begun) == 1
    staying.stop()


def test_closed_terminal_stops_roles_in_order(workplace, sqlite):
    """It sends SIGHUP to the roles that were started in it."""
    workplace.data(2)
    job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    reducer, worker = sqlite.reducer(), sqlite.worker("--process-count", 1, "--grace", 100)
    worker.wait_for_record("held")
    reducer.send(signal.SIGHUP)
    ended = [reducer.wait()]
    sqlite.reducer()
    worker.send(signal.SIGHUP)
    wait_until(lambda: sqlite.waiting("tasks") == 1, "the mini-batch that has not begun in the queue")
    go(workplace)
    for role in (*ended, worker.wait()):
        assert role.exit_status == 0 and "SIGHUP" in role.stderr, str(role)
    sqlite.worker()
    assert sqlite.lines(job_id) == ["000.txt", "001.txt"]
    assert len(workplace.recorded("held")) == 2, "nothing ran twice"


def metadata_service(noticed):
    """Returns the answers of an instance metadata service: a token, and later a spot notice."""

    def answer(request):
        if request.method == "PUT":
            return 200, {"x-aws-ec2-metadata-token-ttl-seconds": "600"}, b"token"
        if request.headers.get("X-aws-ec2-metadata-token") != "token":
            return 401, {}, b""
        if not (request.path.endswith("/spot/instance-action") and noticed.is_set()):
            return 404, {}, b""
        return 200, {}, json.dumps({"action": "terminate", "time": "2026-11-21T08:22:00Z"}).encode()

    return answer


def test_spot_notice_drains_the_node(workplace, sqlite):
    noticed = threading.Event()
    workplace.data(12)
    sqlite.reducer()
    with HttpServer(metadata_service(noticed)) as server:
        options = ("--process-count", 1, f"--spot-notice={server.url}")
        workers = {0: sqlite.worker(*options), 75: sqlite.worker(*options, "--spot-exit-status", 75)}
        job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600, speculation=False))
        wait_until(lambda: len(workplace.recorded("held")) == 2, "work on both nodes")
        noticed.set()
        for worker in workers.values():
            # It may have waited for an answer before, and reported that.
            lines = map(bytes.decode, worker.process.stderr)
            assert "terminate" in next((line for line in lines if "will reclaim this machine" in line), "")
        wait_until(lambda: sqlite.waiting("tasks") == 10, "returned mini-batches in the queue")
        go(workplace)
        for exit_status, worker in workers.items():
            ended = worker.wait()
            assert ended.exit_status == exit_status and "spot notice" in ended.stdout, str(ended)
    assert len(workplace.recorded("held")) == 2
    sqlite.worker()
    assert sqlite.lines(job_id) == file_names(12)


def test_task_is_protected_while_it_has_work(workplace, sqlite):
    """Scale-in does not stop a worker on ECS then. The ECS agent is a small server."""
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
            assert sqlite.lines(job_id) == file_names(4)
            wait_until(lambda: len(asked) == 2, "the end of the protection")
            assert asked.pop()[1] == {"ProtectionEnabled": False}
            asked.clear()
        worker.stop()


def test_worker_that_is_stopped_twice_ends_at_once_and_says_so(workplace, sqlite):
    workplace.data(3)
    sqlite.reducer()
    worker = sqlite.worker("--process-count", 1, "--grace", 600)
    job_id = sqlite.enqueue(workplace.job(HOLDS, run_invocation_timeout=600))
    worker.wait_for_record("held")
    worker.send(signal.SIGTERM)
    wait_until(lambda: b"again: stop at once" in (worker.process.stderr.readline() or b""), "the first signal")
    worker.send(signal.SIGTERM)
    ended = worker.wait()
    assert ended.exit_status == CANCELED and "stopped by a second signal" in ended.stdout, str(ended)
    go(workplace)
    sqlite.worker()
    assert sqlite.wait_for_end(job_id)["mini_batches"]["succeeded"] == 3


def test_second_worker_of_one_name_is_warned(workplace, sqlite):
    sqlite.create_store()
    first = sqlite.worker("--node", "twin")
    wait_until(lambda: sqlite.objects("workers/twin"), "the entry of the worker")
    second = sqlite.worker("--node", "twin")
    for worker in (second, first):
        worker.send(signal.SIGTERM)
    said = "had a worker twin less than 45 s ago"
    assert said in second.wait().stderr and said not in first.wait().stderr


def test_ctrl_c_cancels_a_run_and_leaves_a_followed_job_alone(workplace, sqlite):
    workplace.data(4)
    job = workplace.job(HOLDS, run_invocation_timeout=600)
    followed = sqlite.start("enqueue", job.file, "--wait")
    wait_until(lambda: sqlite.objects("open"), "an open job")
    followed.send(signal.SIGINT)
    ended = followed.wait()
    assert ended.exit_status == CANCELED and "continue" in ended.stderr, str(ended)
    (job_id,) = [name.removeprefix("open/") for name in sqlite.objects("open")]
    asked = sqlite.command("cancel", job_id, expect=0)
    assert "no reducer has looked at it yet" in asked.stdout
    sqlite.reducer("--idle-exit", 1)
    sqlite.wait_for_end(job_id, "Canceled")
    # Until then nothing else may write its output.
    wait_until(lambda: not sqlite.objects("open"), "no open job")

    running = sqlite.start("run", job.file, "--json")
    running.wait_for_record("held")
    running.send(signal.SIGINT)
    # One runs, and another waited in the pipe, so two may have started before the stop.
    wait_until(lambda: sqlite.waiting("tasks") >= 3, "returned mini-batches in the queue")
    go(workplace)
    ended = running.wait()
    assert ended.exit_status == CANCELED and ended.result["state"] == "Canceled", str(ended)
