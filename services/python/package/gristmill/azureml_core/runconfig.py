"""The settings of a ``PythonScriptStep``. Only the environment and its variables have an effect."""

import types

from gristmill.azureml_core.environment import Environment


class RunConfiguration:
    """The environment of a step, and settings of machines and containers, which have no effect."""

    def __init__(
        self,
        script=None,
        arguments=None,
        framework=None,
        communicator=None,
        conda_dependencies=None,
        _history_enabled=None,
        _path=None,
        _name=None,
        command=None,
    ):
        self.script = script
        self.arguments = arguments
        self.framework = framework
        self.communicator = communicator
        self.command = command
        self.target = "local"
        self.node_count = 1
        self.docker = types.SimpleNamespace(use_docker=False, arguments=[], shm_size=None)
        self.amlcompute = types.SimpleNamespace(vm_size=None, cluster_max_node_count=None)
        self.environment = Environment(None)
        self.environment.python.conda_dependencies = conda_dependencies
        self.environment_variables = {}


class DockerConfiguration:
    """Settings of containers, which have no effect."""

    def __init__(self, use_docker=False, shared_volumes=None, arguments=None, shm_size=None):
        self.use_docker = use_docker
        self.shared_volumes = shared_volumes
        self.arguments = arguments
        self.shm_size = shm_size
