"""Errors for misspelt keywords, attributes and keys, with the nearest valid name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Kind = TypeVar("Kind")


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest valid name, or all of them."""
    import difflib

    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def checked(
    function: Callable[Parameters, Result], owner: str | None = None, advice: str = ""
) -> Callable[Parameters, Result]:
    """Makes a misspelt keyword an error with the nearest name, in every release of Python.

    :param owner: the name of the function in messages; by default its own.
    :param advice: the end of every message.
    """
    import inspect

    signature = inspect.signature(function)
    names = [one.name for one in signature.parameters.values() if one.name != "self"]
    owner = owner or function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        for name in named:
            if name not in names:
                raise TypeError(f"{owner} has no keyword {name}: {nearest(name, names)}{advice}")
        return function(*arguments, **named)

    return call


def checked_fields(kind: type[Kind]) -> type[Kind]:
    """Works like ``checked`` for the constructor of a dataclass."""
    kind.__init__ = checked(kind.__init__, kind.__qualname__)  # type: ignore[method-assign]
    return kind
