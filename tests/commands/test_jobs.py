"""The commands around a job."""

import json
import subprocess

import pytest

from harness import INVALID


def test_run_prints_progress_and_summary(workplace):
    """Without --json: progress lines, and a summary that names the output."""
    workplace.data(3)
    job = workplace.job("def run(files): return files")
    ended = workplace.command("run", job.file)
    assert ended.exit_status == 0, str(ended)
    said = ended.stdout + ended.stderr
    assert str(workplace.folder / "output" / "rows.txt") in said
    assert "completed" in said
    assert "3 of 3 succeeded" in said
    assert "\x1b[" not in said, "no colours or bars without a terminal"


def test_set_overrides_keys_of_the_job_file(workplace):
    workplace.data(6)
    job = workplace.job("def run(files): return [len(files)] * len(files)")
    ended = job.run("--set", "mini_batch_size=3", "--set", "process_count_per_node=2")
    assert ended.lines == ["3"] * 6
    ended = workplace.command("run", job.file, "--set", "mini_batch_sise=3")
    assert ended.exit_status == 2
    assert "mini_batch_size" in ended.stderr
    ended = workplace.command("run", job.file, "--set", "mini_batch_size=none")
    assert ended.exit_status == 2


def test_job_file_can_come_from_stdin(workplace):
    workplace.data(2)
    job = workplace.job("def run(files): return files")
    for text, status in ((job.file.read_text(), 0), ("name: Bad", 2)):
        ended = subprocess.run(
            [workplace.executable, "run", "-", "--json"],
            input=text,
            cwd=workplace.folder,
            env=workplace.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == status, ended
    assert len((workplace.folder / "output" / "rows.txt").read_text().splitlines()) == 2
    assert "standard input:1: name: " in ended.stderr


def test_problems_as_json(workplace):
    workplace.data(1)
    job = workplace.job("def run(files): return files", run_max_try=0)
    for command in (["run"], ["plan"], ["validate"], ["enqueue"]):
        ended = workplace.command(*command, job.file, "--json")
        assert ended.exit_status == 2, str(ended)
        said = json.loads(ended.stdout)
        assert said["valid"] is False
        (problem,) = said["problems"]
        assert problem == {
            "file": str(job.file),
            "line": problem["line"],
            "field": "run_max_try",
            "message": "must be 1 to 2147483647",
            "found": '"0"',
            "allowed": "an integer from 1 to 2147483647, without quotes",
        }
        assert problem["line"] > 1
    missing = workplace.command("run", "nowhere.yaml", "--json")
    assert "cannot be read" in json.loads(missing.stdout)["problems"][0]["message"]
    ended = workplace.command("validate", job.file, "--json", "--set", "run_max_try=1")
    assert (ended.exit_status, json.loads(ended.stdout)["valid"]) == (0, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: test\n".encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        (b"name: test\ndescription: caf\xe9\n", "line 2 is not valid UTF-8"),
        ("/dev/zero", "it is larger than 16 MB"),
        ("code/entry.py", "it is a Python script; write a job file"),
        ("code", "it is a folder; pass the job file in it"),
    ],
)
def test_unreadable_job_file_says_why(workplace, content, said):
    is_path = isinstance(content, str)
    workplace.write({"job.yaml": b"" if is_path else content, "code/entry.py": "def run(files): return files\n"})
    ended = workplace.command("validate", content if is_path else "job.yaml")
    assert ended.exit_status == INVALID and said in ended.stderr and ended.stderr.count("\n") == 1, str(ended)


def test_plan_is_a_dry_run(workplace):
    workplace.data(5)
    job = workplace.job("def run(files): return files", mini_batch_size=2)
    ended = workplace.command("plan", job.file)
    assert ended.exit_status == 0, str(ended)
    assert "3 mini-batches" in ended.stdout + ended.stderr
    assert "000.txt" in ended.stdout
    assert not (workplace.folder / "output").exists()
    assert workplace.job_ids() == []


def test_commands_on_jobs(workplace):
    workplace.data(3)
    script = """
        def run(files):
            print("hello from run")
            return files
    """
    ended = workplace.job(script).run()
    status = workplace.command("status", ended.job_id)
    assert status.exit_status == 0
    assert "completed" in status.stdout
    as_json = json.loads(workplace.command("status", ended.job_id, "--json").stdout)
    assert (as_json["state"], as_json["result"]) == ("Completed", ended.result)
    jobs = workplace.command("jobs")
    assert ended.job_id in jobs.stdout and "Completed" in jobs.stdout
    tree = workplace.command("logs", ended.job_id).stdout
    assert "job_result.txt" in tree and "user/stdout/0/process000.stdout.txt" in tree
    log = workplace.command("logs", ended.job_id, "user/stdout/0/process000.stdout.txt").stdout
    assert log.count("hello from run") == 3
    assert workplace.command("logs", ended.job_id, "../spec.json").exit_status != 0, "the log tree alone"
    for command in ("status", "logs", "cancel", "retry"):
        unknown = workplace.command(command, "no-such-job")
        assert unknown.exit_status != 0
        assert "no-such-job" in unknown.stderr
