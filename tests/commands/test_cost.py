"""`gristmill plan --cost`: the cost of a job's requests, and the table in infra/batch/README.md."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from harness import ROOT

README = (ROOT / "infra/batch/README.md").read_text()


def cost(workplace, job, *arguments):
    planned = workplace.command("plan", job.file, "--cost", "--json", *arguments)
    assert planned.exit_status == 0, str(planned)
    return json.loads(planned.stdout)


def test_prices_name_their_source_and_can_be_replaced(workplace):
    workplace.data(50)
    job = workplace.job("def run(files): return files")
    listed, free = (
        cost(workplace, job),
        cost(workplace, job, "--price", "sqs=0", "--price", "put=0", "--price", "get=0"),
    )
    assert "us-east-1" in listed["prices_from"] and re.search(r"20\d\d \(https://aws", listed["prices_from"])
    assert listed["requests"] == free["requests"] and listed["dollars"] > 0 == free["dollars"]
    assert free["prices_from"] == "the prices given"
    refused = workplace.command("plan", job.file, "--cost", "--price", "gold=1")
    assert refused.exit_status != 0 and "sqs, put and get" in refused.stderr


@pytest.mark.timeout(600)
def test_readme_table_of_a_million_mini_batches_is_current(workplace):
    """Compares the first and the last row with the output of their commands."""
    [made] = re.findall(r"^(seq 0 1000000 .*)$", README, re.MULTILINE)
    [job] = re.findall(r"^```yaml\n(name: million.*?)```", README, re.MULTILINE | re.DOTALL)
    assert made == "seq 0 1000000 > numbers.csv"
    (workplace.folder / "numbers.csv").write_text("".join(f"{number}\n" for number in range(1_000_001)))
    (workplace.folder / "million.yaml").write_text(job)
    (workplace.folder / "script.py").write_text("def run(rows): return rows\n")
    row = r"^\| `(--run-seconds[^`]*)` \| ([\d ]+) \| ([\d ]+) \| ([\d ]+) \| \$([\d.]+) \|$"
    rows = re.findall(row, README, re.MULTILINE)
    assert len(rows) == 6
    command = ("plan", "million.yaml", "--cost", "--json")
    started = [(row, workplace.start(*command, *shlex.split(row[0]))) for row in (rows[0], rows[-1])]
    for (arguments, *told), running in started:
        planned = running.wait()
        assert planned.exit_status == 0, str(planned)
        printed = json.loads(planned.stdout)
        requests = printed["requests"]
        assert printed["workload"]["mini_batches"] == 1_000_000
        queue = sum(
            requests[f"queue_{kind}"] for kind in ("sends", "receives", "deletes", "extensions", "billed_extra")
        )
        figures = [queue, requests["puts"] + requests["lists"], requests["gets"]]
        assert [int(figure.replace(" ", "")) for figure in told[:3]] == figures, arguments
        assert told[3] == f"{printed['dollars']:.2f}", arguments
