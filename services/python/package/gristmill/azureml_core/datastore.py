"""Datastores by the table ``[azureml.datastores]``: folders, or URLs that only inputs and outputs of jobs can use."""

import filecmp
import os
import shutil
import warnings

from gristmill.azureml_core import names
from gristmill.azureml_core.folders import home_folder
from gristmill.azureml_core.unsupported import unsupported

DEFAULT = "workspaceblobstore"
_registered = {}
"""URLs of datastores that only this process knows, by name."""


class Datastore:
    """A datastore: a folder of this machine, or a URL."""

    # Attributes of the SDK. Credentials come from the environment.
    account_name = None
    account_key = None
    sas_token = None
    container_name = None

    def __new__(cls, workspace=None, name=None):
        # As in the SDK, the constructor and `get` are the same.
        made = super().__new__(cls)
        made.workspace = workspace
        made.name = name or DEFAULT
        made._root = _root_of(made.name)
        return made

    @classmethod
    def get(cls, workspace, datastore_name):
        """Returns the datastore of that name."""
        return cls(workspace, datastore_name)

    @classmethod
    def get_default(cls, workspace):
        """Returns ``workspaceblobstore``, or the only one of the table. Without a line it is a folder below the home
        of Gristmill."""
        known = names.table("datastores")
        return cls(workspace, next(iter(known)) if len(known) == 1 else DEFAULT)

    @classmethod
    def register_azure_blob_container(
        cls, workspace, datastore_name, container_name, account_name, sas_token=None, account_key=None, **_
    ):
        """Returns the container, under a name that this process knows. A line of the table takes precedence."""
        url = account_name and f"wasbs://{container_name}@{account_name}.blob.core.windows.net"
        return cls._register(workspace, datastore_name, url, account_name, container_name, sas_token or account_key)

    @classmethod
    def register_azure_data_lake_gen2(
        cls,
        workspace,
        datastore_name,
        filesystem,
        account_name,
        tenant_id=None,
        client_id=None,
        client_secret=None,
        **_,
    ):
        """Returns the file system, under a name that this process knows. A line of the table takes precedence."""
        url = account_name and f"abfss://{filesystem}@{account_name}.dfs.core.windows.net"
        return cls._register(workspace, datastore_name, url, account_name, filesystem, client_secret)

    @classmethod
    def register_azure_file_share(cls, workspace, datastore_name, *_, **__):
        """Returns the folder or URL of the line of the table, which a file share needs."""
        return cls(workspace, datastore_name)

    @staticmethod
    def register_azure_sql_database(workspace, datastore_name, *_, **__):
        """Raises an error that names the alternative."""
        raise NotImplementedError(
            f"datastore {datastore_name} is a database, which no job reads: write its rows to files first, such as "
            "Parquet"
        )

    register_azure_my_sql = register_azure_postgre_sql = register_azure_sql_database

    @classmethod
    def _register(cls, workspace, name, url, account, container, secret):
        if name not in names.table("datastores"):
            if not url:
                # Raises an error that names the line to add.
                names.datastore(name)
            if secret:
                warnings.warn(
                    f"datastore {name}: its key is not used; jobs read {url} with the credentials of the environment "
                    "(AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, …)",
                    stacklevel=3,
                )
            _registered[name] = url
        made = cls(workspace, name)
        made.account_name, made.container_name = account, container
        return made

    def path_of(self, relative):
        """Returns the path or URL of a file or folder in it."""
        return names.join(self._root, relative)

    def path(self, path=None, data_reference_name=None):
        """Returns a place in it."""
        return DataPath(self, path)

    def upload(self, src_dir, target_path=None, overwrite=False, show_progress=True):
        """Copies a folder into it, and returns the place."""
        files = [os.path.join(root, name) for root, _, names_ in os.walk(src_dir) for name in names_]
        return self.upload_files(files, src_dir, target_path, overwrite)

    def upload_files(self, files, relative_root=None, target_path=None, overwrite=False, show_progress=True):
        """Copies files into it, below their paths from ``relative_root``, and returns the place."""
        target = self._folder("upload", target_path)
        for file in files:
            relative = os.path.relpath(file, relative_root) if relative_root else os.path.basename(file)
            _copy(file, os.path.join(target, relative), overwrite)
        return DataPath(self, target_path)

    def download(self, target_path, prefix=None, overwrite=False, show_progress=True):
        """Copies the files whose paths begin with ``prefix`` into a folder, and returns their number."""
        root = self._folder("download", None)
        found = [os.path.join(folder, name) for folder, _, names_ in os.walk(root) for name in names_]
        relative = sorted(os.path.relpath(path, root) for path in found)
        chosen = [path for path in relative if path.startswith((prefix or "").lstrip("/"))]
        for path in chosen:
            _copy(os.path.join(root, path), os.path.join(target_path, path), overwrite)
        return len(chosen)

    def as_mount(self):
        """Returns the path or URL."""
        return self._root

    as_download = as_mount

    def _folder(self, action, relative):
        if "://" in self._root:
            raise NotImplementedError(
                f"Datastore.{action}: {self.name} is at {self._root}, which only jobs reach: make it an input or the "
                "output of the job, or name a folder with the same files below [azureml.datastores] in "
                f'gristmill.toml: {self.name} = "FOLDER"'
            )
        return os.path.join(self._root, (relative or "").lstrip("/"))

    def __getattr__(self, name):
        raise unsupported(f"Datastore.{name}")

    def __repr__(self):
        return f"Datastore(name={self.name!r}, path={self._root!r})"


