"""A workspace with only a name."""

from gristmill.azureml_core.unsupported import unsupported


class Workspace:
    """The workspace that scripts pass to other calls."""

    location = "local"

    def __init__(self, subscription_id=None, resource_group=None, workspace_name="local", **_):
        self.subscription_id = subscription_id
        self.resource_group = resource_group
        self.name = workspace_name

    @classmethod
    def from_config(cls, *_, **__):
        """Returns the local workspace."""
        return cls()

    @classmethod
    def get(cls, name="local", **_):
        """Returns the local workspace, for any name."""
        return cls(workspace_name=name)

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
        """Returns none: any name is a compute target, and none has to be created."""
        return {}

    @property
    def environments(self):
        """Returns none: there is no register of environments."""
        return {}

    def get_default_datastore(self):
        """Returns the datastore for files without another one."""
        from gristmill.azureml_core.datastore import Datastore

        return Datastore.get_default(self)

    def get_default_keyvault(self):
        """Returns the key vault, whose secrets are environment variables."""
        from gristmill.azureml_core.secrets import Keyvault

        return Keyvault()

    def get_details(self):
        """Returns the name."""
        return {"name": self.name}

    def __getattr__(self, name):
        raise unsupported(f"Workspace.{name}")

    def __repr__(self):
        return f"Workspace.create(name={self.name!r})"

    def write_config(self, *_, **__):
        """Does nothing: the local workspace needs no file."""
