"""An experiment that is no more than a name."""


class Experiment:
    """Stands where scripts ask a run for its experiment."""

    def __init__(self, workspace=None, name="local", **_):
        self.workspace = workspace
        self.name = name
