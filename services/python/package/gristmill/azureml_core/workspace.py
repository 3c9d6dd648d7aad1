"""A workspace with only a name."""

from gristmill.azureml_core.unsupported import unsupported


class Workspace:
    """The workspace that scripts pass to other calls."""

    def __init__(
        self, subscription_id="local", resource_group="local", workspace_name="local", auth=None, location=None, **_
    ):
        # Drivers print them as texts.
        self.subscription_id = subscription_id
        self.resource_group = resource_group
        self.name = workspace_name
        self.location = location or "local"

    @classmethod
    def from_config(cls, *_, **__):
        """Returns the local workspace."""
        return cls()

    @classmethod
    def get(cls, name="local", auth=None, subscription_id="local", resource_group="local", location=None, **_):
        """Returns the local workspace, for any name."""
        return cls(subscription_id, resource_group, name, location=location)

    @property
    def models(self):
        """Returns the newest version of every model."""
        from gristmill.azureml_core.model import Model

        return {model.name: model for model in Model.list(self, latest=True)}

    @property
    def datasets(self):
        """Returns the newest version of every dataset."""
        from gristmill.azureml_core.dataset import Dataset

        return Dataset.get_all(self)

    @property
    def datastores(self):
        """Returns every datastore."""
        from gristmill.azureml_core import names
        from gristmill.azureml_core.datastore import DEFAULT, Datastore

        return {name: Datastore(self, name) for name in dict.fromkeys([DEFAULT, *names.table("datastores")])}

    @property
    def compute_targets(self):
        """Returns a mapping that has a target for any name, because no target has to be created."""
        return _Targets(self)

    @property
    def environments(self):
        """Returns the environments of the table ``[azureml.environments]``. A lookup by name returns any other, too."""
        return _Environments(self)

    def get_default_datastore(self):
        """Returns the datastore for files without another one."""
        from gristmill.azureml_core.datastore import Datastore

        chosen = self.__dict__.get("_default_datastore")
        return Datastore.get_default(self) if chosen is None else Datastore(self, chosen)

    def set_default_datastore(self, name):
        """Chooses the datastore that ``get_default_datastore`` returns."""
        self._default_datastore = name

    def get_default_keyvault(self):
        """Returns the key vault, whose secrets are environment variables."""
        from gristmill.azureml_core.secrets import Keyvault

        return Keyvault()

    def get_details(self):
        """Returns the name."""
        return {"name": self.name, "location": self.location}

    def __getattr__(self, name):
        raise unsupported(f"Workspace.{name}")

    def __repr__(self):
        return f"Workspace.create(name={self.name!r})"

    def write_config(self, *_, **__):
        """Does nothing: the local workspace needs no file."""


class _Targets(dict):
    """Compute targets by their names."""

    def __init__(self, workspace):
        super().__init__()
        self._workspace = workspace

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        from gristmill.azureml_core.compute import AmlCompute

        return AmlCompute(self._workspace, name)

    def get(self, name, default=None):
        """Returns the target of this name."""
        return self[name]


class _Environments(dict):
    """Environments by their names."""

    def __init__(self, workspace):
        from gristmill.azureml_core import names
        from gristmill.azureml_core.environment import Environment

        found = dict.fromkeys(key.partition(":")[0] for key in names.table("environments"))
        super().__init__({name: Environment.get(workspace, name) for name in found})
        self._workspace = workspace

    def __missing__(self, name):
        from gristmill.azureml_core.environment import Environment

        return Environment.get(self._workspace, name)
