"""Rejected items: one table of them, and `gristmill rejects`."""

import json
import os

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import ERROR, FAILED, file_names, wait_until

REFUSES_SOME = """
    import os
    def run(files):
        for file in files:
            if os.path.basename(file) in os.environ.get("BAD", "").split():
                raise ValueError(f"missing total in {file!r}\\n=1+1")
        return [os.path.basename(file) for file in files]
"""


def table(ended):
    """Returns the rows of both tables of rejects, which agree except for repeated tracebacks."""
    rows = ended.rejects()
    frame = pd.read_parquet(ended.result["rejects"]["parquet"])
    assert list(frame.columns) == list(rows[0]) and len(frame) == len(rows)
    assert frame["items"].sum() == ended.items[2], "the table explains every failed item"
    assert [str(number) for number in frame["mini_batch"]] == [row["mini_batch"] for row in rows]
    assert list(frame["path"].fillna("")) == [row["path"] for row in rows]
    assert str(frame["started_at"].dtype).endswith("UTC]")
    return rows, frame


def counted(workplace, job_id, *arguments):
    shown = workplace.command("rejects", job_id, "--json", *arguments)
    assert shown.exit_status == 0, str(shown)
    return json.loads(shown.stdout)


def test_every_file_of_a_failed_mini_batch_is_in_the_table(workplace):
    workplace.data(10)
    ended = workplace.job(REFUSES_SOME, isolate="off", mini_batch_size=2, run_max_try=2).run(BAD="003.txt 008.txt")
    assert ended.items == (10, 6, 4)
    rows, frame = table(ended)
    assert [os.path.basename(row["path"]) for row in rows] == ["002.txt", "003.txt", "008.txt", "009.txt"]
    first = rows[0]
    assert (first["mini_batch"], first["item"], first["items"], first["input"]) == ("1", "0", "1", "data")
    assert (first["cause"], first["exception"], first["tries"]) == ("run_raised", "ValueError", "2")
    assert (first["node"], first["process"]) == ("0", "process000")
    assert first["message"].startswith("missing total in '") and "Traceback" in first["traceback"]
    assert [bool(row["traceback"]) for row in rows] == [True, False, True, False], "once for each mini-batch"
    assert frame["traceback"].str.contains("missing total").all()
    assert (ended.logs / first["log"]).is_file()
    assert f"Rejected: 4 items, see {ended.logs}/rejects.csv." in ended.log("job_result.txt")
    assert os.listdir(workplace.folder / "output") == ["rows.txt"], "the next step of a pipeline reads the whole folder"

    shown = workplace.command("rejects", ended.job_id)
    heading, group, tables, again = shown.stdout.splitlines()
    assert heading == f"job {ended.job_id}: 4 rejected items in 2 mini-batches"
    path = f"{workplace.folder}/data/002.txt"
    assert group.startswith("  4 × ValueError: missing total in ") and f", first: {path} (mini-batch 1)" in group
    assert f"{ended.logs}/rejects.parquet" in tables
    assert again == f"  run them again with: gristmill retry {ended.job_id}"
    summary = counted(workplace, ended.job_id)
    assert (summary["items"], summary["mini_batches"], summary["tables"]) == (4, 2, ended.result["rejects"])
    assert f"rejects: 4 items, in {ended.logs}/rejects.csv" in workplace.command("status", ended.job_id).stdout


