"""`gristmill retry` of a job that has ended: what its output lacks runs in another round, each row in its place."""

import csv
import json
import signal
from pathlib import Path

import pytest
from pyarrow import parquet

from harness import FAILED, file_names, go, wait_until, wait_until_ended
from small_tables import check_same_output, written_table

FILES = """
    import os, time
    from recorder import record, recorded
    def run(files):
        names = [os.path.basename(file) for file in files]
        record("run", names=names)
        if os.environ.get("HOLD") in names:
            time.sleep(1000)
        bad = [name for name in names if name in os.environ["BAD"].split()]
        if bad:
            raise ValueError(f"cannot read {len(bad)} of {len(names)}")
        return names
"""
SETTINGS = {"mini_batch_size": 4}
COUNTS = ("mini_batches", "items")


def retry(workplace, job_id, *flags, expect=0, **environment):
    ended = workplace.command("retry", job_id, "--json", *flags, **environment)
    assert ended.exit_status == expect, str(ended)
    return ended


def ran_since(workplace, before):
    return {name for fact in workplace.recorded("run")[before:] for name in fact["names"]}


def refused(workplace, *command, **environment):
    """Returns the last line of a command that refuses to do anything."""
    ended = workplace.command(*command, **{"BAD": "", **environment})
    assert ended.exit_status != 0, str(ended)
    return ended.stderr.strip().splitlines()[-1]


def test_retry_completes_the_output_of_the_job(workplace):
    workplace.data(12)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="001.txt 002.txt 003.txt 006.txt 008.txt")
    assert first.lines == file_names(12, without=[1, 2, 3, 6, 8])
    before = len(workplace.recorded("run"))
    second = retry(workplace, first.job_id, BAD="002.txt 006.txt")
    assert second.lines == file_names(12, without=[2, 6]), "the rows are at their places"
    assert (second.job_id, second.result["output"]) == (first.job_id, first.result["output"])
    assert (second.items, second.mini_batches) == ((12, 10, 2), (3, 3, 0))
    assert "5 rejected items run again; the rows of other items stay" in second.stderr
    left = parquet.read_table(second.logs / "rejects.parquet")["path"].to_pylist()
    for paths in ([row["path"] for row in second.rejects()], left):
        assert [Path(path).name for path in paths] == ["002.txt", "006.txt"]
    ran = ran_since(workplace, before)
    assert ran == {"001.txt", "002.txt", "003.txt", "006.txt", "008.txt"}, "nothing else runs again"
    third = workplace.command("replay", first.job_id, "--json", BAD="")
    assert third.lines == file_names(12), "`replay` is another name"
    assert (third.items, third.result.get("rejects")) == ((12, 12, 0), None)
    assert len(third.log("rejects.csv").splitlines()) == 1, "the header"
    assert parquet.read_table(third.logs / "rejects.parquet").num_rows == 0
    shown = workplace.command("rejects", first.job_id)
    assert (shown.exit_status, shown.stdout) == (0, "") and "has no rejects" in shown.stderr
    assert third.log("job_error.txt") == "No errors.\n"
    assert len(workplace.job_ids()) == 1
    nothing = workplace.command("retry", first.job_id, BAD="")
    assert nothing.exit_status == 0 and "nothing failed: nothing to do" in nothing.stderr
    line = refused(workplace, "retry", first.job_id, "--set", "output_format=csv")
    assert "has written its output: convert that file instead" in line


@pytest.mark.parametrize("isolate", ["off", "items"])
def test_rounds_end_as_a_run_that_never_failed(workplace, isolate):
    workplace.data(20)
    job = workplace.job(FILES, isolate=isolate, mini_batch_size=3, run_max_try=1, process_count_per_node=2)
    clean = workplace.job(FILES, output="clean", isolate=isolate, mini_batch_size=3, run_max_try=1)
    never = clean.run("--fresh", BAD="")
    first = job.run("--fresh", BAD="002.txt 005.txt 007.txt 011.txt 012.txt 019.txt")
    for bad in ["005.txt 007.txt 019.txt", "007.txt 019.txt", "019.txt", ""]:
        last = retry(workplace, first.job_id, BAD=bad)
    assert last.output == never.output
    told = ("items", "mini_batches", "rejects", "items_rejected", "failed_mini_batches", "state")
    assert {name: last.result.get(name) for name in told} == {name: never.result.get(name) for name in told}


