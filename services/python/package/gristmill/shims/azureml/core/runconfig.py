from azureml._absent import absent
from gristmill.azureml_core.environment import DEFAULT_CPU_IMAGE, DEFAULT_GPU_IMAGE, CondaDependencies
from gristmill.azureml_core.runconfig import DockerConfiguration, RunConfiguration

__all__ = ["DEFAULT_CPU_IMAGE", "DEFAULT_GPU_IMAGE", "CondaDependencies", "DockerConfiguration", "RunConfiguration"]

__getattr__ = absent(__name__)
