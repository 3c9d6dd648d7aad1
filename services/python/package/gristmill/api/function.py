"""Makes a function into an entry script in a folder of its own, with everything that it needs to travel."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import linecache
import os
import pickle
import shutil
import sys
import sysconfig
import threading
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.api.errors import GristmillError
from gristmill.api.inputs import in_use

ENTRY = '''"""Runs a function that was pickled from Python."""

from gristmill.function_job import load

job = load(__file__)
init, run, shutdown = job.init, job.run, job.shutdown
__gristmill_arrow__ = {takes_arrow}
__gristmill_pandas__ = {takes_pandas}
'''
"""``takes_arrow``: whether ``run`` gets tables as ``pyarrow.Table``, without a copy. A job's check reads it here.
``takes_pandas``: whether it gets Parquet files as pandas reads them (``files``), or a DataFrame that ``run`` has
written (``memory``): only then does the process unpickle what the file says about it."""
TAKES_ARROW = ("pyarrow", "polars", "items")
TAKES_PANDAS = {"pandas": "files", "frame": "memory"}
CODE = (
    *("name", "code", "exceptiontable", "flags", "argcount", "posonlyargcount", "kwonlyargcount"),
    *("names", "varnames", "freevars", "cellvars"),
)
"""What decides the behaviour of a code object, besides its constants."""
TRAVELS_ANYWAY = ("gristmill", "azureml_user", "cloudpickle")
"""Packages that every worker process has."""
SPECIAL = ("state", "context")
"""Names of parameters that get something else than the mini-batch."""
ARGUMENTS = {
    ("pandas", "DataFrame"): "pandas",
    ("pyarrow", "Table"): "pyarrow",
    ("polars", "DataFrame"): "polars",
    ("builtins", "list"): "list",
}


def check(function: Any, init: Any) -> None:
    """Fails unless these can be ``run`` and ``init``."""
    if not callable(function):
        raise TypeError(f"run needs a function, or the path of an entry script or job file, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name_of(function)} is a generator: collect what it yields in a list, and return that")
    given = _positional(function)
    if not given:
        raise TypeError(f"{name_of(function)} takes no argument: its first one is the mini-batch")
    others = [name for name in _required(given[1:]) if name not in SPECIAL]
    if others:
        raise TypeError(
            f"{name_of(function)} needs {', '.join(others)} too: it gets the mini-batch, and what it calls `state` "
            "(the result of init) or `context`"
        )
    if init is not None:
        if not callable(init):
            raise TypeError(f"init needs a function, not {init!r}")
        if _required(_positional(init)):
            raise TypeError(
                f"init gets no argument, and {name_of(init)} needs {', '.join(_required(_positional(init)))}"
            )


def _positional(function: Any) -> list[inspect.Parameter]:
    """Returns the parameters that can be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # A function written in C.
        return [inspect.Parameter("mini_batch", inspect.Parameter.POSITIONAL_ONLY)]
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind not in named]