def test_only_what_is_asked_for_runs(workplace):
    workplace.data(8)
    script = FILES.replace(
        "        bad = [", "        assert '007.txt' not in names or 'LATE' in os.environ\n        bad = ["
    )
    job = workplace.job(script, mini_batch_size=1, isolate="off", run_max_try=1, process_count_per_node=1)
    first = job.run(BAD="002.txt")
    assert first.mini_batches == (8, 6, 2)
    left = workplace.command("retry", first.job_id, "--only", "rejects", "--json", BAD="")
    assert left.exit_status == 0 and "--only leaves out what is left: 2 failed mini-batches" in left.stderr
    before = len(workplace.recorded("run"))
    second = retry(workplace, first.job_id, "--only", "failed", BAD="")
    assert ran_since(workplace, before) == {"002.txt", "007.txt"} and second.mini_batches == (8, 7, 1)
    rejects = workplace.job(FILES, **SETTINGS, output="other").run("--fresh", BAD="001.txt")
    before = len(workplace.recorded("run"))
    left = workplace.command("retry", rejects.job_id, "--only", "failed", "--json", BAD="")
    assert "--only leaves out what is left: 1 rejected item" in left.stderr
    assert len(workplace.recorded("run")) == before
    assert retry(workplace, rejects.job_id, "--only", "rejects", BAD="").items == (8, 8, 0)


def test_mended_rejects_are_no_cause_beside_a_failed_mini_batch(workplace):
    workplace.data(8)
    script = FILES.replace("raise ValueError(", "raise (KeyError if names[0] < '004.txt' else ValueError)(")
    job = workplace.job(script, **SETTINGS, process_count_per_node=1)
    failed = " ".join(file_names(8)[4:])
    first = job.run(BAD=f"001.txt {failed}")
    assert first.mini_batches == (2, 1, 1) and "and 1 other cause" in first.result["headline"], str(first)
    second = retry(workplace, first.job_id, "--only", "rejects", BAD=failed)
    assert (second.items, second.mini_batches) == ((8, 4, 4), (2, 1, 1))
    assert [failure["mini_batches"] for failure in second.result["failures"]] == [[1]]
    told = [second.result["headline"], json.dumps(second.result["failures"]), second.log("job_error.txt")]
    told.append(workplace.command("status", first.job_id).stdout)
    assert ["ValueError" in text and "KeyError" not in text for text in told] == [True] * 4, told


def test_unfinished_mini_batches_run_without_the_failed_ones(workplace):
    workplace.data(6)
    job = workplace.job(FILES, mini_batch_size=1, isolate="off", run_max_try=1, process_count_per_node=1)
    running = job.start(BAD="001.txt", HOLD="003.txt")
    running.wait_for_record("run", 4)
    running.send(signal.SIGINT)
    assert running.wait().state == "Canceled"
    (job_id,) = workplace.job_ids()
    before = len(workplace.recorded("run"))
    ended = retry(workplace, job_id, "--only", "unfinished", BAD="")
    assert ran_since(workplace, before) == {"003.txt", "004.txt", "005.txt"}
    assert ended.mini_batches == (6, 5, 1) and ended.lines == file_names(6, without=[1])
    assert "round 2 ran 3 mini-batches that had not ended: 5 of 6" in workplace.command("status", job_id).stdout


def has_failed(workplace, job_id):
    """Returns whether the progress of the job counts a failed mini-batch or item."""
    progress = workplace.progress(job_id)
    return 1 in [progress.get(counted, {}).get("failed") for counted in COUNTS]


@pytest.mark.parametrize("isolate", ["off", "items"])
def test_retry_of_a_killed_job_runs_everything_that_its_output_lacks(workplace, isolate):
    """Also what had failed before; `run` only goes on."""
    workplace.data(8)
    job = workplace.job(FILES, mini_batch_size=2, isolate=isolate, process_count_per_node=1)
    for verb, left in [("retry", 0), ("run", 1)]:
        before = len(workplace.recorded("run"))
        running = job.start("--fresh", BAD="001.txt", HOLD="006.txt")
        wait_until(lambda ran=before: "006.txt" in ran_since(workplace, ran), "the others have run")
        pid = workplace.recorded("run")[-1]["pid"]
        job_id = workplace.job_ids()[-1]
        wait_until(lambda one=job_id: has_failed(workplace, one), "one has failed")
        assert "1 failed" in workplace.command("status", job_id).stdout
        running.kill(pid)
        last = retry(workplace, job_id, BAD="") if verb == "retry" else job.run(BAD="")
        if left == 0:
            assert (last.lines, last.mini_batches[2], last.items[2]) == (file_names(8), 0, 0)
        else:
            assert last.mini_batches[2] + last.items[2] > 0


