"""The error for an attribute that a class of the SDK has, and its stand-in lacks."""


class Unsupported(NotImplementedError, AttributeError):
    """An ``AttributeError`` too, so that ``hasattr`` answers."""


def unsupported(name, package="azureml.core", instead=None):
    """Returns the error for an attribute. ``instead``: the alternative, if no package would help."""
    if name.rpartition(".")[2].startswith("_"):
        return AttributeError(name)
    if instead is not None:
        return Unsupported(f"{name} is not supported here; {instead}")
    return Unsupported(f"{name} is not supported by the stand-in for {package}: add the real one to the environment")
