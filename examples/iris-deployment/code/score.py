"""Scoring script: which variety is each flower? Gets files, and returns a DataFrame."""

import os
from pathlib import Path

import joblib
import pandas as pd


def init():
    """Loads the model, once in every process."""
    global model
    [path] = Path(os.environ["AZUREML_MODEL_DIR"]).glob("*/*.joblib")
    model = joblib.load(path)


def run(mini_batch):
    """Returns the variety of each row of each file."""
    tables = []
    for path in mini_batch:
        table = pd.read_csv(path)
        varieties = model.predict(table.to_numpy())
        tables.append(pd.DataFrame({"file": Path(path).name, "row": range(len(table)), "variety": varieties}))
    return pd.concat(tables)
