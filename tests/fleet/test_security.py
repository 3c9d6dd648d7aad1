"""Limits of attackers who can write to a queue, a store or a job file: SECURITY.md, tested on the executable."""

from __future__ import annotations

import json
import struct
import time

import pytest

from harness import INVALID, go, wait_until

CONTENTS = """
    from recorder import record, recorded, wait_for
    def run(files):
        record("begun", files=files)
        wait_for(lambda: recorded("go"))
        return [open(file).read() for file in files]
"""
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"


def record_of(event: dict, rows: bytes = b"") -> bytes:
    """Returns one record of a result message, as `services/protocol/src/record.rs` defines it."""
    header = json.dumps(event).encode()
    return struct.pack("<II", len(header), len(rows)) + header + rows


def attempt(mini_batch: int, rows: dict) -> dict:
    return {
        "event": "attempt",
        "mini_batch": mini_batch,
        "try_number": 1,
        "deliveries_lost": 0,
        "node": f"node{ESCAPE}",
        "process": "../../process000",
        "status": "succeeded",
        "is_final": True,
        "total": 1,
        "succeeded": 1,
        "rows": rows,
        "started_at": 1,
        "elapsed_seconds": 0.5,
        "process_seconds": 0.5,
        "run_seconds": 0.5,
        "detail": f"forged\nline{ESCAPE}",
    }


