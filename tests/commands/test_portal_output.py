"""The portal shows the first rows of every format of output, and listens at the next port if its own is taken."""

from __future__ import annotations

import json
import socket
import urllib.parse

import pytest

from harness import Workplace
from portal_client import Portal

ROWS = """
    def run(files):
        return [{"number": 7, "text": "a, \\"b\\" <i>", "nothing": None}, {"number": 8, "text": "ü", "nothing": None}]
"""


@pytest.mark.parametrize("output_format", ["csv", "jsonl", "parquet"])
def test_rows_of_each_format_are_shown_and_downloaded(workplace: Workplace, output_format: str) -> None:
    workplace.data(1)
    name = f"rows.{output_format}"
    ended = workplace.job(ROWS, append_row_file_name=name, output_format="native").run()
    portal = Portal(workplace)
    shown = portal.get(f"/jobs/{ended.job_id}/output")
    assert shown["available"] and shown["format"] == output_format, shown
    rows = [dict(zip(shown["columns"], cells, strict=True)) for cells in shown["cells"]]
    expected = [{"number": "7", "text": 'a, "b" <i>'}, {"number": "8", "text": "ü"}]
    assert rows == [{**row, "nothing": None} for row in expected], shown
    assert not shown["truncated"] and shown["bytes"] == len(ended.output), shown
    reader = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[output_format]
    assert shown["how_to_read"].startswith(f"pandas.{reader}({json.dumps(shown['path'])}"), shown
    one = portal.get(f"/jobs/{ended.job_id}/output?rows=1")
    assert len(one["cells"]) == 1 and one["truncated"], one
    with portal.open(f"/api/v1/jobs/{ended.job_id}/output/raw") as download:
        assert download.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert download.read() == ended.output


def test_portal_without_an_address_takes_the_next_free_port(workplace: Workplace) -> None:
    def start() -> str:
        running = workplace.start("portal", "--no-open")
        return running.process.stdout.readline().decode().strip()

    first = urllib.parse.urlsplit(start())
    assert first.hostname == "127.0.0.1" and 7780 <= first.port < 7800, first
    with socket.create_connection((first.hostname, first.port), timeout=60):
        second = urllib.parse.urlsplit(start())
    assert first.port < second.port < 7800, second
