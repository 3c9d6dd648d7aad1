"""Entry script: which variety is each flower? A DataFrame comes in, a DataFrame goes out."""

import argparse

import joblib


def init():
    """Loads the model, once in every process."""
    global iris_model

    parser = argparse.ArgumentParser(description="Iris model serving", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    args, _ = parser.parse_known_args()
    iris_model = joblib.load(args.model)


def run(input_data):
    """Adds the variety that the model finds to the four measurements."""
    measurements = input_data.drop(columns="variety")
    measurements["variety"] = iris_model.predict(measurements.to_numpy())
    return measurements
