"""Where this machine keeps what Azure ML keeps in a workspace."""

import os


def home_folder():
    """Returns the folder of what is kept on this machine."""
    return os.environ.get("GRISTMILL_HOME") or os.path.join(os.path.expanduser("~"), ".gristmill")


def registry_folder():
    """Returns the folder of local models: ``<name>/<version>/<file or folder>``."""
    return os.path.join(home_folder(), "models")
