"""Compute targets by name. ``gristmill.toml`` decides which machines they are."""

import types


class ComputeTarget:
    """A compute target by its name."""

    type = "local"
    provisioning_state = "Succeeded"
    vm_size = None
    # This machine is one node.
    scale_settings = types.SimpleNamespace(minimum_node_count=0, maximum_node_count=1)

    def __init__(self, workspace=None, name="local", **_):
        self.workspace = workspace
        self.name = name

    @classmethod
    def create(cls, workspace, name, provisioning_configuration=None):
        """Returns the target: no machine is started."""
        return cls(workspace, name)

    @staticmethod
    def provisioning_configuration(**settings):
        """Returns the settings, which have no effect."""
        return settings

    def wait_for_completion(self, show_output=False, **_):
        """Returns immediately."""

    def get_status(self):
        """Returns the state."""
        return self

    def serialize(self):
        """Returns the state as a dictionary."""
        return {"name": self.name, "provisioningState": self.provisioning_state}

    def __repr__(self):
        return f"{type(self).__name__}(name={self.name!r})"


class AmlCompute(ComputeTarget):
    """A cluster by its name."""


class ComputeInstance(ComputeTarget):
    """A machine by its name."""
