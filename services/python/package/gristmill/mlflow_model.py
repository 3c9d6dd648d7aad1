"""The entry script for an MLflow model without one: ``predict`` once a file, one row of output for each prediction.

The folder ``AZUREML_MODEL_DIR`` holds the folder of the model, with its file ``MLmodel``. A ``.csv`` file becomes a
DataFrame with the types of the model's signature, an image an array in the shape of the signature. A row is
``[file name, prediction]``, a literal of Python.
"""

import glob
import math
import os

from gristmill.errors import add_note
from gristmill.mlflow_flavours import load_model
from gristmill.mlflow_signature import Signature, SignatureError
from gristmill.results import RowsOfItems
from gristmill.yaml_files import read

IMAGES = (".png", ".jpg", ".jpeg", ".tiff", ".bmp", ".gif")

_model = None
_signature = None


class ModelFolderError(Exception):
    """``AZUREML_MODEL_DIR`` has no MLflow model, or several."""


class InputFileError(Exception):
    """A file of the mini-batch cannot be an input of the model."""

    def __init__(self, path, reason):
        reason = " ".join(str(reason).split())
        super().__init__(f"Error processing input file: {path!r}. {reason}")


def init():
    """Loads the model."""
    global _model, _signature
    folder = model_folder()
    about = read(os.path.join(folder, "MLmodel"))
    if not isinstance(about, dict) or not isinstance(about.get("flavors"), dict):
        raise ModelFolderError(f"{os.path.join(folder, 'MLmodel')} names no flavors: it is not the file of a model")
    _signature = Signature.of_model(about)
    _model = load_model(folder, about, _signature)


def run(mini_batch):
    """Returns a row for each prediction, of each file in order."""
    rows = RowsOfItems(len(mini_batch))
    rows.positions = []
    for position, path in enumerate(mini_batch):
        name = os.path.basename(path)
        rows.extend([name, literal(prediction)] for prediction in _predictions(path))
        rows.positions += [position] * (len(rows) - len(rows.positions))
    return rows


def model_folder():
    """Returns the folder with the file ``MLmodel``: ``AZUREML_MODEL_DIR``, or a folder in it."""
    root = os.environ.get("AZUREML_MODEL_DIR")
    if not root:
        raise ModelFolderError("AZUREML_MODEL_DIR is not set: it names the folder that holds the folder of the model")
    pattern = glob.escape(root)
    found = glob.glob(os.path.join(pattern, "MLmodel")) or sorted(glob.glob(os.path.join(pattern, "*", "MLmodel")))
    if not found:
        raise ModelFolderError(f"no file MLmodel in {root} or a folder in it: this is not an MLflow model")
    if len(found) > 1:
        raise ModelFolderError(f"several models in {root}: {', '.join(found)}; leave one")
    return os.path.dirname(found[0])


def _predictions(path):
    extension = os.path.splitext(path)[1].lower()
    if extension == ".csv":
        frame = _read(_signature.read_csv, path)
        if len(frame) == 0:
            return []
        return each(_predict(frame, path))
    if extension in IMAGES:
        return [whole(_predict(_read(_signature.read_image, path), path))]
    kind = f"type {extension[1:]!r}" if extension else "without an extension"
    known = ", ".join((".csv", *IMAGES))
    raise InputFileError(path, f"File {kind} is not supported. An MLflow model without a script reads {known}")


def _read(reader, path):
    try:
        return reader(path)
    except ImportError:
        raise
    except Exception as error:
        raise InputFileError(path, error) from error


def _predict(argument, path):
    try:
        return _model.predict(argument)
    except SignatureError as error:
        raise InputFileError(path, error) from error
    except Exception as error:
        # Its traceback shows the model; the message has to name the file.
        add_note(error, f"while predicting {path!r}")
        print(f"predict() failed for {path!r}")
        raise


def each(predictions):
    """Returns the predictions for the rows of a table."""
    if isinstance(predictions, dict):
        columns = {name: each(values) for name, values in predictions.items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if hasattr(predictions, "columns") and hasattr(predictions, "to_dict"):
        if len(predictions.columns) == 1:
            return predictions.iloc[:, 0].tolist()
        return predictions.to_dict(orient="records")
    if hasattr(predictions, "toarray"):  # A sparse matrix.
        predictions = predictions.toarray()
    predictions = _listed(predictions)
    return list(predictions) if isinstance(predictions, (list, tuple)) else [predictions]


def _listed(value):
    """Returns an array or a scalar of NumPy, or a Series, as values of Python; instants as text."""
    if not hasattr(value, "tolist"):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") in "mM" and hasattr(value, "astype"):
        value = value.astype(str)
    return value.tolist()


def whole(prediction):
    """Returns the prediction for one image: models that predict batches return a batch of one."""
    if isinstance(prediction, dict):
        return {name: whole(value) for name, value in prediction.items()}
    values = each(prediction)
    return values[0] if len(values) == 1 else values


def literal(value):
    """Returns the value as one that ``ast.literal_eval`` reads: no NumPy types, no NaN, no instants."""
    value = _listed(value)
    if isinstance(value, dict):
        return {literal(key): literal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [literal(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    return None if type(value).__name__ == "NAType" else str(value)
