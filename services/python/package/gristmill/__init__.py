"""The Python side of Gristmill: runs an entry script's ``init``, ``run`` and ``shutdown`` in a worker process.

Entry scripts do not import this package; what they may import is ``azureml_user.parallel_run``. An agent starts
``bootstrap.py`` with its own interpreter, so that any environment of the user serves, with nothing installed in it.
"""

__version__ = "0.1.0"
