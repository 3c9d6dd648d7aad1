"""The tables of rejects in the store of a compute target."""

import csv
import io
import json

FILES = 40
SCRIPT = """
    def run(rows):
        if (rows["id"] == 3).any():
            raise ValueError("three")
        rows["total"] = rows["id"].astype(object)
        rows.loc[rows["id"] == 7, "total"] = "seven"
        return rows
"""


def test_rejects_of_a_target_are_in_its_store(workplace, target):
    workplace.data(FILES)
    script = """
        import os
        def run(files):
            if files[0].endswith("7.txt"):
                raise ValueError("missing total")
            return [os.path.basename(file) for file in files]
    """
    first = target.run(workplace.job(script))
    table, parquet = (target.objects(f"jobs/{first.job_id}/logs/rejects.{kind}") for kind in ("csv", "parquet"))
    (lines,) = (text.decode().splitlines() for text in table.values())
    assert [line.split(",")[4].rsplit("/", 1)[-1] for line in lines if line[0].isdigit()] == [
        f"{ten}7.txt" for ten in ("00", "01", "02", "03")
    ]
    assert len(parquet) == 1 and first.result["rejects"]["items"] == 4
    shown = target.command("rejects", first.job_id, expect=0).stdout
    assert "4 × ValueError: missing total, first:" in shown and "logs/rejects.csv" in shown


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
    shown = target.command("rejects", ended.job_id, expect=0).stdout
    assert "1 × ValueError: three" in shown and 'total: expected integer, got "seven"' in shown, shown
