"""`result_schema`: a row that does not fit rejects its item, and is not in the output."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from harness import file_names

SCRIPT = """
    import os
    from recorder import record
    def run(files):
        record("run")
        return [row(os.path.basename(file)) for file in files]
    def row(name):
        bad = name in os.environ.get("BAD", "").split()
        return {"total": "a lot" if bad else int(name[:3]) / 2, "name": name}
"""
COLUMNS = {"columns": {"name": "string", "total": "number", "note": "string?"}}


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.txt"])
def test_bad_row_rejects_its_item_at_once(workplace, name):
    workplace.data(12)
    settings = {"append_row_file_name": name, "output_format": "text" if name.endswith("txt") else "native"}
    job = workplace.job(SCRIPT, mini_batch_size=4, result_schema=COLUMNS, **settings)
    ended = job.run(BAD="006.txt")
    assert (ended.items, ended.mini_batches) == ((12, 11, 1), (3, 3, 0))
    assert len(workplace.recorded("run")) == 3, "no second run: the row would be the same"
    (row,) = ended.rejects()
    assert (row["mini_batch"], row["item"], row["items"], row["cause"]) == ("1", "2", "1", "illegal_result")
    assert (row["exception"], row["message"]) == ("RowDoesNotFit", 'total: expected number, got "a lot"')
    assert row["path"].endswith("/data/006.txt")
    assert ended.result["items_rejected"] == 1
    assert 'total: expected number, got "a lot"' in ended.log("job_error.txt")
    assert "Items rejected: 1." in ended.log("job_result.txt")
    names = file_names(12, without=[6])
    if name == "rows.csv":
        assert ended.lines == ["name,total,note", *(f"{name},{int(name[:3]) / 2}," for name in names)]
    elif name == "rows.jsonl":
        expected = [{"name": name, "total": int(name[:3]) / 2, "note": None} for name in names]
        assert [json.loads(line) for line in ended.lines] == expected
    elif name == "rows.parquet":
        table = pyarrow.parquet.read_table(ended.result["output"])
        assert table.schema.types == [pyarrow.string(), pyarrow.float64(), pyarrow.string()]
        assert (table.column_names, table["name"].to_pylist()) == (["name", "total", "note"], names)
    else:
        assert len(ended.lines) == 11 and ended.lines[0] == "{'total': 0.0, 'name': '000.txt'}"


def test_json_schema_in_a_file_beside_the_job(workplace):
    workplace.data(4)
    schema = {"type": "object", "required": ["name"], "properties": {"total": {"type": "number", "maximum": 1}}}
    (workplace.folder / "row.json").write_text(json.dumps(schema, indent=2))
    job = workplace.job(
        SCRIPT,
        mini_batch_size=2,
        result_schema="row.json",
        append_row_file_name="rows.jsonl",
        output_format="native",
        allow_reuse=True,
    )
    ended = job.run(BAD="001.txt")
    assert [json.loads(line)["name"] for line in ended.lines] == ["000.txt", "002.txt"]
    assert [row["message"] for row in ended.rejects()] == [
        'total: "a lot" is not of type "number"',
        "total: 1.5 is greater than the maximum of 1",
    ]
    assert job.run(BAD="001.txt").job_id == ended.job_id, "the same job"
    schema["properties"]["total"]["maximum"] = 2
    (workplace.folder / "row.json").write_text(json.dumps(schema))
    assert len(job.run(BAD="001.txt").lines) == 3, "another schema makes another job"


def test_all_rows_are_wrong(workplace):
    workplace.data(6)
    job = workplace.job(SCRIPT, mini_batch_size=3, result_schema={"columns": {"total": "number"}})
    ended = job.run(expect=42)
    assert ended.items == (6, 0, 6)
    assert ended.cause.startswith("0 of 6 items succeeded; 6 items rejected: RowDoesNotFit: name: not a column")
    assert {row["message"] for row in ended.rejects()} == {"name: not a column of result_schema"}
    assert len(ended.rejects()) == 6 and len(workplace.recorded("run")) == 2


def test_isolation_finds_the_item_of_a_row(workplace):
    """Where a mini-batch has other numbers of rows than items, only its ranges tell which item a row belongs to."""
    workplace.data(8)
    script = SCRIPT.replace(
        "[row(os.path.basename(file)) for file in files]", "[row(name) for name in names(files)]"
    ) + ("    def names(files):\n        return [name for name in map(os.path.basename, files) if name != '001.txt']\n")
    settings = {"mini_batch_size": 4, "result_schema": COLUMNS, "run_max_try": 1}
    ended = workplace.job(script, isolate="off", **settings).run(BAD="002.txt 006.txt")
    assert ended.items == (8, 3, 5) and "which item it belongs to is unknown" in ended.log("job_error.txt")
    ended = workplace.job(script, **settings).run(BAD="002.txt 006.txt")
    assert ended.items == (8, 5, 3)
    rows = [(row["path"][-7:], row["exception"]) for row in ended.rejects()]
    assert rows == [("002.txt", "RowDoesNotFit"), ("", "NoResult"), ("006.txt", "RowDoesNotFit")]


def test_invalid_schema_is_refused(workplace):
    workplace.data(1)
    for schema, expected in [
        ({"columns": {"total": "nummer"}}, 'result_schema.columns.total: not a type; did you mean "number"?'),
        ({"total": "number"}, "result_schema.total: found a value that is not a JSON Schema"),
        ("nowhere.json", "nowhere.json does not exist"),
    ]:
        job = workplace.job(SCRIPT, result_schema=schema)
        for command in ("validate", "run"):
            ended = workplace.command(command, job.file)
            assert ended.exit_status == 2, ended
            (line,) = [line for line in ended.stderr.splitlines() if "result_schema" in line]
            assert expected in line and "job.yaml:" in line
