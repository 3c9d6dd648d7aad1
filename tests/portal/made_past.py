"""The history of a made job: its timeline, samples, logs and output."""

import math
import random
import time

MARKUP = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"
TERMINAL = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[Hmoved "
    "\x1b]8;;https://example.com\x07link\x1b]8;;\x07 \u202egnp.exe"
)


def clock() -> int:
    """The time in milliseconds."""
    return int(time.time() * 1000)


def text_of(data: bytes, query: dict) -> dict:
    """A range of a file as the server returns it: lines from the one in which the wanted byte lies."""
    size, limit = len(data), min(max(int(query.get("limit", 262144)), 16), 1 << 20)
    if "before" in query:
        end = min(int(query["before"]), size)
        asked = max(0, end - limit)
    else:
        asked = int(query.get("from", -65536))
        asked = max(0, size + asked) if asked < 0 else min(asked, size)
        end = min(size, asked + limit)
    start = asked
    if asked < end:
        first = max(0, asked - 65536)
        start = data.rfind(b"\n", first, asked) + 1
        if start == 0 and first > 0:
            start = asked
            while start < asked + 3 and data[start] & 0xC0 == 0x80:
                start += 1
    if "before" not in query and end < size:
        # The stand-in has no line that is longer than a request.
        end = data.rindex(b"\n", asked, end) + 1
    starts, text = [], data[start:end]
    at = start
    for line in text.split(b"\n")[: -1 if text.endswith(b"\n") else None] if text else []:
        starts.append(at)
        at += len(line) + 1
    return {
        "bytes": size,
        "from": start,
        "to": end,
        "text": text.decode(errors="replace"),
        "starts": starts,
        "line": 1 if start == 0 else None,
    }


SHARES = {"elapsed": 1, "waited": 0.2, "prepared": 0.05, "loaded": 0.1, "run": 0.86, "reported": 0.04, "cpu": 0.7}
"""Parts of the time of an attempt."""


