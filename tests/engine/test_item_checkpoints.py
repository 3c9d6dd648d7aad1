"""Scripts that hand back results of items early: what a failed attempt has handed back is not computed again."""

import os
from collections import Counter

import pytest

from harness import file_names

FILES = """
    import os, signal, time
    from recorder import record, recorded
    BAD = dict(zip(os.environ["BAD"].split(), os.environ.get("WAY", "").split()))
    def run(files):
        record("run", items=len(files))
        for file in files:
            name = os.path.basename(file)
            way = BAD.get(name)
            if way and sum(fact["name"] == name for fact in recorded("bad")) < int(os.environ.get("TIMES", 1)):
                record("bad", name=name)
                if way == "raise":
                    raise ValueError("halfway")
                if way == "exit":
                    os._exit(7)
                if way == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if way == "hang":
                    time.sleep(1000)
                if way == "foreign":
                    yield "/elsewhere", "foreign"
            record("item", name=name)
            yield file, f"row of {name}"
"""
LIMITS = {"run_invocation_timeout": 2, "arguments": ["--task_overhead_timeout", 2]}


def computed_once(workplace, items):
    """Checks the side record of the script: each item was computed once, however often the mini-batch ran."""
    counts = Counter(fact["name"] for fact in workplace.recorded("item"))
    assert counts == Counter({item: 1 for item in items})


def rows(count):
    return [f"row of {name}" for name in file_names(count)]


def test_second_try_gets_only_what_is_left(workplace):
    """In each of five mini-batches the fifteenth item fails, in another way."""
    workplace.data(100)
    job = workplace.job(FILES, mini_batch_size=20, run_max_try=2, **LIMITS)
    ended = job.run(BAD="014.txt 034.txt 054.txt 074.txt 094.txt", WAY="raise exit kill hang foreign")
    assert ended.lines == rows(100)
    assert (ended.items, ended.mini_batches) == ((100, 100, 0), (5, 5, 0))
    assert sorted(fact["items"] for fact in workplace.recorded("run")) == [6] * 5 + [20] * 5
    computed_once(workplace, file_names(100))
    assert ended.result["items_kept"] == 70
    assert "70 items were kept from earlier tries." in ended.log("job_result.txt")
    status = workplace.command("status", ended.job_id).stdout.splitlines()
    assert "  checkpoints: 70 items were kept from earlier tries" in status
    done = [row["Mini-batch Id"] for row in ended.attempts() if row["Status"] == "RUN_DONE"]
    assert done == ["0", "1", "2", "3", "4"] and len(ended.attempts()) == 10
    assert not (ended.logs.parent / "checkpoints").exists(), "nothing stays behind"
    assert "'/elsewhere', which is not an item of" in ended.log("user/error/*/*.txt")


def test_failure_that_no_item_repeats_is_a_warning_of_the_job(workplace):
    """Isolation finds no bad item where all have been handed back: without a warning, nothing says why it ran."""
    workplace.data(20)
    script = """
        import os
        def run(files):
            for file in files:
                yield file, os.path.basename(file)
            yield 20, "no such item"
    """
    ended = workplace.job(script, mini_batch_size=20, run_max_try=1, isolate="items").run()
    assert (ended.lines, ended.items) == (file_names(20), (20, 20, 0))
    (warning,) = ended.result["first_warnings"]
    assert "run() handed back a result of 20, which is not an item of mini-batch 0: nothing else is lost" in warning


def test_isolation_runs_only_what_is_left(workplace):
    """A bad item fails each time: only its own range is computed more than once, and nothing before it."""
    workplace.data(20)
    job = workplace.job(FILES, mini_batch_size=20, run_max_try=2, isolate="items")
    ended = job.run(BAD="013.txt", WAY="raise", TIMES="100")
    assert ended.lines == [row for row in rows(20) if "013" not in row]
    assert (ended.items, ended.result["items_rejected"]) == ((20, 19, 1), 1)
    computed_once(workplace, [name for name in file_names(20) if name != "013.txt"])
    assert ended.result["items_kept"] == 13, "those before the bad one"
    assert not (ended.logs.parent / "checkpoints").exists()


@pytest.mark.parametrize("output_format", ["csv", "jsonl", "parquet"])
def test_output_is_that_of_a_job_without_failures(workplace, output_format):
    lines = "".join(f"{number},name {number % 3}\n" for number in range(200))
    workplace.write({"table/t.csv": "id,name\n" + lines})
    script = """
        import os
        from recorder import record
        def run(table):
            record("run", rows=len(table))
            for index, row in table.sample(frac=1, random_state=1).iterrows():
                if os.environ["FAILS"] == "yes" and index == 60 and len(table) > 150:
                    raise ValueError("halfway")
                row = {"id": row["id"], "name": row["name"]}
                # Columns that only some rows have.
                yield index, row if row["id"] % 50 else {**row, "more": 1.5}
    """
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table"}]
    settings = {"inputs": inputs, "append_row_file_name": f"rows.{output_format}", "output_format": "native"}
    outputs = {}
    for fails in ("yes", "no"):
        job = workplace.job(script, output=fails, run_max_try=10, **settings)
        ended = job.run(FAILS=fails)
        outputs[fails] = ended.output
    runs = [fact["rows"] for fact in workplace.recorded("run")]
    assert runs[-1] == 200 and runs[:-1] == sorted(set(runs[:-1]), reverse=True), runs
    assert outputs["yes"] == outputs["no"]


