"""Pickles functions and objects, and returns digests of them that are equal in every process that defines them alike.

A pickle is not: sets have another order in each process, ``cloudpickle`` gives each class a random id, and a notebook
names its cells after the process of its kernel.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from gristmill import caching

CODE = (
    *("name", "code", "exceptiontable", "flags", "argcount", "posonlyargcount", "kwonlyargcount"),
    *("names", "varnames", "freevars", "cellvars"),
)
"""The attributes that decide the behaviour of a code object, besides its constants."""
ATOMS = (str, bytes, int, float, complex, bool, type(None))
DEPTH_MAX = 4
"""Sets inside the elements of sets."""
LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")
"""The functions of ``cloudpickle`` that get the id of a class as their last argument but one."""
NOT_OF_CLASS = ("__doc__", "__slotnames__", "__firstlineno__", "__annotations_cache__", "__static_attributes__")
"""Attributes that a class gets by its place or its use. A dataclass has the text of its sets in ``__doc__``."""
SETS = (set, frozenset)
TEXTS_MAX = 5000
TRAVELS_ANYWAY = ("gristmill", "azureml_user", "cloudpickle")
"""Packages that every worker process has."""


class Digest(NamedTuple):
    """What ``digest`` finds in an object."""

    bytes: bytes
    codes: list[types.CodeType]
    """All code that travels with the object."""
    functions: list[types.FunctionType]
    """The functions with this code, as far as they exist."""
    texts: list[str]
    """Texts and paths among its values and constants, at most ``TEXTS_MAX``."""


def dumps(value: Any) -> bytes:
    """Pickles an object with ``cloudpickle``, and some objects that it refuses: cached functions and properties of own
    code, and locks of own modules, which each process has for itself."""
    return _pickled(value)[0]


def dumps_alike(value: Any) -> tuple[bytes, bytes, bool]:
    """Returns an object as ``dumps`` does, bytes that are equal for equal objects, and whether a class travels with the
    object. Then these bytes are equal only in this process, whose functions know the class by the same id."""
    pickled, pickler = _pickled(value)
    if pickler.has_classes or not pickler.has_sets:
        return pickled, pickled, pickler.has_classes
    return pickled, digest(value).bytes, False


def digest(value: Any, *, with_classes: bool = False, depth: int = 0) -> Digest:
    """Returns the digest of an object.

    :param with_classes: two classes that are defined alike differ, unless they have the same id.
    :param depth: the number of sets that the object is in.
    """
    file = io.BytesIO()
    pickler = _picklers()[1](file, with_classes, depth)
    pickler.dump(value)
    return Digest(hashlib.blake2b(file.getvalue()).digest(), pickler.codes, pickler.functions, list(pickler.texts))


_PICKLING = threading.RLock()
"""``cloudpickle`` has one list of modules for all threads."""


@contextmanager
def by_value() -> Iterator[None]:
    """Pickles the user's own modules with their code, because no worker can import them."""
    import cloudpickle

    with _PICKLING:
        own = [module for module in list(sys.modules.values()) if _is_own_module(module)]
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


def _is_own_module(module: Any) -> bool:
    if not isinstance(module, types.ModuleType) or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__.partition(".")[0] in TRAVELS_ANYWAY:
        return False
    return is_own_file(file)


# A notebook has imported thousands of modules, from a few folders, and each call checks all of them.
@functools.cache
def is_own_file(file: str) -> bool:
    """Returns whether a file is Python code of the user."""
    return file.endswith(".py") and is_own_folder(os.path.dirname(os.path.abspath(file)))


@functools.cache
def is_own_folder(path: str) -> bool:
    """Returns whether a folder, an absolute path, is neither Python's own nor one of installed packages."""
    full = os.path.realpath(path)
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = {os.path.realpath(sysconfig.get_path(name)) for name in names} | {os.path.realpath(sys.base_prefix)}
    parts = full.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts or not os.path.isdir(full):
        return False
    package = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
    return not any(full == one or full.startswith(one + os.sep) for one in {*installed, package})


def _pickled(value: Any) -> tuple[bytes, Any]:
    file = io.BytesIO()
    pickler = _picklers()[0](file)
    pickler.dump(value)
    return file.getvalue(), pickler


