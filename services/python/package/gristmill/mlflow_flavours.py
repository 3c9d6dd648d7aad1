"""Loads an MLflow model: with ``mlflow`` if it is installed, else two flavours that do not need it."""

import importlib
import importlib.util
import os
import pickle
import sys


class FlavourError(Exception):
    """The model cannot be loaded in this environment."""


def load_model(folder, about, signature):
    """Returns an object with ``predict``."""
    if importlib.util.find_spec("mlflow") is not None:
        import mlflow.pyfunc

        if "python_function" not in about["flavors"]:
            raise FlavourError(_without_python_function(folder, about))
        return mlflow.pyfunc.load_model(folder)
    return _Enforced(_loaded(folder, about), signature)


class _Enforced:
    """A model whose inputs are checked against the signature."""

    def __init__(self, predict, signature):
        self._predict = predict
        self._signature = signature

    def predict(self, argument):
        return self._predict(self._signature.enforce(argument))


def _loaded(folder, about):
    """Returns the function ``predict`` of a model."""
    flavours = about["flavors"]
    general = flavours.get("python_function")
    if general is None:
        raise FlavourError(_without_python_function(folder, about))
    if general.get("code"):
        sys.path.insert(0, os.path.join(folder, general["code"]))
    loader = general.get("loader_module", "")
    if loader == "mlflow.sklearn" and "sklearn" in flavours:
        return _sklearn(folder, flavours["sklearn"], general)
    if loader and not loader.startswith("mlflow."):
        data = os.path.join(folder, general["data"]) if general.get("data") else folder
        return importlib.import_module(loader)._load_pyfunc(data).predict
    others = [name for name in flavours if name != "python_function"]
    packages = " ".join(["mlflow", *others])
    raise FlavourError(
        f"the model in {folder} ({', '.join(others) or loader}) needs the package mlflow: add it to the environment of "
        f"the job, for example `{packages}`, or the packages in the model's own requirements.txt"
    )


def _sklearn(folder, flavour, general):
    path = os.path.join(folder, flavour["pickled_model"])
    form = flavour.get("serialization_format", "cloudpickle")
    if form not in ("cloudpickle", "pickle", "skops"):
        raise FlavourError(f"the model in {folder} was saved as {form}, which only the package mlflow can read: add it")
    try:
        if form == "skops":
            import skops.io

            model = skops.io.load(path, trusted=flavour.get("skops_trusted_types") or [])
        else:
            with open(path, "rb") as file:
                model = pickle.load(file)
    except ModuleNotFoundError as error:
        package = {"sklearn": "scikit-learn"}.get(error.name, error.name)
        saved = f" {flavour['sklearn_version']}" if package == "scikit-learn" and "sklearn_version" in flavour else ""
        raise FlavourError(
            f"the model in {folder} needs the package {package}{saved}: add it to the environment of the job"
        ) from error
    return getattr(model, general.get("predict_fn") or "predict")


def _without_python_function(folder, about):
    flavours = ", ".join(about["flavors"])
    return (
        f"the model in {folder} has no flavor python_function (it has: {flavours}): write an entry script that loads it"
    )
