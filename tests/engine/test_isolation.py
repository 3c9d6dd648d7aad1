"""Mini-batches with items that fail: `isolate` keeps the results of all others."""

import json

import pytest

from harness import file_names
from small_tables import check_same_output, written_table

BAD_FILES = """
    import os, signal, time
    from recorder import record
    def run(files):
        names = [os.path.basename(file) for file in files]
        record("run", names=names)
        print("reading", *names)
        time.sleep(float(os.environ.get("SLOW", 0)))
        if any(name in os.environ["BAD"].split() for name in names):
            way = os.environ["WAY"]
            if way == "raise":
                raise ValueError(f"cannot read one of {len(names)}")
            if way == "none":
                return None
            if way == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return names
"""


@pytest.mark.parametrize(
    ("way", "extra_runs"),
    # A process may have died because of the number of files, so the second half is run as a whole.
    [("raise", 3), ("none", 3), ("die", 4)],
)
def test_only_the_bad_file_is_lost(workplace, way, extra_runs):
    workplace.data(12)
    job = workplace.job(BAD_FILES, mini_batch_size=4, process_count_per_node=2)
    ended = job.run(BAD="006.txt", WAY=way)
    assert ended.lines == file_names(12, without=[6]), "in the order of the input"
    assert (ended.items, ended.mini_batches) == ((12, 11, 1), (3, 3, 0))
    assert (ended.result["extra_runs"], ended.result["items_rejected"]) == (extra_runs, 1)
    assert "1 of 12 items failed" in ended.result["headline"]
    assert f"{extra_runs} extra runs of pieces of mini-batch 1; 1 item failed alone" in ended.log("job_result.txt")
    cause = {"raise": "run_raised", "none": "illegal_result", "die": "process_died"}[way]
    (row,) = ended.rejects()
    assert (row["mini_batch"], row["item"], row["items"], row["cause"]) == ("1", "2", "1", cause)
    assert row["path"].endswith("/data/006.txt")
    assert row["printed"] == "reading 006.txt", "by its own run, not by that of its mini-batch"
    if way == "raise":
        assert (row["exception"], row["message"]) == ("ValueError", "cannot read one of 1")
        assert "cannot read one of 1" in ended.log("job_error.txt")
        shown = workplace.command("rejects", ended.job_id).stdout
        assert "1 rejected item in 1 mini-batch" in shown and "/data/006.txt" in shown


@pytest.mark.parametrize(
    ("body", "extra_runs"),
    [
        # The file, the files before it, and those behind it.
        ("return [check(file) for file in files]", 3),
        ("for file in files:\n                yield file, check(file)", 3),
        # The last file is no bad one, and then there are halves.
        ("for file in files: name = os.path.basename(file)\n            return list(map(check, [*files]))", None),
    ],
)
def test_file_that_run_works_on_is_tried_first(workplace, body, extra_runs):
    workplace.data(64)
    script = f"""
        import os
        def check(path):
            name = os.path.basename(path)
            if name == "040.txt":
                {"del path" if extra_runs is None else "pass"}
                raise ValueError(name)
            return name
        def run(files):
            {body}
    """
    ended = workplace.job(script, mini_batch_size=64).run()
    assert ended.lines == file_names(64, without=[40])
    (row,) = ended.rejects()
    assert row["path"].endswith("/data/040.txt")
    runs = ended.result["extra_runs"]
    # If the second of these runs is held up, its files seem to be dear, and those behind are divided.
    assert extra_runs <= runs <= extra_runs + 3 if extra_runs else 3 < runs <= 14, runs


def test_isolation_is_progress(workplace):
    workplace.data(8)
    settings = {"mini_batch_size": 8, "arguments": ["--progress_update_timeout", 3]}
    ended = workplace.job(BAD_FILES, **settings).run(BAD="006.txt", WAY="raise", SLOW="0.8")
    assert ended.items == (8, 7, 1), "six runs of ranges take longer than the job may be without progress"


def test_script_that_may_write_files_of_its_own_is_isolated_only_if_asked(workplace):
    workplace.data(2)
    for isolate, extra_runs in ((None, None), ("items", 2)):
        job = workplace.job(BAD_FILES, isolate=isolate, output_action="summary_only", mini_batch_size=2)
        assert job.run(BAD="001.txt", WAY="raise").result.get("extra_runs") == extra_runs


def test_rejected_items_count_towards_the_threshold(workplace):
    workplace.data(8)
    for threshold, expect in [(1, 42), (2, 0)]:
        job = workplace.job(BAD_FILES, mini_batch_size=4, error_threshold=threshold)
        ended = job.run(BAD="000.txt 005.txt", WAY="raise", expect=expect)
        assert expect == 0 or "number of failed items is 2" in ended.cause


def test_where_everything_fails_isolation_stops(workplace):
    """A bug of the script costs few extra runs, and the job ends with its error."""
    workplace.data(1000)
    script = """
        from recorder import record
        def run(files):
            record("run")
            raise KeyError("always")
    """
    ended = workplace.job(script, mini_batch_size=20).run(expect=42)
    assert ended.items == (1000, 0, 1000)
    runs = len(workplace.recorded("run"))
    assert runs == 50 + ended.result["extra_runs"] and ended.result["extra_runs"] < 400
    assert "divides no more mini-batches" in ended.log("sys/node/0/_main.txt")
    assert "divides no more mini-batches" in ended.log("sys/warning/mini-batch_warnings.txt")


