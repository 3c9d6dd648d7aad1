"""Python imports this at the start of each interpreter that a command step runs: it adds the stand-ins for ``azureml``
and ``mltable`` that entry scripts find, and imports the ``sitecustomize`` that this file hides.

This file uses the syntax of old interpreters, which a command may start.
"""

import os
import sys


def _add_stand_ins():
    import importlib.util

    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location("_gristmill_bootstrap", os.path.join(own, "bootstrap.py"))
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    try:
        from gristmill.script import add_stand_ins
    except ImportError:  # An interpreter for which the extension is not built.
        return
    add_stand_ins()


def _import_hidden():
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != own]
    hidden = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden


_import_hidden()
if sys.version_info >= (3, 10):  # noqa: UP036
    _add_stand_ins()
