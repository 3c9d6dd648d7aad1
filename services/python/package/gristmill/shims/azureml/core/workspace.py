"""A workspace that is no more than a name."""

import os


class Workspace:
    """Stands where scripts pass a workspace along."""

    def __init__(self, subscription_id=None, resource_group=None, workspace_name="local", **_):
        self.subscription_id = subscription_id
        self.resource_group = resource_group
        self.name = workspace_name

    @classmethod
    def from_config(cls, *_, **__):
        """The one local workspace."""
        return cls()

    @classmethod
    def get(cls, name="local", **_):
        """The local workspace, under any name."""
        return cls(workspace_name=name)

    @property
    def models(self):
        """The newest model of every name."""
        from azureml.core.model import Model

        return {model.name: model for model in Model.list(self, latest=True)}


def registry_folder():
    """Where local models lie: ``<name>/<version>/<file or folder>``."""
    home = os.environ.get("GRISTMILL_HOME") or os.path.join(os.path.expanduser("~"), ".gristmill")
    return os.path.join(home, "models")
