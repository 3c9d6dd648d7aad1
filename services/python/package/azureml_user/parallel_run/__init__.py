"""The public API for entry scripts: ``from azureml_user.parallel_run import EntryScript``.

It works in a worker process, in the children such a process starts, and in a plain ``python`` on a developer's machine.
There, ``output_dir`` is ``AZUREML_BI_OUTPUT_PATH`` or the working directory, ``agent_name`` is ``process000``,
``log_dir`` is ``logs/user/entry_script_log/0`` below the working directory (the script must create it to write there),
and the logger writes to standard error.
"""

import json
import logging
import os
import sys

from gristmill import contract, logs

__all__ = ["EntryScript"]

LOGGER_NAME = "EntryScript"


class EntryScript:
    """Describes the process that runs the script. Every call returns the same object.

    ``logger`` (``logging.Logger``), ``log_dir``, ``output_dir``, ``agent_name`` (``processNNN``), ``working_dir`` (the
    folder the job's code was launched in), ``dir`` (the folder of the entry script), ``logging_level``,
    ``run_context``.
    """

    _instance = None

    def __new__(cls, logging_level=None):
        if cls._instance is None:
            instance = super().__new__(cls)
            instance._set_up(logging_level)
            cls._instance = instance
        elif logging_level is not None:
            cls._instance._set_level(logging_level)
        return cls._instance

    def _set_up(self, logging_level):
        state = os.environ.get(contract.ENTRY_SCRIPT_VARIABLE)
        state = _plain_python() if state is None else json.loads(state)
        self.log_dir = state["log_dir"]
        self.agent_name = state["agent_name"]
        self.working_dir = state["working_dir"]
        self.dir = state["dir"]
        self._output_dir = state["output_dir"]
        self.logger = logging.getLogger(LOGGER_NAME)
        # Its records go to a separate file; `propagate = True` copies them to standard output.
        self.logger.propagate = False
        self.logger.addHandler(self._handler(state["log_bytes_max"]))
        self._set_level(logging_level or state["logging_level"])

    def _handler(self, log_bytes_max):
        if log_bytes_max is None:
            handler = logging.StreamHandler()
            handler.setFormatter(logs.line_formatter())
            return handler
        os.makedirs(self.log_dir, exist_ok=True)
        return logs.CappedFileHandler(os.path.join(self.log_dir, f"{self.agent_name}.log.txt"), log_bytes_max)

    def _set_level(self, level):
        self.logging_level = level
        self.logger.setLevel(level if isinstance(level, int) else logs.level_number(level))

    @property
    def output_dir(self):
        """Returns the output folder, and creates it if it is missing."""
        os.makedirs(self._output_dir, exist_ok=True)
        return self._output_dir

    @property
    def run_context(self):
        """Returns ``azureml.core.Run.get_context()``, or ``None`` if ``azureml.core`` cannot be imported."""
        try:
            from azureml.core import Run
        except ImportError:
            return None
        return Run.get_context()


def _plain_python():
    """Returns the state outside a worker process."""
    working_dir = os.getcwd()
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "log_dir": os.path.join(working_dir, "logs", "user", "entry_script_log", "0"),
        "output_dir": os.path.abspath(os.environ.get("AZUREML_BI_OUTPUT_PATH") or "."),
        "agent_name": "process000",
        "working_dir": working_dir,
        "dir": os.path.dirname(os.path.abspath(script)) if script else working_dir,
        "logging_level": "INFO",
        "log_bytes_max": None,
    }
