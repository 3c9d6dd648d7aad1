from azureml._absent import absent
from gristmill.azureml_core.secrets import Keyvault

__all__ = ["Keyvault"]

__getattr__ = absent(__name__)
