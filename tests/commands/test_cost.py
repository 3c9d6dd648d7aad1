"""`gristmill plan --cost`: the cost of a job's requests, and the table in infra/batch/README.md."""

from __future__ import annotations

import json
import re


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
