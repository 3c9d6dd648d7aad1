"""Entry scripts with ``async def`` functions: one event loop for the life of the process, and ``run_item``.

A service that limits its rate answers 429 (or 503) and may name the time to wait. The process calls the coroutine again
after that time, which spends no try and does not count towards ``run_invocation_timeout``. The process reports the
wait: the scheduler extends the deadline and the lease, and tells the reducer regularly that the mini-batch is in
progress.
"""

import asyncio
import email.utils
import operator
import os
import random
import time
import traceback

from gristmill.contract import KEEP_SECONDS
from gristmill.errors import add_note, is_own_frame
from gristmill.results import RowsOfItems

ASYNCIO_FOLDER = os.path.dirname(asyncio.__file__) + os.sep
PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 60.0
"""Maximum pause, with doubling, after an answer that names no time."""
FIRST_ITEMS = PROBES = 8
"""If no item succeeds: number of failed items at the start, and then of failed probes, before the rest is skipped."""
DOUBTED_FIRST_ITEMS, DOUBTED_PROBES = 1, 3
"""The same if no item of the last mini-batches has succeeded, because the service is probably down."""
RATE_LIMITED_SECONDS_MAX = 3600.0
"""Maximum time that one mini-batch waits for a service. After it, the answer is an error like any other."""


