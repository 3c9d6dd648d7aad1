"""Made jobs: of many mini-batches, and with texts that attack the page."""

import base64
import itertools
import math
import random
import time

from made_past import MARKUP, TERMINAL, Past, clock

PHASES = ("waited", "prepared", "loaded", "ran", "reported")
GAUGE = ("key", "label", "value", "limit", "unit", "fails_when")
OTHER = "embeddings-20261122-181200-c4e1b7"
"""The job with which others are compared."""
BEFORE = "embeddings-20261101-080000-0f3c"
REASON = "ValueError: could not convert string to float …"
SCRIPT = """import sys

def parse(text):
    return float(text)

def run(files):
    return [parse(open(file).read()) for file in files]
"""
DIFFERENCE = """@@ -1,4 +1,4 @@
 import sys

 def parse(text):
-    return int(text)
+    return float(text)
"""
SETTINGS = [
    ("inputs.invoices", "/data/invoices (file)", "inputs"),
    ("mini_batch_size", "4", "mini-batches"),
    ("run_invocation_timeout", "60", "time"),
    ("error_threshold", "10", "failures"),
    ("run_max_try", "3", "failures"),
    ("process_count_per_node", "4", "processes"),
    ("output", "out/totals.csv", "output"),
]
WARNING = "\x1b[33mwarning:\x1b[0m no total on page 2\n"


def duration(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60)} s" if seconds >= 60 else f"{int(seconds)} s"


