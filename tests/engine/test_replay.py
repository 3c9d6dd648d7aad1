"""`gristmill replay`: the rejected items of a job run again, and its output becomes complete."""

import json
import signal
from pathlib import Path

import pytest

from harness import file_names, wait_until
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


def replay(workplace, job, *flags, expect=0, **environment):
    ended = workplace.command("replay", job, "--json", *flags, **environment)
    assert ended.exit_status == expect, str(ended)
    return ended


def test_replay_completes_the_output(workplace):
    workplace.data(12)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="001.txt 002.txt 003.txt 006.txt 008.txt")
    assert first.lines == file_names(12, without=[1, 2, 3, 6, 8])
    before = len(workplace.recorded("run"))
    second = replay(workplace, first.job_id, BAD="002.txt 006.txt")
    assert second.lines == file_names(12, without=[2, 6]), "the rows are at their places"
    assert second.result["output"] == first.result["output"] and second.job_id != first.job_id
    assert second.items == (5, 3, 2)
    ran = {name for fact in workplace.recorded("run")[before:] for name in fact["names"]}
    assert ran == {"001.txt", "002.txt", "003.txt", "006.txt", "008.txt"}, "nothing else runs again"
    assert "replays 5 rejected items" in second.result["notes"][0]
    # A replay of a replay, by the name of the first job.
    third = replay(workplace, first.job_id, BAD="")
    assert third.lines == file_names(12)
    assert third.items == (2, 2, 0)
    nothing = workplace.command("replay", third.job_id)
    assert nothing.exit_status != 0 and "no rejected items: nothing to replay" in nothing.stderr


@pytest.mark.parametrize("cause", ["rejected", "missing"])
def test_retry_after_a_threshold_was_exceeded(workplace, cause):
    """Mini-batches that lack items run again as a whole: otherwise nothing could continue such a job."""
    workplace.data(12)
    script = FILES if cause == "rejected" else FILES.replace("raise ValueError", "return names[1:]  #")
    job = workplace.job(script, **SETTINGS, error_threshold=0, process_count_per_node=1)
    first = job.run(expect=42, BAD="006.txt")
    assert "exceeds error threshold 0" in first.result["cause"]
    again = workplace.command("retry", first.job_id, "--json", BAD="006.txt")
    assert again.exit_status == 42 and "exceeds error threshold 0" in again.result["cause"], "it is no better"
    assert (
        "succeeded before, but without some of its items, which fails the job; it runs again as a whole" in again.stderr
    )
    before = len(workplace.recorded("run"))
    last = workplace.command("retry", first.job_id, "--json", BAD="")
    assert last.exit_status == 0 and last.items == (12, 12, 0), str(last)
    assert last.lines == file_names(12)
    ran = {name for fact in workplace.recorded("run")[before:] for name in fact["names"]}
    assert {"004.txt", "005.txt", "006.txt", "007.txt"} <= ran and "000.txt" not in ran


def refused(workplace, *command):
    """Returns the one line of a command that refuses to do anything."""
    ended = workplace.command(*command, BAD="")
    assert ended.exit_status != 0, str(ended)
    (line,) = ended.stderr.strip().splitlines()
    return line


def test_retry_does_not_take_rows_of_replays_out_of_the_output(workplace):
    workplace.data(8)
    job = workplace.job(FILES, isolate="off", mini_batch_size=2, run_max_try=1)
    first = job.run(BAD="002.txt 005.txt 007.txt")
    second = replay(workplace, first.job_id, BAD="005.txt 007.txt")
    third = replay(workplace, first.job_id, BAD="007.txt")
    assert third.lines == file_names(8, without=[6, 7])
    for job_id in (first.job_id, second.job_id):
        line = refused(workplace, "retry", job_id)
        assert f"replay {third.job_id} has put its rows into the output of job {job_id}" in line
        assert line.endswith(f"run its rejected items again with: gristmill replay {job_id}")
    assert third.lines == file_names(8, without=[6, 7])
    assert workplace.command("retry", third.job_id, "--json", BAD="").lines == file_names(8), "the last one may go on"
    assert "no rejected items: nothing to replay" in refused(workplace, "replay", first.job_id)


