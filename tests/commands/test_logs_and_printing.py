"""The commands around a job: logs, doctor for this machine, completions, and printed output."""

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from harness import BUSY, INVALID, go

RETURN = "def run(files): return files"
SAY = """
    import os, time
    from recorder import record, recorded, wait_for
    def run(files):
        name = os.path.basename(files[0])
        print("hello from", name, flush=True)
        record("run")
        wait_for(lambda: recorded("go"))
        return files
"""


def test_variable_that_must_be_a_number_is_refused(workplace):
    refused = workplace.command("jobs", GRISTMILL_LEASE_SECONDS="8s")
    said = 'gristmill: GRISTMILL_LEASE_SECONDS is "8s", and must be a whole number, 0 or more\n'
    assert (refused.exit_status, refused.stderr) == (INVALID, said)


def test_logs_follow_until_the_job_ends(workplace):
    workplace.data(3)
    running = workplace.job(SAY).start()
    running.wait_for_record("run")
    (job_id,) = workplace.job_ids()
    following = workplace.start("logs", job_id, "--follow")
    one = workplace.start("logs", "test", "user/stdout", "-f")
    name = "user/stdout/0/process000.stdout.txt"
    lines = (line.decode() for line in iter(following.process.stdout.readline, b""))
    assert next(line for line in lines if "hello" in line) == f"{name}: hello from 000.txt\n"
    go(workplace)
    assert running.wait().exit_status == 0
    ended = following.wait()
    assert ended.exit_status == 0
    assert f"{name}: hello from 002.txt\n" in ended.stdout and "The job ended: Completed." in ended.stdout
    assert one.wait().stdout.count("hello from") == 3


def test_following_an_interrupted_job_ends(workplace):
    workplace.data(3)
    running = workplace.job(SAY).start()
    running.wait_for_record("run")
    (job_id,) = workplace.job_ids()
    following = workplace.start("logs", job_id, "--follow")
    running.kill()
    ended = following.wait()
    assert ended.exit_status == 0 and "is interrupted" in ended.stderr, str(ended)


def test_logs_print_the_first_traceback_and_accept_the_beginning_of_a_path(workplace):
    workplace.data(4)
    script = """
        import os
        def run(files):
            name = os.path.basename(files[0])
            if name >= "001.txt":
                raise ValueError(f"cannot read {name}")
            return files
    """
    ended = workplace.job(script).run()
    shown = workplace.command("logs", ended.job_id, "--error")
    assert shown.exit_status == 0, str(shown)
    assert "user/error/0/process000.txt" in shown.stdout and "Traceback" in shown.stdout
    assert "cannot read 001.txt" in shown.stdout and "cannot read 002.txt" not in shown.stdout

    ended = workplace.job("def run(files):\n print('hello')\n return files").run()
    shown = workplace.command("logs", ended.job_id, "--error")
    assert (shown.exit_status, shown.stdout) == (0, "") and "has no errors" in shown.stderr
    assert workplace.command("logs", ended.job_id, "user/stdout/0").stdout == "hello\n" * 4, "the only one"
    listed = workplace.command("logs", ended.job_id, "user/").stdout.split()
    assert "user/stdout/0/process000.stdout.txt" in listed and all(name.startswith("user/") for name in listed)
    assert "Completed" in workplace.command("logs", ended.job_id, "job_r").stdout
    unknown = workplace.command("logs", ended.job_id, "nothing")
    assert unknown.exit_status == 1 and "list the files with: gristmill logs" in unknown.stderr


def test_logs_of_a_target_are_printed(sqs):
    workplace = sqs.workplace
    workplace.data(2)
    script = """
        def run(files):
            if files[0].endswith("001.txt"):
                raise ValueError("this is why")
            return files
    """
    ended = sqs.run(workplace.job(script))
    shown = sqs.command("logs", ended.job_id, "--error", expect=0)
    assert "this is why" in shown.stdout and "Traceback" in shown.stdout
    followed = sqs.command("logs", ended.job_id, "--follow", expect=0)
    assert "this is why" in followed.stdout and "The job ended: Completed." in followed.stdout


PRINTING = ("run --json", "run", "plan --all", "plan --json", "validate", "jobs --json", "status", "logs", "doctor")


