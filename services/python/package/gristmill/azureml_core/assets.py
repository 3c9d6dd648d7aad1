"""The register of data on this machine: ``assets/data/NAME/VERSION.json`` below the home folder, each with the ``path``
and the ``type`` (``uri_file``, ``uri_folder`` or ``mltable``) of one version. The command line reads and writes the
same."""

import json
import os
import re

from gristmill.azureml_core.exceptions import UserErrorException
from gristmill.azureml_core.folders import home_folder

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def folder_of(name):
    """Returns the folder of the versions of a name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name data: use letters, digits, `_`, `-` and `.`")
    return os.path.join(home_folder(), "assets", "data", name)


def names():
    """Returns every name."""
    try:
        return sorted(os.listdir(os.path.join(home_folder(), "assets", "data")))
    except OSError:
        return []


def versions(name):
    """Returns the versions of a name, oldest first, in the order of the command line."""
    try:
        found = os.listdir(folder_of(name))
    except (OSError, ValueError):
        return []
    return sorted((file[:-5] for file in found if file.endswith(".json")), key=order)


def order(version):
    """Returns the key that sorts versions: texts, then numbers by size."""
    return (1, int(version), "") if version.isdigit() else (0, 0, version)


def find(name, version=None):
    """Returns the version, by default the newest one, and its content; ``None`` if there is none."""
    known = versions(name)
    chosen = version if version is not None else (known[-1] if known else None)
    if chosen not in known:
        return None
    path = os.path.join(folder_of(name), f"{chosen}.json")
    with open(path, encoding="utf-8") as file:
        try:
            return chosen, json.load(file)
        except ValueError as error:
            raise ValueError(f"{path} cannot be read: {error}; remove it, or write it again") from None


def next_version(name):
    """Returns the version that a new registration gets."""
    return str(max([0, *(int(one) for one in versions(name) if one.isdigit())]) + 1)


def register(name, path, kind, is_version_allowed=True):
    """Adds a version, and returns it. Returns the newest one if it is the same.

    :param is_version_allowed: whether a name that has versions may get another one.
    """
    newest = find(name)
    content = {"path": path, "type": kind}
    if newest is not None and newest[1] == content:
        return newest[0]
    if newest is not None and not is_version_allowed:
        raise _already_registered(name, newest[0])
    folder = folder_of(name)
    os.makedirs(folder, exist_ok=True)
    while True:
        version = next_version(name)
        try:
            # Another process may register at the same time.
            with open(os.path.join(folder, f"{version}.json"), "x", encoding="utf-8") as file:
                json.dump(content, file)
        except FileExistsError:
            continue
        return version


def register_table(name, text, is_version_allowed=True):
    """Adds a version with a file ``MLTable`` of this text, like ``register``."""
    newest = find(name)
    if newest is not None and newest[1].get("type") == "mltable":
        try:
            with open(os.path.join(newest[1]["path"], "MLTable"), encoding="utf-8") as file:
                if file.read() == text:
                    return newest[0]
        except OSError:
            pass
    if newest is not None and not is_version_allowed:
        raise _already_registered(name, newest[0])
    folder = os.path.join(folder_of(name), next_version(name))
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "MLTable"), "w", encoding="utf-8") as file:
        file.write(text)
    return register(name, folder, "mltable")


def _already_registered(name, version):
    return UserErrorException(
        f"There is already a dataset registered under name {name}, whose newest version {version} differs from this "
        "one: pass create_new_version=True to register this one as a new version"
    )