def test_rows_of_a_table_are_named_by_file_bytes_and_key(workplace):
    for store in ("1", "2"):
        workplace.write({f"data/{store}/a.csv": "id\n" + "7\n" * 5})
    script = """
        def run(frame, context):
            if context.partition_key_value["Store"] == "2":
                raise KeyError("no price")
            return frame
    """
    inputs = [{"name": "sales", "type": "tabular", "path": "data", "partition_format": "{Store}/a.csv"}]
    job = workplace.job(script, inputs=inputs, mini_batch_size=None, partition_keys=["Store"])
    (row,), _ = table(job.run())
    assert (row["input"], row["items"], json.loads(row["key"])) == ("sales", "5", {"Store": "2"})
    assert row["path"].endswith("data/2/a.csv") and row["exception"] == "KeyError"

    script = """
        def run(frame):
            if 57 in list(frame["id"]):
                raise KeyError("no price")
            return list(frame["id"])
    """
    workplace.write({"rows.csv": "id\n" + "".join(f"{number:03}\n" for number in range(100))})
    inputs = [{"name": "sales", "type": "tabular", "path": "rows.csv"}]
    (row,), _ = table(workplace.job(script, inputs=inputs, mini_batch_size=80, isolate="off").run())
    start, end = int(row["byte_start"]), int(row["byte_end"])
    assert start <= 3 + 57 * 4 <= end, "the line of number 57 starts there"

    pq.write_table(pa.table({"id": range(100)}), workplace.folder / "rows.parquet", row_group_size=10)
    inputs = [{"name": "sales", "type": "tabular", "path": "rows.parquet"}]
    (row,), _ = table(workplace.job(script, inputs=inputs, mini_batch_size="10 rows", isolate="off").run())
    assert (row["row"], row["items"]) == ("50", "10"), row
    assert row["path"].endswith("rows.parquet") and row["detail"].endswith(
        "rows.parquet, row 50, counted from 0 and 9 more rows"
    )


def test_row_of_a_mini_batch_of_one_is_in_the_table(workplace):
    script = """
        def run(frame):
            if 7 in list(frame["id"]):
                raise KeyError("no price")
            return frame
    """
    pq.write_table(pa.table({"id": range(10), "store": list("abcdefghij")}), workplace.folder / "rows.parquet")
    inputs = [{"name": "sales", "type": "tabular", "path": "rows.parquet"}]
    ended = workplace.job(script, inputs=inputs, mini_batch_size="1 rows", run_max_try=2).run()
    (row,), frame = table(ended)
    assert (row["row"], json.loads(row["values"])) == ("7", {"id": 7, "store": "h"})
    assert frame["values"][0] == row["values"]
    ended = workplace.job(script, inputs=inputs, mini_batch_size="2 rows", isolate="off").run()
    assert table(ended)[0][0]["values"] == "", "nothing tells which of the two rows is at fault"


def test_failed_and_killed_jobs_show_their_rejects(workplace):
    workplace.data(20)
    failed = workplace.job(REFUSES_SOME, error_threshold=1).run(expect=FAILED, BAD="001.txt 003.txt")
    rows, _ = table(failed)
    assert [os.path.basename(row["path"]) for row in rows] == ["001.txt", "003.txt"]

    holds = """
        import os
        from recorder import record, wait_for
        def run(files):
            name = os.path.basename(files[0])
            if name == "005.txt" and "HOLD" in os.environ:
                record("held")
                wait_for(lambda: False)
            if name in ("001.txt", "009.txt"):
                raise ValueError("bad")
            return [name]
    """
    job = workplace.job(holds)
    running = job.start(HOLD="005.txt")
    running.wait_for_record("held")
    (job_id,) = set(workplace.job_ids()) - {failed.job_id}
    wait_until(lambda: counted(workplace, job_id)["items"], "the first reject")
    running.kill()
    shown = workplace.command("rejects", job_id)
    assert "1 × ValueError: bad, first:" in shown.stdout and "when the job ends" in shown.stdout
    rows, _ = table(job.retry(job_id))
    names = [os.path.basename(row["path"]) for row in rows]
    assert names in (["001.txt", "009.txt"], ["009.txt"]), names


def test_crash_between_the_tables_leaves_both_whole(workplace):
    workplace.data(6)
    job = workplace.job(REFUSES_SOME)
    job_id = job.crash("DuringRejects", BAD="001.txt")
    logs = workplace.home / "jobs" / job_id / "logs"
    assert (logs / "rejects.csv").exists() and not (logs / "rejects.parquet").exists()
    rows, _ = table(job.run(BAD="001.txt"))
    assert len(rows) == 1
    assert not [name for name in os.listdir(logs) if name.startswith(".")]


