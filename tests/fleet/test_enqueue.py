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
    assert f"warning: {workplace.folder}/data, {workplace.folder}/output/2 are paths of this machine" in warned.stderr
    assert "guest:guest" not in warned.stderr
    workplace.write({"home/functions/inputs/one.txt": "1"})
    kept = {"name": "data", "type": "file", "path": str(workplace.home / "functions/inputs/one.txt")}
    warned = rabbitmq.command("enqueue", workplace.job(ROWS, inputs=[kept]).file, "--queue", far, expect=0)
    assert f"warning: {workplace.folder}/output/3 are paths of this machine" in warned.stderr, "the input travels"


def test_large_data_beside_the_script_stays_behind_by_name(workplace, sqlite):
    """Local jobs leave nothing out. On a target, code and what the job names travel."""
    workplace.data(1)
    script = """
        import os
        def run(files):
            # Files whose names the script holds would travel.
            names = sorted(os.listdir(os.path.dirname(os.path.abspath(__file__))))
            return [" ".join(name for name in names if not name.startswith(("_", "entry", "recorder")))]
    """
    job = workplace.job(script, error_threshold=-1)
    workplace.write({"code/helper.py": ""})
    for name, megabytes in (("yesterday.bin", 290), ("model.bin", 20)):
        # A hole takes no space.
        with open(workplace.folder / "code" / name, "wb") as file:
            file.truncate(megabytes << 20)
    local = job.run()
    assert "stay behind" not in local.stderr and local.lines == ["helper.py model.bin yesterday.bin"], local
    enqueued = sqlite.command("enqueue", job.file, "--fresh", expect=0)
    (line,) = [line for line in enqueued.stderr.splitlines() if "stay behind" in line]
    assert line.startswith("warning: ") and f"{workplace.folder}/code holds more than can travel with a job" in line
    assert "yesterday.bin (290 MB)" in line and "model.bin" not in line and "helper.py" not in line, line
    assert line.endswith("name files that the script needs in side_inputs, and the others in .amlignore"), line
    sqlite.reducer()
    sqlite.worker("--process-count", 1)
    sqlite.wait_for_end(enqueued.stdout.strip())
    assert (workplace.folder / "output" / "rows.txt").read_text() == "helper.py model.bin\n"
