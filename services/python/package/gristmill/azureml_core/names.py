"""Names of the workspace that jobs have come from: the tables ``[azureml.datastores]``, ``[azureml.data]`` and
``[azureml.models]`` of ``gristmill.toml``, or the same as JSON in a variable, for machines without that file."""

import functools
import json
import os
import re

from gristmill import contract
from gristmill.azureml_core import assets
from gristmill.azureml_core.exceptions import UserErrorException

VARIABLE = "GRISTMILL_AZUREML_NAMES"
"""``{"datastores": {NAME: PATH}, "data": {"NAME:VERSION": PATH}, "models": …}``; a path is absolute, or a URL."""

FILE = "gristmill.toml"

_DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/paths/(.*)", re.IGNORECASE | re.DOTALL)
_DATA = re.compile(r"azureml://(?:.*/)?data/([^/]+)/(?:versions|labels)/([^/]+)/?", re.IGNORECASE)
_SHORT = re.compile(r"azureml:([^:/@]+)(?::([^:/@]+)|@([^:/@]+))?")


class UnknownName(UserErrorException, LookupError):
    """The tables have no such name. Drivers catch the SDK's exception, and create the missing asset."""


def datastore(name):
    """Returns the path or URL of a datastore."""
    found = table("datastores").get(name)
    if found is None:
        raise UnknownName(_missing("datastore", "datastores", name, name))
    return found


def data(name, version=None):
    """Returns the path or URL of a data asset: of the version if it has a line, else of every version."""
    found = _place("data", name, version)
    if found is None and (registered := assets.find(name, version)) is not None:
        found = registered[1]["path"]
    if found is None and version is not None and (known := versions_of(name)):
        raise UnknownName(
            f"data {name} has no version {version} (versions: {', '.join(known)}): ask for one of these, or add the "
            f'line `"{name}:{version}" = "PATH OR URL"` below [azureml.data] in gristmill.toml'
        )
    if found is None:
        raise UnknownName(_missing("data", "data", name, name if version is None else f"{name}:{version}"))
    return found


def model(name, version=None):
    """Returns the path or URL of a model, like that of a data asset; ``None`` if no table can be read or has it."""
    return _optional("models", name, version)


def environment(name, version=None):
    """Returns the interpreter or file of an environment, in the same way as ``model``."""
    return _optional("environments", name, version)


def _optional(kind, name, version):
    try:
        return _place(kind, name, version)
    except UnknownName:
        return None


def _place(kind, name, version):
    found = table(kind)
    if version is not None and f"{name}:{version}" in found:
        return found[f"{name}:{version}"]
    if name in found:
        return found[name]
    if version is None and (versions := _versions_of(name, found)):
        return found[f"{name}:{versions[-1]}"]
    return None


def versions_of(name):
    """Returns the versions of a data asset, of the table and of the register, oldest first."""
    return sorted({*_versions_of(name, table("data")), *assets.versions(name)}, key=assets.order)


def version_of(name):
    """Returns the newest version of a data asset that has a line of its own, or ``None``."""
    versions = _versions_of(name, table("data")) or assets.versions(name)
    return versions[-1] if versions else None


def located(address):
    """Returns the path or URL of an address: ``azureml:…`` by the tables, any other address unchanged."""
    if not address.startswith("azureml:"):
        return address
    if match := _DATASTORE.fullmatch(address):
        return join(datastore(match[1]), match[2])
    if match := _DATA.fullmatch(address):
        return data(match[1], None if match[2] == "latest" else match[2])
    if match := _SHORT.fullmatch(address):
        return data(match[1], match[2])
    raise UnknownName(
        f"{address} is not an address of a datastore (azureml://datastores/NAME/paths/PATH) or of data "
        "(azureml:NAME:VERSION)"
    )


def join(root, path):
    """Returns a path below another path or a URL."""
    return f"{root.rstrip('/')}/{path.lstrip('/')}" if path else root


def table(kind: str) -> dict[str, str]:
    """Returns one of the tables, or an empty one if it is missing."""
    text = os.environ.get(VARIABLE)
    if not text:
        file = _nearest_file()
        return _of_file(file, os.stat(file).st_mtime_ns).get(kind, {}) if file else {}
    try:
        return dict(json.loads(text).get(kind) or {})
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{VARIABLE} must be a JSON object with the objects datastores and data") from None


def _nearest_file():
    """Returns the ``gristmill.toml`` of the working folder, or of the code of the job, or of a folder above them."""
    state = os.environ.get(contract.ENTRY_SCRIPT_VARIABLE)
    folders = [os.getcwd(), *([json.loads(state)["working_dir"]] if state else [])]
    for folder in folders:
        while True:
            path = os.path.join(folder, FILE)
            if os.path.isfile(path):
                return path
            above = os.path.dirname(folder)
            if above == folder:
                break
            folder = above
    return None


@functools.cache
def _of_file(path, modified):
    """Returns the tables of a file, with absolute paths. ``modified`` belongs to the key of the cache."""
    with open(path, "rb") as file:
        content = file.read()
    if b"azureml" not in content:
        return {}
    try:
        import tomllib
    except ImportError:
        raise UnknownName(
            f"{path} needs Python 3.11 or newer to be read in a script; here, set {VARIABLE} in environment_variables: "
            '{"datastores": {NAME: PATH}, "data": {NAME: PATH}}'
        ) from None
    try:
        tables = tomllib.loads(content.decode()).get("azureml", {})
    except ValueError as error:
        raise ValueError(f"{path} is not valid: {error}") from None
    folder = os.path.dirname(path)
    return {
        kind: {name: _absolute(str(place), folder) for name, place in entries.items()}
        for kind, entries in tables.items()
        if isinstance(entries, dict)
    }


def _absolute(place, folder):
    return place if "://" in place else os.path.join(folder, os.path.expanduser(place))


def _versions_of(name, found):
    versions = [key[len(name) + 1 :] for key in found if key.startswith(f"{name}:")]
    return sorted(versions, key=lambda text: (0, int(text), "") if text.isdigit() else (1, 0, text))


def _missing(noun, kind, name, key):
    registered = assets.names() if kind == "data" else []
    known = ", ".join(sorted({*table(kind), *registered})) or "none"
    line = f'{key} = "PATH OR URL"' if re.fullmatch(r"[\w-]+", key) else f'"{key}" = "PATH OR URL"'
    return (
        f"{noun} {name} has no place here (known: {known}): "
        f"add the line `{line}` below [azureml.{kind}] in gristmill.toml"
    )