def test_poison_messages_go_to_the_dead_letters_and_do_no_harm(workplace, rabbitmq):
    """Sends foreign files, other jobs, invented mini-batches, forged ends and huge numbers while a job runs."""
    workplace.data(2)
    workplace.write({"secret.txt": "s3cr3t"})
    job_id = rabbitmq.enqueue(workplace.job(CONTENTS))
    reducer, worker = rabbitmq.reducer(), rabbitmq.worker("--process-count", 2)
    wait_until(lambda: len(workplace.recorded("begun")) == 2, "both mini-batches to run")

    def task(work: dict, **fields: object) -> str:
        return json.dumps({"job_id": job_id, "mini_batch": 0, "work": work, **fields})

    def files(*paths: str) -> dict:
        return {"kind": "files", "input": 0, "paths": paths}

    inside = f"{workplace.folder}/data/000.txt"
    block = {"path": inside, "range": "row_group", "row_group": 4294967295, "offset": 2**64 - 1, "rows": 2**64 - 1}
    tasks = [
        task(files(f"{workplace.folder}/secret.txt")),
        task(files(f"file://{workplace.folder}/secret.txt")),
        task(files(f"{workplace.folder}/data/../secret.txt")),
        task(files("/etc/shadow")),
        task(files("http://169.254.169.254/latest/meta-data/iam/security-credentials/")),
        task(files(f"s3://{rabbitmq.prefix}/jobs/jobs/{job_id}/spec.json")),
        task({**files(inside), "input": 7}),
        task({**files(inside), "versions": [{"bytes": 2**64 - 1}, {"bytes": 2**64 - 1}]}),
        task({"kind": "rows", "input": 0, "blocks": [{**block, "path": "/etc/shadow"}]}),
        task({"kind": "planned", "chunk": 2**63, "line": 0}),
        task({"kind": "rank"}, job_id="../../../../tmp"),
        task({"kind": "rank"}, job_id=f"a{ESCAPE}"),
        task({"kind": "rank"}, mini_batch=-1),
        '{"job_id":' * 50_000,
        "",
        "[]",
    ]
    begin = record_of({"event": "job", "job_id": job_id})
    plain = {"kind": "none"}
    results = [
        begin + record_of({"event": "ended", "state": "Completed", "cause": None}),
        begin + record_of({"event": "planned", "mini_batches": 0, "items": 0}),
        begin + record_of({"event": "rows_lost", "mini_batches": [0, 2**64 - 1]}),
        begin + record_of({"event": "duplicates", "count": 2**64 - 1}),
        begin + record_of(attempt(2**64 - 1, plain)),
        begin + record_of(attempt(10**12, plain)),
        begin + record_of({**attempt(0, plain), "total": 2**64 - 1}),
        begin + record_of(attempt(0, {"kind": "part", "name": "0000000001-1-0-node-1", "bytes": 1})),
        begin + record_of(attempt(0, {"kind": "part", "name": "0-/../../../spec.json", "bytes": 1})),
        begin + record_of(attempt(0, {"kind": "part", "name": "../../../../../../etc/passwd", "bytes": 1})),
        record_of({"event": "cut_short"}),
        struct.pack("<II", 2**32 - 1, 2**32 - 1),
        struct.pack("<II", 400_000, 0) + b"[" * 400_000,
        b"\x00",
    ]
    for body in tasks:
        rabbitmq.send("tasks", body)
    for body in results:
        rabbitmq.send("results", body)
    # It reports nothing, so it is dropped: the queue says to which job a message belongs.
    rabbitmq.send("results", record_of({"event": "job", "job_id": "../.."}))

    def letters() -> list[dict]:
        return json.loads(rabbitmq.command("dead-letters", "--json", expect=0).stdout)

    expected = len(tasks) + len(results)
    found = wait_until(lambda: (found := letters()) and len(found) >= expected and found, "every one of them put aside")
    assert len(found) == expected, found
    told = rabbitmq.command("dead-letters", expect=0)
    assert "\x1b" not in told.stdout and "\u202e" not in told.stdout
    reasons = " ".join(letter["reason"] for letter in found)
    for reason in [
        "secret.txt is not in the inputs of the job",
        "/etc/shadow is not in the inputs of the job",
        "the job has no input 7",
        "its place in the plan is not chunk",
        "only a reducer may report that a job has ended",
        "the plan in the store does not have 0 mini-batches",
        "mini-batch 18446744073709551615 is not in the plan",
        "is not a part of mini-batch 0",
        "is not a valid job id",
    ]:
        assert reason in reasons, (reason, found)
    assert worker.process.poll() is None and reducer.process.poll() is None

    go(workplace)
    result = rabbitmq.wait_for_end(job_id)
    assert rabbitmq.output(result).decode().splitlines() == ["000", "001"]
    assert result["mini_batches"] == {"total": 2, "succeeded": 2, "failed": 0}
    run = [file for fact in workplace.recorded("begun") for file in fact["files"]]
    assert sorted(run) == [f"{workplace.folder}/data/00{number}.txt" for number in range(2)]
    kept = b"".join(rabbitmq.objects("").values())
    assert b"s3cr3t" not in kept and b"root:" not in kept


