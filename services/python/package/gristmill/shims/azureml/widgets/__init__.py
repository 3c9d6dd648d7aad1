"""A stand-in for ``azureml.widgets``, with which notebooks show a run."""

from azureml._stand_ins import check

check(__name__)


class RunDetails:
    """The state of a run."""

    def __init__(self, run_instance):
        self._run = run_instance

    def show(self, render_lib=None, widget_settings=None):
        """Shows the run: as a card in a notebook, else as text."""
        try:
            from IPython.display import display
        except ImportError:
            display = print
        display(self._run)
