"""Finds and imports the entry script, and inspects the signatures of its functions."""

import functools
import importlib
import importlib.util
import inspect
import os
import sys

from gristmill import _offer_stand_ins, flags
from gristmill.azureml_core import FallbackFinder
from gristmill.contract import CONCURRENCY
from gristmill.enqueued import FUNCTIONS as ENQUEUED
from gristmill.enqueued import Enqueued

ARROW = "__gristmill_arrow__"
"""A module with this name set to ``True`` gets tables as ``pyarrow.Table``. Only for functions."""
PANDAS = "__gristmill_pandas__"
"""A module with this name set to ``files`` gets tables of Parquet files as ``pandas.read_parquet`` reads them, and with
``memory`` the DataFrame that ``gristmill.run`` has written. Only for functions."""
ITEMS = "__gristmill_items__"
"""A module with this name set to ``True`` gets the rows of a table as dictionaries. Only for functions."""
FUNCTION = "__gristmill_function__"
"""The name that messages use for the function of a module that ``gristmill.run`` has written. The function may return
any number of rows."""
ACTIVITY = "__gristmill_activity__"
"""The name that the error file uses for a run of a module of this package, in place of ``run()`` of a mini-batch."""


class MissingRun(Exception):
    """The script lacks a required function."""


class AsyncFunction(Exception):
    """A function that the engine calls is, or is not, a coroutine function."""


def extend_search_path(snapshot, script):
    """Sets ``sys.path``: the snapshot root first, then the script's own folder. The stand-in for ``azureml.core`` comes
    last, so that an installed one takes precedence."""
    put_on_search_path(snapshot, script)
    add_stand_ins()
    importlib.invalidate_caches()


def put_on_search_path(snapshot, script):
    """Makes the modules of the script importable."""
    folder = os.path.dirname(script)
    # The modules of this package are not modules of the script.
    own = os.path.dirname(os.path.abspath(__file__))
    for entry in (snapshot,) if os.path.abspath(folder) == own else (folder, snapshot):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)


def add_stand_ins():
    """Makes the stand-ins for ``azureml`` and ``mltable`` importable, after everything else."""
    sys.meta_path.insert(0, FallbackFinder())
    _offer_stand_ins()


def import_script(module_name, script):
    """Imports the script under its own name if that name finds it, else from its file.

    A name does not find its script if it is not an identifier (``digit-identification.py``) or belongs to another
    module (``code/score.py``, since ``code`` is a module of Python itself).
    """
    if all(part.isidentifier() for part in module_name.split(".")) and _leads_to(module_name, script):
        return importlib.import_module(module_name)
    if module_name in sys.modules:
        module_name = f"entry_script_{module_name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _leads_to(module_name, script):
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, AttributeError, ValueError):
        return False
    if spec is None or not spec.has_location:
        return False
    try:
        return os.path.samefile(spec.origin, script)
    except OSError:
        return False


def _uses(code, name):
    """Returns whether a function, or one within it, uses a name of its module."""
    return name in code.co_names or any(_uses(one, name) for one in code.co_consts if hasattr(one, "co_names"))


