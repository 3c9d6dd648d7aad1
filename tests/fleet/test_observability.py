"""Observability of the roles: endpoints, metrics with their dashboard and alerts, log lines."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from alarms import rules
from harness import HOLDS, ROOT, Job, Workplace, file_names, go, wait_until
from scrape import Role, Scrape
from targets import Target

SCRIPT = """
import recorder

def run(mini_batch):
    if "003.txt" in mini_batch[0]:
        raise ValueError("this one cannot be done")
    recorder.record("ran", file=mini_batch[0])
    return [open(path).read() for path in mini_batch]
"""


@pytest.fixture
def job(workplace: Workplace) -> Job:
    workplace.data(8)
    return workplace.job(SCRIPT, error_threshold=-1, mini_batch_error_threshold=None, run_max_try=2, output="output")


# ---- metrics ----------------------------------------------------------------------------------------------------


def queries() -> Iterator[tuple[str, str]]:
    """Yields every expression of alerts and dashboard, with its title."""
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "action", "runbook"}, rule["alert"]
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((ROOT / "infra/observability/grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def selectors(expression: Any) -> Iterator[promql_parser.VectorSelector]:
    """Yields every selector of a parsed query."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for part in ("expr", "lhs", "rhs", "vs", "vector_selector"):
        if (inner := getattr(expression, part, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or []:
        yield from selectors(inner)


def grouping(expression: str) -> set[str]:
    """Returns the labels of the results."""
    return {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}


def test_scrape_has_every_metric_of_dashboard_and_alerts(sqlite: Target, job: Job) -> None:
    worker, reducer = Role(sqlite, "worker"), Role(sqlite, "reducer")
    sqlite.wait_for_end(sqlite.enqueue(job))

    counted = wait_until(
        lambda: (scrape := reducer.scrape()).value("gristmill_jobs_ended_total", state="completed") and scrape,
        "the reducer to count the job",
    )
    assert counted.value("gristmill_mini_batches_total", outcome="succeeded") == 7
    assert counted.value("gristmill_mini_batches_total", outcome="failed") == 1
    assert counted.value("gristmill_ledger_commit_duration_seconds_count", outcome="committed") >= 1
    assert counted.value("gristmill_ledger_bytes_total") > 0

    def has_counted_all(scrape: Scrape) -> bool:
        failed = scrape.values("gristmill_items_total", outcome="failed")
        return sum(failed) == 2 and sum(scrape.values("gristmill_row_bytes_total")) == 7 * len("000\n")

    worked = wait_until(lambda: has_counted_all(scrape := worker.scrape()) and scrape, "the worker to count")
    assert worked.value("gristmill_attempts_total", outcome="succeeded") == 7
    assert worked.value("gristmill_attempts_total", outcome="run_raised") == 2
    assert worked.value("messaging_process_duration_seconds_count", error_type="run_raised") == 2
    assert worked.value("gristmill_items_total", outcome="succeeded") == 7
    # Eight descriptors, and one published again.
    received = {"messaging_destination_name": "tasks", "messaging_operation_name": "receive"}
    assert worked.value("messaging_client_consumed_messages_total", **received) == 9

    series = {**worked.series, **counted.series}
    known = {name: {label for pairs, _ in found for label in pairs} for name, found in series.items()}
    for where, query in queries():
        found = list(selectors(promql_parser.parse(query)))
        assert found, f"{where}: nothing is asked for"
        for selector in found:
            assert selector.name in known, f"{where}: there is no {selector.name}"
            for matcher in selector.matchers.matchers:
                labels = known[selector.name]
                assert matcher.name in labels, f"{where}: {selector.name} has no label {matcher.name}, but {labels}"
                values = {
                    pairs.get(matcher.name)
                    for scraped in (worked, counted)
                    for pairs, _ in scraped.series.get(selector.name, [])
                }
                assert matcher.value in values, f"{where}: no {selector.name} has {matcher.name}={matcher.value!r}"
        of_prometheus = {"namespace", "job", "instance"}
        labels = {label for selector in found for label in known[selector.name]} | of_prometheus
        assert grouping(query) <= labels, f"{where}: grouped by what is not there"


# ---- health -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["worker", "reducer"])
def test_long_broker_outage_makes_a_role_unhealthy_until_it_ends(sqlite: Target, name: str) -> None:
    """The role cannot acknowledge or receive messages of the job: the file of that queue is locked."""
    role = Role(sqlite, name, GRISTMILL_STALL_SECONDS="8")
    (sqlite.reducer if name == "worker" else sqlite.worker)()
    job_id = sqlite.enqueue(sqlite.workplace.job_of_its_own("held", 40, HOLDS, run_invocation_timeout=600))
    role.running.wait_for_record("held")
    role.pause()
    if name == "reducer":
        go(sqlite.workplace)
        wait_until(lambda: sqlite.waiting("results"), "results that nobody has received")
    queue = "tasks" if name == "worker" else "results"
    (file,) = (sqlite.folder / "queues").glob(f"*-{queue}.db")
    away = sqlite3.connect(file, timeout=30, isolation_level=None)
    away.execute("begin exclusive")
    role.running.send(signal.SIGCONT)
    go(sqlite.workplace)
    unhealthy = wait_until(
        lambda: (answer := role.get("/healthz"))[0] == 503 and queue in answer[1] and answer[1], "an unhealthy role"
    )
    assert unhealthy.startswith("no heartbeat of "), unhealthy
    assert role.health() == 1
    assert role.get("/readyz")[0] == 200, "it was ready once, and does not end"
    away.execute("rollback")
    away.close()
    wait_until(lambda: role.get("/healthz")[0] == 200, "a healthy role")
    assert role.health() == 0
    assert sqlite.lines(job_id) == file_names(40)


def test_roles_have_no_endpoints_by_default_and_a_stopped_role_is_unhealthy(sqlite: Target) -> None:
    unset = sqlite.workplace.command("health")
    assert unset.exit_status == 1 and "--listen" in unset.stderr, str(unset)
    wrong = sqlite.command("worker", GRISTMILL_LISTEN="everywhere")
    assert wrong.exit_status == 1 and "GRISTMILL_LISTEN" in wrong.stderr, str(wrong)
    worker = Role(sqlite, "worker")
    taken = sqlite.command("worker", "--listen", worker.url.removeprefix("http://"))
    assert taken.exit_status == 1 and "choose another" in taken.stderr, str(taken)
    worker.stop()
    assert worker.health() == 1
    worker.running.send(signal.SIGCONT)
    wait_until(lambda: worker.health() == 0, "a healthy worker")


# ---- logs -------------------------------------------------------------------------------------------------------


def objects(stderr: str) -> str:
    """Returns the engine's log, without messages of the command to its caller."""
    return "".join(line for line in stderr.splitlines(keepends=True) if line.startswith("{"))


def check_lines(text: str) -> list[dict[str, Any]]:
    """Checks that every line is an object with the usual fields."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines
    for line in lines:
        assert {"timestamp", "level", "target", "message"} <= line.keys(), line
    return lines


def test_every_line_of_every_role_is_an_object(sqlite: Target, job: Job) -> None:
    debug = {"GRISTMILL_LOG": "debug", "GRISTMILL_LOG_FORMAT": "json"}
    local = job.run("--log-format", "json", GRISTMILL_LOG="debug")
    lines = check_lines(objects(local.stderr))
    attempts = [line for line in lines if "attempt.outcome" in line]
    assert len(attempts) == 9, lines
    assert {line["job.id"] for line in attempts} == {local.job_id}

    enqueued = sqlite.command("enqueue", job.file, **debug)
    check_lines(objects(enqueued.stderr))
    job_id = enqueued.stdout.strip()
    roles = [sqlite.start(name, "--idle-exit", "5", **debug) for name in ("worker", "reducer")]
    for role in [running.wait() for running in roles]:
        assert role.exit_status == 0 and role.stdout == "", str(role)
        lines = check_lines(role.stderr)
        assert any("is ready" in line["message"] for line in lines), lines
        about = [line for line in lines if {"job.id": job_id}.items() <= line.items()]
        assert about, f"no line names the job: {lines}"
    failed = sqlite.workplace.command("worker", "--queue", "sqlite:queues", "--store", "nowhere://at.all", **debug)
    assert failed.exit_status == 1, str(failed)
    assert check_lines(failed.stderr)[-1]["error"], failed.stderr