def test_table_that_cannot_be_written_is_a_warning(workplace):
    workplace.data(4)
    job = workplace.job(REFUSES_SOME)
    first = job.run(BAD="001.txt")
    parquet = first.logs / "rejects.parquet"
    parquet.unlink()
    (parquet / "in the way").mkdir(parents=True)
    second = job.retry(first.job_id, BAD="001.txt")
    assert (second.state, second.items) == ("Completed", (4, 3, 1))
    assert second.lines == ["000.txt", "002.txt", "003.txt"]
    (warning,) = second.result["first_warnings"]
    assert warning.startswith(f"cannot write {first.logs}/rejects.csv: ") and "\n" not in warning
    assert "rejects" not in second.result
    assert counted(workplace, first.job_id)["items"] == 1, "the ledger still names them"
    shown = workplace.command("rejects", first.job_id).stdout
    assert "  the table of all items could not be written, or has been removed" in shown


COUNTS = """
    def run(rows):
        return [str(value) for value in rows["id"]]
"""


def test_items_without_a_result_are_counted_in_the_table(workplace):
    """Nothing tells which items they are, so no retry can run them."""
    workplace.data(10)
    script = """
        def run(files):
            return files[1:] if "000.txt" in files[0] or "008.txt" in files[0] else files
    """
    ended = workplace.job(script, mini_batch_size=4).run()
    assert ended.items == (10, 8, 2)
    rows, _ = table(ended)
    shown = [(row["mini_batch"], row["item"], row["items"], row["detail"], row["exception"]) for row in rows]
    assert shown == [("0", "", "1", "1 of 4 items", "NoResult"), ("2", "", "1", "1 of 2 items", "NoResult")]
    assert counted(workplace, ended.job_id)["items"] == 2
    assert ended.result["rejects"]["without_place"] == 2
    for shown in (workplace.command("status", ended.job_id), workplace.command("rejects", ended.job_id)):
        assert "retry" not in shown.stdout, "it would do nothing"
    aside = workplace.command("retry", ended.job_id, "--separate")
    (line,) = aside.stderr.strip().splitlines()
    assert "no rejects but 2 items without a result" in line and aside.exit_status != 0
    nothing = workplace.command("retry", ended.job_id)
    assert "a retry cannot run its 2 items without a result" in nothing.stderr and nothing.exit_status == 0


@pytest.mark.parametrize("size", [1, 4])
def test_items_of_a_mini_batch_without_results_are_named_and_run_again(workplace, size):
    """Where all results are missing, their items are known: only these run again."""
    workplace.data(12)
    script = """
        import os, pandas
        def run(files):
            names = [os.path.basename(file) for file in files]
            if os.environ["BAD"] and "001.txt" in names:
                return []
            if os.environ["BAD"] and "005.txt" in names:
                return pandas.DataFrame({"name": []})
            return pandas.DataFrame({"name": names})
    """
    job = workplace.job(script, mini_batch_size=size)
    ended = job.run(BAD="yes")
    bad = ["001.txt", "005.txt"] if size == 1 else file_names(8)
    assert ended.items == (12, 12 - len(bad), len(bad))
    rows, _ = table(ended)
    assert [(os.path.basename(row["path"]), row["exception"]) for row in rows] == [(name, "NoResult") for name in bad]
    assert "without_place" not in ended.result["rejects"]
    retry = job.retry(ended.job_id, BAD="")
    assert (retry.items, retry.lines) == ((12, 12, 0), file_names(12))
    assert "rejects" not in retry.result and len(retry.log("rejects.csv").splitlines()) == 1
    assert pd.read_parquet(retry.logs / "rejects.parquet").empty, "earlier tables are emptied"


