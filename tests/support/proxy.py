"""A network that can be cut or stalled, and an AWS endpoint that fails: proxies between the roles and a real component.

Faults come from a seed, so that a run can be repeated as far as processes that race allow it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from http_server import Answer, HttpServer, Request, forward

CHUNK = 1 << 16
SLOW_DOWN: Answer = (
    503,
    {"Content-Type": "application/xml"},
    b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>",
)


class Proxy:
    """Listens on a separate port and forwards data, in a separate thread."""

    upload_max: int | None = None
    """Each connection discards what its client sends after this number of bytes."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.upstream = port
        self.is_full = threading.Event()
        self.faults: Counter[str] = Counter()
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, address, 0)).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Awaitable[Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def cut(self) -> None:
        """Breaks every connection, and rejects new ones, until `restore`."""
        self.faults["cuts"] += 1
        self._is_cut = True
        self._call(self._break()).result()

    def stall(self) -> None:
        """Holds back all data, also that of new connections, until `restore` delivers it late."""
        self.faults["stalls"] += 1
        self._loop.call_soon_threadsafe(self._flows.clear)

    def restore(self) -> None:
        self._is_cut = False
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._call(self._break()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _break(self) -> None:
        self.faults["connections broken"] += len(self._writers) // 2
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            self.faults["connections refused"] += 1
            writer.transport.abort()
            return
        self._writers.add(writer)
        upstream_writer = None
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
            self._writers.add(upstream_writer)
            pumps = [
                asyncio.ensure_future(self._upload(reader, upstream_writer)),
                asyncio.ensure_future(self._pump(upstream_reader, writer)),
            ]
            done, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for other in pending:
                other.cancel()
            for one in done:
                one.exception()
        except OSError:
            pass  # One side has gone, and so the other goes.
        finally:
            for end in (writer, upstream_writer):
                if end:
                    self._writers.discard(end)
                    end.close()

    async def _upload(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        left = self.upload_max
        if left is None:
            return await self._pump(source, sink)
        while data := await source.read(CHUNK):
            sink.write(data[:left])
            await sink.drain()
            left -= len(data[:left])
            if left == 0:
                self.is_full.set()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forwards bytes in one direction until its source ends."""
        while data := await source.read(CHUNK):
            await self._flows.wait()
            sink.write(data)
            await sink.drain()


@dataclass
class Fault:
    """The fate of one request: a pause, the number of deliveries, and what is answered instead."""

    name: str
    seconds: float = 0
    arrivals: int = 1
    answer: Answer | None = None


Policy = Callable[[random.Random, Request], Fault | None]


class AwsProxy(HttpServer):
    """Forwards requests to an AWS endpoint, and applies a policy to each."""

    def __init__(self, endpoint: str, policy: Policy, seed: int) -> None:
        self.endpoint, self.policy, self.random = endpoint, policy, random.Random(seed)
        self.faults: Counter[str] = Counter()
        super().__init__(self.carry)

    def carry(self, request: Request) -> Answer:
        fault = self.policy(self.random, request)
        if fault is None:
            return forward(self.endpoint, request)
        self.faults[fault.name] += 1
        time.sleep(fault.seconds)
        answers = [forward(self.endpoint, request) for _ in range(fault.arrivals)]
        return fault.answer or answers[-1]


def failing_store(draws: random.Random, request: Request) -> Fault | None:
    """Lets one store request in ten fail, half of these after it took effect, and one in a hundred stall."""
    draw = draws.random()
    if draw < 0.05:
        return Fault("requests refused", arrivals=0, answer=SLOW_DOWN)
    if draw < 0.10:
        return Fault("requests that took effect and were answered with an error", answer=SLOW_DOWN)
    if draw < 0.11:
        return Fault("requests stalled", seconds=3)
    return None


def sending_twice(_: random.Random, request: Request) -> Fault | None:
    """Delivers every message twice to its queue."""
    if request.headers.get("X-Amz-Target") == "AmazonSQS.SendMessageBatch":
        return Fault("batches sent twice", arrivals=2)
    return None