RUNNING = """
    import os
    from recorder import record, recorded, wait_for
    def run(files):
        names = [os.path.basename(file) for file in files]
        record("run", names=names)
        if set(names) & {"000.txt", "003.txt"} and not recorded("mended"):
            raise ValueError("no")
        if "007.txt" in names:
            wait_for(lambda: recorded("go"))
        return names
"""


@pytest.mark.parametrize("isolate", ["off", "items"])
def test_what_has_failed_runs_again_while_the_job_runs(workplace, isolate):
    workplace.data(8)
    settings = {"isolate": isolate, "mini_batch_size": 2, "run_max_try": 1, "process_count_per_node": 2}
    running = workplace.job(RUNNING, **settings, run_invocation_timeout=600).start()
    (job_id,) = wait_until(workplace.job_ids, "a job")
    wait_until(lambda: workplace.ended_mini_batches(job_id) == 3, "all but one have ended")
    go(workplace, "mended")
    before = len(workplace.recorded("run"))
    ended = workplace.command("retry", job_id, "--json")
    assert ended.exit_status == 0 and ended.result["state"] == "Running", str(ended)
    assert f"job {job_id} runs what has failed so far again" in ended.stderr
    again = {"000.txt", "003.txt"} if isolate == "items" else {"000.txt", "001.txt", "002.txt", "003.txt"}
    wait_until(lambda: ran_since(workplace, before) == again, "they run")
    wait_until(lambda: workplace.ended_mini_batches(job_id) == 3, "they have ended")
    go(workplace)
    last = running.wait()
    assert (last.lines, last.items, last.mini_batches) == (file_names(8), (8, 8, 0), (4, 4, 0))
    assert [round["failed"] + round["rejected"] for round in last.result["rounds"]] == [0, 2]


@pytest.mark.parametrize("cause", ["rejected", "missing"])
def test_retry_after_a_threshold_was_exceeded(workplace, cause):
    """Nothing could continue such a job if what exceeds the threshold did not run again."""
    workplace.data(12)
    script = FILES if cause == "rejected" else FILES.replace("raise ValueError", "return names[1:]  #")
    job = workplace.job(script, **SETTINGS, error_threshold=0, process_count_per_node=1)
    first = job.run(expect=42, BAD="006.txt")
    assert "exceeds error threshold 0" in first.result["cause"]
    again = workplace.command("retry", first.job_id, "--json", BAD="006.txt")
    assert again.exit_status == 42 and "exceeds error threshold 0" in again.result["cause"], "it is no better"
    whole = "succeeded before, but without some of its items; it runs again as a whole"
    assert ("1 rejected item runs again" if cause == "rejected" else whole) in again.stderr
    before = len(workplace.recorded("run"))
    last = retry(workplace, first.job_id, BAD="")
    assert last.items == (12, 12, 0) and last.lines == file_names(12)
    ran = ran_since(workplace, before)
    assert "000.txt" not in ran and "006.txt" in ran and ("004.txt" in ran) == (cause == "missing")


def test_what_a_round_cannot_improve_stays(workplace):
    """The mini-batch cannot be read any more, but its rows are there."""
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS, run_max_try=1)
    first = job.run(BAD="002.txt")
    script = workplace.folder / "code/entry.py"
    script.write_text(script.read_text().replace("if bad:", "if os._exit(1) or bad:"))
    second = retry(workplace, first.job_id, BAD="")
    assert second.lines == first.lines == file_names(8, without=[2])
    assert (second.items, second.mini_batches) == ((8, 7, 1), (2, 2, 0))


