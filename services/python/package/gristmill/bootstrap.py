"""Entry point that an agent starts: makes this package importable, then runs ``gristmill.runner``.

Only the packages ``gristmill`` and ``azureml_user`` are imported from the folder that contains this package. The folder
itself is not on ``sys.path``: in an installed environment it is a whole ``site-packages``, which may belong to another
interpreter than the one that runs the script.

Children that user code starts with ``multiprocessing`` (method "spawn") load this file again, under another name than
``__main__``, and can import only these two packages from there.

This file uses the syntax of old interpreters, so that they can print the error too.
"""
# ruff: noqa: UP031

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.dirname(HERE)
OWN_PACKAGES = ("gristmill", "azureml_user")
PYTHON_MIN = (3, 10)
EXIT_INIT_FAILED = 72


def fail(message):
    sys.stderr.write("gristmill: %s\n" % message)
    sys.stderr.flush()
    os._exit(EXIT_INIT_FAILED)


class OwnPackages:
    """Finds the packages beside this file, before packages of the same name on ``sys.path``."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in OWN_PACKAGES:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [PACKAGES])


def make_importable():
    if sys.path and os.path.abspath(sys.path[0]) == HERE:
        del sys.path[0]
    sys.meta_path.insert(0, OwnPackages)


def main():
    if sys.version_info < PYTHON_MIN:
        fail(
            "Python %d.%d or newer is needed to run entry scripts, and %s is %s: choose another one with `environment`"
            % (PYTHON_MIN[0], PYTHON_MIN[1], sys.executable, sys.version.split()[0])
        )
    try:
        from gristmill import contract

        for fd in (contract.AGENT_FD, contract.STATUS_FD):
            os.set_inheritable(fd, False)
    except OSError as error:
        fail("%s is started by an agent, not by hand: %s" % (os.path.basename(__file__), error))
    try:
        from gristmill import __version__, _native

        built = getattr(_native, "VERSION", "older")
        if built != __version__:
            raise ImportError(
                "its extension is of version %s and its Python files are of %s: install both from one wheel or package"
                % (built, __version__)
            )
        from gristmill import runner
    except ImportError as error:
        fail("%s cannot load the worker package in %s: %s" % (sys.executable, HERE, error))
    runner.main()


make_importable()
if __name__ == "__main__":
    main()
