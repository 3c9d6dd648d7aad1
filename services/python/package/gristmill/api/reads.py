"""The files and environment variables that a function reads, as far as its code and its values name them.

Another content makes another job, so that a corrected model or table is not answered with an earlier result.
"""

from __future__ import annotations

import contextlib
import dis
import glob
import hashlib
import itertools
import os
import re
import types
from collections.abc import Iterable, Iterator
from pathlib import PurePath
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
"""Modes of ``open``."""
WRITERS = {"write_text", "write_bytes", "to_csv", "to_parquet", "to_json", "to_pickle", "savefig", "savez", "touch"}
"""Methods that write a file."""
ENDS = ("STORE", "POP_TOP", "BEFORE_WITH", "RETURN")
"""Beginnings of the names of instructions that end a statement, or a part of one that matters here."""
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
VARIABLES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST", "LOAD_NAME")
ENVIRONMENT = {"environ", "getenv"}
SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of variables that say who calls, not what."""


def what_is_read(function: Digest, init: Digest, modules: list[Digest]) -> dict[str, str]:
    """Returns the files and variables that a function and its ``init`` name, with their versions.

    :param function: of both.
    :param modules: those that they import when they run.
    """
    codes = [code for one in (function, *modules) for code in one.codes]
    texts = dict.fromkeys(text for one in (init, function, *modules) for text in one.texts)
    # What a function writes does not count: each call would be another one.
    written = _written(function.functions, codes)
    names = [text for text in texts if text not in written and 0 < len(text) <= PATH_MAX and text.isprintable()]
    found = _files_named(names, codes)
    # A model is often a folder, and only `init` loads it; a function may write into the folders that it names.
    of_init = set(init.texts)
    for folder in _folders_named([name for name in names if name in of_init]):
        for path in itertools.islice(_files_below(os.path.normpath(folder)), FILES_MAX):
            found.setdefault(path, _version(path, by_content=False))
    return found | _variables_named(texts, codes)


def _files_named(names: list[str], codes: list[types.CodeType]) -> dict[str, str]:
    """Returns the files of these names with their versions: below the working folder, the folder of the code, or a
    folder that is among the names."""
    # A network may be between here and a folder, so only what looks like a file is looked for.
    files = [name for name in names if "." in name or "/" in name][:NAMES_MAX]
    sources = {os.path.dirname(code.co_filename) for code in codes if os.path.isabs(code.co_filename)}
    found: dict[str, str] = {}
    known: set[str] = set()
    for folder in ["", *sorted(sources)[:FOLDERS_MAX], *_folders_named(names)]:
        for name in files:
            path = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))
            if os.path.abspath(path) in known or path.endswith(CODE):
                continue
            if len(found) < FILES_MAX and os.path.isfile(path):
                known.add(os.path.abspath(path))
                found[path] = _version(path, by_content=True)
            elif glob.has_magic(name):
                matching = itertools.islice(glob.iglob(path, recursive=True), FILES_MAX)
                found |= {each: _version(each, by_content=False) for each in matching}
    return found


def _folders_named(names: list[str]) -> list[str]:
    given = dict.fromkeys(path for name in names[:NAMES_MAX] if os.path.isdir(path := os.path.expanduser(name)))
    return [path for path in given if not _is_around(path)][:FOLDERS_MAX]


def _is_around(folder: str) -> bool:
    """Returns whether a folder is the working folder, or around it: its name is probably not meant as one."""
    here = os.getcwd()
    return os.path.commonpath([here, os.path.abspath(folder)]) == os.path.abspath(folder)


def _variables_named(texts: Iterable[str], codes: Iterable[types.CodeType]) -> dict[str, str]:
    """Returns a digest of each environment variable that texts name, if the code reads any."""
    found = {}
    for name in texts if any(ENVIRONMENT.intersection(code.co_names) for code in codes) else ():
        if name.isidentifier() and not SECRET.search(name) and (value := os.environ.get(name)) is not None:
            found[f"${name}"] = hashlib.blake2b(os.fsencode(value), digest_size=8).hexdigest()
    return found


def _written(functions: Iterable[types.FunctionType], codes: Iterable[types.CodeType]) -> set[str]:
    """Returns the texts in statements that write files, and only there: constants, and values of variables."""
    written: set[str] = set()
    read: set[str] = set()
    for code in codes:
        for writes, texts, _ in _statements(code):
            (written if writes else read).update(texts)
    for function in functions:
        values = {**function.__globals__, **_closure_of(function)}
        for writes, _, names in _statements(function.__code__):
            texts = {str(values[name]) for name in names if isinstance(values.get(name), (str, PurePath))}
            (written if writes else read).update(texts)
    return written - read


def _closure_of(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # It is empty.
            found[name] = cell.cell_contents
    return found


def _statements(code: types.CodeType) -> list[tuple[bool, set[str], set[str]]]:
    """Returns for each statement of code whether it writes a file, its texts, and the names of its variables."""
    found = []
    constants: dict[str, str] = {}
    statement: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        statement.append(one)
        if not one.opname.startswith(ENDS):
            continue
        texts = {str(part.argval) for part in statement if part.opname == "LOAD_CONST" and type(part.argval) is str}
        names = {str(part.argval) for part in statement if part.opname.startswith(VARIABLES)}
        if one.opname == "STORE_FAST" and len(statement) > 1 and statement[-2].opname == "LOAD_CONST" and texts:
            # The statement that uses the variable decides.
            constants[str(one.argval)] = str(statement[-2].argval)
        else:
            found.append((_writes(statement), texts | {constants[name] for name in names if name in constants}, names))
        statement = []
    return found


def _writes(statement: list[dis.Instruction]) -> bool:
    for start, opened in enumerate(statement):
        if opened.opname.startswith(ATTRIBUTES) and opened.argval in WRITERS:
            return True
        if not opened.opname.startswith("LOAD") or opened.argval != "open":
            continue
        depth = 0
        for one, following in itertools.pairwise(statement[start + 1 :]):
            is_mode = one.opname == "LOAD_CONST" and isinstance(one.argval, str) and one.argval in WRITES
            if is_mode and not following.opname.startswith(("BINARY", "COMPARE")):
                return True
            with contextlib.suppress(ValueError):
                depth += dis.stack_effect(one.opcode, one.arg, jump=False)
            if one.opname.startswith("CALL") and depth <= 0:
                break
    return False


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (os.path.join(parent, name) for name in sorted(files) if not name.endswith(CODE))


def _version(path: str, *, by_content: bool) -> str:
    """Returns a digest of the content of a file; its size and time if it is large, or not compared ``by_content``."""
    try:
        found = os.stat(path)
        if not by_content or found.st_size > CONTENT_BYTES_MAX:
            return f"{found.st_size} {found.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=8).hexdigest()
    except OSError as error:
        return str(error.errno)
