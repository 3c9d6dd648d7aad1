"""Names of the real ``azureml`` packages that the stand-in lacks. Scripts can import them, and the first use of one
fails with an error that names it.

Public scripts import more than they use, and offline they use even less.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os

_SHIMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Scripts can import every module below these. Others stay missing, so that `try: import …` works as intended.
_ROOTS = (
    "azureml.core",
    "azureml.data",
    "azureml.pipeline",
    "azureml._base_sdk_common",
    "azureml._common",
    "azureml._restclient",
)


class _Absent(type):
    def __getattr__(cls, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _needs_the_real_one(f"{cls.__module__}.{cls.__name__}.{attribute}")

    def __call__(cls, *_, **__):
        raise _needs_the_real_one(f"{cls.__module__}.{cls.__name__}")


def _needs_the_real_one(name):
    package = {"pipeline": "azureml-pipeline"}.get(name.split(".")[1], "azureml-core")
    return NotImplementedError(f"{name} needs the real {package}: add it to the environment of the script")


def absent(module, lower_case=False):
    """Returns the ``__getattr__`` of a module. Scripts can import capitalized names, or with ``lower_case`` all names,
    but not use them."""

    def get(name):
        if name.startswith("__") or not (lower_case or name[:1].isupper()):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name.endswith(("Exception", "Error")):
            # An `except` needs an exception class. Nothing raises this one.
            return type(name, (Exception,), {"__module__": module})
        return _Absent(name, (), {"__module__": module})

    return get


def find_spec(name):
    """Returns the spec of a module that neither the environment nor the stand-in has, if scripts may import it."""
    if not any(name == root or name.startswith(f"{root}.") for root in _ROOTS) or not is_stand_in():
        return None
    return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def is_stand_in():
    """Returns whether ``azureml.core`` is the stand-in, and not an installed SDK, which has its own modules."""
    core = importlib.util.find_spec("azureml.core")
    return core is not None and core.origin is not None and core.origin.startswith(_SHIMS + os.sep)


def check(package):
    """Fails as if the package were missing if an SDK is installed."""
    if not is_stand_in():
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


class _Loader(importlib.abc.Loader):
    def exec_module(self, module):
        module.__getattr__ = absent(module.__name__, lower_case=True)
