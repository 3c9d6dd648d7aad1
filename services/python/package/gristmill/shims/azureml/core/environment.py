from azureml._absent import absent
from gristmill.azureml_core.environment import (
    DEFAULT_CPU_IMAGE,
    DEFAULT_GPU_IMAGE,
    CondaDependencies,
    Environment,
    RCranPackage,
    RSection,
)

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "CondaDependencies",
    "Environment",
    "RCranPackage",
    "RSection",
]

__getattr__ = absent(__name__)
