"""Turns a function into an entry script in a separate folder, with everything that must travel with it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import inspect
import json
import linecache
import os
import pickle
import shutil
import sys
import textwrap
import threading
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gristmill.api.errors import GristmillError
from gristmill.api.inputs import in_use
from gristmill.api.reads import what_is_read
from gristmill.api.same import by_value, digest, dumps, is_own_file, is_own_folder

ENTRY = '''"""Runs a function that was pickled from Python."""

from gristmill.function_job import load
{library}
job = load(__file__)
init, run, shutdown = job.init, job.run, job.shutdown
__gristmill_arrow__ = {takes_arrow}
__gristmill_pandas__ = {takes_pandas}
__gristmill_items__ = {takes_items}
__gristmill_function__ = job.name
'''
"""``library``: imports the library of its tables, so that the processes of a node share it (``template.py``).
``takes_arrow``: whether ``run`` gets tables as ``pyarrow.Table``, without a copy. A job's check reads it here.
``takes_pandas``: whether it gets Parquet files as pandas reads them (``files``), or a DataFrame that ``run`` has
written (``memory``): only then does the process unpickle the metadata of the file. ``takes_items``: whether it gets
objects, each in a line of JSON, which needs neither pyarrow nor pandas."""
LIBRARY = """
try:
    import {name}
except ImportError:
    pass
