"""Credentials of the SDK, which have no effect here."""

from gristmill.azureml_core.unsupported import unsupported


class Authentication:
    """Credentials, which have no effect."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        raise unsupported(f"{type(self).__name__}.{name}")


class AzureCliAuthentication(Authentication):
    """Credentials of the command line."""


class InteractiveLoginAuthentication(Authentication):
    """Credentials of a person."""


class MsiAuthentication(Authentication):
    """Credentials of a machine."""


class ServicePrincipalAuthentication(Authentication):
    """Credentials of a service."""


class TokenAuthentication(Authentication):
    """A token."""
