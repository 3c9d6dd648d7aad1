"""The folders of this machine for things that Azure ML keeps in a workspace."""

import os


def home_folder():
    """Returns the home folder of Gristmill."""
    return os.environ.get("GRISTMILL_HOME") or os.path.join(os.path.expanduser("~"), ".gristmill")


def registry_folder():
    """Returns the folder of local models: ``<name>/<version>/<file or folder>``."""
    return os.path.join(home_folder(), "models")
