"""Models from a folder: ``$GRISTMILL_HOME/models/<name>/<version>/``, or a folder beside the script.

``<name>/<version>.json`` holds the attributes that ``register`` got for a version: tags, properties, description, run.
A model that is not registered here may have a line in the table ``[azureml.models]``.
"""

import json
import os
import shutil
import time

from gristmill.azureml_core import names
from gristmill.azureml_core.exceptions import ModelNotFoundException
from gristmill.azureml_core.folders import registry_folder
from gristmill.azureml_core.unsupported import unsupported

_KNOWN = ("tags", "properties", "description", "run_id", "model_framework", "model_framework_version", "created_time")


class Model:
    """One version of a registered model: the newest one that fits."""

    class Framework:
        """Names of frameworks, as ``register`` takes them."""

        CUSTOM = "Custom"
        ONNX = "Onnx"
        SCIKITLEARN = "ScikitLearn"
        TENSORFLOW = "TensorFlow"

    def __init__(
        self,
        workspace=None,
        name=None,
        id=None,
        tags=None,
        properties=None,
        version=None,
        run_id=None,
        model_framework=None,
        expand=True,
    ):
        if id is not None:
            name, _, id_version = id.partition(":")
            version = version or id_version or None
        wanted = _Wanted(tags, properties, run_id, model_framework)
        found = _newest_first(name, wanted) if name is None or wanted.has_conditions() else []
        if version is not None:
            found = [(of, number) for of, number in found if number == int(version)]
        if found:
            name, version = found[0]
        elif name is None or wanted.has_conditions():
            raise ModelNotFoundException(f"no model in {registry_folder()} has {wanted.described(name, version)}")
        self.workspace = workspace
        self.name = name
        self._path = self.get_model_path(name, version)
        folder = os.path.basename(os.path.dirname(self._path))
        self.version = int(version) if version is not None else int(folder) if folder.isdigit() else 1
        self.id = f"{self.name}:{self.version}"
        known = _read(self.name, self.version)
        self.tags = known.get("tags") or {}
        self.properties = known.get("properties") or {}
        self.description = known.get("description")
        self.run_id = known.get("run_id")
        self.model_framework = known.get("model_framework")
        self.model_framework_version = known.get("model_framework_version")
        self.created_time = known.get("created_time")

    @staticmethod
    def get_model_path(model_name, version=None, _workspace=None):
        """Returns the absolute path of the model's file or folder, by default of the newest version.

        Searches the model registry, the table ``[azureml.models]``, ``AZUREML_MODEL_DIR``, then the working directory
        and its folder ``models``.
        """
        registered = os.path.join(registry_folder(), model_name)
        known = versions = _versions(registered)
        if version is not None:
            versions = [number for number in known if number == int(version)]
        if versions:
            return _content(os.path.join(registered, str(versions[-1])))
        named = names.model(model_name, version)
        if named is not None and "://" in named:
            raise NotImplementedError(
                f"model {model_name} is at {named}, which only jobs reach: make it a side input of the job, or name a "
                f'copy below [azureml.models] in gristmill.toml: {model_name} = "PATH"'
            )
        elsewhere = [] if named is None else [named]
        elsewhere += [] if version is not None else _places_without_versions(model_name)
        for path in elsewhere:
            if os.path.exists(path):
                return os.path.abspath(path)
        wanted = model_name if version is None else f"{model_name}, version {version}"
        has = f" (versions: {', '.join(map(str, known))})" if known else ""
        places = ", ".join([f"{registered}{has}", *elsewhere])
        own = os.path.join(registered, str(version or 1))
        raise ModelNotFoundException(f"model {wanted} was not found; looked in {places}. Put its file in {own}")

    @staticmethod
    def list(
        workspace=None,
        name=None,
        tags=None,
        properties=None,
        run_id=None,
        latest=False,
        dataset_id=None,
        expand=True,
        page_count=255,
        model_framework=None,
    ):
        """Returns the registered models that fit, by name, newest version first."""
        if dataset_id is not None:
            raise NotImplementedError("Model.list cannot filter by dataset_id: local models have no data sets")
        found = _newest_first(name, _Wanted(tags, properties, run_id, model_framework))
        found.sort(key=lambda model: (model[0], -model[1]))
        if latest:
            found = [model for place, model in enumerate(found) if place == 0 or found[place - 1][0] != model[0]]
        return [Model(workspace, of, version=number) for of, number in found]

    @staticmethod
    def register(
        workspace=None,
        model_path=None,
        model_name=None,
        tags=None,
        properties=None,
        description=None,
        datasets=None,
        model_framework=None,
        model_framework_version=None,
        child_paths=None,
        sample_input_dataset=None,
        sample_output_dataset=None,
        resource_configuration=None,
        run_id=None,
    ):
        """Copies a file or folder into the registry as the next version."""
        if not os.path.exists(model_path):
            raise FileNotFoundError(f"model {model_name} cannot be registered: {model_path} does not exist")
        folder = os.path.join(registry_folder(), model_name)
        os.makedirs(folder, exist_ok=True)
        while True:
            version = (_versions(folder) or [0])[-1] + 1
            target = os.path.join(folder, str(version))
            try:
                os.mkdir(target)
                break
            except FileExistsError:
                continue
        copy = os.path.join(target, os.path.basename(os.path.abspath(model_path)))
        if os.path.isdir(model_path):
            shutil.copytree(model_path, copy)
        else:
            shutil.copy2(model_path, copy)
        known = {
            "tags": _texts(tags),
            "properties": _texts(properties),
            "description": description,
            "model_framework": model_framework,
            "model_framework_version": model_framework_version,
            "created_time": time.time(),
            "run_id": run_id,
        }
        _write(model_name, version, known)
        return Model(workspace, model_name, version=version)

    def add_tags(self, tags):
        """Adds tags, or changes their values."""
        self._change("tags", {**self.tags, **_texts(tags)})

    def remove_tags(self, tags):
        """Removes tags by their names."""
        self._change("tags", {key: value for key, value in self.tags.items() if key not in tags})

    def add_properties(self, properties):
        """Adds properties, or changes their values."""
        self._change("properties", {**self.properties, **_texts(properties)})

    def update(self, tags=None, description=None, sample_input_dataset=None, sample_output_dataset=None):
        """Replaces tags and description where they are given."""
        if tags is not None:
            self._change("tags", _texts(tags))
        if description is not None:
            self._change("description", description)

    def delete(self):
        """Removes this version from the registry."""
        folder = os.path.join(registry_folder(), self.name, str(self.version))
        shutil.rmtree(folder)
        if os.path.exists(f"{folder}.json"):
            os.remove(f"{folder}.json")

    def download(self, target_dir=".", exist_ok=False, exists_ok=None):
        """Copies the model into a folder and returns its path."""
        exist_ok = exist_ok if exists_ok is None else exists_ok
        target = os.path.join(target_dir, os.path.basename(self._path))
        os.makedirs(target_dir, exist_ok=True)
        if os.path.isdir(self._path):
            shutil.copytree(self._path, target, dirs_exist_ok=exist_ok)
        elif exist_ok or not os.path.exists(target):
            shutil.copy2(self._path, target)
        else:
            raise FileExistsError(f"{target} exists: pass exist_ok=True to replace it")
        return os.path.abspath(target)

    def _change(self, attribute, value):
        setattr(self, attribute, value)
        _write(self.name, self.version, {key: getattr(self, key) for key in _KNOWN})

    def __getattr__(self, name):
        raise unsupported(f"Model.{name}")

    def __repr__(self):
        return f"Model(name={self.name}, id={self.id}, version={self.version}, tags={self.tags})"


