"""An experiment with only a name."""


class Experiment:
    """The experiment of a run."""

    def __init__(self, workspace=None, name="local", **_):
        self.workspace = workspace
        self.name = name
