"""A workspace with only a name."""

import os


class Workspace:
    """The workspace that scripts pass to other calls."""

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


def registry_folder():
    """Returns the folder of local models: ``<name>/<version>/<file or folder>``."""
    home = os.environ.get("GRISTMILL_HOME") or os.path.join(os.path.expanduser("~"), ".gristmill")
    return os.path.join(home, "models")
