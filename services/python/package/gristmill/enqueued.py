"""Scripts that work on mini-batches by themselves: ``enqueue`` takes one, ``get_finished_batch_result`` returns it.

The process hands over one mini-batch at a time, because the engine measures, limits and repeats each one alone.
"""

import time

POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.1
FUNCTIONS = ("enqueue", "check_all_tasks_processed", "get_processing_batch_number", "get_finished_batch_result")


class LostResult(Exception):
    """The script has nothing left to do, and returned no result of the mini-batch."""


class Enqueued:
    """The four functions of a script as one ``run``."""

    def __init__(self, functions, wants_context):
        self._functions = functions
        self._wants_context = wants_context

    def run(self, mini_batch, context):
        """Hands a mini-batch over, and waits for its result."""
        functions = self._functions
        number = context.minibatch_index
        functions["enqueue"](mini_batch, *((context,) if self._wants_context else ()))
        seconds = POLL_SECONDS_MIN
        while True:
            # This comes first, so that the results include a mini-batch that ends between the two calls.
            is_idle = functions["check_all_tasks_processed"]() and functions["get_processing_batch_number"]() == 0
            results = functions["get_finished_batch_result"]() or {}
            for key in (number, str(number)):
                if key in results:
                    return _result_of(results[key])
            if is_idle:
                raise LostResult(
                    f"check_all_tasks_processed() returned True, and get_finished_batch_result() never returned a "
                    f"result of mini-batch {number}: its keys must be the numbers of mini-batches"
                )
            time.sleep(seconds)
            seconds = min(seconds * 1.5, POLL_SECONDS_MAX)


def _result_of(entry):
    if not isinstance(entry, dict):
        raise TypeError(
            "get_finished_batch_result() must return dictionaries with ret, mini_batch_context and exception, not "
            f"{type(entry).__name__}"
        )
    error = entry.get("exception")
    if error is None:
        return entry.get("ret")
    raise error if isinstance(error, BaseException) else RuntimeError(str(error))
