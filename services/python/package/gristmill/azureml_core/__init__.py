"""The part of ``azureml.core`` that entry scripts use, on this machine alone: models from a folder, the run of the job.

If the SDK is not installed, ``shims/azureml`` gives this package its names. If it is, its modules stay, and calls
that find no workspace fall back to this package.
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class FallbackFinder:
    """A finder that changes modules of an installed ``azureml.core`` after their import."""

    def find_spec(self, name, path=None, target=None):
        patch = {
            "azureml.core.dataset": _datasets_fall_back,
            "azureml.core.datastore": _datastores_fall_back,
            "azureml.core.model": _models_fall_back,
            "azureml.core.run": _runs_fall_back,
            "azureml.core.workspace": _workspaces_fall_back,
        }.get(name)
        if patch is None:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and not spec.origin.startswith(_PACKAGE):
            spec.loader = _Patching(spec.loader, patch)
        return spec


class _Patching:
    def __init__(self, loader, patch):
        self._loader, self._patch = loader, patch

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._patch(module)


def _models_fall_back(module):
    """Looks a model up on this machine where the SDK finds none, or where the workspace is one of this machine."""
    from gristmill.azureml_core.exceptions import ModelNotFoundException
    from gristmill.azureml_core.model import Model as Local
    from gristmill.azureml_core.workspace import Workspace

    real = module.Model
    its_path = real.get_model_path

    def get_model_path(model_name, version=None, _workspace=None):
        try:
            return its_path(model_name, version, None if isinstance(_workspace, Workspace) else _workspace)
        except Exception as error:
            try:
                return Local.get_model_path(model_name, version)
            except ModelNotFoundException as local:
                # Scripts catch the SDK's own exception.
                kind = type(error) if type(error).__name__ == "ModelNotFoundException" else ModelNotFoundException
                raise kind(str(local)) from error

    def new(cls, workspace=None, *arguments, **named):
        if not isinstance(workspace, Workspace):
            return object.__new__(cls)
        try:
            return Local(workspace, *arguments, **named)
        except ModelNotFoundException as local:
            raise getattr(module, "WebserviceException", ModelNotFoundException)(str(local)) from None

    real.get_model_path = staticmethod(get_model_path)
    _use_local_methods(real, Local, "list", "register")
    real.__new__ = new


def _datasets_fall_back(module):
    """Looks a dataset up on this machine where the workspace is one of this machine."""
    from gristmill.azureml_core.dataset import Dataset as Local

    _use_local_methods(module.Dataset, Local, "get_by_name", "get_by_id", "get_all")


def _datastores_fall_back(module):
    """Looks a datastore up on this machine where the workspace is one of this machine."""
    from gristmill.azureml_core.datastore import Datastore as Local
    from gristmill.azureml_core.workspace import Workspace

    real = module.Datastore
    its_new = real.__new__
    _use_local_methods(real, Local, "get", "get_default")

    def new(cls, workspace=None, name=None, *arguments, **named):
        if isinstance(workspace, Workspace):
            return Local(workspace, name)
        return its_new(cls, workspace, name, *arguments, **named)

    real.__new__ = new


def _workspaces_fall_back(module):
    """Returns the local workspace in a job where the SDK finds no file that names another one."""
    from gristmill.azureml_core.workspace import Workspace as Local

    its_from_config = module.Workspace.from_config

    def from_config(*arguments, **named):
        try:
            return its_from_config(*arguments, **named)
        except Exception:
            if not os.environ.get("AZUREML_RUN_ID"):
                raise
            return Local()

    module.Workspace.from_config = staticmethod(from_config)


def _use_local_methods(real, local, *names):
    """Replaces static methods whose first argument is a workspace by the local ones for a local workspace."""
    from gristmill.azureml_core.workspace import Workspace

    def choosing(its, ours):
        def call(workspace=None, *arguments, **named):
            return (ours if isinstance(workspace, Workspace) else its)(workspace, *arguments, **named)

        return staticmethod(call)

    for name in names:
        if hasattr(real, name):
            setattr(real, name, choosing(getattr(real, name), getattr(local, name)))


def _runs_fall_back(module):
    """Returns the run of the job where the SDK knows none, or one that is offline and has no experiment."""
    from gristmill.azureml_core.run import Run as Local

    its_context = module.Run.get_context

    def get_context(cls, allow_offline=True, used_for_context_manager=False, **named):
        # The SDK itself calls this, too, and searches elsewhere if there is no run.
        is_called_by_sdk = sys._getframe(1).f_globals.get("__name__", "").startswith("azureml.")
        is_in_job = os.environ.get("AZUREML_RUN_ID") and not is_called_by_sdk
        try:
            found = its_context(allow_offline, used_for_context_manager, **named)
        except Exception:
            if not is_in_job:
                raise
        else:
            if not is_in_job or type(found).__name__ != "_OfflineRun":
                return found
        return Local.get_context(allow_offline=False)

    module.Run.get_context = classmethod(get_context)