@pytest.mark.parametrize("isolate, left", [("items", [1, 8]), ("halves", [0, 1, 2, 6, 7, 8])])
def test_items_that_a_round_gets_nothing_for_stay_rejected(workplace, isolate, left):
    """A script that leaves them out names none; as long as nothing has come of them, they run in the next round."""
    workplace.data(12)
    script = FILES.replace(
        "        return names",
        "        return [name for name in names if name not in os.environ.get('SKIP', '').split()]",
    )
    job = workplace.job(script, isolate=isolate, mini_batch_size=6, run_max_try=1)
    first = job.run(BAD="001.txt 002.txt 008.txt")
    second = retry(workplace, first.job_id, BAD="", SKIP=" ".join(f"{item:03}.txt" for item in left))
    assert second.lines == file_names(12, without=left)
    assert second.items == (12, 12 - len(left), len(left))
    assert "did not say which" not in second.log("rejects.csv")
    assert retry(workplace, first.job_id, BAD="").lines == file_names(12)


def kept(workplace, ended, number, why="was changed after the job had written it"):
    """Checks the warning about an edited output, and returns what is kept."""
    output = Path(ended.result["output"])
    path = output.with_name(f"{output.name}.edited-{number}")
    said = f"{output} {why}; the changed file is kept as {path}"
    assert ended.result["first_warnings"] == [said]
    assert f"  warnings: 1\n    {said}" in workplace.command("status", ended.job_id).stdout
    return path.read_text()


def test_output_that_was_changed_since_is_kept(workplace):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="002.txt 007.txt")
    output = Path(first.result["output"])
    with output.open("a") as file:
        file.write("by hand\n")
    second = retry(workplace, first.job_id, BAD="007.txt")
    assert second.lines == file_names(8, without=[7])
    edited = [*file_names(8, without=[2, 7]), "by hand"]
    assert kept(workplace, second, 1).splitlines() == edited
    output.unlink()
    third = retry(workplace, first.job_id, BAD="")
    assert third.lines == file_names(8), "a missing file is written again"
    assert not third.result["warnings"], "the warning appears once"
    assert sorted(path.name for path in output.parent.iterdir()) == [output.name, f"{output.name}.edited-1"]
    new = job.run("--fresh", BAD="007.txt")
    output.write_text("again")
    assert kept(workplace, retry(workplace, new.job_id, BAD=""), 2) == "again", "what another job has kept stays"
    assert output.with_name(f"{output.name}.edited-1").read_text().splitlines() == edited


def test_new_job_keeps_an_output_that_was_changed_since(workplace):
    workplace.data(4)
    first = workplace.job(FILES, **SETTINGS).run(BAD="")
    output = Path(first.result["output"])
    output.write_text("by hand")
    second = workplace.job(FILES, **SETTINGS).run(BAD="")
    assert second.job_id != first.job_id and second.lines == file_names(4)
    assert kept(workplace, second, 1) == "by hand"
    third = workplace.job(FILES, **SETTINGS).run("--fresh", BAD="")
    assert not third.result["warnings"], "what the last job has written is replaced"
    output.touch()
    touched = workplace.job(FILES, **SETTINGS).run("--fresh", BAD="")
    assert not touched.result["warnings"] and len(list(output.parent.iterdir())) == 2, "the same rows need no copy"
    output.rename(workplace.folder / "rows")
    makes_a_folder = f"def run(files):\n    __import__('os').makedirs({str(output)!r}, exist_ok=True)\n    return files"
    in_the_way = workplace.job(makes_a_folder, **SETTINGS).run(expect=FAILED)
    assert "Is a directory" in in_the_way.cause and output.is_dir(), in_the_way.cause
    output.rmdir()
    (workplace.folder / "rows").rename(output)
    output.write_text("again")
    workplace.job("def run(files): raise ValueError('no')", **SETTINGS).run(expect=FAILED)
    assert output.read_text() == "again"
    last = workplace.job(FILES, **SETTINGS).run("--fresh", BAD="")
    assert kept(workplace, last, 2) == "again", "a job that has written nothing changes nothing"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_new_job_keeps_an_output_that_was_changed_before_a_round_was_stopped(workplace, number):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="002.txt 007.txt")
    output = Path(first.result["output"])
    for text in (None, "by hand"):
        if text:
            output.write_text(text)
        running, pid = held(workplace, first.job_id, "007.txt")
        running.send(number)
        running.wait()
        wait_until_ended([pid])
        last = job.run("--fresh", BAD="002.txt 007.txt")
        assert last.lines == file_names(8, without=[2, 7])
        if text:
            assert kept(workplace, last, 1) == text
        else:
            assert not last.result["warnings"], "what an earlier round has written is replaced"
        first = last


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGKILL])
def test_output_that_is_changed_while_a_round_runs_is_kept(workplace, number):
    workplace.data(8)
    script = FILES.replace("time.sleep(1000)", "wait_for(lambda: recorded('go'))")
    script = script.replace("record, ", "record, wait_for, ")
    first = workplace.job(script, **SETTINGS).run(BAD="002.txt 007.txt")
    output = Path(first.result["output"])
    running, pid = held(workplace, first.job_id, "007.txt")
    if number is None:
        output.write_text("by hand")
        go(workplace)
        last = running.wait()
    else:
        running.send(number)
        running.wait()
        if number == signal.SIGKILL:
            wait_until_ended([pid])
        output.write_text("by hand")
        last = retry(workplace, first.job_id, BAD="")
    assert (last.exit_status, last.lines) == (0, file_names(8)), str(last)
    assert kept(workplace, last, 1) == "by hand"


