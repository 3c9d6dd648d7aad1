"""Models from a folder: ``$GRISTMILL_HOME/models/<name>/<version>/``, or a folder beside the script."""

import os
import shutil

from azureml.core.workspace import registry_folder


class ModelNotFoundException(Exception):
    """No model has that name or version."""


class Model:
    """One version of a registered model."""

    def __init__(self, workspace=None, name=None, id=None, version=None, **_):
        if id is not None and name is None:
            name, _, id_version = id.partition(":")
            version = version or id_version or None
        self.workspace = workspace
        self.name = name
        self._path = self.get_model_path(name, version)
        found = os.path.basename(os.path.dirname(self._path))
        self.version = int(version) if version is not None else int(found) if found.isdigit() else 1
        self.id = f"{self.name}:{self.version}"
        self.tags = {}
        self.properties = {}

    @staticmethod
    def get_model_path(model_name, version=None, _workspace=None):
        """Returns the absolute path of the model's file or folder, by default of the newest version.

        Searches the model registry, then ``AZUREML_MODEL_DIR``, then the working directory and its folder ``models``.
        """
        registered = os.path.join(registry_folder(), model_name)
        versions = _versions(registered)
        if version is not None:
            versions = [number for number in versions if number == int(version)]
        if versions:
            return _content(os.path.join(registered, str(versions[-1])))
        elsewhere = [] if version is not None else _places_without_versions(model_name)
        for path in elsewhere:
            if os.path.exists(path):
                return os.path.abspath(path)
        wanted = model_name if version is None else f"{model_name}, version {version}"
        places = ", ".join([registered, *elsewhere])
        raise ModelNotFoundException(
            f"model {wanted} was not found; looked in {places}. Put its file in {os.path.join(registered, '1')}"
        )

    @staticmethod
    def list(workspace=None, name=None, latest=False, **_):
        """Returns registered models, newest version first."""
        root = registry_folder()
        names = [name] if name is not None else sorted(os.listdir(root)) if os.path.isdir(root) else []
        models = []
        for model_name in names:
            versions = _versions(os.path.join(root, model_name))[::-1]
            models += [Model(workspace, model_name, version=number) for number in versions[: 1 if latest else None]]
        return models

    @staticmethod
    def register(workspace=None, model_path=None, model_name=None, **_):
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
        return Model(workspace, model_name, version=version)

    def download(self, target_dir=".", exist_ok=False, **_):
        """Copies the model into a folder and returns its path."""
        target = os.path.join(target_dir, os.path.basename(self._path))
        os.makedirs(target_dir, exist_ok=True)
        if os.path.isdir(self._path):
            shutil.copytree(self._path, target, dirs_exist_ok=exist_ok)
        elif exist_ok or not os.path.exists(target):
            shutil.copy2(self._path, target)
        else:
            raise FileExistsError(f"{target} exists: pass exist_ok=True to replace it")
        return os.path.abspath(target)


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
