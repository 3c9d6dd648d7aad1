"""The worker's side of a job whose entry script is a pickled function (``api/function.py`` writes it)."""

import base64
import json
import linecache
import os
import pickle
import sys
import time
import traceback

from gristmill.contract import KEEP_SECONDS
from gristmill.errors import add_note
from gristmill.missing import NULLABLE
from gristmill.results import ROWS_OF, IllegalResult, RowsOfItems, kind_of
from gristmill.tables import LoadError


class FunctionJob:
    """A function, its ``init``, and the form of its argument. ``name`` is the name of the function in messages."""

    def __init__(self, folder, about):
        self._about = about
        self._state = None
        self._coroutines = None
        self.name = about["name"]
        for name, lines in about["sources"].items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        # On the machine that started the job, a function finds its modules and files where they were.
        modules = os.path.join(folder, "modules")
        sys.path.extend(path for path in (*about["folders"], modules) if os.path.isdir(path) and path not in sys.path)
        if about["working_folder"] is not None and os.path.isdir(about["working_folder"]):
            os.chdir(about["working_folder"])
        with open(os.path.join(folder, "function.pkl"), "rb") as file:
            wanted = pickle.load(file)
        self._function, self._init = wanted["function"], wanted["init"]
        self._argument = _ARGUMENTS[about["argument"]]
        self._run = self._of_each if about["each"] else self._of_all

    def init(self):
        if self._init is not None:
            self._state = self._awaited(self._init())

    def run(self, mini_batch, context):
        given = {"state": self._state, "context": context}
        named = {name: given[name] for name in self._about["takes"]}
        return self._run(self._argument(mini_batch, self._about), named, context)

    def shutdown(self):
        if self._coroutines is not None:
            self._coroutines.close()

    def _of_all(self, argument, named, _context):
        return as_result(self._awaited(self._function(argument, **named)), self.name)

    def _of_each(self, items, named, context):
        """Returns one row for each item, and none where the function returns ``None``."""
        if self._about["is_async"]:
            from gristmill.coroutines import ItemFunction

            async def run_item(item):
                return await self._function(item, **named)

            return ItemFunction(self._loop(), run_item, self._about["concurrency"], False).run(items, context)
        result = RowsOfItems(len(items))
        result.positions = []
        kept, keep_at = 0, time.monotonic() + KEEP_SECONDS
        for position, item in enumerate(items):
            try:
                row = self._awaited(self._function(item, **named))
            except Exception as error:
                add_note(error, f"in item {position} of the mini-batch: {item!r:.200}")
                # The report needs only the lines, and the variables may be large.
                traceback.clear_frames(error.__traceback__)
                result.failures.append((position, error))
                continue
            rows = row if self._about["yields"] else () if row is None else (row,)
            table = next((one for one in rows if hasattr(one, "columns")), None)
            if table is not None:
                message = (
                    f"{self.name} returned a {type(table).__name__} for one item: return a dict, or call gristmill.run"
                )
                result.failures.append((position, TypeError(message)))
                continue
            result.positions += [position] * len(rows)
            result.extend(rows)
            if not self._about["yields"] and time.monotonic() >= keep_at:
                for index in range(kept, len(result)):
                    context.done(result.positions[index], result[index])
                kept, keep_at = len(result), time.monotonic() + KEEP_SECONDS
        if result.positions == list(range(len(items))):
            result.positions = None
        return result

    def _awaited(self, value):
        """Returns the result of a coroutine, the elements of a generator, and everything else unchanged."""
        if hasattr(value, "__anext__"):
            return self._loop().call(_elements_of, value)
        if hasattr(value, "__await__"):
            return self._loop().call(_result_of, value)
        return list(value) if hasattr(value, "__next__") else value

    def _loop(self):
        if self._coroutines is None:
            from gristmill.coroutines import Coroutines

            self._coroutines = Coroutines()
        return self._coroutines


async def _result_of(awaitable):
    return await awaitable


async def _elements_of(generator):
    return [element async for element in generator]


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


# ---- arguments of the function ---------------------------------------------------------------------------------------


def _polars(table, about):
    import polars

    from gristmill.stored_tables import with_plain_scales

    frame = polars.from_arrow(with_plain_scales(_parsed(table, about)))
    # `from_arrow` gives a column without a name another one.
    frame.columns = table.column_names
    return frame


def _parsed(table, about):
    """Returns a table of lines of JSON with nested values instead of their texts, where these have a type of Arrow."""
    if not about.get("of_lines"):
        return table
    import pyarrow

    for position, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", None) == "arrow.json":
            texts = table.column(position).to_pylist()
            values = [text if text is None else json.loads(text) for text in texts]
            try:
                parsed = pyarrow.array(values)
            except pyarrow.ArrowException:
                continue  # They have several types.
            except OverflowError:
                raise LoadError(
                    f"column '{field.name}' has a whole number that does not fit int64, and pyarrow converts no other: "
                    "take a pandas.DataFrame, or call gristmill.map, whose function gets it as a number of Python"
                ) from None
            table = table.set_column(position, field.name, parsed)
    return table


