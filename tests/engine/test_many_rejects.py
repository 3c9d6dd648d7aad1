"""A mini-batch with more rejected items than one message of a queue can name."""

import json
from pathlib import Path

import pytest

# Half of them are bad, more than twice as many as a message names.
ROWS = 1_200
INPUTS = [{"name": "table", "type": "tabular", "format": "csv", "path": "t.csv"}]

RANGES = """
    import os
    def run(rows):
        if os.environ["BAD"] and (rows["id"] % 2 == 1).any():
            raise ValueError(f"an odd row among {len(rows)}")
        return rows["id"].tolist()
"""
ITEMS = """
    import os
    async def run_item(item):
        if os.environ["BAD"] and item["id"] % 2 == 1:
            raise ValueError(f"row {item['id']} is odd")
        return item["id"]
"""
UNFIT = """
    import os
    def run(rows):
        return [{"id": "odd" if os.environ["BAD"] and id % 2 == 1 else id} for id in rows["id"].tolist()]
"""
SCHEMA = {
    "result_schema": {"columns": {"id": "integer"}},
    "append_row_file_name": "rows.jsonl",
    "output_format": "native",
}


@pytest.mark.parametrize(
    ("script", "schema", "exception"),
    [(RANGES, {}, "ValueError"), (ITEMS, {}, "ValueError"), (UNFIT, SCHEMA, "RowDoesNotFit")],
    ids=["ranges", "items", "schema"],
)
def test_more_bad_rows_than_a_message_names_run_again(workplace, script, schema, exception):
    workplace.write({"t.csv": "id\n" + "".join(f"{id}\n" for id in range(ROWS))})
    job = workplace.job(script, inputs=INPUTS, mini_batch_size=f"{ROWS} rows", run_max_try=1, **schema)
    first = job.run(BAD="1")
    assert (first.items, first.mini_batches) == ((ROWS, ROWS // 2, ROWS // 2), (1, 1, 0))
    named = first.rejects()
    assert [int(row["item"]) for row in named] == list(range(1, ROWS, 2))
    assert {(row["items"], row["exception"]) for row in named} == {("1", exception)}
    assert [json.loads(row["values"])["id"] for row in named] == list(range(1, ROWS, 2))
    assert first.result["rejects"]["items"] == len(named) and not first.result["rejects"].get("without_place")
    shown = workplace.command("rejects", first.job_id).stdout
    assert f"{ROWS // 2} rejected items in 1 mini-batch" in shown, shown
    second = job.retry(first.job_id, BAD="")
    assert second.items == (ROWS, ROWS, 0), str(second)
    ids = [json.loads(line)["id"] if schema else int(line) for line in second.lines]
    assert ids == list(range(ROWS)), "each row is at its place"


BAD_FILES = """
    import os
    from recorder import record
    record("import")
    async def run_item(file):
        number = int(os.path.basename(file)[:3])
        record("run", number=number)
        if number % 2 == 1 and number > 20:
            raise ValueError("bad")
        # One row becomes a part, in the mini-batch with bad items.
        return f"{number} {'x' * (300_000 if number == 24 else 5)}"
"""
SETTINGS = {"mini_batch_size": 600, "process_count_per_node": 1, "run_max_try": 2}
BAD = [number for number in range(640) if number % 2 == 1 and number > 20]


def check(ended):
    assert [int(line.split()[0]) for line in ended.lines] == [number for number in range(640) if number not in BAD]
    assert (ended.items, ended.mini_batches) == ((640, 640 - len(BAD), len(BAD)), (2, 2, 0))
    assert [int(Path(row["path"]).stem) for row in ended.rejects()] == BAD


def test_crash_at_any_step_loses_no_reject(workplace, crash_point):
    workplace.data(640)
    job = workplace.job(BAD_FILES, **SETTINGS)
    check(job.retry(job.crash(crash_point)))


@pytest.mark.parametrize("tear", ["missing", "truncated"])
def test_mini_batch_whose_list_is_lost_runs_again(workplace, tear):
    workplace.data(640)
    job = workplace.job(BAD_FILES, **SETTINGS)
    job_id = job.crash("DuringRejects")
    (part,) = (workplace.home / "jobs" / job_id / "parts").glob("*-rejected")
    if tear == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:1000])
    before = len(workplace.recorded("run"))
    ended = job.retry(job_id)
    assert "the rows of 1 mini-batch that had succeeded (the first is mini-batch 0) are missing" in ended.stderr
    check(ended)
    rejects_of_the_other = {number for number in BAD if number >= 600}
    assert {fact["number"] for fact in workplace.recorded("run")[before:]} == set(range(600)) | rejects_of_the_other