def test_all_records_that_cannot_be_read_are_the_cause(workplace):
    """Not the script, which got none."""
    workplace.write({"table/t.jsonl": "{broken\n" * 500})
    inputs = [{"name": "table", "type": "tabular", "format": "jsonl", "path": "table"}]
    ended = workplace.job(COUNTS, inputs=inputs, mini_batch_size="1KB").run(expect=FAILED)
    assert "0 of 500 items succeeded: 500 records could not be read, first: " in ended.result["cause"]
    assert "t.jsonl, line 1; open logs/rejects.csv." in ended.result["cause"]
    groups = counted(workplace, ended.job_id)["groups"]
    assert all(group["first"]["detail"] for group in groups), groups
    again = workplace.command("retry", ended.job_id)
    assert again.exit_status == ERROR and "would fail again: 500 records could not be read" in again.stderr, str(again)


def test_retry_says_that_records_it_cannot_read_exceed_the_threshold(workplace):
    """It would run the same mini-batches again and again."""
    values = [str(number) for number in range(1000)] + ["x"] * 12
    workplace.write({"table/t.csv": "id\n" + "\n".join(values) + "\n"})
    columns = {"id": "int64"}
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table", "columns": columns}]
    ended = workplace.job(COUNTS, inputs=inputs, mini_batch_size="1MB", error_threshold=10).run(expect=FAILED)
    again = workplace.command("retry", ended.job_id)
    assert again.exit_status == ERROR, str(again)
    assert json.loads(workplace.command("status", ended.job_id, "--json").stdout)["state"] == "Failed"
    (line,) = again.stderr.strip().splitlines()
    assert "12 records could not be read (first: " in line and "change `columns`, `on_type_mismatch`" in line, line


def test_records_that_cannot_be_read_are_in_the_table(workplace):
    lines = [f'{{"id": {number}}}' for number in range(300)]
    lines[7], lines[250] = "{broken", "[1]"
    workplace.write({"table/t.jsonl": "\n".join(lines) + "\n"})
    inputs = [{"name": "table", "type": "tabular", "format": "jsonl", "path": "table"}]
    ended = workplace.job(COUNTS, inputs=inputs, mini_batch_size="1KB", error_threshold=-1).run()
    assert ended.items == (300, 298, 2)
    rows, _ = table(ended)
    shown = [(os.path.basename(row["detail"]), row["item"], row["items"], row["cause"]) for row in rows]
    assert shown == [("t.jsonl, line 8", "", "1", "load_failed"), ("t.jsonl, line 251", "", "1", "load_failed")]
    assert {(row["input"], os.path.basename(row["path"]), row["exception"]) for row in rows} == {
        ("table", "t.jsonl", "UnreadableRecord")
    }
    assert all(row["message"] for row in rows)
    groups = counted(workplace, ended.job_id)["groups"]
    assert sum(group["items"] for group in groups) == 2
    aside = workplace.command("retry", ended.job_id, "--separate")
    (line,) = aside.stderr.strip().splitlines()
    assert "no rejects but 2 unreadable records" in line and "correct the input" in line


def test_many_records_that_do_not_fit_are_counted(workplace):
    values = ["x" if number >= 200 and number % 2 else str(number) for number in range(1000)]
    workplace.write({"table/t.csv": "id\n" + "\n".join(values) + "\n"})
    inputs = [{"name": "table", "type": "tabular", "format": "csv", "path": "table"}]
    script = """
        import os
        def run(rows):
            if (rows["id"] == 500).any() and os.environ["BAD"]:
                raise ValueError("500")
            return [str(value) for value in rows["id"]]
    """
    job = workplace.job(script, inputs=inputs, mini_batch_size="1MB", run_max_try=1, error_threshold=-1)
    ended = job.run(BAD="1")
    assert ended.items == (1000, 599, 401)
    rows, _ = table(ended)
    assert len(rows) == 101 and sum(int(row["items"]) for row in rows if row["exception"] == "UnreadableRecord") == 400
    assert [row["values"] for row in rows if row["exception"] == "ValueError"] == ['{"id":500}']
    assert rows[1]["message"] == 'column "id": "x" is not an integer' and rows[1]["detail"].endswith("t.csv, line 203")
    again = f"  run 1 of them again with: gristmill retry {ended.job_id}"
    assert workplace.command("rejects", ended.job_id).stdout.splitlines()[-1] == again
    assert job.retry(ended.job_id, BAD="").lines == [value for value in values if value != "x"]
