"""The files of the ``paths`` of a table, in a fixed order."""

import glob
import os
import tempfile
import urllib.request

from gristmill.azureml_core import names

KINDS = ("file", "folder", "pattern")
DEFINITION = "MLTable"


class NoFiles(FileNotFoundError):
    """A path of the table matches no file."""


def files_of(paths, base):
    """Returns ``(address, local path)`` of every file. ``base`` is the folder of relative paths."""
    found = []
    for entry in paths:
        ((kind, address),) = entry.items()
        found.extend(_files_of(kind, str(address), base))
    return found


def absolute(address, base):
    """Returns the path or URL of an address."""
    address = names.located(address)
    if address.startswith("file://"):
        return urllib.request.url2pathname(address.removeprefix("file://"))
    return address if "://" in address else os.path.normpath(os.path.join(base, address))


def _files_of(kind, address, base):
    place = absolute(address, base)
    if "://" in place:
        return [(place, _download(kind, place))]
    if kind == "file":
        if not os.path.isfile(place):
            raise NoFiles(f"file {place} of the table does not exist")
        return [(place, place)]
    if kind == "folder":
        if not os.path.isdir(place):
            raise NoFiles(f"folder {place} of the table does not exist")
        local = list(_below(place))
    else:
        local = sorted(path for path in glob.glob(place, recursive=True) if os.path.isfile(path))
    local = [path for path in local if os.path.basename(path) != DEFINITION]
    if not local:
        raise NoFiles(f"{kind} {place} of the table has no file")
    return [(path, path) for path in local]


def _below(folder):
    for root, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(files):
            if not name.startswith((".", "_")):
                yield os.path.join(root, name)


def _download(kind, url):
    if not url.startswith(("http://", "https://")) or kind != "file":
        raise NoFiles(
            f"{kind} {url} of the table cannot be read from a script: make it an input of the job, whose local path "
            "the script gets"
        )
    folder = tempfile.mkdtemp(prefix="mltable-")
    path = os.path.join(folder, os.path.basename(url.partition("?")[0]) or "file")
    urllib.request.urlretrieve(url, path)
    return path
