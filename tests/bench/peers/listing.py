"""The input files of every peer."""

import os


def files_of(folder):
    """Yields every file below a folder, sorted, one folder after the other."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(path, name)
