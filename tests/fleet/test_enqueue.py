"""What `enqueue` checks and warns of before it publishes a job."""

ROWS = "def run(files): return files"


def test_timeouts_beyond_the_queue_limit_are_rejected(workplace, sqs, components):
    workplace.data(1)
    job = workplace.job(ROWS, run_invocation_timeout=43_190)
    refused = sqs.command("enqueue", job.file)
    (line,) = [line for line in refused.stderr.splitlines() if not line.startswith("warning")]
    assert refused.exit_status == 1 and "43220 s" in line and "43200 s at most" in line, str(refused)
    assert sqs.objects("jobs") == {}, "nothing was written"


def test_local_paths_cause_a_warning(workplace, rabbitmq):
    """The address leads to this machine without naming it."""
    workplace.data(1)
    job = workplace.job(ROWS)
    near = rabbitmq.command("enqueue", job.file, expect=0)
    assert "warning" not in near.stderr
    far = rabbitmq.settings["queue"].replace("127.0.0.1", "0.0.0.0")
    warned = rabbitmq.command("enqueue", job.file, "--queue", far, expect=0)
    assert f"warning: {workplace.folder}/data, {workplace.folder}/output are paths of this machine" in warned.stderr
    assert "guest:guest" not in warned.stderr
    workplace.write({"home/functions/inputs/one.txt": "1"})
    kept = {"name": "data", "type": "file", "path": str(workplace.home / "functions/inputs/one.txt")}
    warned = rabbitmq.command("enqueue", workplace.job(ROWS, inputs=[kept]).file, "--queue", far, expect=0)
    assert f"warning: {workplace.folder}/output are paths of this machine" in warned.stderr, "the input travels"
