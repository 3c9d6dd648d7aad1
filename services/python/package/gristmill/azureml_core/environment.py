"""Environments as drivers describe them: a conda file, a requirements file, or packages."""

import json
import os
import types


class CondaDependencies:
    """The packages of an environment."""

    def __init__(self, conda_dependencies_file_path=None, _underlying_structure=None):
        self._python = None
        self._conda, self._pip, self._channels = [], [], []
        self._file = conda_dependencies_file_path

    @staticmethod
    def create(pip_indexurl=None, pip_packages=None, conda_packages=None, python_version=None, pin_sdk_version=True):
        """Returns an environment of these packages."""
        made = CondaDependencies()
        made._pip = list(pip_packages or ())
        made._conda = list(conda_packages or ())
        made._python = python_version
        if pip_indexurl:
            made._pip.insert(0, f"--index-url {pip_indexurl}")
        return made

    def add_pip_package(self, pip_package):
        """Adds a package of pip."""
        self._pip.append(pip_package)

    def add_conda_package(self, conda_package):
        """Adds a package of conda."""
        self._conda.append(conda_package)

    def add_channel(self, channel):
        """Adds a channel of conda."""
        self._channels.append(channel)

    def set_python_version(self, version):
        """Sets the version of Python."""
        self._python = version

    def as_dict(self):
        """Returns the content of a conda file."""
        if self._file is not None:
            from gristmill import yaml_files

            return yaml_files.read(self._file)
        python = [f"python={self._python}"] if self._python else []
        content = {"dependencies": [*python, *self._conda, {"pip": list(self._pip)}]}
        return {"channels": list(self._channels), **content} if self._channels else content

    def serialize_to_string(self):
        """Returns the conda file as text."""
        return json.dumps(self.as_dict(), indent=2)

    def save_to_file(self, base_directory, conda_file_path=None):
        """Writes the conda file, and returns its path from the folder."""
        name = conda_file_path or "conda_dependencies.yml"
        with open(os.path.join(base_directory, name), "w", encoding="utf-8") as file:
            file.write(self.serialize_to_string())
        return name

    save = save_to_file


class Environment:
    """An environment by its name. Settings of containers can be given, and have no effect."""

    def __init__(self, name, **_):
        self.name = name
        self.version = None
        self.environment_variables = {}
        self.docker = types.SimpleNamespace(enabled=None, base_image=None, base_dockerfile=None, shm_size=None)
        self.python = types.SimpleNamespace(
            conda_dependencies=None, user_managed_dependencies=False, interpreter_path="python"
        )
        self._file = None

    @staticmethod
    def from_conda_specification(name, file_path):
        """Returns an environment of a conda file."""
        return Environment._of_file(name, file_path)

    @staticmethod
    def from_pip_requirements(name, file_path, pip_version=None):
        """Returns an environment of a requirements file."""
        return Environment._of_file(name, file_path)

    @staticmethod
    def get(workspace, name, version=None, label=None):
        """Returns an environment of which only the name is known here."""
        return Environment(name)

    @staticmethod
    def _of_file(name, path):
        if not os.path.isfile(path):
            raise FileNotFoundError(f"environment {name}: {path} does not exist")
        made = Environment(name)
        made._file = os.path.abspath(path)
        return made

    def register(self, workspace=None):
        """Returns it: there is no register of environments here."""
        return self

    def clone(self, new_name):
        """Returns it under another name."""
        made = Environment(new_name)
        made.__dict__.update(self.__dict__, name=new_name)
        return made

    @property
    def conda_file(self):
        """Returns the content of a conda file, or ``None``."""
        packages = self.python.conda_dependencies
        return packages.as_dict() if packages is not None and not self.python.user_managed_dependencies else None

    def python_of_job(self):
        """Returns the file of the environment, or ``None``."""
        return None if self.python.user_managed_dependencies else self._file

    def __repr__(self):
        return f"Environment(name={self.name!r})"
