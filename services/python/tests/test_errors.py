"""Tracebacks of user code, as reports quote them."""

import collections
import io
import sys
import traceback
import unittest.mock

import pytest

from gristmill import command_step
from gristmill.errors import user_traceback


def deep(levels, error):
    if levels:
        return deep(levels - 1, error)
    raise error


def caused():
    try:
        deep(1, KeyError("first"))
    except KeyError as first:
        raise ValueError("second") from first


def while_handling():
    try:
        deep(1, KeyError("first"))
    except KeyError:
        raise ValueError("second")  # noqa: B904


def misspelt():
    number = 1
    return numbr + number  # noqa: F821


def group():
    raise ExceptionGroup("both", [ValueError("one"), KeyError("two")])  # noqa: F821


CASES = {
    "plain": lambda: deep(2, ValueError("bad")),
    "recursion": lambda: deep(20, ValueError("bad")),
    "several lines": lambda: deep(0, ValueError("one\ntwo")),
    "no message": lambda: deep(0, ValueError()),
    "syntax": lambda: compile("1 +", "made.py", "exec"),
    "cause": caused,
    "context": while_handling,
    "name": misspelt,
    "exit": lambda: sys.exit(3),
    **({"group": group} if sys.version_info >= (3, 11) else {}),
}


def error_of(case):
    try:
        case()
    except BaseException as error:
        return error


@pytest.mark.parametrize("name", CASES)
def test_traceback_is_that_of_python(name):
    for _ in range(2):
        error = error_of(CASES[name])
        assert user_traceback(error) == "".join(traceback.format_exception(type(error), error, error.__traceback__))


def test_stack_is_read_once_for_failures_at_one_place(monkeypatch):
    error = error_of(CASES["plain"])
    first = user_traceback(error)
    monkeypatch.setattr(traceback, "format_tb", None)
    other = error_of(CASES["plain"])
    other.args = ("worse",)
    assert user_traceback(other) == first.replace("ValueError: bad", "ValueError: worse")


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_error_of_a_command_is_found_however_it_was_written(size):
    """Interpreters write a traceback in small parts, and a busy machine reads each of them separately."""
    printed = "".join(f"line {number}\n" for number in range(200)) + (
        'Traceback (most recent call last):\n  File "make.py", line 2, in <module>\n    json.loads("{ü")\n'
        "json.decoder.JSONDecodeError: Expecting property name\n"
    )
    source = io.BytesIO(printed.encode())
    tail = collections.deque(maxlen=command_step.TAIL_LINES)
    shown = io.StringIO()
    with unittest.mock.patch.object(command_step, "READ_BYTES", size):
        command_step._copy(source, shown, tail)
    assert shown.getvalue() == printed
    error = command_step._failure("python make.py", 1, "".join(tail).splitlines())
    assert type(error).__name__ == "JSONDecodeError"
    assert str(error).startswith("Expecting property name; the command ended with exit status 1")


def test_line_that_does_not_end_is_kept_in_part():
    tail = collections.deque(maxlen=command_step.TAIL_LINES)
    for _ in range(1000):
        command_step._remember(tail, "x" * 10)
    command_step._remember(tail, "y\nz")
    first, last = tail
    assert (len(first), first[-2:], last) == (command_step.LINE_CHARACTERS_MAX, "y\n", "z")
