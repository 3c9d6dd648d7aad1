"""An experiment with only a name, which starts pipelines."""


class Experiment:
    """The experiment of a run."""

    _run = None
    """The class of its runs, which ``run.py`` sets, because that module imports this one."""

    def __init__(self, workspace=None, name="local", **_):
        self.workspace = workspace
        self.name = name

    def start_logging(self, **_):
        """Returns a run of this process, which logs and registers on this machine."""
        return self._run(self)

    def submit(self, config, tags=None, **settings):
        """Starts a pipeline or a ``ParallelRunStep``, and returns its run."""
        from gristmill.azureml_pipeline.pipeline import submit_to_experiment

        return submit_to_experiment(config, **settings)