def test_mended_job_is_reused_while_its_output_is_there(workplace):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS, allow_reuse=True)
    first = job.run(BAD="002.txt 007.txt")

    def shown(command):
        ended = workplace.command(command, first.job_id, BAD="002.txt 007.txt")
        return ended.stdout + ended.stderr

    retries = f"run what failed again with: gristmill retry {first.job_id}"
    assert retries in shown("status")
    assert f"run them again with: gristmill retry {first.job_id}" in shown("rejects")
    last = retry(workplace, first.job_id, BAD="")
    assert retries not in shown("status") and "has no rejects" in shown("rejects")
    before = len(workplace.recorded("run"))
    again = job.run(BAD="")
    assert again.result["reused"] and again.job_id == first.job_id, str(again)
    assert len(workplace.recorded("run")) == before, "nothing runs"
    Path(last.result["output"]).unlink()
    said = f"{last.result['output']}, the output of job {first.job_id}, is missing, and the job has ended"
    assert refused(workplace, "retry", first.job_id).endswith(f"{said}: run the whole job again")
    Path(last.result["output"]).write_text("by hand")
    assert not job.run(BAD="").result["reused"]


def held(workplace, job_id, name):
    """Starts a retry. Returns it, and the process that holds this file."""
    before = len(workplace.recorded("run"))
    running = workplace.start("retry", job_id, "--json", BAD="", HOLD=name)
    holds = lambda: [fact for fact in workplace.recorded("run")[before:] if fact["names"] == [name]]  # noqa: E731
    return running, wait_until(holds, "it holds")[-1]["pid"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_status_lists_the_rounds_of_a_job_and_a_stopped_one_continues(workplace, number):
    workplace.data(12)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 006.txt 009.txt")
    running, pid = held(workplace, first.job_id, "009.txt")
    listed = ["  round 1 ran the job: 9 of 12 items succeeded", "  round 2 ran 3 rejected items again: "]

    def rounds():
        lines = workplace.command("status", first.job_id).stdout.splitlines()
        return [line for line in lines if line.startswith("  round")]

    now = wait_until(rounds, "the round is shown")
    assert [line.startswith(told) for line, told in zip(now, listed, strict=True)] == [True, True], now
    if number == signal.SIGINT:
        running.send(number)
        assert running.wait().state == "Canceled"
    else:
        running.kill(pid)
    assert first.lines == file_names(12, without=[2, 6, 9]), "the output is as it was"
    status = json.loads(workplace.command("status", first.job_id, "--json").stdout)
    items = (status["result"] or status["progress"])["items"]
    left = items["total"] - items["succeeded"]
    assert 1 <= left <= 3, "the items of the round that have not ended"
    rejects = workplace.command("rejects", first.job_id)
    if number == signal.SIGINT:
        assert items["failed"] == left, "they are rejected as before the round"
        assert f"the output of an earlier round stays: {first.result['output']}" in status["result"]["notes"]
        assert first.log("rejects.csv").count("run_raised,ValueError") == left
        assert f"{left} rejected item" in rejects.stdout, str(rejects)
    else:
        assert items["failed"] == 0 and not (first.logs / "job_result.txt").exists(), "it told of the round before"
        said = f"job {first.job_id} has no rejects, and {left} item{' has' if left == 1 else 's have'} not ended"
        assert said in rejects.stderr
        interrupted = workplace.command("status", first.job_id).stdout
        assert "  round 2 ran 3 rejected items again, and was interrupted: " in interrupted, interrupted
        assert f"continue with: gristmill retry {first.job_id}" in interrupted
    before = len(workplace.recorded("run"))
    last = retry(workplace, first.job_id, BAD="")
    assert (last.lines, last.items) == (file_names(12), (12, 12, 0))
    assert len(workplace.job_ids()) == 1
    again = ran_since(workplace, before)
    assert "009.txt" in again and again <= {"002.txt", "006.txt", "009.txt"}, "what is in the output does not run"
    if number == signal.SIGINT:
        return
    told = [told | dict.fromkeys(COUNTS) for told in last.result["rounds"]]
    nothing = dict.fromkeys(("failed", "rejected", "unfinished"), 0)
    plain = {"goes_on": False, "has_other_script": False} | nothing | dict.fromkeys(COUNTS)
    times = [told.pop("at") for told in told[1:]]
    assert times == sorted(times)
    assert told == [
        {**plain, "state": "Completed"},
        {**plain, "state": None, "rejected": 3},
        {**plain, "state": "Completed", "goes_on": True},
    ]
    lines = workplace.command("status", first.job_id).stdout
    assert "round 2 ran 3 rejected items again, and was interrupted: " in lines


LARGE = FILES.replace('    record("run"', '    record("import")\n        record("run"').replace(
    "return names", "return [name + 'x' * (300_000 if name in ('002.txt', '006.txt') else 1) for name in names]"
)


def test_round_survives_a_crash_at_any_step(workplace, crash_point_of_a_round):
    """Another round follows. In the first, a reject leaves a mini-batch that fails a try of the second one."""
    workplace.data(12)
    settings = {**SETTINGS, "run_max_try": 2, "process_count_per_node": 1}
    job = workplace.job(LARGE, **settings)
    first = job.run(BAD="002.txt 006.txt 007.txt 008.txt 009.txt 010.txt 011.txt")
    assert first.mini_batches == (3, 2, 1)
    crashed = workplace.start(
        "retry", first.job_id, "--json", BAD="007.txt 008.txt", GRISTMILL_CRASH_AT=crash_point_of_a_round
    ).wait()
    assert crashed.exit_status == -signal.SIGKILL, f"{crash_point_of_a_round} was not passed: {crashed}"
    wait_until_ended(fact["pid"] for fact in workplace.recorded("import"))
    last = retry(workplace, first.job_id, BAD="")
    if last.items != (12, 12, 0):
        # It has gone on with the round that was killed, in which a mini-batch had been rejected already.
        last = retry(workplace, first.job_id, BAD="")
    assert [line.rstrip("x") for line in last.lines] == file_names(12)
    assert (last.items, last.mini_batches) == ((12, 12, 0), (3, 3, 0))
    output = Path(last.result["output"])
    assert list(output.parent.iterdir()) == [output], "the file of the killed engine is not taken for an edited one"


def test_separate_rows_leave_the_job_alone(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 007.txt")
    aside = retry(workplace, first.job_id, "--separate", BAD="007.txt")
    assert (aside.lines, aside.items) == (["002.txt"], (2, 1, 1))
    assert "runs 2 rejected items of job" in aside.result["notes"][0]
    mended = retry(workplace, aside.job_id, BAD="")
    assert (mended.lines, mended.items) == (["002.txt", "007.txt"], (2, 2, 0)), "it has rounds of its own"
    of_aside = retry(workplace, first.job_id, "--separate", BAD="002.txt 007.txt", expect=42)
    assert of_aside.mini_batches == (2, 0, 2) and "earlier round" not in of_aside.cause
    assert first.lines == file_names(8, without=[2, 7])
    assert retry(workplace, first.job_id, BAD="").lines == file_names(8)
    line = refused(workplace, "retry", first.job_id, "--separate")
    assert "has no rejected items: nothing runs again" in line


@pytest.mark.parametrize("form", ["files", "rows"])
def test_rejects_of_separate_rows_are_those_items(workplace, form):
    """Whole mini-batches of theirs fail, of which other items belong to the first job."""
    if form == "files":
        workplace.data(12)
        job = workplace.job(FILES, mini_batch_size=6)
        bad, still, key = ["001.txt", "003.txt", "009.txt"], ["001.txt", "003.txt"], "path"
    else:
        workplace.write({"table/t.csv": "id\n" + "".join(f"{number}\n" for number in range(12))})
        inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table"}]
        job = workplace.job(FRAMES, inputs=inputs, mini_batch_size=None)
        bad, still, key = ["1", "3", "9"], ["1", "3", "9"], "values"
    first = job.run(BAD=" ".join(bad))
    aside = workplace.command("retry", first.job_id, "--separate", "--json", BAD=" ".join(still))
    for ended in (aside, workplace.command("retry", aside.job_id, "--separate", "--json", BAD=" ".join(still))):
        rows = list(csv.DictReader(ended.log("rejects.csv").splitlines()))
        named = [Path(row[key]).name if form == "files" else str(json.loads(row[key])["id"]) for row in rows]
        assert named == still, rows
        assert ended.items[2] == len(still) and all("ValueError" in row["exception"] for row in rows), rows


MENDED = {"mended/entry.py": "import os\ndef run(files): return [os.path.basename(file) for file in files]\n"}


def test_script_of_another_folder(workplace):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS, allow_reuse=True)
    first = job.run(BAD="002.txt 006.txt")
    workplace.write({**MENDED, "empty/other.py": ""})
    line = refused(workplace, "retry", first.job_id, "--source-directory", "empty")
    assert line.endswith(f"empty has no file entry.py, the entry script of job {first.job_id}")
    before = len(workplace.recorded("run"))
    last = retry(workplace, first.job_id, "--source-directory", "mended", BAD="002.txt 006.txt")
    assert last.lines == file_names(8)
    assert "the script has changed since the job began" in last.stderr
    assert len(workplace.recorded("run")) == before, "the first script does not run"
    missing = refused(workplace, "retry", first.job_id, "--source-directory", "nowhere")
    assert "nowhere has no file entry.py" in missing, "although there is nothing to do"
    again = job.run(BAD="002.txt 006.txt")
    said = f"job {first.job_id} has completed, and this is a new job, because it has run more than one version"
    assert said in again.stderr, again.stderr
    mended = kept(
        workplace, again, 1, "was completed by a retry with another script, or by a job whose record cannot be read"
    )
    assert mended.splitlines() == file_names(8)
    assert again.lines == file_names(8, without=[2, 6])


def test_script_is_checked_as_before_a_run(workplace):
    workplace.data(4)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt")
    broken, entry = "def run(files) return files\n", workplace.folder / "code/entry.py"
    whole = entry.read_text()
    workplace.write({"mended/entry.py": broken, "code/helper.py": "def (\n"})
    for script, of, said in [
        (broken, (), "entry.py:1: "),
        (broken, ("--mini-batch", "0"), "entry.py:1: "),
        ("import helper\ndef run(files): return files\n", (), "helper.py:1: "),
        (whole, ("--source-directory", "mended"), "mended/entry.py:1: "),
    ]:
        entry.write_text(script)
        assert said in refused(workplace, "retry", first.job_id, *of)
        ended = workplace.command("retry", first.job_id, *of, "--json")
        assert ended.exit_status == 2 and json.loads(ended.stdout)["valid"] is False, str(ended)
        assert workplace.job_ids() == [first.job_id], "no job was made"
        assert workplace.command("status", first.job_id).stdout.count("completed") == 1, "the job is as it was"


ROWS = 400
BAD_ROWS = (0, 117, 118, 399)
FRAMES = """
    import os
    def run(rows):
        if rows["id"].isin([int(number) for number in os.environ["BAD"].split()]).any():
            raise ValueError("a bad row")
        return rows.assign(double=rows["id"] * 2)
"""
ITEMS = """
    import os
    async def run_item(row):
        if str(row["id"]) in os.environ["BAD"].split():
            raise ValueError("a bad row")
        return {**row, "double": row["id"] * 2}
"""
UNFIT = """
    import os
    def run(rows):
        bad = [int(number) for number in os.environ["BAD"].split()]
        return rows.assign(double=[number * 2 if number not in bad else "two" for number in rows["id"]])
"""
SCHEMA = {"columns": {"id": "integer", "name": "string", "double": "integer"}}


@pytest.mark.parametrize("kind, name", [("csv", "rows.txt"), ("parquet", "rows.csv"), ("csv", "rows.parquet")])
@pytest.mark.parametrize("script, schema", [(FRAMES, {}), (ITEMS, {}), (UNFIT, {"result_schema": SCHEMA})])
def test_output_of_the_last_round_is_that_of_a_table_without_bad_rows(workplace, kind, name, script, schema):
    columns = {"id": range(ROWS), "name": [f"name {number % 7}" for number in range(ROWS)]}
    inputs = written_table(workplace, kind, columns, group=150)
    output_format = "text" if name == "rows.txt" else "native"
    settings = {"inputs": inputs, "append_row_file_name": name, "output_format": output_format, **schema}
    settings["mini_batch_size"] = "150 rows"
    job = workplace.job(script, **settings)
    first = job.run(BAD=" ".join(map(str, BAD_ROWS)))
    assert first.items == (ROWS, ROWS - len(BAD_ROWS), len(BAD_ROWS))
    assert (first.result.get("extra_runs", 0) > 0) == (script == FRAMES), "only `run` does not know the bad rows"
    second = retry(workplace, first.job_id, BAD="118")
    assert second.items == (ROWS, ROWS - 1, 1)
    third = retry(workplace, first.job_id, BAD="")
    assert third.items == (ROWS, ROWS, 0)
    clean = workplace.job(script, output="clean", **settings).run(BAD="")
    check_same_output(third.output, clean.output)


def test_impossible_rounds_are_refused(workplace):
    workplace.data(4)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="002.txt")
    code = workplace.folder / "code"
    code.rename(workplace.folder / "elsewhere")
    for flags in ([], ["--separate"], ["--mini-batch", "0"]):
        assert "code has no file entry.py, the entry script" in refused(workplace, "retry", first.job_id, *flags)
    (workplace.folder / "elsewhere").rename(code)
    (code / "entry.py").rename(code / "other.py")
    assert "code has no file entry.py, the entry script" in refused(workplace, "retry", first.job_id)
    (code / "other.py").rename(code / "entry.py")
    assert workplace.command("status", first.job_id).stdout.count("completed") == 1, "no round has begun"
    running = job.start("--fresh", BAD="", HOLD="000.txt")
    pid = running.wait_for_record("run", len(workplace.recorded("run")) + 1)[-1]["pid"]
    (running_id,) = set(workplace.job_ids()) - {first.job_id}
    assert f"job {running_id} is running" in refused(workplace, "retry", running_id)
    assert f"job {running_id} is running" in refused(workplace, "retry", running_id, "--separate")
    running.kill(pid)
    line = refused(workplace, "retry", running_id, "--separate")
    assert "has not ended; continue with: gristmill retry" in line
    setting = workplace.command("retry", running_id, "--separate", "--set", "environment_variables.BAD=1")
    assert setting.exit_status == 2, str(setting)
    assert "to change another key, start a new job: gristmill run JOB_FILE --set KEY=VALUE" in setting.stderr