def test_replay_of_a_job_that_has_run_again_since(workplace):
    workplace.data(8)
    job = workplace.job(FILES, isolate="off", mini_batch_size=2, run_max_try=1)
    first = job.run(BAD="002.txt 007.txt")
    failed = replay(workplace, first.job_id, expect=42, BAD="002.txt 007.txt")
    again = workplace.command("retry", first.job_id, "--json", BAD="007.txt")
    assert again.exit_status == 0 and again.lines == file_names(8, without=[6, 7])
    line = refused(workplace, "retry", failed.job_id)
    assert f"job {first.job_id} has run again since its replay {failed.job_id} was planned" in line
    last = replay(workplace, first.job_id, BAD="")
    assert last.items == (2, 2, 0) and last.lines == file_names(8)


def test_output_that_was_changed_since_is_kept(workplace):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS)
    first = job.run(BAD="002.txt 007.txt")
    output = Path(first.result["output"])
    with output.open("a") as file:
        file.write("by hand\n")
    line = refused(workplace, "replay", first.job_id)
    assert f"{output} is missing, or was changed since job {first.job_id} wrote it" in line and "--separate" in line
    assert output.read_text().endswith("by hand\n")
    assert replay(workplace, first.job_id, "--separate", BAD="").lines == ["002.txt", "007.txt"]
    other = job.run("--fresh", BAD="003.txt")
    assert "was changed since" in refused(workplace, "replay", first.job_id)
    second = replay(workplace, other.job_id, BAD="")
    assert second.lines == file_names(8), "a job may go on where its own rows are"
    assert "was changed since" in refused(workplace, "replay", first.job_id)


