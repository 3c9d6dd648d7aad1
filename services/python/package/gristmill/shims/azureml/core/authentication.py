from azureml._absent import absent
from gristmill.azureml_core.authentication import (
    AzureCliAuthentication,
    InteractiveLoginAuthentication,
    MsiAuthentication,
    ServicePrincipalAuthentication,
    TokenAuthentication,
)

__all__ = [
    "AzureCliAuthentication",
    "InteractiveLoginAuthentication",
    "MsiAuthentication",
    "ServicePrincipalAuthentication",
    "TokenAuthentication",
]

__getattr__ = absent(__name__)