ROWS = 1_000
BAD_ROW = 617

FRAMES = """
    import pandas
    def run(rows):
        assert list(rows.index) == list(range(len(rows))), "a new index from 0"
        if (rows["id"] == 617).any():
            raise ValueError("a bad row")
        return rows.assign(double=rows["id"] * 2)
"""


def write_table(workplace, kind, without=()):
    rows = [(number, f"name {number % 7}") for number in range(ROWS) if number not in without]
    return written_table(workplace, kind, {"id": [row[0] for row in rows], "name": [row[1] for row in rows]}, group=400)


@pytest.mark.parametrize(
    "kind, name",
    [
        ("csv", "rows.txt"),
        ("csv", "rows.csv"),
        ("parquet", "rows.txt"),
        ("parquet", "rows.jsonl"),
        ("parquet", "rows.parquet"),
    ],
)
def test_output_is_that_of_a_table_without_its_bad_row(workplace, kind, name):
    inputs = write_table(workplace, kind)
    output_format = "text" if name == "rows.txt" else "native"
    settings = {"inputs": inputs, "append_row_file_name": name, "output_format": output_format}
    ended = workplace.job(FRAMES, **settings).run()
    assert ended.items == (ROWS, ROWS - 1, 1)
    assert ended.result["items_rejected"] == 1 and ended.result["extra_runs"] <= 20
    (row,) = ended.rejects()
    assert (row["items"], row["exception"], row["message"]) == ("1", "ValueError", "a bad row")
    assert json.loads(row["values"]) == {"id": BAD_ROW, "name": "name 1"}
    assert row["path"].endswith(f"t.{kind}") and (kind == "csv" or row["row"] == str(BAD_ROW))
    output = ended.output

    write_table(workplace, kind, without=[BAD_ROW])
    clean = workplace.job(FRAMES, output="clean", **settings).run()
    check_same_output(output, clean.output)


def test_context_names_the_rows_of_a_range(workplace):
    inputs = write_table(workplace, "csv")
    script = """
        from recorder import record
        def run(rows, context):
            first = int(rows["id"].iloc[0])
            assert context.global_row_index_lower_bound == first
            assert len(context.dataset) == len(rows)
            if (rows["id"] == 617).any():
                raise ValueError("bad")
            return rows
    """
    job = workplace.job(script, inputs=inputs, mini_batch_size="300 rows")
    assert job.run().items == (ROWS, ROWS - 1, 1)


def test_plan_counts_the_extra_runs_of_its_largest_mini_batch(workplace):
    """Also where the size is one of bytes, and the rows of text are not counted."""
    workplace.write({"small.csv": "id\n" + "7\n" * 15})
    inputs = [{"name": "table", "type": "tabular", "path": "small.csv"}]
    for size, items, extra_runs in (("1MB", 16, 10), ("4 rows", 4, 6)):
        job = workplace.job("def run(rows): return rows", inputs=inputs, mini_batch_size=size)
        shown = workplace.command("plan", job.file).stdout
        expected = f"isolate: one bad item in a mini-batch of {items} costs at most {extra_runs} extra runs"
        assert expected in shown.splitlines(), shown
    job = workplace.job("def run(rows): return rows", inputs=inputs, mini_batch_size="9 rows", isolate_items_max=3)
    shown = workplace.command("plan", job.file).stdout
    assert "mini-batch of 3 costs at most 4 extra runs; a larger one fails as a whole, and the largest has 9" in shown


def test_partition_keys_are_not_divided(workplace):
    workplace.write({"data/store=1/a.txt": "1", "data/store=2/b.txt": "2"})
    inputs = [{"name": "data", "type": "file", "path": "data", "partition_format": "store={store}/{file}.txt"}]
    settings = {"inputs": inputs, "partition_keys": ["store"], "mini_batch_size": None}
    refused = workplace.job(BAD_FILES, isolate="items", **settings).run(expect=2)
    assert "partition_keys keep together" in refused.stderr + refused.stdout
    ended = workplace.job(BAD_FILES, run_max_try=1, **settings).run(BAD="a.txt", WAY="raise")
    assert (ended.items, ended.result.get("extra_runs")) == ((2, 1, 1), None)


HAS_A_BAD_FILE = """
    import os
    from recorder import record
    record("import")
    def run(files):
        names = [os.path.basename(file) for file in files]
        if "006.txt" in names:
            raise ValueError("bad")
        # One row becomes a part, in the mini-batch that is isolated.
        return [f"{name} {'x' * (300_000 if name == '004.txt' else 5)}" for name in names]
"""


def test_crash_at_any_step_of_an_isolation_loses_no_item(workplace, crash_point):
    workplace.data(12)
    job = workplace.job(HAS_A_BAD_FILE, mini_batch_size=4, process_count_per_node=2, run_max_try=2)
    ended = job.retry(job.crash(crash_point))
    assert [line.split()[0] for line in ended.lines] == file_names(12, without=[6])
    assert [len(line) for line in ended.lines if line.startswith("004")] == [8 + 300_000]
    assert (ended.items, ended.mini_batches) == ((12, 11, 1), (3, 3, 0))
    assert ended.result["rejects"]["items"] == 1