def test_stored_texts_send_no_terminal_commands(workplace):
    """Covers names, problems and reasons from a store to which others can write."""
    job = workplace.job("def run(files): return files")
    workplace.data(1)
    queues = ["--queue", "sqlite:queues", "--store", "store"]
    job_id = workplace.command("enqueue", job.file, *queues).stdout.strip()
    store = workplace.folder / "store"
    progress = {
        "at": int(time.time() * 1000),
        "started_at": 1,
        "planned": False,
        "mini_batches": {"total": 0, "succeeded": 0, "failed": 0},
        "items": {"total": 0, "succeeded": 0, "failed": 0},
        "retries": 0,
        "processes": 0,
        "nodes": 0,
        "trouble": {"reason": f"trouble {ESCAPE}", "since": 1},
        "waiting": [],
    }
    (store / f"jobs/{job_id}/progress.json").write_text(json.dumps(progress))
    (store / "jobs/evil\u202e-20261121-100203-ab12").mkdir()
    (store / "open/evil\u202e").write_text("")
    logs = store / f"jobs/{job_id}/logs"
    (logs / "sys").mkdir(parents=True, exist_ok=True)
    (logs / "sys/evil\u202e.txt").write_text("")
    (logs / "job_progress_overview.1.txt").write_text(f"overview {ESCAPE}\n")
    shown = [workplace.command(*command, *queues) for command in (["status", job_id], ["jobs"], ["logs", job_id])]
    assert "trouble \\u001b]0;owned\\u0007" in shown[0].stdout, str(shown[0])
    assert job_id in shown[1].stdout and "evil" not in shown[1].stdout, str(shown[1])
    assert "overview \\u001b" in shown[2].stdout, str(shown[2])
    for ended in shown:
        assert not any(character in ended.stdout + ended.stderr for character in "\x1b\x07\u202e"), str(ended)


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a.csv?X-Amz-Signature=s3cr3t",
        "https://user:s3cr3t@host/a.csv",
        "https://account.blob.core.windows.net/c/a.csv?sv=2024&sig=s3cr3t",
    ],
)
def test_url_with_a_secret_is_rejected_and_not_shown(workplace, url):
    """It would become part of the job, which all users of the target can read."""
    script = "def run(files): return files"
    workplace.data(1)
    inputs = [{"name": "data", "type": "file", "path": url}]
    for settings in ({"inputs": inputs}, {"side_inputs": {"reference": url}}, {"output": url}):
        job = workplace.job(script, **settings)
        for command in (["validate", job.file], ["run", job.file], ["plan", job.file]):
            refused = workplace.command(*command, GRISTMILL_LOG="trace")
            assert refused.exit_status == INVALID, str(refused)
            assert "anyone who sees the job can read it" in refused.stdout + refused.stderr, str(refused)
            assert "s3cr3t" not in refused.stdout + refused.stderr, str(refused)
    store = workplace.command("jobs", "--store", url, GRISTMILL_LOG="trace")
    assert store.exit_status == INVALID and "s3cr3t" not in store.stdout + store.stderr, str(store)
    assert b"s3cr3t" not in b"".join(file.read_bytes() for file in workplace.home.rglob("*") if file.is_file())


@pytest.mark.parametrize("endpoint", ["", "minio:9000", "minio", "http://user:s3cr3t@minio"])
@pytest.mark.parametrize("where", ["profile", "services", "variable"])
def test_invalid_endpoint_is_reported_in_one_line(workplace, endpoint, where):
    """The libraries behind the check would panic."""
    services = (
        f"services = here\n[services here]\ns3 =\n  endpoint_url = {endpoint}\nsqs =\n  endpoint_url = {endpoint}\n"
    )
    setting = {"profile": f"endpoint_url = {endpoint}\n", "services": services, "variable": ""}[where]
    workplace.write({"aws": f"[default]\nregion = us-east-1\n{setting}"})
    environment = {
        "AWS_CONFIG_FILE": str(workplace.folder / "aws"),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if where == "variable":
        if not endpoint:
            pytest.skip("a variable that is set to nothing is not set")
        environment["AWS_ENDPOINT_URL"] = endpoint
    for command in (
        ["jobs", "--store", "s3://bucket/jobs"],
        ["dead-letters", "--queue", "sqs://a", "--store", "store"],
    ):
        refused = workplace.command(*command, **environment)
        assert refused.exit_status == 1, str(refused)
        assert "is not an address such as" in refused.stderr and "s3cr3t" not in refused.stderr, str(refused)
        assert len(refused.stderr.splitlines()) == 1, str(refused)


def test_log_path_stays_below_the_logs(workplace):
    """A path from a message can only name a log."""
    workplace.data(1)
    ended = workplace.job("def run(files): return files").run()
    for path in ("../spec.json", "/etc/passwd", "sys/../../spec.json"):
        refused = workplace.command("logs", ended.job_id, path)
        assert refused.exit_status == 1 and "name a file below" in refused.stderr, str(refused)
        assert "root:" not in refused.stdout and "entry_script" not in refused.stdout, str(refused)
