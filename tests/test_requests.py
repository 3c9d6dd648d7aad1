"""What a job costs in requests: 10 000 mini-batches through SQS and S3, every request counted on its way.

A proxy between Gristmill and LocalStack counts; on AWS every one of these has a price.
"""

from __future__ import annotations

import collections
import http.client
import http.server
import json
import threading
import time
import urllib.parse

import pytest

from harness import wait_until

pytestmark = pytest.mark.timeout(400)

MINI_BATCHES = 10_000
SECONDS_MAX = 300
BOUNDS = {
    # Descriptors go in batches of ten: sent, received, acknowledged. Results are a few hundred messages.
    "queue": 4_500,
    # Chunks of the plan, ledger segments, progress and reports.
    "PUT": 400,
    # The reducer looks for requests to cancel and for what others commit; the final pass reads each segment.
    "GET": 500,
    "LIST": 60,
    "DELETE": 20,
}
"""The most requests of each kind, of all roles together."""


class CountingProxy:
    """Passes requests on to LocalStack, and counts them by kind."""

    def __init__(self, endpoint: str) -> None:
        self.upstream = urllib.parse.urlsplit(endpoint)
        self.counts: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            upstream: http.client.HTTPConnection | None = None

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.count(self.command, self.path, self.headers.get("X-Amz-Target"))
                if self.upstream is None:
                    self.upstream = http.client.HTTPConnection(proxy.upstream.hostname, proxy.upstream.port)
                self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    self.upstream.putheader(name, value)
                self.upstream.endheaders(body or None)
                answer = self.upstream.getresponse()
                content = answer.read()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.headers["Content-Length"] if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that was killed is no error."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def count(self, method: str, path: str, target: str | None) -> None:
        if target is not None:
            kind = target.partition(".")[2]
        else:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query, keep_blank_values=True)
            kind = "LIST" if method == "GET" and "list-type" in query else method
        with self.lock:
            self.counts[kind] += 1

    def by_bound(self) -> dict[str, int]:
        """The counts as they are bounded: every call to a queue is one kind."""
        store = {"PUT": "PUT", "POST": "PUT", "GET": "GET", "HEAD": "GET", "LIST": "LIST", "DELETE": "DELETE"}
        sums = dict.fromkeys(BOUNDS, 0)
        for kind, count in self.counts.items():
            sums[store.get(kind, "queue")] += count
        return sums

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def target(sqs):
    return sqs


def wait_for_result(target, name):
    """Looks at the store itself, so that nothing of this is counted."""

    def look():
        time.sleep(0.5)
        return target.objects(name)

    return json.loads(wait_until(look, name, SECONDS_MAX)[name])


def test_a_job_of_ten_thousand_mini_batches_stays_within_its_requests(workplace, components, target):
    folder = workplace.folder / "data"
    folder.mkdir()
    for number in range(MINI_BATCHES):
        (folder / f"{number:05}.txt").write_bytes(b"")
    job = workplace.job("def run(files): return files", process_count_per_node=2)
    proxy = CountingProxy(components.aws_endpoint)
    try:
        target.write(endpoint=proxy.url)
        target.worker("--idle-exit", 3600)
        target.reducer()
        enqueued = target.command("enqueue", job.file, expect=0)
        result = wait_for_result(target, f"jobs/{enqueued.stdout.strip()}/result.json")
        counts, sums = dict(proxy.counts), proxy.by_bound()
    finally:
        proxy.close()
    assert result["mini_batches"] == {"total": MINI_BATCHES, "succeeded": MINI_BATCHES, "failed": 0}
    print(f"\nrequests of {MINI_BATCHES} mini-batches: {json.dumps(sums)}; in detail: {json.dumps(counts)}")
    estimate = workplace.command("plan", job.file, "--cost", "--run-seconds", 0.001, "--row-bytes", 40, "--json")
    estimated = json.loads(estimate.stdout)["requests"]
    print(f"estimated by `gristmill plan --cost`: {json.dumps(estimated)}")
    queue = sum(estimated[f"queue_{kind}"] for kind in ("sends", "receives", "deletes", "extensions"))
    assert queue / 2 <= sums["queue"] <= queue * 2, (queue, sums)
    # How many of these there are depends on how long the job takes, and so on the machine.
    assert sums["PUT"] <= 5 * estimated["puts"] and sums["GET"] <= 5 * estimated["gets"], (estimated, sums)
    over = {kind: (count, BOUNDS[kind]) for kind, count in sums.items() if count > BOUNDS[kind]}
    assert not over, f"more requests than they may be: {over}; in detail: {counts}"
