"""A dataset, or an object in place of one, as a named input of a step."""

import copy

from gristmill.api.keywords import checked


class DatasetConsumptionConfig:
    """A dataset under a name. The mode has no effect: files are read where they are."""

    @checked
    def __init__(self, name, dataset, mode="direct", path_on_compute=None):
        self.name = name
        self.dataset = dataset
        self.mode = mode
        self.path_on_compute = path_on_compute

    def job_input(self):
        """Returns the keys of one input of a job file, without its name."""
        from gristmill.api.step_values import input_of

        # A pipeline parameter gives its default.
        return input_of(getattr(self.dataset, "default_value", self.dataset), f"input {self.name}")

    def as_mount(self, path_on_compute=None):
        """Returns it in this mode."""
        return self._in("mount", path_on_compute)

    def as_download(self, path_on_compute=None):
        """Returns it in this mode."""
        return self._in("download", path_on_compute)

    def as_direct(self):
        """Returns it in this mode."""
        return self._in("direct", None)

    def _in(self, mode, path_on_compute):
        made = copy.copy(self)
        made.mode, made.path_on_compute = mode, path_on_compute
        return made
