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
import threading
import types
from typing import Any, NamedTuple

CODE = (
    *("name", "code", "exceptiontable", "flags", "argcount", "posonlyargcount", "kwonlyargcount"),
    *("names", "varnames", "freevars", "cellvars"),
)
"""The attributes that decide the behaviour of a code object, besides its constants."""
ATOMS = (str, bytes, int, float, complex, bool, type(None))
LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")
"""The functions of ``cloudpickle`` that get the id of a class as their last argument but one."""
SETS = (set, frozenset)
TEXTS_MAX = 2000


class Digest(NamedTuple):
    """What ``digest`` finds in an object."""

    bytes: bytes
    codes: list[types.CodeType]
    """All code that travels with the object."""
    texts: list[str]
    """Texts and paths among its values and constants, at most ``TEXTS_MAX``."""


def dumps(value: Any) -> bytes:
    """Pickles an object with ``cloudpickle``, and some objects that it refuses: cached functions and properties of own
    code, and locks of own modules, which each process has for itself."""
    return _pickled(value)[0]


def dumps_alike(value: Any) -> tuple[bytes, bytes]:
    """Returns an object as ``dumps`` does, and bytes that are equal for equal objects."""
    pickled, pickler = _pickled(value)
    if not pickler.differs:
        return pickled, pickled
    same = digest(value).bytes
    # With the ids that its classes have now.
    return dumps(value), same


def digest(value: Any) -> Digest:
    """Returns the digest of an object. From now on, ``cloudpickle`` knows the classes in it by ids that are equal in
    every process, so that objects that were pickled at other times have the same class in a worker process."""
    found, classes = _digest(value)
    for one in classes:
        _identify(one, _digest(one)[0].bytes)
    return found


def _pickled(value: Any) -> tuple[bytes, Any]:
    file = io.BytesIO()
    pickler = _picklers()[0](file)
    pickler.dump(value)
    return file.getvalue(), pickler


def _digest(value: Any) -> tuple[Digest, list[type]]:
    file = io.BytesIO()
    pickler = _picklers()[1](file)
    pickler.dump(value)
    texts = [text for text in pickler.texts if isinstance(text, str)]
    return Digest(hashlib.blake2b(file.getvalue()).digest(), pickler.codes, texts), pickler.classes


@functools.cache
def _picklers() -> tuple[Any, Any]:
    """Returns the class that pickles objects, and the one that pickles them alike in every process."""
    import cloudpickle

    class Travelling(cloudpickle.Pickler):  # type: ignore[misc]
        differs = False
        """Whether the pickle may be another one in another process."""

        def persistent_id(self, obj: Any) -> Any:
            if type(obj) in SETS:
                self.differs = True
            return None

        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduced(obj) or super().reducer_override(obj)
            if _makes_a_class(obj, reduced):
                self.differs = True
            return reduced

    class Alike(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self.codes: list[types.CodeType] = []
            self.classes: list[type] = []
            self.texts: dict[Any, None] = {}

        def persistent_id(self, obj: Any) -> Any:
            kind = type(obj)
            if kind in SETS:
                return _in_order(obj)
            if (kind is str or hasattr(kind, "__fspath__")) and len(self.texts) < TEXTS_MAX:
                self.texts[os.fspath(obj)] = None
            return None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                self.codes.append(obj)
                # Leaves out file and lines.
                parts = [getattr(obj, f"co_{part}", None) for part in CODE]
                return bytes, (repr(parts).encode(),), {"consts": obj.co_consts}
            reduced = _reduced(obj) or super().reducer_override(obj)
            if _makes_a_class(obj, reduced):
                self.classes.append(obj)
                make, arguments, *rest = reduced
                return make, (*arguments[:-2], None, arguments[-1]), *rest
            return reduced

    return Travelling, Alike


def _makes_a_class(obj: Any, reduced: Any) -> bool:
    return isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0].__name__ in MAKERS


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


def _in_order(values: Any) -> list[str] | None:
    """Returns the elements of a set as texts in a fixed order; ``None``: it holds other objects."""
    texts = []
    for one in values:
        if type(one) in ATOMS:
            texts.append(repr(one))
            continue
        if type(one) not in (tuple, frozenset) or (inner := _in_order(one)) is None:
            return None
        texts.append(f"{type(one).__name__}{inner}")
    return texts if type(values) is tuple else sorted(texts)


def _identify(one: type, content: bytes) -> None:
    """Gives a class of this process the id that ``cloudpickle`` writes for it, and by which it finds it again."""
    from cloudpickle import cloudpickle

    identity = f"gristmill-{content.hex()[:32]}"
    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[one] = identity
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = one
