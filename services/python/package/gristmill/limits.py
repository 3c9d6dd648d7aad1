"""``context.limit``: waits until the ``limits`` of the job allow a request.

The agent of the node decides, for all its processes. A process asks with a frame and gets an answer with another, which
a thread of its own receives: threads of the script and coroutines may ask at the same time.
"""

import contextvars
import json
import queue
import sys
import threading
import warnings

_CALL = contextvars.ContextVar("gristmill_call", default=None)
"""The call of ``run_item`` that runs in this context."""


class Limit:
    """The limits of the job, which all its processes share. Without limits, nothing waits."""

    def __init__(self, client=None, limits=None):
        self._client = client
        self._limits = limits or {}

    def acquire(self, tokens=0, requests=1):
        """Waits until the job may make this many requests, which together take this many tokens.

        In a coroutine: ``await`` it, or use it in ``async with``. Elsewhere it waits immediately; ``with`` releases the
        place at the service afterwards (``limits.concurrent``). Without ``with``, the end of the mini-batch does.
        """
        for name, number in (("tokens", tokens), ("requests", requests)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"limit.acquire({name}={number!r}): must be an integer from 0")
            limit = self._limits.get(f"{name}_per_minute")
            if limit is not None and number > limit:
                raise ValueError(
                    f"limit.acquire({name}={number}): the job allows {limit} in a minute (limits.{name}_per_minute)"
                )
        place = "concurrent" in self._limits
        call = _CALL.get()
        if call is not None and not call.is_claimed:
            # The call itself has acquired one request and a place.
            call.is_claimed, requests, place = True, max(requests - 1, 0), False
        acquisition = Acquisition(self._client, requests, tokens, place)
        if _running_loop() is None:
            acquisition._wait()
        return acquisition

    def of_calls(self, function):
        """Returns a coroutine function whose every call is one request."""
        if self._client is None:
            return function

        async def call(*arguments):
            async with Acquisition(self._client, 1, 0, "concurrent" in self._limits):
                before = _CALL.set(_Call())
                try:
                    return await function(*arguments)
                finally:
                    _CALL.reset(before)

        return call

    def ending_with(self, run):
        """Returns a function that calls ``run``, and then releases the places that are still taken."""

        def call(*arguments):
            try:
                return run(*arguments)
            finally:
                self._client.release_all()

        return call


class _Call:
    is_claimed = False


class Acquisition:
    """Some requests. See ``Limit.acquire``."""

    __slots__ = ("_asked", "_client", "_id", "_is_used")

    def __init__(self, client, requests, tokens, place):
        self._client = client
        self._asked = (requests, tokens, place)
        self._id = None
        # Nothing to wait for.
        self._is_used = client is None or not (requests or tokens or place)

    def _wait(self):
        if not self._is_used:
            self._is_used = True
            granted = threading.Event()
            self._id = self._client.ask(*self._asked, granted.set)
            try:
                granted.wait()
            except BaseException:
                self._client.release(self._id, True)
                raise

    async def _wait_in_loop(self):
        if not self._is_used:
            self._is_used = True
            loop = _running_loop()
            granted = loop.create_future()

            def grant():
                if not granted.done():
                    granted.set_result(None)

            self._id = self._client.ask(*self._asked, lambda: loop.call_soon_threadsafe(grant))
            try:
                await granted
            except BaseException:
                self._client.release(self._id, True)
                raise
        return self

    def release(self):
        """Releases the place at the service."""
        if self._id is not None:
            self._client.release(self._id, self._asked[2])
            self._id = None

    def __await__(self):
        return self._wait_in_loop().__await__()

    async def __aenter__(self):
        return await self._wait_in_loop()

    async def __aexit__(self, *_):
        self.release()

    def __enter__(self):
        if not self._is_used:
            raise RuntimeError("in a coroutine, write `async with context.limit.acquire(…)`, or await it")
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        if not self._is_used:
            warnings.warn("context.limit.acquire(…) was never awaited", RuntimeWarning, stacklevel=2)


def _running_loop():
    # Scripts without coroutines do not import it.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.get_running_loop()
    except (RuntimeError, AttributeError):
        return None


class LimitClient:
    """Asks the agent, from any thread."""

    def __init__(self, send_event):
        self._send_event = send_event
        self._lock = threading.Lock()
        self._last = 0
        self._waiting = {}
        self._places = set()

    def ask(self, requests, tokens, place, grant):
        """Asks the agent. ``grant`` is called once it allows the requests, in another thread."""
        with self._lock:
            self._last += 1
            identity = self._last
            self._waiting[identity] = grant
            if place:
                self._places.add(identity)
        self._send_event({"frame": "acquire", "id": identity, "requests": requests, "tokens": tokens, "place": place})
        return identity

    def granted(self, identities):
        """Takes an answer of the agent."""
        for identity in identities:
            with self._lock:
                grant = self._waiting.pop(identity, None)
            if grant is None:
                continue
            try:
                grant()
            except RuntimeError:
                # The event loop has ended.
                self.release(identity, True)

    def release(self, identity, is_needed):
        """Ends an acquisition, or the wait for it."""
        with self._lock:
            self._waiting.pop(identity, None)
            self._places.discard(identity)
        if is_needed:
            self._send_event({"frame": "release", "id": identity})

    def release_all(self):
        """Releases every place that is taken. Threads that still wait keep waiting."""
        with self._lock:
            left = [identity for identity in self._places if identity not in self._waiting]
        for identity in left:
            self.release(identity, True)


class SharedChannel:
    """The channel of a process that asks for limits: a thread receives, and any thread sends."""

    def __init__(self, channel):
        self._channel = channel
        self._sending = threading.Lock()
        self._frames = queue.SimpleQueue()
        self.next_descriptor = channel.next_descriptor
        self.client = LimitClient(self.send_event)
        threading.Thread(target=self._receive_all, name="gristmill-channel", daemon=True).start()

    @property
    def abandoned(self):
        return self._channel.abandoned

    def _receive_all(self):
        try:
            while True:
                frame = self._channel.receive()
                if frame["frame"] == "granted":
                    self.client.granted(frame["ids"])
                else:
                    self._frames.put(frame)
        except BaseException as error:
            self._frames.put(error)

    def receive(self):
        """Waits for the next frame that is no answer to a question about limits."""
        frame = self._frames.get()
        if isinstance(frame, BaseException):
            raise frame
        return frame

    def send(self, header, payload=b""):
        if self._channel.abandoned:
            # A forked child may have inherited the lock in any state.
            self._channel.send(header, payload)
        with self._sending:
            self._channel.send(header, payload)

    def send_event(self, event):
        """Sends an event without payload."""
        self.send(json.dumps(event).encode())