class DataPath:
    """A place in a datastore."""

    def __init__(self, datastore=None, path_on_datastore=None, name=None):
        self.datastore = datastore
        self.path_on_datastore = path_on_datastore or ""
        self.name = name

    def located(self):
        """Returns the path or URL."""
        return self.datastore.path_of(self.path_on_datastore)

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        return {"type": "file", "paths": [self.located()]}

    def as_mount(self):
        """Returns the path or URL."""
        return self.located()

    as_download = as_mount

    def __fspath__(self):
        return self.located()

    __str__ = __fspath__


class DataPathComputeBinding:
    """The way in which a step gets a place, which has no effect."""

    def __init__(self, mode="mount", path_on_compute=None, overwrite=False):
        self.mode = mode
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite


class DataReference(DataPath):
    """A place in a datastore, under a name: an input of a step, or the place of its output."""

    def __init__(
        self,
        datastore,
        data_reference_name=None,
        path_on_datastore=None,
        mode="mount",
        path_on_compute=None,
        overwrite=False,
    ):
        super().__init__(datastore, path_on_datastore, data_reference_name or datastore.name)
        self.data_reference_name = self.name
        self.mode = mode

    def located(self):
        """Returns the path or URL. Creates a folder of this machine, because a step may write there first."""
        place = super().located()
        if "://" not in place and not os.path.exists(place):
            os.makedirs(place, exist_ok=True)
        return place

    def path(self, path=None, data_reference_name=None):
        """Returns a place in it."""
        return DataReference(self.datastore, data_reference_name, os.path.join(self.path_on_datastore, path or ""))

    def as_mount(self):
        """Returns it."""
        return self

    as_download = as_upload = as_mount


def _root_of(name):
    if name == DEFAULT and name not in names.table("datastores"):
        return os.path.join(home_folder(), "datastores", DEFAULT)
    return _registered.get(name) or names.datastore(name)


def _copy(source, target, overwrite):
    if os.path.exists(target) and not overwrite:
        if not filecmp.cmp(source, target, shallow=False):
            warnings.warn(f"{target} exists and differs from {source}: pass overwrite=True to replace it", stacklevel=3)
        return
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    shutil.copy2(source, target)
