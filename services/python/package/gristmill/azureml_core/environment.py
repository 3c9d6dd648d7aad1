"""Environments as drivers describe them: a conda file, a requirements file, or packages. A line for its name in
``[azureml.environments]`` of ``gristmill.toml`` replaces an environment, because old packages can often not be
installed any more."""

import json
import os
import types
import warnings

from gristmill.azureml_core import names
from gristmill.azureml_core.unsupported import unsupported

# Texts, because drivers insert them into other texts. No container runs here.
DEFAULT_CPU_IMAGE = "the default image"
DEFAULT_GPU_IMAGE = "the default image for GPUs"


class CondaDependencies:
    """The packages of an environment."""

    def __init__(self, conda_dependencies_file_path=None, _underlying_structure=None):
        self._python = None
        self._conda, self._pip, self._channels = [], [], []
        self._folder = None
        if conda_dependencies_file_path is not None:
            from gristmill import yaml_files

            # Options of pip in it name files from its folder.
            self._folder = os.path.dirname(os.path.abspath(conda_dependencies_file_path))
            self._add(yaml_files.read(conda_dependencies_file_path))
        if _underlying_structure is not None:
            self._add(_underlying_structure)

    def _add(self, content):
        self._channels += content.get("channels") or []
        for one in content.get("dependencies") or []:
            if isinstance(one, dict):
                self._pip += [self._located(line) for line in one.get("pip") or []]
            else:
                self._conda.append(one)

    def _located(self, line):
        option, _, file = line.partition(" ")
        is_file = option in ("-r", "-c", "-e") and self._folder and "://" not in file
        return f"{option} {os.path.join(self._folder, file.strip())}" if is_file else line

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

    @property
    def pip_packages(self):
        """The packages of pip."""
        return [line for line in self._pip if not line.startswith("-")]

    @property
    def conda_packages(self):
        """The packages of conda."""
        return list(self._conda)

    def add_pip_package(self, pip_package):
        """Adds a package of pip."""
        self._pip.append(pip_package)

    def remove_pip_package(self, pip_package):
        """Removes a package of pip."""
        self._pip = [line for line in self._pip if line != pip_package]

    def add_conda_package(self, conda_package):
        """Adds a package of conda."""
        self._conda.append(conda_package)

    def remove_conda_package(self, conda_package):
        """Removes a package of conda."""
        self._conda = [package for package in self._conda if package != conda_package]

    def add_channel(self, channel):
        """Adds a channel of conda."""
        self._channels.append(channel)

    def set_pip_option(self, pip_option):
        """Adds an option of pip."""
        self._pip.insert(0, pip_option)

    def set_python_version(self, version):
        """Sets the version of Python."""
        self._python = version
        self._conda = [package for package in self._conda if package.partition("=")[0].strip() != "python"]

    def as_dict(self):
        """Returns the content of a conda file."""
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

    def __getattr__(self, name):
        raise unsupported(f"CondaDependencies.{name}")


class RCranPackage:
    """A package of R by its name."""

    name = version = repository = None


class RSection:
    """Packages of R, which nothing installs here."""

    def __init__(self):
        self.cran_packages = []
        warnings.warn("packages of R are not installed here: install R and its packages on the machine", stacklevel=2)


class Environment:
    """An environment by its name. Settings of containers can be given, and have no effect."""

    def __init__(self, name, environment_variables=None, **_):
        self.name = name
        self.version = None
        self.environment_variables = dict(environment_variables or {})
        self.docker = types.SimpleNamespace(
            enabled=None, base_image=None, base_dockerfile=None, shm_size=None, arguments=[]
        )
        self.python = types.SimpleNamespace(
            conda_dependencies=None, user_managed_dependencies=False, interpreter_path="python"
        )
        self.spark = types.SimpleNamespace(precache_packages=True)
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
    def from_docker_image(name, image, container_registry=None, conda_specification=None, pip_requirements=None):
        """Returns an environment of a conda file or a requirements file; no container runs here."""
        made = Environment(name)
        if conda_specification or pip_requirements:
            made = Environment._of_file(name, conda_specification or pip_requirements)
        made.docker.base_image = image
        return made

    @staticmethod
    def from_dockerfile(name, dockerfile, conda_specification=None, pip_requirements=None):
        """Returns an environment of a conda file or a requirements file; no container runs here."""
        made = Environment.from_docker_image(name, None, None, conda_specification, pip_requirements)
        made.docker.base_dockerfile = dockerfile
        return made

    @staticmethod
    def load_from_directory(path):
        """Reads an environment that ``save_to_directory`` of the SDK has written."""
        with open(os.path.join(path, "azureml_environment.json"), encoding="utf-8") as file:
            made = Environment._of_dict(json.load(file))
        packages = os.path.join(path, "conda_dependencies.yml")
        if os.path.isfile(packages):
            made.python.conda_dependencies = CondaDependencies(packages)
        return made

    @staticmethod
    def get(workspace, name, version=None, label=None):
        """Returns the environment of a line of the table. Of any other one, only the name is known here."""
        made = Environment(name)
        made.version = None if version is None else str(version)
        return made

    @staticmethod
    def list(workspace):
        """Returns the environments of the table by their names."""
        return workspace.environments

    @staticmethod
    def add_private_pip_wheel(workspace, file_path, exist_ok=False):
        """Returns the path of the wheel, which pip installs from there."""
        if not os.path.isfile(file_path):
            raise FileNotFoundError(f"add_private_pip_wheel: {file_path} does not exist")
        return os.path.abspath(file_path)

    @staticmethod
    def _of_file(name, path):
        if not os.path.isfile(path):
            raise FileNotFoundError(f"environment {name}: {path} does not exist")
        made = Environment(name)
        made._file = os.path.abspath(path)
        return made

    @staticmethod
    def _of_dict(content):
        """Returns the environment of a document, whose keys are in one of two spellings."""
        either = lambda entries, one, other: entries.get(one, entries.get(other))  # noqa: E731
        made = Environment(content.get("name"), either(content, "environmentVariables", "environment_variables"))
        version = content.get("version")
        made.version = None if version is None else str(version)
        python = content.get("python") or {}
        made.python.user_managed_dependencies = bool(
            either(python, "userManagedDependencies", "user_managed_dependencies")
        )
        packages = either(python, "condaDependencies", "conda_dependencies")
        file = either(python, "condaDependenciesFile", "conda_dependencies_file")
        if packages:
            made.python.conda_dependencies = CondaDependencies(_underlying_structure=packages)
        elif file:
            return Environment._of_file(made.name, file)
        return made

    def register(self, workspace=None):
        """Returns this environment. There is no register of environments here."""
        return self

    def build(self, workspace=None, image_build_compute=None):
        """Returns this environment. The first job that needs it creates it."""
        return self

    build_local = build

    def wait_for_completion(self, show_output=True):
        """Returns immediately."""

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
        """Returns the file or interpreter of the environment, or ``None``."""
        named = names.environment(self.name, self.version) if self.name else None
        if named is not None:
            return named
        return None if self.python.user_managed_dependencies else self._file

    def __getattr__(self, name):
        raise unsupported(f"Environment.{name}")

    def __repr__(self):
        return f"Environment(name={self.name!r})"