class _Wanted:
    """The conditions that a model must fulfil besides its name."""

    def __init__(self, tags, properties, run_id, model_framework):
        self.tags = _pairs(tags, "tags")
        self.properties = _pairs(properties, "properties")
        self.exactly = {"run_id": run_id, "model_framework": model_framework}

    def has_conditions(self):
        return bool(self.tags or self.properties) or any(value is not None for value in self.exactly.values())

    def fits(self, known):
        for kind in ("tags", "properties"):
            has = known.get(kind) or {}
            for key, value in getattr(self, kind):
                if key not in has or (value is not None and has[key] != value):
                    return False
        return all(value is None or known.get(key) == value for key, value in self.exactly.items())

    def described(self, name, version):
        parts = [f"name {name}"] if name is not None else []
        parts += [f"version {version}"] if version is not None else []
        for kind in ("tags", "properties"):
            parts += [f"{kind} {key}" + ("" if value is None else f"={value}") for key, value in getattr(self, kind)]
        parts += [f"{key} {value}" for key, value in self.exactly.items() if value is not None]
        return ", ".join(parts) or "a version"


def _pairs(conditions, kind):
    """Reads ``["key", ["key", "value"]]``, the form of the SDK, or a dictionary."""
    if conditions is None:
        return []
    if isinstance(conditions, dict):
        conditions = list(conditions.items())
    pairs = []
    for condition in [conditions] if isinstance(conditions, str) else conditions:
        if isinstance(condition, str):
            pairs.append((condition, None))
        elif isinstance(condition, (list, tuple)) and len(condition) == 2:
            pairs.append((str(condition[0]), str(condition[1])))
        else:
            raise ValueError(f"{kind} must be names or pairs of name and value, not {condition!r}")
    return pairs


def _newest_first(name, wanted):
    """Returns (name, version) of the versions that fit: the last registered first."""
    root = registry_folder()
    names = [name] if name is not None else sorted(os.listdir(root)) if os.path.isdir(root) else []
    found = []
    for of in names:
        for number in _versions(os.path.join(root, of)):
            known = _read(of, number)
            if wanted.fits(known):
                found.append((known.get("created_time") or 0.0, number, of))
    return [(of, number) for _, number, of in sorted(found, reverse=True)]


def _texts(pairs):
    return {str(key): str(value) for key, value in (pairs or {}).items()}


def _about(name, version):
    return os.path.join(registry_folder(), name, f"{version}.json")


def _read(name, version):
    try:
        with open(_about(name, version), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def _write(name, version, known):
    """Writes the attributes of a version. A reader in another process sees the old file or the new one."""
    path = _about(name, version)
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump({key: value for key, value in known.items() if value is not None}, file, indent=2)
    os.replace(beside, path)


def _versions(folder):
    if not os.path.isdir(folder):
        return []
    return sorted(int(entry) for entry in os.listdir(folder) if entry.isdigit())


def _content(folder):
    """Returns the single file or folder of a version, as it was registered, else the version's folder."""
    entries = os.listdir(folder)
    return os.path.abspath(os.path.join(folder, entries[0]) if len(entries) == 1 else folder)


def _places_without_versions(model_name):
    folders = [os.environ.get("AZUREML_MODEL_DIR"), os.getcwd(), os.path.join(os.getcwd(), "models")]
    return [os.path.join(folder, model_name) for folder in folders if folder]