class Job(Past):
    """A job of `total` mini-batches on `nodes` nodes with 4 processes each."""

    def __init__(
        self,
        job_id: str,
        state: str,
        total: int,
        *,
        failing: int = 0,
        ended: int | None = None,
        nodes: int = 2,
        hostile: bool = False,
    ) -> None:
        chance = random.Random(job_id)
        self.id, self.state, self.total, self.hostile = job_id, state, total, hostile
        self.ended = total if ended is None else ended
        self.is_downloadable = state == "Completed"
        self.name = job_id.rsplit("-", 3)[0]
        self.processes = [(f"{node}", f"process{process:03}") for node in range(nodes) for process in range(4)]
        # Large jobs repeat one pattern: making a million different mini-batches would take seconds.
        pattern = min(self.ended, 10_000)
        repeated = -(-self.ended // max(1, pattern))
        failed = set(chance.sample(range(pattern), failing // max(1, repeated)))
        states, durations, tries = bytearray(pattern), bytearray(pattern), bytearray(pattern)
        for number in range(pattern):
            states[number] = 2 if number in failed else 4 if number % 97 == 13 else 1
            seconds = math.exp(chance.gauss(1.2, 0.5)) * (3 if number % 131 == 0 else 1)
            durations[number] = max(1, min(255, round(8 * math.log2(seconds / 0.001)) + 1))
            tries[number] = 3 if number in failed else 2 if number % 61 == 7 else 1
        pending = bytes(total - self.ended)
        self.states, self.durations, self.tries = (
            bytearray((cells * repeated)[: self.ended] + pending) for cells in (states, durations, tries)
        )
        for number in range(self.ended, min(self.ended + 3, total)):
            if state in ("Running", "Failed"):
                self.states[number], self.tries[number] = 3, 1
        self.failed = [number for number in range(self.ended) if self.states[number] == 2] if failed else []
        # Each process works without a pause; large jobs are spread evenly.
        busy = [0.0] * len(self.processes)
        self.starts: list[float] = []
        for number in range(self.ended if self.ended <= 20_000 else 0):
            process = number % len(busy)
            self.starts.append(busy[process])
            busy[process] += self.seconds(number) + 0.02
        self.elapsed = max(busy) if self.starts else max(1.0, self.ended * 3.8 / len(busy))
        is_open = state in ("Running", "Waiting", "Queued", "Interrupted")
        self.start = clock() - int(1000 * self.elapsed) - (400 if is_open else int(3_600_000 * chance.uniform(0.2, 30)))

    def seconds(self, number: int) -> float:
        return 0.001 * 2 ** ((self.durations[number] - 1) / 8)

    def item(self, number: int, at: int = 0) -> str:
        return (
            f"/data/{MARKUP}{TERMINAL}_{number * 4 + at}.txt"
            if self.hostile
            else f"/data/invoices/2026/11/invoice_{number * 4 + at:07}.pdf"
        )

    def error(self) -> str:
        return (
            f"ValueError: {MARKUP}{TERMINAL}"
            if self.hostile
            else "ValueError: could not convert string to float: 'n/a'"
        )

    def cause(self) -> str:
        number = self.failed[0] if self.failed else 0
        first = f"The first failed mini-batch is {number} ({self.item(number)} and 3 more)"
        count = len(self.failed) * 4
        return (
            f"The number of failed items is {count}, which exceeds error threshold 10. {first}, "
            f"open logs/user/error/0/process001.txt. {self.error()}."
        )

    def running(self, now: int) -> dict[int, dict]:
        """Returns what runs, by number: one mini-batch for each process."""
        if self.state != "Running":
            return {}
        first = self.ended + 3
        numbers = range(first, min(first + len(self.processes), self.total))
        return {
            number: {"mini_batch": number, "node": node, "process": process, "phase": "run", "since": now - 1000 * at}
            for at, (number, (node, process)) in enumerate(zip(numbers, self.processes, strict=False), 1)
        }

    def counts(self) -> dict:
        return {"total": self.total, "succeeded": self.ended - len(self.failed), "failed": len(self.failed)}

    def row(self, number: int) -> dict:
        byte = self.states[number]
        is_done = number < self.ended
        runs = self.running(clock()).get(number)
        node, process = self.processes[number % len(self.processes)] if byte else (None, None)
        if runs:
            node, process = runs["node"], runs["process"]
        took = self.seconds(number) if is_done else None
        began = self.starts[number] if number < len(self.starts) else number * 0.48
        return {
            "mini_batch": number,
            "state": "running" if runs else ["pending", "succeeded", "failed", "retrying", "succeeded"][byte],
            "tries": self.tries[number],
            "copy": is_done and number % 89 == 13,
            "deliveries_lost": 1 if number % 401 == 5 and is_done else 0,
            "started_at": runs["since"] if runs else self.start + int(1000 * began) if byte else None,
            "seconds": took,
            "run_seconds": took and took * 0.86,
            "process_seconds": took and took * 0.7,
            "items": 4 if is_done else None,
            "items_failed": {2: 4, 4: 1}.get(byte, 0) if is_done else None,
            "node": node,
            "process": process,
            "detail": self.item(number) if is_done else None,
            "error": self.error() if byte in (2, 3) else None,
        }

    def document(self) -> dict:
        counts = self.counts()
        items = {key: value * 4 for key, value in counts.items()}
        is_open = self.state in ("Running", "Waiting", "Queued", "Interrupted")
        now = clock()
        took = duration(self.elapsed)
        left = (self.total - self.ended) * self.elapsed / max(1, self.ended)
        first = self.failed[0] if self.failed else None
        wait = {
            "mini_batch": self.ended,
            "node": "0",
            "process": "process002",
            "phase": "run()",
            "since": now - 42_000,
            "seconds": 42,
            "detail": "",
            "stack": 'Thread 0x7f (most recent call first):\n  File "/work/code/score.py", line 41 in fetch\n'
            '  File "/work/code/score.py", line 18 in run',
        }
        # As services/portal/src/answers/sentence.rs words them.
        retrying = sum(1 for byte in self.states[self.ended : self.ended + 3] if byte == 3)
        succeeded = f"{counts['succeeded']} of {self.total} mini-batches succeeded"
        succeeded += f", {counts['failed']} failed" if counts["failed"] else ""
        succeeded += f", {retrying} to be tried again" if retrying else ""
        sentence = {
            "Completed": f"Completed in {took}: {counts['succeeded']} mini-batches succeeded.",
            "Failed": f"Failed after {took}: {self.cause()}",
            "Canceled": f"Canceled after {took}: by a request; {succeeded}.",
            "Interrupted": f"Interrupted after {took}, with {succeeded}: its process has ended.",
            "Running": f"Running for {took}: {succeeded}; about {duration(left)} left.",
        }[self.state]
        share = round(100 * counts["failed"] / max(1, self.ended), 1)
        gauges = [
            ("error_threshold", "Failed items", items["failed"], 10, "items", "above"),
            ("allowed_failed_percent", "Failed mini-batches", share, 5, "percent", "above"),
            ("fail_fast", "Same error in a row", 2, 20, "equal failures", "reached"),
            ("progress_update_timeout", "Since a mini-batch last ended", 3, 600, "seconds", "above"),
            ("run_max_try", "Tries of a mini-batch, at most", 3, 3, "tries", "reached"),
        ]
        return {
            "job_id": self.id,
            "state": self.state,
            "hint": None,
            "owner": None,
            "priority": "normal",
            "output_changed": False,
            "builds": [],
            "source_directory": "/work/code",
            "logs": f"/home/ada/jobs/{self.id}/logs",
            "result": None
            if is_open
            else {
                "cause": None,
                "output": None,
                "warnings": 0,
                "reused": False,
                "duplicates_dropped": 0,
                "failed_mini_batches": [],
                "copies": {"started": 2, "won": 1},
            },
            "progress": {
                "planned": True,
                "retries": 3,
                "retrying": 3,
                "processes": len(self.processes),
                "nodes_at_work": 2,
                "running": list(self.running(now).values()),
            }
            if is_open
            else None,
            "revision": f"r{self.ended}",
            "now": now,
            "name": self.name,
            "description": MARKUP if self.hostile else "Reads the totals of scanned invoices",
            "sentence": sentence,
            "started_at": self.start,
            "ended_at": None if is_open else self.start + int(self.elapsed * 1000),
            "elapsed_seconds": self.elapsed,
            "worked_seconds": 0.9 * self.elapsed,
            "mini_batches": counts,
            "items": items,
            "retrying": retrying,
            "rate": self.ended / self.elapsed if self.ended else None,
            "eta_seconds": left if is_open else None,
            "gauges": [dict(zip(GAUGE, gauge, strict=True)) for gauge in gauges],
            "waits": [wait] if self.state == "Running" and self.total < 1000 else [],
            "failures": [
                {
                    "reason": REASON,
                    "error": self.error(),
                    "attempts": len(self.failed) * 3,
                    "mini_batches": self.failed[:20],
                    "traceback": self.trace(),
                    "printed": f"reading {self.item(first)}\n{WARNING}",
                    "log": "user/error/0/process001.txt",
                }
            ]
            if self.failed
            else [],
            "first_failed": first,
            "settings": [
                {"key": key, "value": "5" if (key, self.id) == ("run_max_try", OTHER) else value, "group": group}
                for key, value, group in SETTINGS
            ],
            "script": "/work/code/score.py",
            "job_file": "/work/job.yaml",
            "lineage": {
                "rounds": [
                    {"at": None, "text": "ran the job: 7 of 10 items succeeded"},
                    {"at": self.start + 90_000, "text": "ran 3 rejected items again: 10 of 10 items succeeded"},
                ]
                if self.state == "Completed"
                else [],
                "reused": {"count": 3, "times": [self.start + 86_400_000]}
                if self.state == "Completed"
                else {"count": 0, "times": []},
                "before": OTHER if self.id != OTHER else None,
                "same": [
                    {"job_id": OTHER if self.id != OTHER else "embeddings-20261101-080000-0f3c", "state": "Completed"}
                ],
            },
            "commands": [
                {"what": "status", "command": f"gristmill status {self.id}"},
                {"what": "logs", "command": f"gristmill logs {self.id}"},
                {"what": "retry", "command": f"gristmill retry {self.id}"},
                {"what": "cancel", "command": f"gristmill cancel {self.id}"},
                {"what": "run", "command": "gristmill run /work/job.yaml --set run_max_try=5"},
            ],
            "can_cancel": is_open,
            "can_retry": not is_open and self.state != "Completed",
            "warnings": [f"mini-batch 3: 2 results are longer than their items {MARKUP if self.hostile else ''}"],
            "notes": [],
            "output": {
                "path": "/work/out/totals.csv",
                "action": "append_row",
                "format": "csv",
                "exists": self.state == "Completed",
                "downloadable": self.is_downloadable,
            },
            "history": "ledger",
            "nodes": 2,
            "processes": len(self.processes),
        }

    def trace(self) -> str:
        return (
            "Traceback (most recent call last):\n"
            '  File "/work/code/score.py", line 18, in run\n    total = parse(page)\n'
            '  File "/work/code/score.py", line 31, in parse\n    return float(text)\n' + self.error()
        )

    def of_rejects(self, _: dict) -> dict:
        first = next((number for number in range(self.ended) if self.states[number] == 4), 0)
        return {
            "job_id": self.id,
            "items": 3,
            "mini_batches": 3,
            "groups": [
                {
                    "reason": reason,
                    "items": items,
                    "mini_batches": items,
                    "cause": "failed",
                    "exception": exception,
                    "message": message,
                    "first": {
                        "mini_batch": first,
                        "detail": self.item(first, 2),
                        "values": '{"total": "n/a"}',
                        "traceback": self.trace(),
                        "printed": "",
                        "log": "user/error/0/process001.txt",
                    },
                }
                for reason, items, exception, message in (
                    (REASON, 2, "ValueError", "could not convert string to float: 'n/a'"),
                    ("KeyError: …", 1, "KeyError", "'currency'"),
                )
            ],
            "tables": None,
        }

    def of_source(self, query: dict) -> dict:
        files = [
            {"path": "helper.py", "bytes": 12, "text": "import math\n"},
            {"path": "model.py", "bytes": 3_000_000, "text": None},
            {"path": "score.py", "bytes": len(SCRIPT), "text": MARKUP + SCRIPT if self.hostile else SCRIPT},
        ]
        changes = [
            {"path": "model.py", "change": "new", "difference": None},
            {"path": "score.py", "change": "changed", "difference": DIFFERENCE},
        ]
        return {
            "versions": 2,
            "version": int(query.get("version", 1)),
            "files": files,
            "absent": None,
            "entry_script": "score.py",
            "changes": {"files": changes, "same": 1, "absent": None} if "since" in query else None,
        }

    def summary(self) -> dict:
        document = self.document()
        return {
            "job_id": self.id,
            "state": self.state,
            "owner": None,
            "priority": "normal",
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.start / 1000)),
            "elapsed_seconds": self.elapsed,
            "rate": document["rate"],
            "mini_batches": document["mini_batches"],
            "items": document["items"],
            "name": self.name,
            "cause": self.cause() if self.state == "Failed" else None,
        }

    def answer(self, path: str, query: dict) -> dict | None:
        parts = [part for part in path.split("/") if part]
        if not parts:
            return self.document()
        if parts[0] == "series":
            bins, chance = 120, random.Random(1)
            tries = [chance.randrange(bins) for _ in range(min(3 * len(self.failed), 3000))]
            return {
                "revision": "1",
                "from": self.start,
                "step_ms": max(1, int(self.elapsed * 1000 / bins)),
                "succeeded": [int(self.ended / bins * chance.uniform(0.6, 1.3)) for _ in range(bins)],
                "failed": [tries.count(bin_) for bin_ in range(bins)],
                "items": [0] * bins,
            }
        if parts[0] == "map":
            cells = {"tries": self.tries, "duration": self.durations}.get(query.get("by", "state"), self.states)
            chunks = [] if "since" in query else [{"first": 0, "bytes": base64.b64encode(cells).decode()}]
            return {"revision": f"r{self.ended}", "by": query.get("by", "state"), "total": self.total, "chunks": chunks}
        if parts[0] == "mini-batches" and len(parts) == 1:
            return self.table(query)
        if parts[0] == "mini-batches":
            return self.mini_batch(int(parts[1]))
        name = "_".join(parts).replace("-", "_")
        method = getattr(self, f"of_{name}", None)
        return method(query) if method else None

    def table(self, query: dict) -> dict:
        words = {0: "pending", 1: "succeeded", 2: "failed", 3: "retrying", 4: "succeeded"}
        wanted = query.get("state", "pending,running,succeeded,failed,retrying").split(",")
        runs = self.running(clock())
        first, last = int(query.get("first", 0)), int(query.get("last", self.total - 1))
        numbers = [
            number
            for number in range(first, last + 1)
            if ("running" if number in runs else words[self.states[number]]) in wanted
            or ("partial" in wanted and self.states[number] == 4)
        ]
        if text := query.get("q"):
            numbers = [number for number in numbers[:20_000] if text in str(number) or text in self.item(number)]
        keys = {
            "duration": self.durations,
            "run": self.durations,
            "tries": self.tries,
            "state": bytes({0: 9, 1: 8, 4: 7, 3: 6, 2: 5}[b] for b in self.states),
        }
        key = keys.get(query.get("sort", ""))
        numbers.sort(key=lambda number: key[number] if key else number, reverse=query.get("order") == "desc")
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 100))
        return {
            "revision": "1",
            "total": self.total,
            "matching": len(numbers),
            "offset": offset,
            "searched_all": True,
            "rows": [self.row(number) for number in numbers[offset : offset + limit]],
        }

    def mini_batch(self, number: int) -> dict | None:
        if not 0 <= number < self.total:
            return None
        row, took = self.row(number), self.seconds(number) if number < self.ended else 0
        failed = row["state"] == "failed"
        # From one try to the next.
        step = int(1000 * took) + 100
        code = MARKUP if self.hostile else "return float(text)"
        calls = [
            ("/work/code/score.py", 18, "run", "total = parse(page)", True),
            ("/work/code/score.py", 31, "parse", code, True),
            ("/usr/lib/python3/site-packages/pdf/core.py", 912, "convert", "return inner(value)", False),
        ]
        frames = [dict(zip(("file", "line", "function", "code", "user"), call, strict=True)) for call in calls]

        def failed_with(printed: str) -> dict:
            return {
                "category": "ValueError",
                "message": self.error(),
                "traceback": self.trace(),
                "frames": frames,
                "log": "user/error/0/process001.txt",
                "printed": printed,
            }

        attempts = [
            {
                "try_number": at + 1,
                "status": "run_raised" if failed or at + 1 < row["tries"] else "succeeded",
                "status_text": "run() raised an exception" if failed or at + 1 < row["tries"] else "succeeded",
                "counts": at + 1 == row["tries"],
                "is_final": at + 1 == row["tries"],
                "node": row["node"],
                "process": row["process"],
                "started_at": row["started_at"] + at * step,
                "ended_at": row["started_at"] + at * step + int(took * 1000),
                "copy": row["copy"] and at + 1 == row["tries"],
                "phases": [
                    {"name": name, "seconds": took * share}
                    for name, share in zip(PHASES, (0.2, 0.05, 0.1, 0.86, 0.04), strict=True)
                ],
                "elapsed_seconds": took,
                "run_seconds": took * 0.86,
                "process_seconds": took * 0.7,
                "items": 4,
                "succeeded": 0 if failed or at + 1 < row["tries"] else 4,
                "error": failed_with(f"reading {self.item(number)}\n{WARNING}{TERMINAL if self.hostile else ''}")
                if failed or at + 1 < row["tries"]
                else None,
                "printed": [
                    {
                        "path": "user/stdout/0/process001.stdout.txt",
                        "from": 120,
                        "to": 190,
                        "text": f"reading {self.item(number)}\n{TERMINAL if self.hostile else ''}",
                        "truncated": False,
                    }
                ],
                "logs": [{"path": "user/stdout/0/process001.stdout.txt", "from": 120}],
                "warnings": [],
            }
            for at in range(row["tries"] if number < self.ended else 0)
        ]
        cells = [
            [f"invoice_{number * 4 + at:07}.pdf", f"{1200 + at * 17}.90", MARKUP if self.hostile else "EUR"]
            for at in range(4)
        ]
        near = [other for other in self.failed if other != number]
        return {
            "revision": "1",
            "mini_batch": number,
            "state": row["state"],
            "tries": row["tries"],
            "deliveries_lost": row["deliveries_lost"],
            "items": {
                "total": 4,
                "shown": [{"path": self.item(number, at), "range": None} for at in range(4)],
                "kind": "files",
            },
            "key": [],
            "attempts": attempts,
            "speculative_run": "won" if row["copy"] else "stopped" if number % 89 == 14 else None,
            "wait": None,
            "rejected": {
                "items": 1 if self.states[number] == 4 else 0,
                "shown": [
                    {
                        "items": 1,
                        "detail": self.item(number, 2),
                        "values": "",
                        "process": row["process"],
                        "error": failed_with(printed=""),
                    }
                ]
                if self.states[number] == 4
                else [],
            },
            "rows": {
                "available": row["state"] == "succeeded",
                "reason": None if row["state"] == "succeeded" else "No attempt succeeded.",
                "columns": ["file", "total", "currency"],
                "cells": cells,
                "text": None,
                "truncated": False,
                "bytes": 212,
            },
            "previous_failed": max((other for other in near if other < number), default=None),
            "next_failed": min((other for other in near if other > number), default=None),
            "can_run_again": True,
            "test_case": {
                "command": f"gristmill retry {self.id} --mini-batch {number}",
                "rows": None,
                "job_file": {
                    "name": f"{self.name}-{number}.yaml",
                    "text": f"name: {self.name}\nentry_script: score.py\ninputs:\n  - path: {self.item(number)}\n",
                    "command": f"gristmill run {self.name}-{number}.yaml",
                },
            },
        }


def jobs() -> list[Job]:
    """Returns them newest first, as the portal lists them."""
    made = [
        Job("invoices-20261123-141320-7f21c0", "Running", 840, failing=1, ended=512),
        Job("invoices-20261123-120044-51be02", "Failed", 400, failing=14, ended=262),
        Job("million-20261122-201500-0a11ce", "Completed", 1_000_000, failing=1000, nodes=8),
        Job("embeddings-20261122-181200-c4e1b7", "Completed", 2400, nodes=4),
        Job("thumbnails-20261121-093000-22aa90", "Canceled", 1200, ended=431),
        Job("nightly-scores-20261121-020000-9b3d11", "Interrupted", 5000, failing=2, ended=3127),
        Job(f"hostile-20261120-101010-{'666'}", "Failed", 60, failing=9, ended=50, hostile=True),
    ]
    for newer, older in itertools.pairwise(made):
        older.start = min(older.start, newer.start - 3_600_000)
    return made