def test_items_without_a_result_count_as_failed(workplace):
    """As where `run` returns a shorter list. Their places are known, so a retry runs them."""
    workplace.data(10)
    script = """
        import os
        def run(files):
            for position, file in enumerate(files):
                number = int(os.path.basename(file)[:3])
                if number % 5 == 0:
                    yield file, None
                elif number % 5 != 1 or not os.environ["SKIPS"]:
                    yield position, number
    """
    job = workplace.job(script, mini_batch_size=10, allowed_failed_count=0)
    ended = job.run(SKIPS="yes")
    assert ended.lines == ["2", "3", "4", "7", "8", "9"]
    assert (ended.items, ended.mini_batches) == ((10, 8, 2), (1, 1, 0))
    rejects = ended.rejects()
    assert [os.path.basename(row["path"]) for row in rejects] == ["001.txt", "006.txt"]
    assert {(row["cause"], row["exception"]) for row in rejects} == {("illegal_result", "NoResult")}
    retried = job.retry(ended.job_id, SKIPS="")
    assert retried.items == (10, 10, 0)
    assert retried.lines == ["1", "2", "3", "4", "6", "7", "8", "9"]
    workplace.environment["SKIPS"] = "yes"
    ended = workplace.job(script, mini_batch_size=10, strict_results=True, isolate="off").run(expect=42)
    assert "run() returned 8 results for the 10 items" in ended.log("user/error/*/*.txt")


HELD = """
    import os, time
    from recorder import record
    def run(files, context):
        for file in files:
            name = os.path.basename(file)
            if name == os.environ.get("HOLD"):
                record("held")
                time.sleep(1000)
            record("item", name=name)
            context.done(file, f"row of {name}")
"""


def test_speculative_run_gets_only_what_is_left(workplace):
    workplace.data(40)
    workplace.environment["MARK"] = str(workplace.folder / "mark")
    script = """
        import os, time
        from recorder import record
        def run(files):
            for file in files:
                name = os.path.basename(file)
                if name == "006.txt" and not os.path.exists(os.environ["MARK"]):
                    open(os.environ["MARK"], "a").close()
                    time.sleep(1000)
                record("item", name=name)
                yield file, f"row of {name}"
    """
    ended = workplace.job(script, mini_batch_size=4, process_count_per_node=3).run()
    assert ended.lines == rows(40), str(ended)
    assert ended.result["copies"] == {"started": 1, "won": 1}
    computed_once(workplace, file_names(40))


def test_killed_engine_continues_in_the_middle_of_a_mini_batch(workplace):
    workplace.data(10)
    job = workplace.job(HELD, mini_batch_size=10, allow_reuse=True)
    running = job.start(HOLD="006.txt")
    pid = running.wait_for_record("held")[0]["pid"]
    running.kill(pid)
    ended = job.run()
    assert (ended.lines, ended.items) == (rows(10), (10, 10, 0))
    computed_once(workplace, file_names(10))


def test_retry_continues_failed_mini_batches_with_the_same_script_alone(workplace):
    workplace.data(10)
    job = workplace.job(FILES, mini_batch_size=10, isolate="off")
    failed = job.run(BAD="004.txt", WAY="raise", expect=42)
    assert failed.items == (10, 0, 10)
    assert job.retry(failed.job_id, BAD="none").lines == rows(10)
    computed_once(workplace, file_names(10))

    workplace.record_file.unlink()
    failed = job.run(BAD="004.txt", WAY="raise", expect=42)
    job = workplace.job(FILES.replace("row of", "new row of"), mini_batch_size=10, isolate="off")
    ended = job.retry(failed.job_id, BAD="none")
    assert ended.lines == [f"new {row}" for row in rows(10)], "results of another script do not count"


def test_what_was_handed_back_counts_where_nothing_is_divided(workplace):
    """One partition is one mini-batch, and each of three fails in another way. A retry runs only what has no result."""
    ways = {"exit": "ProcessDied", "hang": "RunTimeout", "raise": "ValueError"}
    workplace.write({f"data/{number:03}/{way}.txt": "" for number in range(20) for way in ways})
    inputs = [{"name": "data", "type": "file", "path": "data", "partition_format": "{number}/{kind}.txt"}]
    # Such as exit015.
    script = FILES.replace("os.path.basename(file)", "''.join(file[:-4].split('/')[:-3:-1])")
    job = workplace.job(script, inputs=inputs, partition_keys=["kind"], mini_batch_size=None, **LIMITS)
    ended = job.run(BAD=" ".join(f"{way}015" for way in ways), WAY=" ".join(ways), TIMES="100")
    assert ended.lines == [f"row of {way}{number:03}" for way in ways for number in range(15)]
    assert (ended.items, ended.result["items_kept"]) == ((60, 45, 15), 45)
    rejects = [(row["path"].split("/")[-2:], row["exception"]) for row in ended.rejects()]
    assert rejects == [([f"{number:03}", f"{way}.txt"], ways[way]) for way in ways for number in range(15, 20)]
    assert not (ended.logs.parent / "checkpoints").exists()
    retried = job.retry(ended.job_id, BAD="none")
    names = [f"{way}{number:03}" for way in ways for number in range(20)]
    assert (retried.items, retried.lines) == ((60, 60, 0), [f"row of {name}" for name in names])
    computed_once(workplace, names)