class EntryFunctions:
    """``init``, ``run`` and ``shutdown`` of an imported script as plain functions; the first and last may be ``None``.

    ``coroutines`` is the event loop of those that are ``async``; ``None`` if none is. ``notes`` are warnings about the
    script for the user.
    """

    def __init__(self, module, script, arguments=(), tabular=False, concurrency=None, limit=None):
        self.coroutines = None
        self.notes = []
        # Whether the rows of a table are dictionaries.
        self.wants_items = tabular and flags.asks_for_dictionaries(arguments)
        self._limit = limit
        self._script = script
        self.init = self._plain("init", _callable(module, "init"))
        if flags.is_on(arguments, flags.ASYNC_MODE):
            called = {name: self._required(module, name, f" with {flags.ASYNC_MODE}") for name in ENQUEUED}
            for name, function in called.items():
                if inspect.iscoroutinefunction(function):
                    raise AsyncFunction(
                        f"{self._named(name)} is async, and {flags.ASYNC_MODE} asks for plain functions"
                    )
            self.run = Enqueued(called, wants_context(called["enqueue"])).run
            self.wants_context = True
        elif _callable(module, "run") is None and (run_item := _callable(module, "run_item")) is not None:
            self.run = self._of_items(run_item, concurrency or CONCURRENCY)
            self.wants_items = tabular
            self.wants_context = True
            concurrency = None
        else:
            run = self._required(module, "run", "")
            self._note_unused(module)
            self.wants_context = wants_context(run)
            self.run = self._plain("run", run)
        if concurrency is not None:
            self.notes.append(
                f"concurrency has no effect: {os.path.basename(self._script)} has no `async def run_item(item)` in "
                "place of run()"
            )
        self.run = flags.adapt(self.run, arguments)
        self.wants_items = self.wants_items or getattr(module, ITEMS, False) is True
        self.wants_arrow = getattr(module, ARROW, False) is True
        self.wants_pandas = getattr(module, PANDAS, None)
        self.function = getattr(module, FUNCTION, None)
        self.activity = getattr(module, ACTIVITY, None)
        shutdown = _callable(module, "shutdown")
        self.shutdown = self._plain("shutdown", shutdown)
        if self.coroutines is not None:
            self.shutdown = self._closing(self.shutdown)

    def _plain(self, name, function):
        """Returns a plain function that waits for a coroutine function, and other functions unchanged."""
        if inspect.isasyncgenfunction(function):
            raise AsyncFunction(f"{self._named(name)} is an async generator: return a list")
        if not inspect.iscoroutinefunction(function):
            return function
        coroutines = self._loop()
        call = coroutines.run if name == "run" else coroutines.call
        return functools.partial(call, function)

    def _note_unused(self, module):
        """Notes that Gristmill calls only ``run``. A helper of ``run`` may have any name, so not every function
        ``run_item`` is meant for Gristmill."""
        codes = (getattr(one, "__code__", None) for one in vars(module).values())
        is_used = any(_uses(code, "run_item") for code in codes if code is not None)
        if inspect.iscoroutinefunction(_callable(module, "run_item")) and not is_used:
            self.notes.append(f"{self._named('run')} is called, but run_item() is not: remove one of them")

    def _of_items(self, run_item, concurrency):
        if inspect.isasyncgenfunction(run_item):
            raise AsyncFunction(f"{self._named('run_item')} is an async generator: return the row of the item")
        if not inspect.iscoroutinefunction(run_item):
            raise AsyncFunction(
                f"{self._named('run_item')} is a plain function: write `async def run_item(item)`, or "
                "`def run(mini_batch)` for a script without coroutines"
            )
        from gristmill.coroutines import ItemFunction

        function = run_item if self._limit is None else self._limit.of_calls(run_item)
        return ItemFunction(self._loop(), function, concurrency, wants_context(run_item)).run

    def _loop(self):
        if self.coroutines is None:
            # Only a few scripts need this module.
            from gristmill.coroutines import Coroutines

            self.coroutines = Coroutines()
        return self.coroutines

    def _closing(self, shutdown):
        def close():
            try:
                if shutdown is not None:
                    shutdown()
            finally:
                self.coroutines.close()

        return close

    def _named(self, name):
        return f"{name}() of {os.path.basename(self._script)}"

    def _required(self, module, name, occasion):
        function = _callable(module, name)
        if function is None:
            signature = f"{name}(mini_batch)" if name in ("run", "enqueue") else f"{name}()"
            raise MissingRun(
                f"{os.path.basename(self._script)} has no function {signature}: the entry script must define one"
                f"{occasion}"
            )
        return function


def _callable(module, name):
    function = getattr(module, name, None)
    return function if callable(function) else None


def wants_context(run):
    """Returns whether ``run`` takes the context as its second positional argument.

    A second parameter with a default other than ``None`` is a setting of the script's own (``threshold=0.5``) and keeps
    its default, unless its name contains ``context``.
    """
    try:
        parameters = list(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):
        return False
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(named) >= 2:
        second = named[1]
        return second.default is second.empty or second.default is None or "context" in second.name.lower()
    if not any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters):
        return False
    wrapped = _hidden_by_decorator(run)
    return wants_context(wrapped) if wrapped is not None else True


def _hidden_by_decorator(run):
    """Returns the function called ``run`` in the closure of ``def wrapper(*args, **kwargs)``, if it is unique."""
    functions = []
    for cell in getattr(run, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if inspect.isfunction(content) and content.__name__ == "run":
            functions.append(content)
    return functions[0] if len(functions) == 1 else None
