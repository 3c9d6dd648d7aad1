"""Pickles functions and objects, and returns digests of them that are equal in every process that defines them alike.

A pickle is not: sets have another order in each process, ``cloudpickle`` gives each class a random id, and a notebook
names its cells after the process of its kernel.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
import threading
import types
from pathlib import PurePath
from typing import Any, NamedTuple, cast

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


def digest(value: Any, *, with_classes: bool = False) -> Digest:
    """Returns the digest of an object. `with_classes`: it is another one if a class is another one, even if both are
    defined alike; so it is another one in every process."""
    file = io.BytesIO()
    pickler = _picklers()[1](file, with_classes, 0)
    pickler.dump(value)
    return Digest(hashlib.blake2b(file.getvalue()).digest(), pickler.codes, pickler.functions, list(pickler.texts))


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
            reduced = _reduced(obj) or super().reducer_override(obj)
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
            file = io.BytesIO()
            inner = Alike(file, self.with_classes, self.depth + 1)
            inner.dump(element)
            self.codes += inner.codes
            self.functions += inner.functions
            self.texts |= inner.texts
            return hashlib.blake2b(file.getvalue()).hexdigest()

        def reducer_override(self, obj: Any) -> Any:
            # Not by `isinstance`, for which an object may pretend to be another one.
            kind = type(obj)
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


def _makes_a_class(obj: Any, reduced: Any) -> bool:
    return issubclass(type(obj), type) and isinstance(reduced, tuple) and reduced[0].__name__ in MAKERS


def _reduced(obj: Any) -> tuple[Any, ...] | None:
    """Returns how to make an object again that ``cloudpickle`` refuses, or pickles by its name; ``None``: any other."""
    kind = type(obj)
    if kind is functools._lru_cache_wrapper and _is_own(obj):
        from gristmill import function_job

        return function_job.cached, (obj.__wrapped__, *obj.cache_parameters().values())
    if kind is functools.cached_property:
        from gristmill import function_job

        return function_job.cached_property, (obj.func, obj.attrname)
    if kind in LOCKS and any(obj is one for module in _own_modules() for one in vars(module).values()):
        return LOCKS[kind], ()
    return None


def _is_own(function: Any) -> bool:
    """Returns whether a function travels with its code, because no worker can import it."""
    name = function.__module__
    return "<locals>" in function.__qualname__ or name == "__main__" or sys.modules.get(name) in _own_modules()


def _own_modules() -> list[Any]:
    import cloudpickle

    return [sys.modules[name] for name in cloudpickle.list_registry_pickle_by_value() if name in sys.modules]
