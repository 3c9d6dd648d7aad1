"""The modules of the ``azureml`` packages that scripts and drivers import, without a file for each.

``MODULES`` says which of their names this package has. Scripts can import all other names, and the first use of one
fails with an error that names it: public scripts import more than they use, and offline they use even less.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os

_SHIMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CREDENTIALS = (
    *("AzureCliAuthentication", "InteractiveLoginAuthentication", "MsiAuthentication"),
    *("ServicePrincipalAuthentication", "TokenAuthentication"),
)
_EXCEPTIONS = (
    *("AzureMLException", "ComputeTargetException", "ModelNotFoundException", "RunEnvironmentException"),
    *("UserErrorException", "WebserviceException"),
)
_IMAGES = ("DEFAULT_CPU_IMAGE", "DEFAULT_GPU_IMAGE")
_PIPELINES = (
    *("Pipeline", "PipelineData", "PipelineEndpoint", "PipelineRun", "PublishedPipeline", "Schedule"),
    *("ScheduleRecurrence", "StepRun", "StepSequence"),
)
MODULES = {
    "azureml.core.authentication": {"azureml_core.authentication": _CREDENTIALS},
    "azureml.core.compute": {"azureml_core.compute": ("AmlCompute", "ComputeInstance", "ComputeTarget")},
    "azureml.core.compute_target": {
        "azureml_core.compute": ("ComputeTarget",),
        "azureml_core.exceptions": ("ComputeTargetException",),
    },
    "azureml.core.conda_dependencies": {"azureml_core.environment": ("CondaDependencies",)},
    "azureml.core.dataset": {"azureml_core.dataset": ("Dataset",)},
    "azureml.core.datastore": {"azureml_core.datastore": ("Datastore",)},
    "azureml.core.environment": {
        "azureml_core.environment": (*_IMAGES, "CondaDependencies", "Environment", "RCranPackage", "RSection"),
    },
    "azureml.core.experiment": {"azureml_core.experiment": ("Experiment",)},
    "azureml.core.keyvault": {"azureml_core.secrets": ("Keyvault",)},
    "azureml.core.model": {
        "azureml_core.exceptions": ("ModelNotFoundException", "WebserviceException"),
        "azureml_core.model": ("Model",),
    },
    "azureml.core.run": {
        "azureml_core.exceptions": ("RunEnvironmentException",),
        "azureml_core.run": ("Run", "RunStatus", "_OfflineRun"),
    },
    "azureml.core.runconfig": {
        "azureml_core.environment": (*_IMAGES, "CondaDependencies"),
        "azureml_core.runconfig": ("DockerConfiguration", "RunConfiguration"),
    },
    "azureml.core.workspace": {"azureml_core.workspace": ("Workspace",)},
    "azureml.data": {
        "azureml_core.dataset": ("DataType", "FileDataset", "TabularDataset"),
        "azureml_pipeline": ("OutputFileDatasetConfig",),
    },
    "azureml.data.data_reference": {"azureml_core.datastore": ("DataReference",)},
    "azureml.data.datapath": {"azureml_core.datastore": ("DataPath", "DataPathComputeBinding")},
    "azureml.data.dataset_consumption_config": {"azureml_core.consumption": ("DatasetConsumptionConfig",)},
    "azureml.data.dataset_factory": {
        "azureml_core.dataset": ("DataType", "FileDatasetFactory", "PromoteHeadersBehavior", "TabularDatasetFactory"),
    },
    "azureml.data.dataset_type_definitions": {"azureml_core.dataset": ("PromoteHeadersBehavior",)},
    "azureml.data.file_dataset": {"azureml_core.dataset": ("FileDataset",)},
    "azureml.data.output_dataset_config": {"azureml_pipeline": ("OutputFileDatasetConfig",)},
    "azureml.data.tabular_dataset": {"azureml_core.dataset": ("TabularDataset",)},
    "azureml.exceptions": {"azureml_core.exceptions": _EXCEPTIONS},
    "azureml.pipeline": {},
    "azureml.pipeline.core": {"api.parallel_run_step": ("PipelineParameter",), "azureml_pipeline": _PIPELINES},
    "azureml.pipeline.core.builder": {"azureml_pipeline": ("PipelineData",)},
    "azureml.pipeline.core.graph": {"api.parallel_run_step": ("PipelineParameter",)},
    "azureml.pipeline.core.schedule": {"azureml_pipeline": ("Schedule", "ScheduleRecurrence")},
    "azureml.pipeline.steps": {
        "api.parallel_run_step": ("ParallelRunConfig", "ParallelRunStep"),
        "azureml_pipeline": ("PythonScriptStep",),
    },
    "azureml.pipeline.steps.python_script_step": {"azureml_pipeline": ("PythonScriptStep",)},
}
"""The names of each module, by the module of this package that has them."""
# Scripts can import every module below these, too. Others stay missing, so that `try: import …` works as intended.
_ROOTS = (
    "azureml.core",
    "azureml.data",
    "azureml.pipeline",
    "azureml._base_sdk_common",
    "azureml._common",
    "azureml._restclient",
)


class _Absent(type):
    def __getattr__(cls, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise _needs_the_real_one(f"{cls.__module__}.{cls.__name__}.{attribute}")

    def __call__(cls, *_, **__):
        raise _needs_the_real_one(f"{cls.__module__}.{cls.__name__}")


def _needs_the_real_one(name):
    package = {"pipeline": "azureml-pipeline"}.get(name.split(".")[1], "azureml-core")
    return NotImplementedError(f"{name} needs the real {package}: add it to the environment of the script")


def absent(module, lower_case=False):
    """Returns the ``__getattr__`` of a module. Scripts can import capitalized names, or with ``lower_case`` all names,
    but not use them."""

    def get(name):
        if name.startswith("__") or not (lower_case or name[:1].isupper()):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if name.endswith(("Exception", "Error")):
            # An `except` needs an exception class. Nothing raises this one.
            return type(name, (Exception,), {"__module__": module})
        return _Absent(name, (), {"__module__": module})

    return get


def find_spec(name):
    """Returns the spec of a module without a file, if scripts may import it."""
    is_known = name in MODULES or any(name == root or name.startswith(f"{root}.") for root in _ROOTS)
    if not is_known or not is_stand_in():
        return None
    # The origin says that no SDK has it.
    return importlib.machinery.ModuleSpec(name, _Loader(), origin=__file__, is_package=True)


def is_stand_in():
    """Returns whether ``azureml.core`` is the stand-in, and not an installed SDK, which has its own modules."""
    core = importlib.util.find_spec("azureml.core")
    return core is not None and core.origin is not None and core.origin.startswith(_SHIMS + os.sep)


def check(package):
    """Fails as if the package were missing if an SDK is installed."""
    if not is_stand_in():
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


class _Loader(importlib.abc.Loader):
    def exec_module(self, module):
        name = module.__name__
        for source, names in MODULES.get(name, {}).items():
            has = vars(importlib.import_module(f"gristmill.{source}"))
            vars(module).update({one: has[one] for one in names})
        module.__getattr__ = absent(name, lower_case=name not in MODULES)
