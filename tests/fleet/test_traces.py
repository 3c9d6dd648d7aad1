"""One trace follows each mini-batch from the reducer that publishes it through a worker and back, up to a collector."""

from __future__ import annotations

from collections import defaultdict

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from harness import wait_until
from http_server import Answer, HttpServer, Request

FILES = 6
SCRIPT = """
import os
from recorder import recorded, record
def run(files):
    name = os.path.basename(files[0])
    record("run", file=name)
    if name == "003.txt" and sum(fact["file"] == name for fact in recorded("run")) == 1:
        raise ValueError("only once")
    return [name]
"""


class Collector(HttpServer):
    """Receives traces by OTLP over HTTP, like an OpenTelemetry collector."""

    def __init__(self) -> None:
        # (service, step), in the order of their arrival.
        self.steps: list[tuple[str, object]] = []
        super().__init__(self.take)

    def take(self, request: Request) -> Answer:
        assert request.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            about = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            self.steps += [(about["service.name"], step) for scope in resource.scope_spans for step in scope.spans]
        return 200, {}, b""

    def variables(self, service: str) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_SERVICE_NAME": service, "OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


def test_one_trace_goes_from_the_reducer_through_a_worker_and_back(workplace, sqlite, collector):
    workplace.data(FILES)
    job = workplace.job(SCRIPT, mini_batch_size=1, run_max_try=2)
    enqueued = sqlite.command("enqueue", job.file, expect=0, **collector.variables("enqueue"))
    job_id = enqueued.stdout.strip()
    sqlite.worker(**collector.variables("worker"))
    sqlite.reducer(**collector.variables("reducer"))
    sqlite.wait_for_end(job_id)
    # One mini-batch needs two tries.
    wait_until(lambda: len(collector.steps) >= 3 * FILES + 2, "every step")

    traces = defaultdict(list)
    for service, step in collector.steps:
        fields = {attribute.key: attribute.value for attribute in step.attributes}
        assert fields["job.id"].string_value == job_id
        traces[step.trace_id].append((service, step, fields["mini_batch.id"].int_value))
    assert len(traces) == FILES, "one for each mini-batch"
    assert sorted({mini_batch for steps in traces.values() for _, _, mini_batch in steps}) == list(range(FILES))
    for steps in traces.values():
        by_id = {step.span_id: (service, step) for service, step, _ in steps}
        tries = 2 if steps[0][2] == 3 else 1
        assert sorted((service, step.name) for service, step, _ in steps) == sorted(
            [("reducer", "create tasks")] + tries * [("worker", "process tasks"), ("reducer", "process results")]
        )
        for service, step, _ in steps:
            before = by_id.get(step.parent_span_id)
            if step.name == "create tasks":
                assert not step.parent_span_id
            else:
                came_from = {"process tasks": {"create tasks", "process tasks"}, "process results": {"process tasks"}}
                assert before is not None and before[1].name in came_from[step.name], f"{service}: {step}"
        failed = [step for _, step, _ in steps if step.status.code == step.status.STATUS_CODE_ERROR]
        assert len(failed) == tries - 1
