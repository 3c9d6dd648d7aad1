"""Sums the CPU time of the user's function, in the same way on every side."""

import functools
import os
import struct
import threading
import time


def timed(function):
    """Writes one file for each thread into the folder BENCH_USER_SECONDS, if that is set."""
    folder = os.environ.get("BENCH_USER_SECONDS")
    if not folder:
        return function
    # One for each thread; not `threading.local()`, which cannot be pickled with the function.
    totals = {}

    @functools.wraps(function)
    def counting(*arguments):
        started = time.thread_time()
        result = function(*arguments)
        thread = threading.get_native_id()
        totals[thread] = totals.get(thread, 0.0) + time.thread_time() - started
        with open(f"{folder}/{thread}", "wb") as file:
            file.write(struct.pack("d", totals[thread]))
        return result

    return counting


def total_seconds(folder):
    """Returns the sum of all threads."""
    return sum(struct.unpack("d", entry.read_bytes())[0] for entry in folder.iterdir())
