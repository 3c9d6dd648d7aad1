"""The files and environment variables that a function reads, as far as its code and its values name them.

Another content makes another job, so that a corrected model or table is not answered with an earlier result.
"""

from __future__ import annotations

import dis
import hashlib
import itertools
import os
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from gristmill.api.same import Digest

CONTENT_BYTES_MAX = 64 << 20
"""Larger files are compared by size and time."""
FILES_MAX = 1000
FOLDERS_MAX = 20
NAMES_MAX = 200
PATH_MAX = 1024
CODE = (".py", ".pyc", ".ipynb")
"""Ends of names of files whose content travels, or does not matter."""
WRITES = {"a", "w", "x", "ab", "wb", "xb", "at", "wt", "xt", "a+", "w+", "x+", "ab+", "wb+"}
"""Modes of ``open``. A function would continue after each of its own writes as another job."""
WRITERS = {"write_text", "write_bytes", "to_csv", "to_parquet", "to_json", "to_pickle", "savefig", "savez", "touch"}
ENVIRONMENT = {"environ", "getenv"}
SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of variables that say who calls, not what."""


def what_is_read(function: Digest, init: Digest, codes: list[types.CodeType]) -> dict[str, str]:
    """Returns the files and variables that a function and its ``init`` name, with their versions.

    :param function: of both.
    :param codes: the code of both, and of the modules that they import when they run.
    """
    texts = [*function.texts, *(text for code in codes[len(function.codes) :] for text in _texts_of(code))]
    found = _files_named(texts, codes, has_folders=False)
    # A model is often a folder, and only `init` loads it; a function may write into the folders that it names.
    return found | _files_named(init.texts, init.codes, has_folders=True) | _variables_named(codes)


def _files_named(texts: Iterable[str], codes: Iterable[types.CodeType], *, has_folders: bool) -> dict[str, str]:
    """Returns the files that texts name, relative to the working folder or that of the code, with their versions.

    :param codes: texts of code that writes files do not count.
    :param has_folders: whether the files below a folder count, too.
    """
    codes = list(codes)
    written = {text for code in codes if _writes(code) for text in _texts_of(code)}
    written -= {text for code in codes if not _writes(code) for text in _texts_of(code)}
    names = [text for text in texts if text not in written and 0 < len(text) <= PATH_MAX and text.isprintable()]
    names = names[:NAMES_MAX]
    sources = {os.path.dirname(code.co_filename) for code in codes if os.path.isabs(code.co_filename)}
    folders = dict.fromkeys(["", *sorted(sources)])
    for name in names:
        if len(folders) < FOLDERS_MAX and os.path.isdir(path := os.path.expanduser(name)):
            folders[path] = None
    found: dict[str, str] = {}
    for folder in folders:
        # A network may be between here and a folder, so only what looks like a file is looked for.
        for name in (name for name in names if "." in name or "/" in name):
            path = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))
            if len(found) < FILES_MAX and path not in found and not path.endswith(CODE) and os.path.isfile(path):
                found[path] = _version(path)
    if has_folders:
        for folder in list(folders)[1 + len(sources) :]:
            for path in itertools.islice(_files_below(os.path.normpath(folder)), FILES_MAX):
                found.setdefault(path, _stamp(path))
    return found


def _variables_named(codes: Iterable[types.CodeType]) -> dict[str, str]:
    """Returns a digest of each environment variable that the code names."""
    found = {}
    for code in codes:
        if ENVIRONMENT.intersection(code.co_names):
            for name in _texts_of(code):
                if (value := os.environ.get(name)) is not None and not SECRET.search(name):
                    found[f"${name}"] = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
    return found


def _writes(code: types.CodeType) -> bool:
    """Returns whether code writes files, as far as the calls in it show that."""
    if not WRITERS.isdisjoint(code.co_names):
        return True
    is_open = has_called = False
    for one in dis.get_instructions(code) if "open" in code.co_names else ():
        if one.argval == "open" and one.opname.startswith("LOAD"):
            is_open, has_called = True, False
        elif is_open and one.opname == "LOAD_CONST" and one.argval in WRITES:
            return True
        elif one.opname.startswith("CALL"):
            has_called = True
        elif one.opname.startswith(("STORE", "POP_TOP", "BEFORE_WITH", "RETURN")):
            is_open = False
        elif has_called and one.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            # What follows is about the open file.
            is_open = False
    return False


def _texts_of(code: types.CodeType) -> Iterator[str]:
    values: list[Any] = list(code.co_consts)
    while values:
        value = values.pop()
        if isinstance(value, (tuple, frozenset)):
            values += value
        elif isinstance(value, str):
            yield value


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (os.path.join(parent, name) for name in sorted(files) if not name.endswith(CODE))


def _version(path: str) -> str:
    try:
        if os.path.getsize(path) > CONTENT_BYTES_MAX:
            return _stamp(path)
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=8).hexdigest()
    except OSError as error:
        return str(error.errno)


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.errno)
    return f"{found.st_size} {found.st_mtime_ns}"
