"""Tracebacks of user code, as reports quote them."""

import sys
import traceback

import pytest

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