def test_rejects_are_shown_with_their_replay(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 007.txt")

    def shown(command, job_id=first.job_id):
        ended = workplace.command(command, job_id, BAD="002.txt 007.txt")
        return ended.stdout + ended.stderr

    again = f"run the rejects again with: gristmill replay {first.job_id}"
    assert again in shown("status")
    assert f"run them again with: gristmill replay {first.job_id}" in shown("rejects")
    nothing = shown("retry")
    assert "no mini-batch failed, but 2 items were rejected; run its rejected items again with" in nothing
    merged = "the output holds the rows of job"
    assert merged not in shown("replay"), "a replay that fails has written nothing"
    second = replay(workplace, first.job_id, BAD="007.txt")
    assert any(merged in note for note in second.result["notes"])
    assert again not in shown("status") and f"{merged} {second.job_id} as well" in shown("status")
    assert f"gristmill rejects {second.job_id}" in shown("rejects")
    assert json.loads(workplace.command("status", first.job_id, "--json").stdout)["replayed_by"] == second.job_id
    assert "but 1 item was rejected" in shown("retry")
    replay(workplace, first.job_id, BAD="")
    assert "no mini-batch failed: nothing to do" in shown("retry")


def test_removed_replay_is_named(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 007.txt")
    second = replay(workplace, first.job_id, BAD="007.txt")
    third = replay(workplace, first.job_id, expect=42, BAD="007.txt")
    assert workplace.command("clean", first.job_id).exit_status == 0
    for command in (("replay", second.job_id), ("retry", third.job_id)):
        line = refused(workplace, *command)
        assert f"job {first.job_id}, whose rows belong in the output" in line and "has been removed" in line
    assert replay(workplace, second.job_id, "--separate", BAD="").lines == ["007.txt"]


def test_same_run_reuses_the_replay(workplace):
    workplace.data(8)
    job = workplace.job(FILES, **SETTINGS, allow_reuse=True)
    first = job.run(BAD="002.txt 007.txt")
    last = replay(workplace, first.job_id, BAD="")
    before = len(workplace.recorded("run"))
    again = job.run(BAD="")
    assert again.result["reused"] and again.job_id == last.job_id, str(again)
    assert len(workplace.recorded("run")) == before, "nothing runs"
    Path(last.result["output"]).write_text("by hand")
    assert not job.run(BAD="").result["reused"]


def held(workplace, job_id, name):
    """Starts a replay. Returns it, and the process that holds this file."""
    before = len(workplace.recorded("run"))
    running = workplace.start("replay", job_id, "--json", BAD="", HOLD=name)
    holds = lambda: [fact for fact in workplace.recorded("run")[before:] if fact["names"] == [name]]  # noqa: E731
    return running, wait_until(holds, "it holds")[-1]["pid"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_stopped_replay_continues(workplace, number):
    workplace.data(12)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 006.txt 009.txt")
    running, pid = held(workplace, first.job_id, "009.txt")
    if number == signal.SIGINT:
        running.send(number)
        assert running.wait().state == "Canceled"
    else:
        running.kill(pid)
        kept = workplace.command("clean", first.job_id)
        assert "has not ended, and needs its rows" in kept.stderr + kept.stdout
    assert first.lines == file_names(12, without=[2, 6, 9]), "the output is as it was"
    jobs = len(workplace.job_ids())
    before = len(workplace.recorded("run"))
    assert replay(workplace, first.job_id, BAD="").lines == file_names(12)
    assert len(workplace.job_ids()) == jobs, "the same replay continues"
    again = [fact["names"] for fact in workplace.recorded("run")[before:]]
    assert again == [["009.txt"]] or number == signal.SIGKILL, "what a canceled one has done counts"


def test_replay_that_is_separate_or_fails_leaves_the_output_alone(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 007.txt")
    assert replay(workplace, first.job_id, "--separate", BAD="").lines == ["002.txt", "007.txt"]
    assert first.lines == file_names(8, without=[2, 7])
    replay(workplace, first.job_id, expect=42, BAD="002.txt 007.txt")
    assert first.lines == file_names(8, without=[2, 7])
    assert replay(workplace, first.job_id, BAD="").lines == file_names(8)


MENDED = {"mended/entry.py": "import os\ndef run(files): return [os.path.basename(file) for file in files]\n"}


def test_script_of_another_folder(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 006.txt")
    workplace.write({**MENDED, "empty/other.py": ""})
    line = refused(workplace, "replay", first.job_id, "--source-directory", "empty")
    assert line.endswith(f"empty has no file entry.py, the entry script of job {first.job_id}")
    before = len(workplace.recorded("run"))
    last = replay(workplace, first.job_id, "--source-directory", "mended", BAD="002.txt 006.txt")
    assert last.lines == file_names(8)
    assert len(workplace.recorded("run")) == before, "the first script does not run"


@pytest.mark.parametrize(
    "of, script, said",
    [
        ((), "def run(files) return files\n", "entry.py:1: "),
        (("--mini-batch", "0"), "def run(files) return files\n", "entry.py:1: "),
        ((), None, "No such file"),
        ((), "import helper\ndef run(files): return files\n", "helper.py:1: "),
        (("--source-directory", "mended"), "def run(files) return files\n", "mended/entry.py:1: "),
    ],
)
def test_script_is_checked_as_before_a_run(workplace, of, script, said):
    workplace.data(4)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt")
    folder = "mended" if "--source-directory" in of else "code"
    if script is None:
        (workplace.folder / folder / "entry.py").unlink()
    else:
        workplace.write({f"{folder}/entry.py": script, "code/helper.py": "def (\n"})
    assert said in refused(workplace, "replay", first.job_id, *of)
    ended = workplace.command("replay", first.job_id, *of, "--json")
    assert ended.exit_status == 2 and json.loads(ended.stdout)["valid"] is False, str(ended)
    assert workplace.job_ids() == [first.job_id], "no job was made"


def test_interrupted_replay_keeps_its_script(workplace):
    workplace.data(8)
    first = workplace.job(FILES, **SETTINGS).run(BAD="002.txt 006.txt")
    workplace.write(MENDED)
    running, pid = held(workplace, first.job_id, "006.txt")
    running.kill(pid)
    line = refused(workplace, "replay", first.job_id, "--source-directory", "mended")
    assert "has begun with the script in" in line and "cancel it to begin another" in line
    (begun,) = set(workplace.job_ids()) - {first.job_id}
    assert workplace.command("cancel", begun).exit_status == 0
    last = replay(workplace, first.job_id, "--source-directory", "mended", BAD="002.txt 006.txt")
    assert last.lines == file_names(8) and last.job_id != begun


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


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("form", [("rows.txt", "text"), ("rows.csv", "native"), ("rows.parquet", "native")])
@pytest.mark.parametrize("script, schema", [(FRAMES, {}), (ITEMS, {}), (UNFIT, {"result_schema": SCHEMA})])
def test_rows_of_tables(workplace, kind, form, script, schema):
    """After the replay the output is that of a job without bad rows."""
    columns = {"id": range(ROWS), "name": [f"name {number % 7}" for number in range(ROWS)]}
    inputs = written_table(workplace, kind, columns, group=150)
    file_name, output_format = form
    settings = {"inputs": inputs, "append_row_file_name": file_name, "output_format": output_format, **schema}
    settings["mini_batch_size"] = "150 rows"
    job = workplace.job(script, **settings)
    first = job.run(BAD=" ".join(map(str, BAD_ROWS)))
    assert first.items == (ROWS, ROWS - len(BAD_ROWS), len(BAD_ROWS))
    assert (first.result.get("extra_runs", 0) > 0) == (script == FRAMES), "only `run` does not know the bad rows"
    second = replay(workplace, first.job_id, BAD="118")
    assert second.items == (4, 3, 1)
    third = replay(workplace, first.job_id, BAD="")
    assert third.items == (1, 1, 0)
    clean = workplace.job(script, output="clean", **settings).run(BAD="")
    check_same_output(third.output, clean.output)


def test_large_rows(workplace):
    """Rows that are parts are kept while a job has rejects."""
    workplace.data(8)
    script = """
        import os
        def run(files):
            names = [os.path.basename(file) for file in files]
            if "005.txt" in names and os.environ["BAD"]:
                raise ValueError("bad")
            return [name + "x" * 100_000 for name in names]
    """
    first = workplace.job(script, **SETTINGS).run(BAD="1")
    second = replay(workplace, first.job_id, BAD="")
    assert [line.rstrip("x") for line in second.lines] == file_names(8)


def test_corrected_file_is_read_as_it_is_now(workplace):
    workplace.data(4)
    script = """
        def run(files):
            texts = [open(file).read() for file in files]
            if any("broken" in text for text in texts):
                raise ValueError("broken")
            return texts
    """
    workplace.write({"data/002.txt": "broken"})
    first = workplace.job(script, **SETTINGS).run()
    assert first.items == (4, 3, 1)
    workplace.write({"data/002.txt": "whole"})
    assert replay(workplace, first.job_id).lines[2] == "whole"


def test_impossible_replays_are_refused(workplace):
    workplace.data(4)
    job = workplace.job(FILES, **SETTINGS)

    first = job.run(BAD="002.txt")
    (workplace.folder / "data/002.txt").unlink()
    assert "002.txt has been removed since job" in refused(workplace, "replay", first.job_id)
    clean = job.run("--fresh", BAD="")
    assert "nothing to replay" in refused(workplace, "replay", clean.job_id)
    running = job.start("--fresh", BAD="", HOLD="000.txt")
    pid = running.wait_for_record("run", len(workplace.recorded("run")) + 1)[-1]["pid"]
    (running_id,) = set(workplace.job_ids()) - {first.job_id, clean.job_id}
    assert f"job {running_id} is running" in refused(workplace, "replay", running_id)
    running.kill(pid)
    assert "has not ended; continue with: gristmill retry" in refused(workplace, "replay", running_id)


def test_changed_table_is_refused(workplace):
    rows = "".join(f"{number}\n" for number in range(10))
    workplace.write({"table/t.csv": "id\n" + rows})
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table"}]
    first = workplace.job(FRAMES, inputs=inputs, mini_batch_size=None).run(BAD="3")
    workplace.write({"table/t.csv": "id\n11\n" + rows})
    ended = workplace.command("replay", first.job_id, "--json", BAD="")
    assert ended.exit_status != 0
    assert "t.csv has changed since job" in ended.stderr + json.dumps(ended.result)
