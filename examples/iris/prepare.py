"""Trains the model of the example on iris.csv."""

from pathlib import Path

import joblib
import pandas as pd
from sklearn.linear_model import LogisticRegression

folder = Path(__file__).resolve().parent
iris = pd.read_csv(folder / "iris.csv")
model = LogisticRegression(max_iter=1000).fit(iris.drop(columns="variety").to_numpy(), iris["variety"])

(folder / "data").mkdir(exist_ok=True)
joblib.dump(model, folder / "data" / "model.joblib")
print(f"model.joblib is in {folder / 'data'}.")