def test_corrected_file_is_read_as_it_is_now_and_removed_files_fail_alone(workplace):
    workplace.data(8)
    script = FILES.replace("return names", "return [open(file).read() for file in files]")
    first = workplace.job(script, **SETTINGS).run(BAD="002.txt 005.txt 006.txt")
    assert first.items == (8, 5, 3)
    workplace.write({"data/002.txt": "whole"})
    for name in ("001.txt", "005.txt"):
        (workplace.folder / "data" / name).unlink()
    last = retry(workplace, first.job_id, BAD="")
    expected = ["000", "001", "whole", "003", "004", "006", "007"]
    assert last.lines == expected, "001.txt has its row, and does not run again"
    assert "005.txt" in last.log("rejects.csv") and "FileNotFoundError" in last.log("rejects.csv")


def test_changed_table_is_refused(workplace):
    rows = "".join(f"{number}\n" for number in range(10))
    workplace.write({"table/t.csv": "id\n" + rows})
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table"}]
    first = workplace.job(FRAMES, inputs=inputs, mini_batch_size=None).run(BAD="3")
    workplace.write({"table/t.csv": "id\n11\n" + rows})
    ended = workplace.command("retry", first.job_id, "--json", BAD="")
    assert ended.exit_status != 0
    assert "t.csv has changed since job" in ended.stderr + json.dumps(ended.result)
