"""Tables in an object store: the memory and the requests of reading them, and the rows before a mini-batch."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from counting_proxy import CountingProxy

COUNTS_ROWS = "def run(frame): return [None] * len(frame)"


def tabular(name: str, path: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "type": "tabular", "path": path, **options}


def test_rows_before_are_known_where_planning_counts_them(workplace):
    """Planning counts rows of Parquet and of text split by rows; text split by bytes causes an error with a remedy."""
    frame = pd.DataFrame({"n": range(10)})
    for part in range(2):
        workplace.write({f"csv/{part}.csv": frame.to_csv(index=False)})
        (workplace.folder / "parquet").mkdir(exist_ok=True)
        frame.to_parquet(workplace.folder / "parquet" / f"{part}.parquet", row_group_size=4)
    script = "def run(frame, context): return [context.global_row_index_lower_bound] * len(frame)"
    every_row = [str(4 * (row // 4) + 10 * part) for part in range(2) for row in range(10)]
    for folder in ("csv", "parquet"):
        job = workplace.job(script, inputs=[tabular("rows", folder)], mini_batch_size="4 rows")
        assert job.run().lines == every_row
    assert workplace.job(script, inputs=[tabular("rows", "parquet")]).run().lines == every_row
    ended = workplace.job(script, inputs=[tabular("rows", "csv")], mini_batch_size="8").run()
    assert ended.mini_batches == (6, 1, 5), "the first one has nothing before it"
    [failure] = ended.result["failures"]
    assert "Set mini_batch_size to a number of rows, such as `500 rows`" in failure["error"], failure


def peak_megabytes(job: Any) -> int:
    """Returns the engine's peak memory, without its Python processes."""
    running = job.start(GRISTMILL_PREFETCH_BYTES=str(1 << 20))
    status = Path(f"/proc/{running.process.pid}/status")
    peak = 0
    while running.process.poll() is None:
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        # An exiting process has none.
        peak = max(peak, int(found[1]) // 1024 if found else 0)
        time.sleep(0.01)
    ended = running.wait()
    assert ended.exit_status == 0, str(ended)
    return peak


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("place", ["store", "disk"])
def test_large_tables_are_read_in_bounded_memory(workplace, bucket, place, name):
    """Planning and reading a table of 64 MiB with quoted line breaks needs no more memory than one of 4 MiB."""
    row = '1,"' + "x" * 500 + "\n" + "y" * 500 + '"\n'
    peaks = []
    for number, megabytes in enumerate((4, 64)):
        text = ("id,text\n" + row * (megabytes * 1024)).encode()
        text = gzip.compress(text, 1) if name.endswith(".gz") else text
        if place == "disk":
            workplace.write({f"{number}/{name}": text})
        else:
            bucket.put(f"{number}/{name}", text)
        path = str(number) if place == "disk" else bucket.url(f"{number}/")
        inputs = [tabular("rows", path, support_multi_line=True)]
        job = workplace.job(COUNTS_ROWS, inputs=inputs, output_action="summary_only", output=None)
        peaks.append(peak_megabytes(job))
    assert peaks[1] - peaks[0] < 32, peaks


def test_plan_counts_the_requests_that_read_inputs(workplace, bucket, components):
    for part in range(5):
        bucket.put(f"d/{part}.csv", b"id\n" + b"1\n2\n3\n")
    job = workplace.job(
        COUNTS_ROWS, inputs=[tabular("rows", bucket.url("d/"))], output_action="summary_only", output=None
    )
    with CountingProxy(components.aws_endpoint) as proxy:
        job.run(AWS_ENDPOINT_URL=proxy.url)
        asked = proxy.by_class()
    planned = workplace.command("plan", job.file, "--cost", "--json")
    assert planned.exit_status == 0, str(planned)
    workload = planned.result["workload"]
    assert asked["LIST"] <= workload["input_lists"] <= asked["LIST"] + 2, (asked, workload)
    assert asked["GET"] <= workload["input_gets"] <= asked["GET"] + 10, (asked, workload)
