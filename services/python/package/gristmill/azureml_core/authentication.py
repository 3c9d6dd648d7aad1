"""Credentials of the SDK. Nothing asks for them here."""

from gristmill.azureml_core.unsupported import unsupported


class Authentication:
    """Credentials, which have no effect."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        raise unsupported(f"{type(self).__name__}.{name}")


class AzureCliAuthentication(Authentication):
    """Those of the command line."""


class InteractiveLoginAuthentication(Authentication):
    """Those of a person."""


class MsiAuthentication(Authentication):
    """Those of a machine."""


class ServicePrincipalAuthentication(Authentication):
    """Those of a service."""


class TokenAuthentication(Authentication):
    """A token."""