def _pandas(frame, about):
    """Returns a DataFrame with the types of pandas that its author asked for."""
    if not about.get("of_parquet"):
        # As pandas reads text: labels have its type, and without a row, no value decides the type of a column.
        frame.columns = list(frame.columns)
        if not len(frame):
            texts = {name: object for name, dtype in frame.dtypes.items() if str(dtype) in ("str", "string")}
            frame = frame.astype(texts)
    dtypes = {name: dtype for name, dtype in about.get("dtypes", {}).items() if name in frame.columns}
    for name, dtype in dtypes.items():
        if dtype in NULLABLE and frame[name].isna().any():
            advice = f'set dtype={{"{name}": "{NULLABLE[dtype]}"}}'
            raise LoadError(f'column "{name}" has missing values, and {dtype} has none: {advice}')
    return frame.astype(dtypes) if dtypes else frame


def _series(frame, about):
    series = frame.iloc[:, 0]
    if not about["is_named"]:
        series.name = None
    return series


def _dtype(described):
    """Restores the result of ``numpy.lib.format.dtype_to_descr`` from JSON."""
    if isinstance(described, str):
        return described
    return [(name, _dtype(kind), *map(tuple, shape)) for name, kind, *shape in described]


def _array(table, about):
    import numpy

    column = table.column(0).combine_chunks()
    dtype, width = numpy.dtype(_dtype(about["dtype"])), column.type.byte_width
    count = len(column) * width // dtype.itemsize
    values = numpy.frombuffer(column.buffers()[1], dtype, count, column.offset * width)
    # A copy, which the function may change.
    return values.reshape(-1, *about["shape"]).copy()


_ARGUMENTS = {
    "pandas": _pandas,
    "frame": lambda frame, _: frame,
    "pyarrow": _parsed,
    "polars": _polars,
    "list": lambda paths, _: list(paths),
    "items": lambda rows, _: [pickle.loads(base64.b64decode(row["item"])) for row in rows],
    "records": lambda table, _: table.to_pylist(),
    "lines": lambda rows, _: list(rows),
    "frame_rows": lambda frame, _: frame.to_dict("records"),
    "polars_lazy": lambda table, about: _polars(table, about).lazy(),
    "series": _series,
    "polars_series": lambda table, about: _polars(table, about).to_series(),
    "arrow_array": lambda table, _: table.column(0),
    "array": _array,
}


# ---- results of the function -----------------------------------------------------------------------------------------


def as_result(result, name):
    """Returns a column as a table, which keeps its type and name, tables of a list as one table, and everything else
    unchanged.

    :param name: the name of the function in messages.
    """
    kind = type(result)
    package = kind.__module__.partition(".")[0]
    if (package, kind.__name__) == ("pandas", "Series"):
        return result.to_frame("value" if result.name is None else result.name)
    if (package, kind.__name__) == ("polars", "Series"):
        return result.to_frame(result.name or "value")
    if (package, kind.__name__) == ("numpy", "ndarray") and result.ndim > 0:
        return _of_array(result)
    if package == "pyarrow" and hasattr(result, "to_pylist") and not hasattr(result, "columns"):
        import pyarrow

        return pyarrow.table({"value": result})
    if kind in (list, tuple):
        kinds = {*map(type, result)}
        libraries = {*map(_library_of, kinds)} - {None}
        if libraries:
            # Among rows, None is a row of missing values; among tables, a piece without rows.
            if len(libraries) > 1 or not all(one is type(None) or _library_of(one) for one in kinds):
                raise _mixed(result, name)
            return _together([table for table in result if table is not None], libraries.pop())
    return result


def _library_of(kind):
    """Returns the library of a class of tables, or ``None`` for any other class."""
    if not hasattr(kind, "columns"):
        return None
    packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((package for package in packages if package in ("pandas", "polars", "pyarrow")), None)


def _mixed(result, name):
    """Returns the failure for a list of tables and other values, in which a table would be written as mere text."""
    libraries = [_library_of(type(one)) for one in result]
    table = next(position for position, library in enumerate(libraries) if library is not None)
    other = next(
        position
        for position, library in enumerate(libraries)
        if library != libraries[table] and result[position] is not None
    )
    first, second = kind_of(result[table]), kind_of(result[other])
    return IllegalResult(
        f"element {table} of the {type(result).__name__} that {name} returned is a {first}, and element {other} is a "
        f"{second}: return tables of one library alone, or rows alone, such as those of {ROWS_OF[libraries[table]]}"
    )


def _of_array(array):
    """Returns an array as a table of one column, which keeps its type, or else as a list of its elements. The fields of
    a structured array are columns."""
    if array.dtype.names is not None and array.ndim == 1:
        return [dict(zip(array.dtype.names, row, strict=True)) for row in array.tolist()]
    pyarrow = sys.modules.get("pyarrow")
    if array.ndim == 1 and array.dtype.kind in "biufM" and pyarrow is not None:
        try:
            return pyarrow.table({"value": pyarrow.array(array)})
        except pyarrow.ArrowException:
            pass
    return list(array)


def _together(tables, library):
    """Returns the rows of several tables of one library, such as those that a generator yields, as one table."""
    if library == "pandas":
        import pandas

        return pandas.concat(tables)
    if library == "polars":
        import polars

        # Lazy frames have another class.
        return polars.concat([table.lazy().collect() for table in tables], how="diagonal")
    import pyarrow

    whole = [table if isinstance(table, pyarrow.Table) else pyarrow.Table.from_batches([table]) for table in tables]
    return pyarrow.concat_tables(whole, promote_options="default")
