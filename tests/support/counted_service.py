"""An HTTP service that counts its requests."""

from __future__ import annotations

import threading
import time

from http_server import Answer, HttpServer, Request

ASK = """
    import asyncio, os
    from urllib.request import urlopen

    def ask(item):
        with urlopen(os.environ["SERVICE"] + "/" + os.path.basename(item)) as answer:
            return answer.read().decode()
"""
"""The beginning of scripts that ask a service."""


class CountedService(HttpServer):
    """Answers with the path of each request, after some time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        """Requests at the same time."""
        self.times: list[float] = []
        self.paths: list[str] = []
        super().__init__(self._answer)

    def _answer(self, request: Request) -> Answer:
        path = request.path.strip("/")
        with self._lock:
            self.times.append(time.monotonic())
            self.paths.append(path)
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._seconds)
        with self._lock:
            self._now -= 1
        return 200, {}, path.encode()

    def seconds(self) -> float:
        """Returns the time from the first request to the last."""
        return self.times[-1] - self.times[0]

    def check_rate(self, per_minute: int, units: int = 1) -> None:
        """Checks every window of time, as long as it may be. What a node may save, 2 of 60 seconds, is added, and for
        delays on the way to the service as much again. No minute, and nothing shorter, has more than 5 % above the
        limit."""
        times = sorted(self.times)
        for first, begin in enumerate(times):
            for last in range(first, len(times)):
                allowed = per_minute / 60 * (times[last] - begin + 4) + units
                if times[last] - begin <= 60:
                    allowed = min(allowed, 1.05 * per_minute)
                assert (last - first + 1) * units <= allowed, (times[last] - begin, last - first + 1, allowed)