def _required(parameters: list[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]


def argument_of(function: Any) -> str | None:
    """Returns what the type of the first parameter asks for: ``pandas``, ``pyarrow``, ``polars``, ``list``, or ``None``
    without a hint."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()))
    except (TypeError, ValueError, StopIteration):
        return None
    hint = first.annotation
    if hint is first.empty:
        return None
    if isinstance(hint, str):
        try:
            hint = typing.get_type_hints(function).get(first.name, hint)
        except Exception:
            last = hint.partition("[")[0].rpartition(".")
            module = {"pd": "pandas", "pa": "pyarrow", "pl": "polars"}.get(last[0], last[0] or "builtins")
            return ARGUMENTS.get((module, last[2]))
    hint = typing.get_origin(hint) or hint
    module = (getattr(hint, "__module__", "") or "").partition(".")[0]
    return ARGUMENTS.get((module, getattr(hint, "__name__", "")))


def name_of(function: Any) -> str:
    """Returns a name for messages."""
    return getattr(function, "__name__", type(function).__name__)


def job_name(text: str) -> str:
    """Returns a name for jobs: 3 to 32 small letters, digits and dashes."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    name = name.strip("-0123456789")[:32].strip("-")
    return name if len(name) >= 3 else "function"


def pack(function: Callable[..., Any], init: Callable[[], Any] | None, argument: str, root: Path) -> Path:
    """Returns the folder of the function below ``root``.

    Equal functions have one folder, so that a cell that runs again means the same job.
    """
    import cloudpickle

    wanted = {"function": function, "init": init}
    about = {
        "python": list(sys.version_info[:2]),
        "argument": argument,
        "takes": [one.name for one in _positional(function)[1:] if one.name in SPECIAL],
        "sources": _sources(function, init),
        "folders": [path for path in map(os.path.abspath, sys.path) if _is_own_folder(path)],
    }
    settings = json.dumps({key: about[key] for key in ("python", "argument", "takes", "folders")}, sort_keys=True)
    try:
        with _by_value():
            same = _digest(wanted)
    except Exception as error:
        raise TypeError(_cannot_travel(function, init, error)) from None
    digest = hashlib.blake2b(same + settings.encode() + ENTRY.encode(), digest_size=8).hexdigest()
    folder = root / job_name(name_of(function)) / digest
    if in_use(folder):
        return folder
    with _by_value():
        pickled = cloudpickle.dumps(wanted)
    beside = folder.with_name(f".{digest}.{os.getpid()}.{threading.get_ident()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    (beside / "entry.py").write_text(
        ENTRY.format(takes_arrow=argument in TAKES_ARROW, takes_pandas=repr(TAKES_PANDAS.get(argument)))
    )
    (beside / "function.pkl").write_bytes(pickled)
    (beside / "function.json").write_text(json.dumps(about, indent=2))
    # The interpreter of a worker need not have it. Its compiled form saves 10 ms of each start.
    shutil.copytree(Path(cloudpickle.__file__).parent, beside / "cloudpickle")
    try:
        beside.rename(folder)
    except OSError:
        # Another thread was first.
        shutil.rmtree(beside)
    return folder


def unpack(folder: Path) -> tuple[str, Callable[[], Any] | None]:
    """Returns the form of the argument of a packed function, and its ``init``."""
    try:
        about = json.loads((folder / "function.json").read_text())
        pickled = (folder / "function.pkl").read_bytes()
    except OSError as error:
        raise GristmillError(f"the function of the job is no longer on this machine: {error}") from None
    if about["python"] != list(sys.version_info[:2]):
        version = ".".join(map(str, about["python"]))
        raise GristmillError(f"the function of the job was pickled by Python {version}: replay it from that version")
    return about["argument"], pickle.loads(pickled)["init"]


def replacement(job_id: str, folder: str, changed: Any, init: Any, root: Path) -> Path:
    """Returns the folder of a function that runs in place of that of a job.

    :param folder: the source directory of the job.
    :param root: the folder of all functions.
    """
    if not callable(changed):
        raise TypeError(f"function must be a function, not {changed!r}")
    check(changed, init)
    if Path(folder).parent.parent.resolve() != root.resolve():
        raise TypeError(
            f"job {job_id} runs the entry script in {folder}, not a function of this machine: correct the script, and "
            "replay without a function"
        )
    was, its_init = unpack(Path(folder))
    wanted = argument_of(changed)
    takes_tables = was in ("pandas", "frame", "pyarrow", "polars")
    if wanted is not None and (wanted != "list") != takes_tables:
        kinds = "a table" if takes_tables else "a list", "a list" if takes_tables else "a table"
        raise TypeError(f"the function of job {job_id} takes {kinds[0]}, and {name_of(changed)} {kinds[1]}")
    keeps_form = wanted is None or was == "items" or (was, wanted) == ("frame", "pandas")
    argument = was if keeps_form or wanted is None else wanted
    return pack(changed, its_init if init is None else init, argument, root)


_PICKLING = threading.RLock()
"""``cloudpickle`` has one list of modules for all threads."""


@contextmanager
def _by_value() -> Iterator[None]:
    """Pickles the user's own modules with their code, because no worker can import them."""
    import cloudpickle

    with _PICKLING:
        own = [module for module in list(sys.modules.values()) if _is_own(module)]
        registered = []
        for module in own:
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
        try:
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: Any) -> bool:
    if not isinstance(module, types.ModuleType) or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__.partition(".")[0] in TRAVELS_ANYWAY:
        return False
    return _is_own_file(file)


# A notebook has imported thousands of modules, from a few folders, and each call looks at all of them.
@functools.cache
def _is_own_file(file: str) -> bool:
    return file.endswith(".py") and _is_own_folder(os.path.dirname(os.path.abspath(file)))


@functools.cache
def _is_own_folder(path: str) -> bool:
    """Returns whether a folder, an absolute path, is neither Python's own nor one of installed packages."""
    full = os.path.realpath(path)
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = {os.path.realpath(sysconfig.get_path(name)) for name in names} | {os.path.realpath(sys.base_prefix)}
    parts = full.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or not os.path.isdir(full):
        return False
    package = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
    return not any(full == one or full.startswith(one + os.sep) for one in {*installed, package})


def _digest(wanted: Any) -> bytes:
    """Returns bytes that are equal for functions with the same code and values, wherever that code was typed."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                # Not file and lines: a notebook names its cells after the process of its kernel.
                parts = [getattr(obj, f"co_{part}", None) for part in CODE]
                return bytes, (repr(parts).encode(),), {"consts": obj.co_consts}
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(wanted)
    return hashlib.blake2b(file.getvalue()).digest()


def _sources(*functions: Any) -> dict[str, list[str]]:
    """Returns the lines of files that exist only in this process, such as the cells of a notebook, for tracebacks."""
    sources = {}
    for function in functions:
        name = getattr(getattr(inspect.unwrap(function) if function else None, "__code__", None), "co_filename", None)
        if name and ("ipykernel" in name or not os.path.exists(name)) and (lines := linecache.getlines(name)):
            sources[name] = lines
    return sources


def _cannot_travel(function: Any, init: Any, error: Exception) -> str:
    import cloudpickle

    for owner in (function, init):
        closure = inspect.getclosurevars(owner) if inspect.isfunction(owner) else None
        if closure is None:
            continue
        for where, values in (("the variable", closure.nonlocals), ("the global", closure.globals)):
            for name, value in values.items():
                try:
                    cloudpickle.dumps(value)
                except Exception as cause:
                    return (
                        f"{name_of(owner)} cannot travel to a worker process, because of {where} {name} "
                        f"({type(value).__name__}): {cause}. Create it in init, or inside the function"
                    )
    return f"{name_of(function)} cannot travel to a worker process: {error}"
