"""The tables of rejects in the store of a compute target."""

import csv
import io
import json

SCRIPT = """
    def run(rows):
        if (rows["id"] == 3).any():
            raise ValueError("three")
        rows["total"] = rows["id"].astype(object)
        rows.loc[rows["id"] == 7, "total"] = "seven"
        return rows
"""


def test_bad_rows_are_isolated_checked_and_named(workplace, target):
    workplace.write({"t.csv": "id\n" + "".join(f"{number}\n" for number in range(10))})
    ended = target.run(
        workplace.job(
            SCRIPT,
            inputs=[{"name": "t", "type": "tabular", "path": "t.csv"}],
            mini_batch_size="5 rows",
            run_max_try=2,
            result_schema={"columns": {"id": "integer", "total": "integer"}},
            append_row_file_name="rows.csv",
            output_format="native",
        )
    )
    assert ended.items == (10, 8, 2)
    assert [line.split(",")[0] for line in target.output(ended.result).decode().splitlines()] == [
        "id",
        *(str(number) for number in range(10) if number not in (3, 7)),
    ]
    table = target.command("logs", ended.job_id, "rejects.csv", expect=0).stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [(row["exception"], json.loads(row["values"])) for row in rows] == [
        ("ValueError", {"id": 3}),
        ("RowDoesNotFit", {"id": 7}),
    ]
    assert target.objects(f"jobs/{ended.job_id}/logs/rejects.parquet"), "both tables are in the store"
    shown = target.command("rejects", ended.job_id, expect=0).stdout
    assert "1 × ValueError: three" in shown and 'total: expected integer, got "seven"' in shown, shown