class Past:
    """Answers about what happened in a job; `Job` holds the numbers."""

    id: str
    state: str
    total: int
    ended: int
    elapsed: float
    start: int
    starts: list[float]
    hostile: bool
    processes: list[tuple[str, str]]
    states: bytearray
    durations: bytearray

    def seconds(self, number: int) -> float:
        raise NotImplementedError

    def item(self, number: int) -> str:
        raise NotImplementedError

    def error(self) -> str:
        raise NotImplementedError

    def row(self, number: int) -> dict:
        raise NotImplementedError

    def of_timeline(self, query: dict) -> dict:
        end = int(self.elapsed * 1000)
        low, high = int(query.get("from", self.start)) - self.start, int(query.get("to", self.start + end)) - self.start
        keys = ("process", "mini_batch", "start", "end", "loaded", "run", "status", "copy")
        bars: dict[str, list] = {key: [] for key in keys}
        many = self.ended > 20_000
        for number in range(0 if many else self.ended):
            process = number % len(self.processes)
            start, took = self.starts[number] * 1000, self.seconds(number) * 1000
            if start + took < low or start > high:
                continue
            status = 2 if self.states[number] == 2 else 1 if number % 61 == 7 else 0
            bar = (process, number, start - low, start + took - low, took * 0.0001, took * 0.00086, status)
            for key, value in zip(bars, (*bar, number % 89 == 13), strict=True):
                bars[key].append(value)
        rows = [
            {
                "node": node,
                "process": process,
                "attempts": self.ended // len(self.processes),
                "failed": 1,
                "busy_seconds": self.elapsed * 0.9,
            }
            for node, process in self.processes
        ]
        chance = random.Random(2)
        slowest = sorted(range(self.ended), key=lambda number: -self.durations[number])[:20]
        times = sorted(self.seconds(number) for number in range(0, self.ended, max(1, self.ended // 1000))) or [0]
        picked = {f"p{share}": times[min(len(times) - 1, len(times) * share // 100)] for share in (50, 90, 95, 99)}
        picked |= {"max": times[-1], "mean": sum(times) / len(times)}
        return {
            "revision": "1",
            "from": self.start + low,
            "to": self.start + high,
            "now": self.start + end,
            "processes": rows,
            "bars": None if many else bars,
            "bins": {
                "step_ms": max(1, (high - low) // 300),
                "busy": [[chance.uniform(0.6, 1) for _ in range(300)] for _ in rows],
                "failed": [[int(chance.random() < 0.01) for _ in range(300)] for _ in rows],
            }
            if many
            else None,
            "attempts": self.ended,
            "percentiles": [
                {"of": of, **{name: k * time for name, time in picked.items()}} for of, k in SHARES.items()
            ],
            "slowest": [self.row(number) for number in slowest],
        }

    def of_nodes(self, query: dict) -> dict:
        chance = random.Random(3)
        at = [self.start + int(self.elapsed * 1000 * step / 60) for step in range(61)]

        def wave(base: float, spread: float) -> list[float]:
            return [
                max(0.0, base + spread * math.sin(step / 5) + chance.uniform(-spread, spread) / 2) for step in range(61)
            ]

        nodes = []
        for node in sorted({node for node, _ in self.processes}):
            nodes.append(
                {
                    "node": node,
                    "stopped": None,
                    "processes": [
                        {
                            "process": process,
                            "pid": 4200 + at_,
                            "attempts": self.ended // len(self.processes),
                            "failed": 0,
                            "busy_seconds": self.elapsed * 0.9,
                            "first_at": at[0],
                            "last_at": at[-1],
                            "running": None,
                            "cpu_percent": 64,
                            "memory_bytes": 420 << 20,
                            "gpu_percent": 81,
                            "gpu_memory_bytes": 9 << 30,
                            "samples": {
                                "at": at,
                                "series": [
                                    {"name": "CPU", "unit": "percent", "values": wave(70, 20)},
                                    {"name": "Memory", "unit": "MB", "values": wave(420, 30)},
                                    {"name": "GPU", "unit": "percent", "values": wave(80, 15)},
                                ],
                            },
                        }
                        for at_, (owner, process) in enumerate(self.processes)
                        if owner == node
                    ],
                    "samples": {
                        "at": at,
                        "series": [
                            {"name": "CPU", "unit": "percent", "values": wave(64, 22)},
                            {"name": "Memory", "unit": "MB", "values": wave(5200, 400)},
                            {"name": "Memory available", "unit": "MB", "values": wave(10200, 400)},
                            *(
                                {"name": f"GPU {gpu} {what}", "unit": "percent", "values": wave(50 + 20 * gpu, 15)}
                                for what in ("busy", "memory")
                                for gpu in range(2)
                            ),
                            {"name": "Disk read", "unit": "MB/s", "values": wave(30, 20)},
                            {"name": "Disk written", "unit": "MB/s", "values": wave(5, 4)},
                            {"name": "Network received", "unit": "MB/s", "values": wave(12, 9)},
                        ],
                    },
                }
            )
        events = [
            {"at": self.start + 200, "node": "0", "text": "process000 started"},
            {
                "at": self.start + 60_000,
                "node": "1",
                "text": f"process003 was killed by signal 9 {MARKUP if self.hostile else ''}",
            },
        ]
        return {"now": at[-1], "nodes": nodes, "events": events}

    def log(self) -> bytes:
        """A log of a megabyte, with characters of several bytes, and bytes that are none."""
        lines = []
        for number in range(12000):
            time = f"\x1b[2m2026-11-23 03:12:{number % 60:02}\x1b[0m"
            lines.append(f"{time} \x1b[32mINFO\x1b[0m prüfe {self.item(number)}".encode())
            if number % 97 == 5:
                text = f"\x1b[33mWARNING\x1b[0m no total on page 2 {TERMINAL if self.hostile else ''}"
                lines.append(text.encode() + b"\xff\xfe")
        lines.append(f"\x1b[1;31mERROR\x1b[0m {self.error()} {MARKUP if self.hostile else ''}".encode())
        return b"\n".join(lines) + b"\n"

    def of_logs(self, query: dict) -> dict:
        names = [
            "job_error.txt",
            "job_result.txt",
            "readme.txt",
            "sys/master_role.txt",
            "sys/node/0/_main.txt",
            "user/error/0/process001.txt",
            "user/stdout/0/process000.stdout.txt",
            "user/stdout/0/process001.stdout.txt",
        ]
        if self.hostile:
            names.append(f"user/stdout/0/{MARKUP.replace('/', '')}.txt")
        log = self.log()
        size = len(log)
        return {
            "files": [{"path": name, "bytes": size} for name in names],
            "first_error": {
                "path": "user/stdout/0/process001.stdout.txt",
                "offset": log.rindex(b"\n", 0, -1) + 1,
                "time": "",
                "text": self.error(),
            },
        }

    def of_logs_text(self, query: dict) -> dict:
        return {"path": query["path"], **text_of(self.log(), query)}

    def of_logs_search(self, query: dict) -> dict:
        matches, offset = [], 0
        for line, text in enumerate(self.log().splitlines(keepends=True), 1):
            shown = text.decode(errors="replace").rstrip("\r\n")
            if query["q"].lower() in shown.lower() and len(matches) < 200:
                matches.append(
                    {"path": "user/stdout/0/process001.stdout.txt", "line": line, "offset": offset, "text": shown[:500]}
                )
            offset += len(text)
        return {"matches": matches, "truncated": len(matches) == 200, "searched_bytes": offset}

    def of_output(self, query: dict) -> dict:
        is_there = self.state == "Completed"
        cells = [
            [f"invoice_{number:07}.pdf", f"{number * 17 % 4000}.90", MARKUP if self.hostile else "EUR", None]
            for number in range(100)
        ]
        return {
            "available": is_there,
            "reason": None if is_there else "The job has not completed.",
            "path": "/work/out/totals.csv",
            "bytes": 1_234_567,
            "format": "csv",
            "columns": ["file", "total", "currency", "note"],
            "cells": cells if is_there else [],
            "truncated": True,
            "how_to_read": 'pandas.read_csv("/work/out/totals.csv")',
        }
