"""Tables in an object store: compressed, with line breaks in their fields, in two-byte encodings."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from components import Components
from counting_proxy import CountingProxy
from harness import Workplace

KEEPS_FRAMES = """
import os, pickle
def run(frame, context):
    place = os.path.join(os.environ["FRAMES"], f"{context.minibatch_index}.pickle")
    with open(place, "wb") as file:
        pickle.dump((context.global_row_index_lower_bound, frame), file)
    return [None] * len(frame)
"""
COUNTS_ROWS = "def run(frame): return [None] * len(frame)"


class Bucket:
    """A separate S3 bucket, and a workplace whose commands find it."""

    def __init__(self, workplace: Workplace, components: Components) -> None:
        self.name = f"tables-{uuid.uuid4().hex[:12]}"
        self.s3 = components.client("s3")
        self.s3.create_bucket(Bucket=self.name)
        workplace.environment.update(components.environment_of_aws)

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


@pytest.fixture
def bucket(workplace: Workplace, components: Components) -> Iterator[Bucket]:
    bucket = Bucket(workplace, components)
    yield bucket
    workplace.kill_what_still_runs()
    components.remove(bucket.name)


def tabular(name: str, path: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "type": "tabular", "path": path, **options}


def rows_with_line_breaks(name: str, seed: int, count: int) -> pd.DataFrame:
    """Returns text with everything that must be quoted; the first column has the name of the table."""
    drawn = random.Random(seed)
    pieces = ["a", "é", "€", ",", ";", "\t", '"', "\n", "\r\n", " x", "0"]
    text = ["t" + "".join(drawn.choices(pieces, k=drawn.randrange(40))) + "." for _ in range(count)]
    text[count // 2] = None
    return pd.DataFrame(
        {name: range(seed * 1000, seed * 1000 + count), "text": text, "half": [n / 2 for n in range(count)]}
    )


def zstandard(text: bytes) -> bytes:
    return pa.compress(text, codec="zstd", asbytes=True)


WRITERS = {
    "multi.csv": (lambda frame: frame.to_csv(index=False).encode(), {"support_multi_line": True}),
    "gz.csv.gz": (lambda frame: gzip.compress(frame.to_csv(index=False).encode()), {"support_multi_line": True}),
    "zst.csv.zst": (
        lambda frame: zstandard(frame.to_csv(index=False).encode("utf-8-sig")),
        {"support_multi_line": True},
    ),
    "tabs.tsv.gz": (
        lambda frame: gzip.compress(frame.to_csv(index=False, sep="\t").encode()),
        {"support_multi_line": True},
    ),
    "wide.csv": (
        lambda frame: frame.to_csv(index=False).encode("utf-16-le"),
        {"support_multi_line": True, "encoding": "utf-16le"},
    ),
    "lines.jsonl.zst": (lambda frame: zstandard(frame.to_json(orient="records", lines=True).encode()), {}),
    "lines.jsonl.gz": (lambda frame: gzip.compress(frame.to_json(orient="records", lines=True).encode()), {}),
}
READERS = {
    "csv": lambda text: pd.read_csv(io.BytesIO(text)),
    "tsv": lambda text: pd.read_csv(io.BytesIO(text), sep="\t"),
    "jsonl": lambda text: pd.read_json(io.BytesIO(text), orient="records", lines=True, dtype={"text": object}),
}


def read_by_pandas(name: str, content: bytes) -> pd.DataFrame:
    parts = name.split(".")
    match parts[-1]:
        case "gz":
            content = gzip.decompress(content)
        case "zst":
            content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    if parts[0] == "wide":
        content = content.decode("utf-16-le").encode()
    return READERS[parts[1]](content)


def plain(values: pd.Series) -> list[Any]:
    return [None if pd.isna(value) else value for value in values]


@pytest.mark.parametrize("size", ["1 rows", "7 rows", "900", "1MB"])
def test_objects_equal_what_pandas_reads(workplace, bucket, size):
    """There are two objects of each kind below a prefix; every mini-batch knows the number of rows before it."""
    (workplace.folder / "frames").mkdir()
    inputs, expected = [], {}
    for position, (name, (write, options)) in enumerate(WRITERS.items()):
        column = f"t{position}"
        contents = [write(rows_with_line_breaks(column, seed, count)) for seed, count in ((1, 40), (2, 23))]
        for part, content in enumerate(contents):
            bucket.put(f"{column}/part {part}.{name.partition('.')[2]}", content)
        frames = [read_by_pandas(name, content) for content in contents]
        expected[column] = pd.concat([frame.astype(object) for frame in frames])
        inputs.append(tabular(column, bucket.url(f"{column}/"), **options))
    job = workplace.job(
        KEEPS_FRAMES, inputs=inputs, mini_batch_size=size, output_action="summary_only", output=None, node_count=2
    )
    ended = job.run(FRAMES=str(workplace.folder / "frames"))
    assert ended.result["warnings"] == 0, ended.result

    found: dict[str, list[pd.DataFrame]] = {column: [] for column in expected}
    for file in sorted((workplace.folder / "frames").iterdir(), key=lambda file: int(file.stem)):
        rows_before, frame = pickle.loads(file.read_bytes())
        column = frame.columns[0]
        assert rows_before == sum(map(len, found[column])), f"{file}: {frame}"
        found[column].append(frame.astype(object))
    for column, reference in expected.items():
        frame = pd.concat(found[column])
        assert list(frame.columns) == list(reference.columns)
        for name in frame.columns:
            assert plain(frame[name]) == plain(reference[name]), f"{column}, {name}"


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
def test_large_objects_are_read_in_bounded_memory(workplace, bucket, name):
    """Planning and reading an object of 64 MiB with quoted line breaks needs no more memory than one of 4 MiB."""
    row = '1,"' + "x" * 500 + "\n" + "y" * 500 + '"\n'
    peaks = []
    for number, megabytes in enumerate((4, 64)):
        text = ("id,text\n" + row * (megabytes * 1024)).encode()
        bucket.put(f"{number}/{name}", gzip.compress(text, 1) if name.endswith(".gz") else text)
        inputs = [tabular("rows", bucket.url(f"{number}/"), support_multi_line=True)]
        job = workplace.job(COUNTS_ROWS, inputs=inputs, output_action="summary_only", output=None)
        peaks.append(peak_megabytes(job))
    assert peaks[1] - peaks[0] < 32, peaks


def test_plan_counts_the_requests_that_read_inputs(workplace, bucket, components):
    """The estimate includes the survey, covers the requests of a run, and is not much higher."""
    for part in range(5):
        bucket.put(f"d/{part}.csv", b"id\n" + b"1\n2\n3\n")
    job = workplace.job(
        COUNTS_ROWS, inputs=[tabular("rows", bucket.url("d/"))], output_action="summary_only", output=None
    )
    proxy = CountingProxy(components.aws_endpoint)
    try:
        job.run(AWS_ENDPOINT_URL=proxy.url)
        asked = proxy.by_class()
    finally:
        proxy.close()
    planned = workplace.command("plan", job.file, "--cost", "--json")
    assert planned.exit_status == 0, str(planned)
    workload = planned.result["workload"]
    assert asked["LIST"] <= workload["input_lists"] <= asked["LIST"] + 2, (asked, workload)
    assert asked["GET"] <= workload["input_gets"] <= asked["GET"] + 10, (asked, workload)
