"""The error for what a class of the SDK has, and its stand-in lacks."""


class Unsupported(NotImplementedError, AttributeError):
    """An ``AttributeError`` too, so that ``hasattr`` answers."""


def unsupported(name, package="azureml.core"):
    """Returns the error for an attribute."""
    if name.rpartition(".")[2].startswith("_"):
        return AttributeError(name)
    return Unsupported(f"{name} is not supported by the stand-in for {package}: add the real one to the environment")
