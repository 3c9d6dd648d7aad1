"""A mini-batch as a test case: the command on its page runs the script on just its items."""

from __future__ import annotations

import gzip
import json
import shlex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import COMPLETED, ERROR, FAILED, INVALID, Ended, Workplace, wait_until
from portal_client import FAILS_ON_ONE, Portal

# What the script gets, with the types; the arguments and variables of the job are there, too.
SEES = """
    import os, sys
    from recorder import record
    def run(rows):
        extra = [sys.argv[sys.argv.index("--label") + 1], os.environ["LABEL"]]
        record("saw", types=[str(kind) for kind in rows.dtypes], rows=rows.to_csv(index=False), extra=extra)
        return rows["a"].tolist()
"""
COUNT = 40
PARQUET = "rows.parquet"
INPUTS = {
    "rows.csv": {},
    "rows.jsonl": {},
    "rows.csv.gz": {},
    PARQUET: {},
    "MLTable": {"format": "mltable", "path": "table"},
}


def write_rows(workplace: Workplace, name: str) -> None:
    rows = [{"a": number, "b": f"text {number}", "c": number / 4} for number in range(COUNT)]
    text = "a,b,c\n" + "".join("{a},{b},{c}\n".format(**row) for row in rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if name == PARQUET:
        (workplace.folder / "table").mkdir()
        pq.write_table(pa.Table.from_pylist(rows), workplace.folder / "table" / name, row_group_size=16)
    elif name == "MLTable":
        table = {"paths": [{"file": "./t.csv"}], "transformations": [{"read_delimited": {"header": "from_first_file"}}]}
        workplace.write({"table/MLTable": json.dumps(table), "table/t.csv": text.encode()})
    else:
        content = lines if name.endswith("jsonl") else text
        packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
        workplace.write({f"table/{name}": packed})


def paste(workplace: Workplace, command: str, *more: object) -> Ended:
    """Runs a command of the page."""
    program, *arguments = shlex.split(command)
    assert program == "gristmill"
    return workplace.command(*arguments, *more, "--json")


def sights(workplace: Workplace) -> list[dict[str, Any]]:
    return [{key: fact[key] for key in ("types", "rows", "extra")} for fact in workplace.recorded("saw")]


@pytest.mark.parametrize("name", INPUTS)
def test_command_runs_the_script_on_just_the_rows_of_a_mini_batch(workplace: Workplace, name: str) -> None:
    write_rows(workplace, name)
    inputs = [{"name": "table", "type": "tabular", "path": f"table/{name}", **INPUTS[name]}]
    settings = {"arguments": ["--label", "two words"], "environment_variables": {"LABEL": "set"}}
    ended = workplace.job(SEES, inputs=inputs, mini_batch_size="10 rows", **settings).run()
    first = sights(workplace)
    assert len(first) > 2 and {sight["extra"][0] for sight in first} == {"two words"}, first
    portal = Portal(workplace)
    shown = portal.get(f"/jobs/{ended.job_id}/mini-batches/1")
    assert shown["test_case"]["job_file"] is None, "no job file names a range of rows"
    alone = paste(workplace, shown["test_case"]["command"])
    assert alone.exit_status == COMPLETED, alone
    [seen] = sights(workplace)[len(first) :]
    assert seen in first, "the same rows with the same types, arguments and variables"
    assert shown["rows"]["text"] == alone.output.decode(), "those of this mini-batch"
    assert alone.mini_batches == (1, 1, 0) and ended.output != alone.output
    assert portal.get(f"/jobs/{ended.job_id}")["mini_batches"]["total"] == len(first), "the first job did not change"

    # The rows as a file are the same items, for any other job.
    kept = workplace.command(*shlex.split(shown["test_case"]["rows"])[1:])
    assert kept.exit_status == COMPLETED and kept.stdout.startswith("rows.parquet: "), kept
    own = [{"name": "table", "type": "tabular", "path": "rows.parquet"}]
    again = workplace.job(SEES, inputs=own, file="own.yaml", name="own", **settings).run()
    assert sights(workplace)[-1] == seen and again.output == alone.output
    refused = workplace.command(*shlex.split(shown["test_case"]["rows"])[1:])
    assert refused.exit_status == ERROR and "write rows.parquet" in refused.stderr, refused


def test_command_runs_a_changed_copy_of_the_script_on_just_the_files(workplace: Workplace) -> None:
    workplace.data(6)
    ended = workplace.job(FAILS_ON_ONE.replace("003", "002"), isolate="off", mini_batch_size=2).run()
    portal = Portal(workplace)
    case = portal.get(f"/jobs/{ended.job_id}/mini-batches/1")["test_case"]
    assert paste(workplace, case["command"]).exit_status == FAILED
    workplace.write({"mended/entry.py": "def run(files): return [open(file).read() for file in files]"})
    alone = paste(workplace, case["command"], "--source-directory", "mended")
    assert (alone.exit_status, alone.lines) == (COMPLETED, ["002", "003"]), alone
    assert ended.lines != alone.lines and portal.get(f"/jobs/{ended.job_id}")["mini_batches"]["failed"] == 1

    # The job file has the same items, and the arguments of the job.
    workplace.write({case["job_file"]["name"]: case["job_file"]["text"]})
    kept = paste(workplace, case["job_file"]["command"])
    assert (kept.exit_status, kept.items) == (FAILED, (2, 0, 2)), kept

    assert case["rows"] is None, "the items are files"
    count = len(workplace.job_ids())
    for more, said in (
        (["1", "--rows", "rows.parquet"], "has no rows of a table"),
        (["99"], "has no mini-batch 99"),
        (["1", "--source-directory", "data"], f"has no file entry.py, the entry script of job {ended.job_id}"),
    ):
        refused = workplace.command("retry", ended.job_id, "--mini-batch", *more)
        assert refused.exit_status == ERROR and said in refused.stderr, refused
    assert workplace.command("retry", ended.job_id, "--mini-batch", "1", "--separate").exit_status == INVALID
    assert len(workplace.job_ids()) == count, "nothing was started"


def test_mini_batch_of_a_target_runs_again_there_from_the_portal_and_by_its_command(
    workplace: Workplace, sqlite
) -> None:
    workplace.data(3)
    job_id = sqlite.enqueue(workplace.job(FAILS_ON_ONE.replace("003", "001")))
    sqlite.reducer()
    sqlite.worker()
    sqlite.wait_for_end(job_id)
    portal = Portal(workplace, "--target", sqlite.name)
    status, answer = portal.post(f"/jobs/{job_id}/mini-batches/1/run")
    assert status == 202, answer
    new = answer["job_id"]
    wait_until(lambda: portal.get(f"/jobs/{new}")["state"] == "Failed", "the end of the new job")
    job = portal.get(f"/jobs/{new}")
    assert job["failures"][0]["error"] == "ValueError: three is <b>bad</b>", job
    assert portal.get(f"/jobs/{job_id}")["mini_batches"]["failed"] == 1

    case = portal.get(f"/jobs/{job_id}/mini-batches/1")["test_case"]
    assert f"--target {sqlite.name}" in case["command"], case
    alone = paste(workplace, case["command"], "--wait")
    assert alone.exit_status == FAILED and alone.mini_batches == (1, 0, 1), alone
    # Workers get the changed script, as they got that of the job.
    workplace.write({"mended/entry.py": "def run(files): return [open(file).read() for file in files]"})
    alone = paste(workplace, case["command"], "--wait", "--source-directory", "mended")
    assert (alone.exit_status, alone.lines) == (COMPLETED, ["001"]), alone
    wait_until(lambda: portal.get(f"/jobs/{alone.job_id}")["state"] == "Completed", "the end in the portal")
