"""A stand-in for the portal's server, with jobs that would take long to run, or that no job can make.

`python tests/portal/stand_in.py [PORT]` serves the page with it, to work on the page.
"""

import copy
import functools
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from made_jobs import Job, jobs
from made_past import MARKUP, clock

DIST = Path(__file__).resolve().parents[2] / "services" / "portal" / "web" / "dist"
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

TARGET = {
    "name": "prod",
    "store": "s3://acme-gristmill",
    "queue": "sqs://eu-central-1/acme-gristmill",
    "queues": [
        {
            "name": "tasks of invoices-20261123-141320-7f21c0",
            "visible": 1204,
            "in_flight": 96,
            "delayed": 0,
            "problem": None,
        },
        {"name": "dead letters", "visible": 1, "in_flight": 0, "delayed": 0, "problem": None},
    ],
    "dead_letters": [
        {
            "job_id": "invoices-20261123-141320-7f21c0",
            "reason": "the message names a mini-batch outside the plan",
            "moved": {"queue": "tasks", "node": "i-0a1b", "at": "2026-11-23T14:01:02Z"},
            "bytes": 213,
            "body": '{"mini_batch": 99999}' + MARKUP,
        }
    ],
    "dead_letters_partial": False,
    "dead_letters_problem": None,
    "workers": [
        {
            "node": "i-0a1b2c3d",
            "job_id": "invoices-20261123-141320-7f21c0",
            "last_at": clock() - 2000,
            "offer": {"gpus": 2, "memory": 64 << 30, "processors": 16, "labels": {"zone": "eu-central-1a"}},
        },
        {
            "node": "i-0b2c3d4e",
            "job_id": None,
            "last_at": clock() - 90_000,
            "offer": {"gpus": 0, "memory": 16 << 30, "processors": 4, "labels": {}},
        },
    ],
    "workers_problem": None,
    "reducers": [{"job_id": "invoices-20261123-141320-7f21c0", "last_at": clock() - 1000, "silent": False}],
    "now": clock(),
}
DISPOSED = {"done": 1, "left": 0, "message": "1 message sent again"}
DOCTOR = {
    "ok": False,
    "checks": [
        {"check": "store", "state": "ok", "message": "reads, writes and creates if absent"},
        {"check": "clock", "state": "warning", "message": "is 3 s behind the store"},
        {"check": "queue", "state": "failed", "message": "the role may not receive messages; allow sqs:ReceiveMessage"},
        {"check": "spot notices", "state": "not_checked", "message": "this machine is not in EC2"},
    ],
}


@functools.cache
def made_once() -> list[Job]:
    return jobs()


