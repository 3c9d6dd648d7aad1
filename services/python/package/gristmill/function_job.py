"""The worker's side of a job whose entry script is a pickled function (``api/function.py`` writes it)."""

import json
import linecache
import os
import pickle
import sys


class FunctionJob:
    """A function, its ``init``, and the form of its argument."""

    def __init__(self, folder, about):
        self._about = about
        self._state = None
        self._coroutines = None
        for name, lines in about["sources"].items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        # On the machine that started the job, what a function imports is where it was.
        sys.path.extend(path for path in about["folders"] if os.path.isdir(path) and path not in sys.path)
        with open(os.path.join(folder, "function.pkl"), "rb") as file:
            wanted = pickle.load(file)
        self._function, self._init = wanted["function"], wanted["init"]
        self._argument = _ARGUMENTS[about["argument"]]

    def init(self):
        if self._init is not None:
            self._state = self._awaited(self._init())

    def run(self, mini_batch, context):
        given = {"state": self._state, "context": context}
        named = {name: given[name] for name in self._about["takes"]}
        return _as_result(self._awaited(self._function(self._argument(mini_batch), **named)))

    def shutdown(self):
        if self._coroutines is not None:
            self._coroutines.close()

    def _awaited(self, value):
        if not hasattr(value, "__await__"):
            return value
        if self._coroutines is None:
            from gristmill.coroutines import Coroutines

            self._coroutines = Coroutines()
        return self._coroutines.call(_result_of, value)


async def _result_of(awaitable):
    return await awaitable


def load(entry):
    """Returns the job in the folder of its entry script."""
    folder = os.path.dirname(os.path.abspath(entry))
    with open(os.path.join(folder, "function.json"), encoding="utf-8") as file:
        about = json.load(file)
    if about["python"] != list(sys.version_info[:2]):
        wanted, found = (".".join(map(str, version)) for version in (about["python"], sys.version_info[:2]))
        raise RuntimeError(
            f"the function was pickled by Python {wanted}, and {sys.executable} is {found}: give the job an "
            "environment with the same version"
        )
    return FunctionJob(folder, about)


def _unpickled(table):
    return [pickle.loads(item.as_buffer()) for item in table.column(0)]


def _polars(table):
    import polars

    return polars.from_arrow(table)


_ARGUMENTS = {
    "pandas": lambda frame: frame,
    "frame": lambda frame: frame,
    "pyarrow": lambda table: table,
    "polars": _polars,
    "list": list,
    "items": _unpickled,
}


def _as_result(result):
    """Returns a column as a list, or as a frame if its index names its values, and everything else unchanged."""
    kind = type(result)
    package = kind.__module__.partition(".")[0]
    if (package, kind.__name__) == ("pandas", "Series"):
        from gristmill.rows import says_more_than_positions

        name = "value" if result.name is None else result.name
        return result.to_frame(name) if says_more_than_positions(result.index) else list(result)
    if (package, kind.__name__) == ("numpy", "ndarray") and result.ndim > 0:
        return list(result)
    if kind.__name__ in ("Series", "Array", "ChunkedArray") and package in ("polars", "pyarrow"):
        return result.to_list() if package == "polars" else result.to_pylist()
    return result