def test_unwritable_stdout_fails_each_command_and_a_closed_pipe_none(workplace):
    workplace.data(2)
    job = workplace.job(RETURN)
    for verb, *flags in map(str.split, PRINTING):
        subject = {"status": ["test"], "logs": ["test"], "jobs": [], "doctor": []}.get(verb, [job.file])
        for redirection, reason in (("> /dev/full", "No space left"), (">&-", "it is closed")):
            ended = subprocess.run(
                ["sh", "-c", f'exec "$@" {redirection}', "sh", workplace.executable, verb, *subject, *flags],
                cwd=workplace.folder,
                env=workplace.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            said = f"cannot write to standard output: {reason}"
            assert ended.returncode == 1 and said in ended.stderr, (verb, flags, ended.stderr)
    for command in (["jobs"], ["run", "job.yaml", "--fresh"], ["plan", "job.yaml"]):
        engine = subprocess.Popen(
            [workplace.executable, *command],
            cwd=workplace.folder,
            env=workplace.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        engine.stdout.close()
        engine.stderr.close()
        assert engine.wait(60) == 0, command


def test_missing_descriptors_reach_no_file_of_the_job(workplace):
    """A file that is opened next may take the number of a closed descriptor, and with it what a command prints."""
    workplace.data(4)
    job = workplace.job(RETURN)
    command = f"exec {workplace.executable} run {job.file} <&- >&- 2>&-"
    ended = subprocess.run(["sh", "-c", command], cwd=workplace.folder, env=workplace.environment)
    assert ended.returncode == 1, "the summary could not be written"
    rows = (workplace.folder / "output/rows.txt").read_text().split()
    assert [Path(row).name for row in rows] == [f"{number:03}.txt" for number in range(4)]
    assert "4 of 4 succeeded" in workplace.command("status", "test").stdout


def test_names_send_no_terminal_commands(workplace):
    """Escapes control and direction characters in lists, JSON and errors."""
    workplace.write({f"data/a\u202egpj.{end}\x9b2J\x1b[31m\u2066": "1" for end in ("exe", "com")})
    job = workplace.job("def run(files): raise ValueError(files[0])", error_threshold=0)
    commands = [
        *(["plan", job.file, *flags] for flags in ([], ["--all"])),
        *(["run", job.file, *flags] for flags in ([], ["--json"])),
        *([verb, "test", *flags] for verb in ("status", "logs") for flags in ([], ["--json"][: verb == "status"])),
        ["logs", "test", "--error"],
        ["logs", "test", "--follow"],
        ["jobs", "--json"],
    ]
    for command in commands:
        ended = workplace.command(*command)
        text = ended.stdout + ended.stderr
        assert not [c for c in text if c in "\u202e\u2066\x9b\x1b"], (command, text)
        if "--json" in command:
            json.loads(ended.stdout)
    assert "\\u202egpj" in workplace.command("plan", job.file).stdout
    lines = subprocess.run(
        [workplace.executable, "plan", job.file, "--json"],
        cwd=workplace.folder,
        env=workplace.environment,
        capture_output=True,
        text=True,
    ).stdout
    assert not [c for c in lines if c in "\u202e\u2066\x9b\x1b"]
    assert any("a\u202egpj" in json.dumps(json.loads(line), ensure_ascii=False) for line in lines.splitlines())


def test_quiet_prints_only_results(workplace):
    workplace.data(2)
    job = workplace.job(RETURN)
    ended = workplace.command("run", "-q", job.file)
    assert "completed" in ended.stdout and ended.stderr == "", str(ended)
    ended = workplace.command("run", job.file, "-vv")
    assert "DEBUG" in ended.stderr, str(ended)
    assert workplace.command("run", "-q", "-v", job.file).exit_status == 2, "one or the other"
    ended = workplace.command("run", "--quiet", "nothing.yaml")
    assert ended.exit_status == 2 and "nothing.yaml" in ended.stderr


def test_doctor_checks_this_machine(workplace, tmp_path):
    ended = workplace.command("doctor", "--json")
    report = json.loads(ended.stdout)
    states = {check["check"]: check["state"] for check in report["checks"]}
    assert ended.exit_status == 0 and report["ok"], report
    assert states["python"] == states["package"] == states["home"] == states["clock"] == "ok"
    assert {"pandas", "temporary files", "open files", "processes", "shared memory", "memory"} <= set(states)
    assert "this machine: 0 to fix" in workplace.command("doctor").stdout

    def failed(**environment: str) -> dict[str, str]:
        checks = json.loads(workplace.command("doctor", "--json", **environment).stdout)["checks"]
        return {check["check"]: check["message"] for check in checks if check["state"] == "failed"}

    assert "cannot be started" in failed(GRISTMILL_PYTHON=str(tmp_path / "no-python"))["python"]
    old = tmp_path / "old-python"
    answer = {"version": "3.8.1", "is_new_enough": False, "packages": [], "problem": None}
    old.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    old.chmod(0o755)
    assert "3.10 or newer" in failed(GRISTMILL_PYTHON=str(old))["python"]
    assert "GRISTMILL_HOME" in failed(GRISTMILL_HOME="/proc/home")["home"]
    assert "TMPDIR" in failed(TMPDIR="/proc")["temporary files"]
    limited = subprocess.run(
        ["sh", "-c", f"ulimit -n 100; exec {workplace.executable} doctor"],
        cwd=workplace.folder,
        env=workplace.environment,
        capture_output=True,
        text=True,
    )
    assert limited.returncode == 1 and "ulimit -n" in limited.stdout, limited.stdout


@pytest.mark.parametrize(
    ("size", "fill", "state", "said"),
    [
        ("3m", "1", "failed", "MB free; free some space"),
        # Not even an empty file fits.
        ("64k", "1000", "failed", "free; free some space"),
        ("500m", "1", "warning", "MB free; large jobs need more"),
    ],
)
def test_doctor_names_a_full_disk(workplace, size, fill, state, said):
    (workplace.folder / "disk").mkdir()
    script = f"""
        mount -t tmpfs -o size={size} tmpfs disk && mkdir disk/home disk/tmp || exit 9
        head -c {fill}k /dev/zero > disk/file 2> error
        {workplace.executable} doctor --json > said.json; echo $? > status
    """
    folders = {"GRISTMILL_HOME": f"{workplace.folder}/disk/home", "TMPDIR": f"{workplace.folder}/disk/tmp"}
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", textwrap.dedent(script)]
    subprocess.run(namespace, cwd=workplace.folder, env={**workplace.environment, **folders}, check=True, timeout=60)
    report = json.loads((workplace.folder / "said.json").read_text())
    assert (workplace.folder / "status").read_text() == ("1\n" if state == "failed" else "0\n"), report
    checks = {check["check"]: check for check in report["checks"]}
    for check, remedy in (("home", "GRISTMILL_HOME"), ("temporary files", "TMPDIR")):
        message = checks[check]["message"]
        assert checks[check]["state"] == state and said in message and remedy in message, checks[check]
        assert f"{workplace.folder}/disk/" in message


TARGET_COMMANDS = [
    "run job.yaml",
    "enqueue job.yaml",
    "retry test",
    "jobs",
    "status test",
    "logs test",
    "cancel test",
    "clean --all",
    "dead-letters",
    "doctor",
    "worker",
    "reducer",
]


@pytest.mark.parametrize("command", TARGET_COMMANDS)
def test_unknown_target_is_wrong_usage_of_every_command(workplace, command):
    workplace.data(1)
    workplace.job(RETURN)
    ended = workplace.command(*command.split(), "--target", "nope")
    assert ended.exit_status == INVALID and "nope" in ended.stderr, str(ended)


def test_events_are_objects_before_the_result(workplace):
    workplace.data(2)
    job = workplace.job("def run(files): return files", allow_reuse=True, logging_level="info")

    def lines(*arguments: str, **environment: str) -> tuple[list[dict], dict]:
        running = workplace.start(*arguments, "--json", "--events", **environment)
        stdout, stderr = running.process.communicate(timeout=120)
        *events, result = map(json.loads, stdout.splitlines())
        assert "event" not in result and all(event["event"] for event in events)
        return events, {**result, "stderr": stderr.decode()}

    events, result = lines("run", str(job.file))
    assert events[0] == {"event": "job", "job_id": result["job_id"]} and result["stderr"] == ""
    assert {event["event"] for event in events} <= {"job", "note"}
    again, reused = lines("run", str(job.file))
    assert again[-1] == events[0] and reused["reused"]
    (note,), same = lines("retry", result["job_id"])
    assert note["event"] == "note" and note["text"].endswith("nothing to do") and same["job_id"] == result["job_id"]
    Path(result["output"]).unlink()
    (workplace.folder / "code/entry.py").write_text(
        "def run(files):\n    open(__file__, 'a').write('#')\n    return files"
    )
    events, _ = lines("run", str(job.file))
    assert [event["event"] for event in events if "changed while" in event.get("text", "")] == ["warning"]
    assert not [event for event in events if event.get("text", "").startswith(("warning", "note"))]
    refused = workplace.command("run", job.file, "--events")
    assert refused.exit_status == INVALID and "--json" in refused.stderr


def test_json_is_one_object_on_one_line_however_a_command_ends(workplace):
    def printed(*arguments, expect, **environment):
        ended = workplace.command(*arguments, "--json", **environment)
        assert ended.exit_status == expect, str(ended)
        assert ended.stdout.count("\n") == 1, str(ended)
        return json.loads(ended.stdout)

    workplace.data(2)
    held = workplace.job(SAY)
    running = held.start()
    running.wait_for_record("run")
    (job_id,) = workplace.job_ids()
    for command, state in ((["run", held.file], "has not ended"), (["retry", job_id], "is running")):
        busy = printed(*command, expect=BUSY)
        assert busy["exit_status"] == BUSY and f"job {job_id} {state}" in busy["error"], busy
    go(workplace)
    assert running.wait().exit_status == 0
    assert "there is no job" in printed("retry", "other", expect=1)["error"]
    assert '; did you mean "test"?' in printed("retry", "tesst", expect=1)["error"]
    assert printed("run", "missing.yaml", expect=INVALID)["valid"] is False
    assert printed("run", held.file, "--target", "nope", expect=INVALID)["valid"] is False
    assert "nope" in printed("enqueue", held.file, "--target", "nope", expect=INVALID)["error"]
    workplace.write({"no-folder": ""})
    error = printed("run", held.file, expect=1, GRISTMILL_HOME=str(workplace.folder / "no-folder" / "home"))
    assert error["exit_status"] == 1 and "no-folder" in error["error"], error