class StandIn(ThreadingHTTPServer):
    """Serves the page and its answers.

    `is_down` refuses every request, `is_silent` sends nothing on open streams, `cuts_answers` sends half of each.
    Paths in `held` are answered once they are not there any more, those in `refused` as if the store did not answer;
    `trouble` is what streams tell of the store.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        # Tests change only attributes of a job, never the data of its mini-batches.
        self.jobs = {job.id: copy.copy(job) for job in made_once()}
        self.is_down = False
        self.cuts_answers = False
        self.held: set[str] = set()
        self.refused: set[str] = set()
        self.trouble = ""
        self.asked: list[str] = []
        self.number = clock()
        self.looks_at = 2000
        self.posted: list[str] = []
        self.events = True
        self.is_silent = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def start(self) -> "StandIn":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def list(self, query: dict) -> dict:
        """The newest jobs first, as the server pages them; it reads no more than `looks_at` for one answer."""
        parts = [re.escape(part) for part in query.get("name", "").lower().split("*")]
        kept = [job for job in self.jobs.values() if re.search(".*".join(parts), job.id.lower())]
        total, states = len(kept), query.get("state", "").split(",")
        if after := query.get("after"):
            kept = kept[[job.id for job in kept].index(after) + 1 :]
        shown: list[dict] = []
        looked_at = 0
        for job in kept:
            if len(shown) == int(query.get("limit", 50)) or looked_at == self.looks_at:
                break
            looked_at += 1
            if states == [""] or job.state.lower() in states:
                shown.append(job.summary())
        return {
            "jobs": shown,
            "next": kept[looked_at - 1].id if looked_at < len(kept) else None,
            "total": total,
            "place": "/home/ada/.local/share/gristmill/jobs",
            "now": clock(),
        }


class Handler(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        if self.server.is_down:
            self.close_connection = True
            self.connection.close()
            return
        super().handle_one_request()

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("content-type", kind),
            ("content-length", str(len(body))),
            ("content-security-policy", POLICY),
        ):
            self.send_header(name, value)
        self.end_headers()
        is_cut = self.server.cuts_answers and kind == "application/json"
        try:
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
        except OSError:
            is_cut = True
        if is_cut:
            self.close_connection = True

    def send_json(self, value: object, status: int = 200) -> None:
        self.send(status, "application/json", json.dumps(value).encode())

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if self.server.is_down:
            self.close_connection = True
            return
        if not address.path.startswith("/api/v1/"):
            file = DIST / ("index.html" if address.path == "/" else unquote(address.path).lstrip("/"))
            if not file.resolve().is_relative_to(DIST) or not file.is_file():
                return self.send_json({"error": "there is no such page"}, 404)
            return self.send(200, KINDS.get(file.suffix, "text/plain"), file.read_bytes())
        path = address.path.removeprefix("/api/v1")
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        self.server.asked.append(path)
        while path in self.server.held and not self.server.is_down:
            time.sleep(0.02)
        if path in self.server.refused:
            return self.send_json({"error": "the store does not answer"}, 503)
        if path == "/events":
            return self.stream(query.get("job"))
        answer = self.answer(path, query)
        if answer is not None:
            return self.send_json(answer)
        job_id = unquote(path.split("/")[2]) if path.startswith("/jobs/") else ""
        if job_id and job_id not in self.server.jobs:
            error = f"there is no job {json.dumps(job_id)} here, or it has been removed"
            return self.send_json({"error": error, "removed": True}, 404)
        return self.send_json({"error": "there is no such path in the API"}, 404)

    def answer(self, path: str, query: dict) -> dict | None:
        now = clock()
        if path == "/info":
            return {
                "version": "0.1.0",
                "place": "/home/ada/.local/share/gristmill/jobs",
                "target": None,
                "read_only": False,
                "job": None,
                "now": now,
            }
        if path == "/jobs":
            return self.server.list(query)
        if path == "/targets":
            return {"targets": [{"name": "this machine", "current": False}, {"name": "prod", "current": True}]}
        if path == "/target":
            return TARGET
        if match := re.match(r"/jobs/([^/]+)(/.*)?$", path):
            job = self.server.jobs.get(unquote(match[1]))
            return job and job.answer(match[2] or "", query)
        return None

    def stream(self, job_id: str | None) -> None:
        if not self.server.events:
            return self.send_json({"error": "too many streams"}, 429)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        job = self.server.jobs.get(job_id or "")
        trouble, listed = "", None
        try:
            if job:
                self.event("job", job.document())
            while not self.server.is_down:
                if job_id is None and listed != (marks := {job.id: job.state for job in self.server.jobs.values()}):
                    changed = [] if listed is None else list(dict(marks.items() ^ listed.items()))
                    listed = marks
                    self.event("jobs", {"changed": changed, "now": clock()})
                if not self.server.is_silent:
                    self.wfile.write(b": here\n\n")
                    self.wfile.flush()
                time.sleep(0.2)
                if self.server.trouble != trouble:
                    trouble = self.server.trouble
                    self.event("trouble", {"error": trouble})
                if job_id is not None and job_id not in self.server.jobs:
                    return self.event("removed", {"job_id": job_id})
        except OSError:
            pass

    def event(self, name: str, data: dict) -> None:
        self.server.number += 1
        self.wfile.write(f"event: {name}\nid: {self.server.number}\ndata: {json.dumps(data)}\n\n".encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        path = urlsplit(self.path).path.removeprefix("/api/v1")
        self.server.posted.append(path)
        if path.startswith("/target/dead-letters/"):
            return self.send_json(DISPOSED)
        if path == "/doctor":
            return self.send_json(DOCTOR)
        if path.endswith("/run"):
            job_id = next(iter(self.server.jobs))
            message = f"job {job_id} runs mini-batch {path.split('/')[-2]} again"
            return self.send_json({"message": message, "job_id": job_id}, 202)
        if path.endswith("/retry"):
            return self.send_json({"message": "the job continues in a process of its own"}, 202)
        message = "the job stops as soon as its running mini-batches have ended"
        self.send_json({"state": "requested", "message": message})


if __name__ == "__main__":
    server = StandIn(int(sys.argv[1]) if len(sys.argv) > 1 else 7790)
    print(server.address)
    server.serve_forever()