@functools.cache
def _picklers() -> tuple[Any, Any]:
    """Returns the class that pickles objects, and the one that pickles them alike in every process."""
    import cloudpickle

    class Travelling(cloudpickle.Pickler):  # type: ignore[misc]
        has_sets = False
        has_classes = False

        def persistent_id(self, obj: Any) -> Any:
            if type(obj) in SETS:
                self.has_sets = True
            return None

        def reducer_override(self, obj: Any) -> Any:
            _identify(obj)
            reduced = cast("Any", _reduced(obj) or super().reducer_override(obj))
            if type(obj) is types.FunctionType and isinstance(reduced, tuple):
                make, arguments, (attributes, slots), *rest = reduced
                slots = {**slots, "_cloudpickle_submodules": _submodules(obj, slots["__globals__"])}
                return make, arguments, (attributes, slots), *rest
            if _makes_a_class(obj, reduced):
                self.has_classes = True
            return reduced

    class Alike(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any, with_classes: bool, depth: int) -> None:
            super().__init__(file)
            self.with_classes = with_classes
            self.depth = depth
            self.codes: list[types.CodeType] = []
            self.functions: list[types.FunctionType] = []
            self.texts: dict[str, None] = {}

        def persistent_id(self, obj: Any) -> Any:
            kind = type(obj)
            if kind in SETS and self.depth < DEPTH_MAX:
                return kind.__name__, sorted(map(self._text_of, obj))
            if (kind is str or issubclass(kind, PurePath)) and len(self.texts) < TEXTS_MAX:
                self.texts[str(obj)] = None
            return None

        def _text_of(self, element: Any) -> str:
            """Returns a text for an element of a set, whose order is another one in each process."""
            if type(element) in ATOMS:
                self.persistent_id(element)
                return repr(element)
            inner = digest(element, with_classes=self.with_classes, depth=self.depth + 1)
            self.codes += inner.codes
            self.functions += inner.functions
            self.texts |= dict.fromkeys(inner.texts)
            return inner.bytes.hex()

        def reducer_override(self, obj: Any) -> Any:
            # Not by `isinstance`, for which an object may pretend to be another one.
            kind = type(obj)
            _identify(obj)
            if kind is types.CodeType:
                self.codes.append(obj)
                # Leaves out file and lines.
                parts = [getattr(obj, f"co_{part}", None) for part in CODE]
                return bytes, (repr(parts).encode(),), {"consts": obj.co_consts}
            reduced = cast("Any", _reduced(obj) or super().reducer_override(obj))
            if kind is types.FunctionType and isinstance(reduced, tuple):
                self.functions.append(obj)
                make, arguments, (attributes, slots), *rest = reduced
                # They depend on what else the process has imported.
                slots = {**slots, "_cloudpickle_submodules": []}
                return make, arguments, (attributes, slots), *rest
            if _makes_a_class(obj, reduced):
                make, arguments, (attributes, slots), *rest = reduced
                attributes = {name: value for name, value in attributes.items() if name not in NOT_OF_CLASS}
                if not attributes.get("__annotations__"):
                    attributes.pop("__annotations__", None)
                if not self.with_classes:
                    arguments = (*arguments[:-2], None, arguments[-1])
                return make, arguments, (attributes, slots), *rest
            return reduced

    return Travelling, Alike


def _submodules(function: types.FunctionType, names: dict[str, Any]) -> list[Any]:
    """Returns the submodules of packages, such as ``PIL.Image``, that a function uses. ``cloudpickle`` does not look
    into inner functions and comprehensions.

    :param names: the globals that the function uses.
    """
    from cloudpickle import cloudpickle

    cells = map(cloudpickle._get_cell_contents, function.__closure__ or ())
    packages = [*names.values(), *cells]
    found: dict[str, Any] = {}
    codes = [function.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        modules = cloudpickle._find_imported_submodules(code, packages)
        found |= {module.__name__: module for module in modules if module is not None}
    return [*found.values()]


def _identify(one: Any) -> None:
    """Gives a class of a file, before it is pickled, an id that it has in every process which runs that file."""
    if not issubclass(type(one), type):
        return
    from cloudpickle import cloudpickle

    module = sys.modules.get(one.__module__)
    file = getattr(module, "__file__", None)
    is_main = one.__module__ == "__main__" and isinstance(file, str) and file.endswith(".py")
    if one in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS or not (is_main or _is_own_module(module)):
        return
    found: Any = module
    for part in one.__qualname__.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    # Another class of that name, such as an earlier one of a module that was loaded again, keeps an id of its own.
    if found is not one:
        return
    try:
        with open(str(file), "rb") as opened:
            content = hashlib.blake2b(opened.read(), digest_size=16).hexdigest()
    except OSError:
        return
    identity = f"gristmill-{one.__module__}.{one.__qualname__}-{content}"
    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[one] = identity
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = one


def _makes_a_class(obj: Any, reduced: Any) -> bool:
    return issubclass(type(obj), type) and isinstance(reduced, tuple) and reduced[0].__name__ in MAKERS


def _reduced(obj: Any) -> tuple[Any, ...] | None:
    """Returns how to make an object again that ``cloudpickle`` refuses, or pickles by its name; ``None``: any other."""
    kind = type(obj)
    if kind is functools._lru_cache_wrapper and _is_own(obj):
        return caching.cached, (obj.__wrapped__, *obj.cache_parameters().values())
    if kind is functools.cached_property:
        return caching.cached_property, (obj.func, obj.attrname)
    if kind in LOCKS and any(obj is one for module in _modules_by_value() for one in vars(module).values()):
        return LOCKS[kind], ()
    return None


def _is_own(function: Any) -> bool:
    """Returns whether a function travels with its code, because no worker can import it."""
    name = function.__module__
    return "<locals>" in function.__qualname__ or name == "__main__" or sys.modules.get(name) in _modules_by_value()


def _modules_by_value() -> list[Any]:
    """Returns the modules that travel with their code now."""
    import cloudpickle

    return [sys.modules[name] for name in cloudpickle.list_registry_pickle_by_value() if name in sys.modules]