"""
TAKES_ARROW = ("pyarrow", "polars", "polars_lazy", "records", "polars_series", "arrow_array", "array")
TAKES_PANDAS = {"pandas": "files", "frame": "memory", "series": "memory", "frame_rows": "memory"}
TAKES_ITEMS = ("items", "lines")
CONTINUED = "continued"
"""Marks a folder whose job has continued after another content of a file: its result is that of no call."""
FORM = (
    *("argument", "each", "concurrency", "is_named", "dtype", "dtypes", "shape", "of_lines", "of_parquet"),
    "working_folder",
)
"""Settings of the form of the argument."""
SPECIAL = ("state", "context")
"""Names of parameters that do not get the mini-batch."""
ARGUMENTS = {
    ("pandas", "DataFrame"): "pandas",
    ("pandas", "Series"): "series",
    ("pyarrow", "Table"): "pyarrow",
    ("polars", "DataFrame"): "polars",
    ("polars", "LazyFrame"): "polars_lazy",
    ("polars", "Series"): "polars_series",
    ("numpy", "ndarray"): "array",
    ("builtins", "list"): "list",
    ("typing", "Sequence"): "list",
    ("collections", "Sequence"): "list",
    **{("builtins", name): "item" for name in ("str", "bytes", "int", "float", "dict")},
    ("pathlib", "Path"): "item",
}
GENERATORS = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
TABLES = ("pandas", "frame", "pyarrow", "polars", "polars_lazy", "series", "polars_series", "arrow_array", "array")
"""Forms of an argument that is a table or a column."""


def check(function: Any, init: Any, each: bool) -> None:
    """Fails unless these are a valid function, of mini-batches or of ``each`` item, and a valid ``init``."""
    first = "item" if each else "mini-batch"
    if not callable(function):
        other = "" if each else ", or the path of an entry script or job file"
        raise TypeError(f"{'map' if each else 'run'} needs a function{other}, not {function!r}")
    given = _positional(function)
    if not given:
        raise TypeError(f"{name_of(function)} takes no argument: its first one is the {first}")
    others = [name for name in _required(given[1:]) if name not in SPECIAL]
    if others:
        raise TypeError(
            f"{name_of(function)} needs {', '.join(others)} too: it gets only the {first}, and parameters with the "
            "names `state` (the result of init) and `context`"
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


def is_async(function: Any) -> bool:
    """Returns whether a call of the function is a coroutine."""
    plain = inspect.unwrap(function)
    called = plain if inspect.isroutine(plain) else getattr(type(plain), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called)


def argument_of(function: Any) -> str | None:
    """Returns the form that the type of the first parameter selects in ``ARGUMENTS``, or ``None`` without a hint."""
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
            short = {"pd": "pandas", "pa": "pyarrow", "pl": "polars", "np": "numpy"}
            module = short.get(last[0], last[0] or "builtins")
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
    return name if len(name) >= 3 else f"function-{name}".strip("-")


def pack(
    function: Callable[..., Any],
    init: Callable[[], Any] | None,
    form: dict[str, Any],
    root: Path,
    *,
    with_classes: bool,
) -> Path:
    """Returns the folder of the function below ``root``.

    Equal functions have one folder, so that a cell that runs again means the same job.

    :param form: the form of its argument: ``argument`` (a form of ``function_job``), ``each`` (a call for each item),
        and further settings of the form.
    :param with_classes: its inputs hold objects of classes that travel with it, so it must know the same ones.
    """
    import cloudpickle

    wanted = {"function": function, "init": init}
    about = {
        **form,
        "name": f"{name_of(function)}()",
        "is_async": is_async(function),
        "yields": any(is_one(inspect.unwrap(function)) for is_one in GENERATORS),
        "python": list(sys.version_info[:2]),
        "takes": [one.name for one in _positional(function)[1:] if one.name in SPECIAL],
        "folders": [*dict.fromkeys(path for path in map(os.path.abspath, sys.path) if is_own_folder(path))],
    }
    settings = json.dumps(about, sort_keys=True)
    try:
        with by_value():
            found = digest(wanted, with_classes=with_classes)
            of_init = digest(init)
    except Exception as error:
        raise TypeError(_cannot_travel(function, init, error)) from None
    modules = _modules_imported_by(found.codes)
    imported = [digest(compile(source, file, "exec")) for file, source in modules.values()]
    same = found.bytes
    for name, (_, source) in sorted(modules.items()):
        same += hashlib.blake2b(f"{name}\n".encode() + source).digest()
    code = hashlib.blake2b(same + settings.encode() + ENTRY.encode(), digest_size=8).hexdigest()
    reads = what_is_read(found, of_init, imported)
    folder = root / job_name(name_of(function)) / (_folder_name(code, reads) if reads else code)
    while (folder / CONTINUED).exists():
        folder = folder.with_name(_folder_name(folder.name, reads))
    if in_use(folder):
        return folder
    with by_value():
        pickled = dumps(wanted)
    about |= {"code": code, "reads": reads, "sources": _sources(found.codes)}
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    library = "pandas" if form["argument"] in TAKES_PANDAS else "pyarrow" if form["argument"] in TAKES_ARROW else None
    (beside / "entry.py").write_text(
        ENTRY.format(
            library=LIBRARY.format(name=library) if library else "",
            takes_arrow=form["argument"] in TAKES_ARROW,
            takes_pandas=repr(TAKES_PANDAS.get(form["argument"])),
            takes_items=form["argument"] in TAKES_ITEMS,
        )
    )
    (beside / "function.pkl").write_bytes(pickled)
    if text := _text(init, function):
        (beside / "function.txt").write_text(text)
    (beside / "function.json").write_text(json.dumps(about, indent=2))
    for name, (_, source) in modules.items():
        path = beside / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    # The interpreter of a worker may lack it. Its compiled form saves 10 ms of each start.
    shutil.copytree(Path(cloudpickle.__file__).parent, beside / "cloudpickle")
    try:
        beside.rename(folder)
    except OSError:
        # Another thread or process has created it.
        shutil.rmtree(beside)
    return folder


def of_same_code(folder: Path) -> list[Path]:
    """Returns the other folders of a packed function: files or variables that it names had another content."""
    code = json.loads((folder / "function.json").read_text())["code"]
    found = []
    for about in folder.parent.glob("*/function.json"):
        with suppress(OSError, ValueError):
            if about.parent != folder and json.loads(about.read_text()).get("code") == code:
                found.append(about.parent)
    return found


def _text(*functions: Callable[..., Any] | None) -> str:
    """Returns the source of these functions, as far as it is known, for people who look at the job later."""
    texts = []
    for function in filter(None, functions):
        with suppress(OSError, TypeError, SyntaxError):
            texts.append(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    return "\n".join(texts)


def unpack(folder: Path) -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """Returns the form of a packed function, as in ``pack``, and its ``init``."""
    try:
        about = json.loads((folder / "function.json").read_text())
        pickled = (folder / "function.pkl").read_bytes()
    except OSError as error:
        raise GristmillError(f"the function of the job is no longer on this machine: {error}") from None
    if about["python"] != list(sys.version_info[:2]):
        version = ".".join(map(str, about["python"]))
        raise GristmillError(
            f"the function of the job was pickled by Python {version}: retry the job from that version"
        )
    form = {name: value for name, value in about.items() if name in FORM}
    return form, pickle.loads(pickled)["init"]


def replacement(job_id: str, folder: str, changed: Any, init: Any, root: Path) -> Path:
    """Returns the folder of a function that runs in place of that of a job.

    :param folder: the source directory of the job.
    :param root: the folder of all functions.
    """
    if not callable(changed):
        raise TypeError(f"function must be a function, not {changed!r}")
    if Path(folder).parent.parent.resolve() != root.resolve():
        raise TypeError(
            f"job {job_id} runs the entry script in {folder}, not a function of this machine: correct the script, and "
            "retry without a function"
        )
    form, its_init = unpack(Path(folder))
    check(changed, init, form["each"])
    was, wanted = form["argument"], argument_of(changed)
    takes_tables = was in TABLES
    if not form["each"] and wanted is not None and (wanted != "list") != takes_tables:
        kinds = "a table" if takes_tables else "a list", "a list" if takes_tables else "a table"
        raise TypeError(f"the function of job {job_id} takes {kinds[0]}, and {name_of(changed)} {kinds[1]}")
    if was in ("pandas", "pyarrow", "polars") and wanted in ("pandas", "pyarrow", "polars") and not form["each"]:
        form["argument"] = wanted
    return pack(changed, its_init if init is None else init, form, root, with_classes=True)


def _folder_name(code: str, reads: dict[str, str]) -> str:
    """Returns the name of the folder of a function with this code that reads these versions of files."""
    content = json.dumps([code, reads], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _modules_imported_by(codes: list[types.CodeType]) -> dict[str, tuple[str, bytes]]:
    """Returns the user's own modules that this code imports when it runs, and those that they import: their paths below
    a folder of modules, with their files and sources. Modules that are globals of a function travel with it anyway."""
    import dis

    names: list[str] = []
    for code in codes:
        if "import_module" in code.co_names:
            names += [one for one in code.co_consts if isinstance(one, str) and one.replace(".", "").isidentifier()]
        module = ""
        for one in dis.get_instructions(code):
            if one.opname == "IMPORT_NAME":
                module = str(one.argval)
                names.append(module)
            elif one.opname == "IMPORT_FROM":
                names.append(f"{module}.{one.argval}")
    found: dict[str, tuple[str, bytes]] = {}
    while names:
        for path, file in _own_files(names.pop()):
            if path not in found:
                with open(file, "rb") as opened:
                    found[path] = file, opened.read()
                names += _names_imported_by(path, found[path][1])
    return found


def _names_imported_by(path: str, source: bytes) -> list[str]:
    """Returns the names of the modules that the source of a module imports, and of the objects imported from them."""
    import ast

    package = path.removesuffix(".py").removesuffix("/__init__").split(os.sep)
    if not path.endswith("__init__.py"):
        package.pop()
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parts, *filter(None, [node.module])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def _own_files(name: str) -> list[tuple[str, str]]:
    """Returns the files of a module and of the packages around it, if they are the user's own: the path of each below
    the folder in which the import finds it, and its file."""
    files: list[tuple[str, str]] = []
    folders: list[str] | None = None
    path = ""
    for part in filter(None, name.split(".")):
        spec = importlib.machinery.PathFinder.find_spec(part, folders)
        if spec is None:
            break
        path = os.path.join(path, part)
        if spec.origin is not None and not is_own_file(spec.origin):
            break
        if spec.origin is not None:
            in_folder = os.path.join(path, "__init__.py") if spec.submodule_search_locations else f"{path}.py"
            files.append((in_folder, spec.origin))
        if not spec.submodule_search_locations:
            break
        folders = list(spec.submodule_search_locations)
    return files


def _sources(codes: list[types.CodeType]) -> dict[str, list[str]]:
    """Returns the lines of the user's own code, for tracebacks: a cell of a notebook exists only in this process, and a
    file perhaps only on this machine."""
    names = {code.co_filename for code in codes}
    own = [name for name in sorted(names) if "ipykernel" in name or not os.path.exists(name) or is_own_file(name)]
    return {name: lines for name in own if (lines := linecache.getlines(name))}


def _cannot_travel(function: Any, init: Any, error: Exception) -> str:
    for owner in filter(None, (function, init)):
        with by_value():
            found = _untransportable(name_of(owner), owner, 3)
        if found is not None and found[0] != name_of(owner):
            name, value, cause = found
            return (
                f"{name_of(owner)} cannot travel to a worker process, because of {name} ({type(value).__name__}): "
                f"{cause}. Create it in init, or inside the function"
            )
    return f"{name_of(function)} cannot travel to a worker process: {error}"


def _untransportable(name: str, value: Any, depth: int) -> tuple[str, Any, Exception] | None:
    """Returns the innermost object that cannot be pickled, by its name in the code, and why; ``None``: all can."""
    try:
        dumps(value)
    except Exception as error:
        parts: dict[str, Any] = {}
        if inspect.isfunction(value):
            closure = inspect.getclosurevars(value)
            parts = {**closure.nonlocals, **closure.globals}
        elif inspect.ismethod(value):
            parts = {"self": value.__self__}
        elif hasattr(value, "__dict__"):
            parts = {f"{name}.{part}": inner for part, inner in vars(value).items()}
        for part, inner in parts.items() if depth else ():
            if found := _untransportable(part, inner, depth - 1):
                return found
        return name, value, error
    return None
