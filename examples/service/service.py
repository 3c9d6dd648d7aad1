"""An HTTP service on this machine, like many on the internet: it limits the rate of its callers, and sometimes fails.

It names the species of a flower: that of the most similar flower that it knows. ``python service.py`` answers at
http://127.0.0.1:8099 until it is stopped.
"""

import argparse
import csv
import json
import random
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FLOWERS = Path(__file__).resolve().parent.parent / "iris" / "iris.csv"


class Limit:
    """Limits the number of requests in any minute."""

    def __init__(self, requests_per_minute):
        self._most = requests_per_minute
        self._times = deque()
        self._lock = threading.Lock()

    def seconds_to_wait(self):
        """Counts a request, or returns for how long its caller must wait."""
        now = time.monotonic()
        with self._lock:
            while self._times and now - self._times[0] >= 60:
                self._times.popleft()
            if len(self._times) >= self._most:
                return 60 - (now - self._times[0])
            self._times.append(now)
        return 0


def make_server(port, requests_per_minute, failures):
    with FLOWERS.open(newline="") as file:
        flowers = [(list(map(float, row[:-1])), row[-1]) for row in list(csv.reader(file))[1:]]
    limit = Limit(requests_per_minute)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            flower = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seconds = limit.seconds_to_wait()
            if seconds > 0:
                return self.answer(429, {"error": "too many requests"}, {"Retry-After": f"{seconds:.1f}"})
            if random.random() < failures:
                return self.answer(500, {"error": "out of order"})

            def difference(known):
                return sum((one - other) ** 2 for one, other in zip(known[0], flower, strict=True))

            return self.answer(200, {"species": min(flowers, key=difference)[1]})

        def answer(self, status, content, headers=None):
            body = json.dumps(content).encode()
            self.send_response_only(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--requests-per-minute", type=int, default=1200)
    parser.add_argument("--failures", type=float, default=0.02, help="share of requests that fail")
    arguments = parser.parse_args()
    server = make_server(arguments.port, arguments.requests_per_minute, arguments.failures)
    print(f"answering at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
