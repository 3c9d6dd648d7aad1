"""A network that can be cut, and an AWS endpoint that fails: proxies between the roles and a real component.

Faults come from a seed, so that a run can be repeated as far as processes that race allow it.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

CHUNK = 1 << 16
HEAD_BYTES_MAX = 1 << 18
NO_BODY = (204, 304)
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Proxy:
    """Listens on a separate port and forwards data, in a separate thread."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.upstream = port
        self.faults: Counter[str] = Counter()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, address, 0, limit=HEAD_BYTES_MAX)).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Awaitable[Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def cut(self) -> None:
        """Breaks every connection, and rejects new ones, until `restore`."""
        self.faults["cuts"] += 1
        self._is_cut = True
        self._call(self._break()).result()

    def restore(self) -> None:
        self._is_cut = False

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
            upstream_reader, upstream_writer = await asyncio.open_connection(
                "127.0.0.1", self.upstream, limit=HEAD_BYTES_MAX
            )
            self._writers.add(upstream_writer)
            await self.carry(reader, writer, upstream_reader, upstream_writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # One side has gone, and so the other goes.
        finally:
            for end in (writer, upstream_writer):
                if end:
                    self._writers.discard(end)
                    end.close()

    async def carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        """Forwards bytes in both directions until either side closes."""

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(CHUNK):
                sink.write(data)
                await sink.drain()

        pumps = [
            asyncio.ensure_future(pump(reader, upstream_writer)),
            asyncio.ensure_future(pump(upstream_reader, writer)),
        ]
        done, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for other in pending:
            other.cancel()
        for one in done:
            one.exception()


class Request:
    """One complete HTTP request."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head, self.body = head, body
        self.method, self.path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        self.target = header(head, b"x-amz-target").decode()

    @property
    def to_queue(self) -> bool:
        return self.target.startswith("AmazonSQS.")


Policy = Callable[["AwsProxy", Request], "Fault | None"]


class Fault:
    """The fate of one request: a pause, the number of deliveries, and whether its answer returns."""

    def __init__(self, name: str, seconds: float = 0, arrivals: int = 1, answer: bytes | None = None) -> None:
        self.name, self.seconds, self.arrivals, self.answer = name, seconds, arrivals, answer


class AwsProxy(Proxy):
    """Parses requests and applies a policy to each."""

    def __init__(self, port: int, policy: Policy, seed: int = 0) -> None:
        self.policy = policy
        self.random = random.Random(seed)
        self.requests: Counter[str] = Counter()
        super().__init__(port)

    async def carry(self, reader, writer, upstream_reader, upstream_writer) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            if header(head, b"expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                lines = head.split(b"\r\n")
                head = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
            request = Request(head, await body_of(head, reader))
            self.requests[request.target or request.method] += 1
            fault = self.policy(self, request) or Fault("")
            if fault.name:
                self.faults[fault.name] += 1
            await asyncio.sleep(fault.seconds)
            answer = b""
            for _ in range(fault.arrivals):
                upstream_writer.write(request.head + request.body)
                await upstream_writer.drain()
                answer = await answer_of(request.method, upstream_reader)
            writer.write(answer if fault.answer is None else fault.answer)
            await writer.drain()


def header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


async def body_of(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """Returns the body as transmitted."""
    if header(head, b"transfer-encoding").lower().endswith(b"chunked"):
        body = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            body += line
            size = int(line.split(b";")[0], 16)
            if size:
                body += await reader.readexactly(size + 2)
                continue
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                body += line
            return body + b"\r\n"
    return await reader.readexactly(int(header(head, b"content-length") or 0))


async def answer_of(method: str, reader: asyncio.StreamReader) -> bytes:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
    if method == "HEAD" or status in NO_BODY:
        return head
    return head + await body_of(head, reader)


def refusal() -> bytes:
    lines = ["HTTP/1.1 503 Slow Down", "content-type: application/xml", f"content-length: {len(SLOW_DOWN)}", "", ""]
    return "\r\n".join(lines).encode() + SLOW_DOWN


def failing_store(proxy: AwsProxy, request: Request) -> Fault | None:
    """Lets one store request in ten fail, half of these after it took effect, and one in a hundred stall."""
    if request.to_queue:
        return None
    draw = proxy.random.random()
    if draw < 0.05:
        return Fault("requests refused", arrivals=0, answer=refusal())
    if draw < 0.10:
        return Fault("requests that took effect and were answered with an error", answer=refusal())
    if draw < 0.11:
        return Fault("requests stalled", seconds=3)
    return None


def sending_twice(proxy: AwsProxy, request: Request) -> Fault | None:
    """Delivers every message twice to its queue."""
    if request.target == "AmazonSQS.SendMessageBatch":
        return Fault("batches sent twice", arrivals=2)
    return None
