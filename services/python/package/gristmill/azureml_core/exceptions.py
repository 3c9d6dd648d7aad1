"""The exceptions of the SDK that scripts catch."""


class AzureMLException(Exception):
    """The base class of them all."""


class WebserviceException(AzureMLException):
    """A service rejected a request. Scripts catch it where they look for a model."""


class ModelNotFoundException(WebserviceException):
    """No model has that name, version and tags."""


class RunEnvironmentException(AzureMLException):
    """The process belongs to no job."""


class ComputeTargetException(AzureMLException):
    """The compute target is not known."""


class UserErrorException(AzureMLException):
    """An argument is not valid."""
