"""A proxy before LocalStack that counts requests; on AWS each of them has a price."""

from __future__ import annotations

import collections
import threading
import urllib.parse

from http_server import Answer, HttpServer, Request, forward

STORE = {"PUT": "PUT", "POST": "PUT", "GET": "GET", "HEAD": "GET", "LIST": "LIST", "DELETE": "DELETE"}
"""Price classes of requests to a store; requests to a queue are one class."""


class CountingProxy(HttpServer):
    """Forwards requests to LocalStack, and counts them by kind."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.lock = endpoint, threading.Lock()
        self.counts: collections.Counter[str] = collections.Counter()
        super().__init__(self.count)

    def count(self, request: Request) -> Answer:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query, keep_blank_values=True)
        if target := request.headers.get("X-Amz-Target"):
            kind = target.partition(".")[2]
        else:
            kind = "LIST" if request.method == "GET" and "list-type" in query else request.method
        with self.lock:
            self.counts[kind] += 1
        return forward(self.endpoint, request)

    def by_class(self) -> collections.Counter[str]:
        """Returns the counts by price class."""
        sums: collections.Counter[str] = collections.Counter()
        for kind, count in self.counts.items():
            sums[STORE.get(kind, "queue")] += count
        return sums