class Coroutines:
    """Calls coroutine functions from the process's one thread.

    ``on_rate_limit(seconds)`` is called when the process begins to wait, or to wait for that much longer.
    """

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self.on_rate_limit = None
        self._resume_at = 0.0
        self._waited = 0.0

    def call(self, function, *arguments):
        """Returns the result of a coroutine function. Cancels the tasks that an exception leaves behind."""
        asyncio.set_event_loop(self._loop)
        before = asyncio.all_tasks(self._loop)
        try:
            return self._loop.run_until_complete(function(*arguments))
        except BaseException as error:
            left = asyncio.all_tasks(self._loop) - before
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            error.__traceback__ = _of_the_script(error.__traceback__)
            raise

    def run(self, function, *arguments):
        """Works like ``call``, for ``run``: counts the waits of a mini-batch from 0, and waits if a service asks for
        it."""
        self._waited = 0.0
        return self.call(self.repeated, function, *arguments)

    async def repeated(self, function, *arguments):
        """Awaits a coroutine function, again after each answer of a service that limits its rate."""
        answers = 0
        while True:
            await self._resumed()
            try:
                answer, is_raised = await function(*arguments), False
            except Exception as error:
                # Without this frame, which would appear twice.
                answer, is_raised = error.with_traceback(error.__traceback__.tb_next), True
            asked = seconds_asked(answer)
            if asked is None or self._waited >= RATE_LIMITED_SECONDS_MAX:
                if is_raised:
                    raise answer
                return answer
            if asked is UNSTATED:
                asked = min(PAUSE_SECONDS_MIN * 2**answers, PAUSE_SECONDS_MAX) * random.uniform(0.75, 1.0)
            answers += 1
            self._wait(min(asked, RATE_LIMITED_SECONDS_MAX - self._waited))

    def _wait(self, seconds):
        """Lets every item of the process wait: a service limits its caller, not one item."""
        now = self._loop.time()
        # `now + seconds - now` would lose precision after some hours of uptime.
        longer = seconds - max(self._resume_at - now, 0.0)
        if longer > 0:
            self._resume_at = now + seconds
            self._waited += longer
            if self.on_rate_limit is not None:
                self.on_rate_limit(longer)

    async def _resumed(self):
        while (seconds := self._resume_at - self._loop.time()) > 0:
            await asyncio.sleep(seconds)

    def close(self):
        """Ends the loop, and the tasks that still run in it."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class ItemFunction:
    """``async def run_item(item)`` as a ``run``: one call for each item, ``concurrency`` of them at a time."""

    def __init__(self, coroutines, run_item, concurrency, wants_context):
        self._coroutines = coroutines
        self._run_item = run_item
        self._concurrency = concurrency
        self._wants_context = wants_context

    def run(self, mini_batch, context):
        """Returns one row for each item, in order, and none where ``run_item`` returns ``None``."""
        items = list(mini_batch)
        rows, failures, tried = self._coroutines.run(self._rows_of, items, context)
        result = RowsOfItems(tried)
        result.failures = failures
        result.extend(row for row in rows if row is not None)
        if len(result) < len(rows):
            result.positions = [position for position, row in enumerate(rows) if row is not None]
        return result

    async def _rows_of(self, items, context):
        """Returns the row of each item, the failures, and the number of tried items. A failed item does not end the
        others, whose work may be expensive."""
        rows = [None] * len(items)
        failures = []
        order = Order(len(items), context.resumes, context.doubted)
        arguments = (context,) if self._wants_context else ()
        new = []
        keep_at = time.monotonic() + KEEP_SECONDS

        def keep():
            for position in new:
                context.done(position, rows[position])
            new.clear()

        async def work():
            nonlocal keep_at
            for position in order:
                item = items[position]
                try:
                    rows[position] = await self._coroutines.repeated(self._run_item, item, *arguments)
                except Exception as error:
                    add_note(error, f"in item {position} of the mini-batch: {_in_short(item)}")
                    failures.append((position, _without_values(error)))
                    order.failed(position)
                    continue
                order.succeeded()
                new.append(position)
                if (now := time.monotonic()) >= keep_at:
                    keep_at = now + KEEP_SECONDS
                    keep()

        async def work_together(workers):
            tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                keep()
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        if order.is_doubted:
            await work_together(1)
        await work_together(min(self._concurrency, len(items)))
        if failures:
            keep()
            failures.sort(key=operator.itemgetter(0))
        return rows, failures, order.tried


class Order:
    """The order in which items are tried: from the first to the last.

    If the first items all fail, probes from all parts follow. If these fail as well, the cause is not an item, and the
    others are not tried. ``tried``: number of items whose calls have ended. ``is_doubted``: fewer failures are enough;
    the caller tries one item at a time until the iteration ends, after the first success, and then iterates again.
    """

    def __init__(self, items, any_succeeded, is_doubted=False):
        self._items = items
        self.is_doubted = is_doubted and not any_succeeded
        self._first_items = DOUBTED_FIRST_ITEMS if is_doubted else FIRST_ITEMS
        self._probes_max = DOUBTED_PROBES if is_doubted else PROBES
        self._next = 0
        self.tried = 0
        self._any_succeeded = any_succeeded
        self._probes = None
        self._probed = set()
        self._probes_to_fail = self._probes_max

    def succeeded(self):
        self.tried += 1
        self._any_succeeded = True

    def failed(self, position):
        self.tried += 1
        self._probes_to_fail -= position in self._probed

    def __iter__(self):
        return self

    def __next__(self):
        if self.is_doubted and self._any_succeeded:
            self.is_doubted = False
            raise StopIteration
        if not self._any_succeeded and self.tried >= self._first_items:
            if self._probes is None:
                left, most = self._items - self._next, self._probes_max
                probes = {self._next + left * part // most for part in range(most)} if left else set()
                self._probes, self._probes_to_fail = sorted(probes, reverse=True), len(probes)
            if self._probes_to_fail <= 0:
                raise StopIteration
            if self._probes:
                self._probed.add(self._probes[-1])
                return self._probes.pop()
        while self._next in self._probed:
            self._next += 1
        if self._next >= self._items:
            raise StopIteration
        self._next += 1
        return self._next - 1


def gave_up(result, items):
    """Returns whether a result whose items have all failed has enough of them to blame another cause."""
    return len(result.failures) >= FIRST_ITEMS or result.items < items


def _of_the_script(entry):
    """Returns a traceback from the first frame of the script."""
    while entry is not None and (is_own_frame(entry) or entry.tb_frame.f_code.co_filename.startswith(ASYNCIO_FOLDER)):
        entry = entry.tb_next
    return entry


def _without_values(error):
    """Returns an exception of the script that does not keep the variables of the script alive."""
    error.__traceback__ = _of_the_script(error.__traceback__)
    traceback.clear_frames(error.__traceback__)
    return error


NOTE_CHARACTERS_MAX = 200


def _in_short(item):
    text = item if isinstance(item, str) else repr(item)
    return text if len(text) <= NOTE_CHARACTERS_MAX else text[: NOTE_CHARACTERS_MAX - 1] + "…"


UNSTATED = object()
"""The service limits its rate, and names no time."""
LIMITED = (429, 503)


def seconds_asked(answer):
    """Returns the seconds that a service asks its caller to wait, ``UNSTATED``, or ``None`` if the value is no such
    answer.

    An answer is an exception of an HTTP client (``urllib``, ``requests``, ``httpx``, ``aiohttp``, ``openai``, the
    clients of AWS, Azure and Google), or their response as the return value. Status 503 counts if it names a time.
    """
    response = getattr(answer, "response", None)
    status, headers = _status_of(answer, response), _headers_of(answer, response)
    if status not in LIMITED:
        return None
    seconds = _seconds_of(headers)
    if seconds is None:
        return UNSTATED if status == 429 else None
    return seconds


def _status_of(answer, response):
    for value in (answer, response):
        for name in ("status_code", "status", "code"):
            status = getattr(value, name, None)
            if type(status) is int:
                return status
    if isinstance(response, dict) and isinstance(answer, BaseException):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None


def _headers_of(answer, response):
    for value in (answer, response):
        headers = getattr(value, "headers", None)
        if hasattr(headers, "items"):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    if isinstance(response, dict):
        return {str(k).lower(): str(v) for k, v in response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).items()}
    return {}


def _seconds_of(headers):
    """Returns the seconds of ``Retry-After`` (a number or a date) or of its form in milliseconds, or ``None``."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        # Neither infinite nor in the past.
        if 0.0 <= seconds < float("inf"):
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(headers["retry-after"])
        return max(date.timestamp() - time.time(), 0.0)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
