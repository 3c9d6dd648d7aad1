"""MLflow models without an entry script: a real model in the layout of MLflow, without its packages."""

import ast
import json
import pickle

import numpy
import pytest
from agent import lines
from sklearn.linear_model import LogisticRegression

SCRIPT = "from gristmill.mlflow_model import init, run\n"

SKLEARN = """\
flavors:
  python_function:
    env: {conda: conda.yaml, virtualenv: python_env.yaml}
    loader_module: mlflow.sklearn
    model_path: model.pkl
    predict_fn: predict
    python_version: 3.11.7
  sklearn:
    code: null
    pickled_model: model.pkl
    serialization_format: cloudpickle
    sklearn_version: 1.5.0
mlflow_version: 2.9.2
signature:
  inputs: '[{"type": "double", "name": "a", "required": true}, {"type": "long", "name": "b", "required": true}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
"""

LOADED = """\
flavors:
  python_function:
    code: code
    data: data
    loader_module: own_loader
"""

OWN_LOADER = """
import numpy, os
class Model:
    def __init__(self, path):
        self.known = os.path.basename(path)
    def predict(self, given):
        if isinstance(given, dict):
            (given,) = given.values()
        with open(os.path.join(os.environ["AZUREML_MODEL_DIR"], "result")) as file:
            return eval(file.read(), globals(), {"self": self, "given": given})
def _load_pyfunc(path):
    return Model(path)
"""


def saved(folder, text=SKLEARN, loader=None):
    """Writes a model, and returns the environment of a process that applies it. Its own loader returns a value."""
    folder = folder / "models" / "digits"
    (folder / "code").mkdir(parents=True)
    (folder / "MLmodel").write_text(text)
    if loader is not None:
        (folder / "code/own_loader.py").write_text(OWN_LOADER)
        (folder.parent / "result").write_text(loader)
    values = numpy.array([[0.0, 0], [0.1, 1], [5.0, 9], [6.0, 8]])
    model = LogisticRegression().fit(values, ["small", "small", "large", "large"])
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    return {"AZUREML_MODEL_DIR": str(folder.parent)}


def rows(event):
    return [ast.literal_eval(line) for line in lines(event)]


def written(path, text):
    path.write_text(text)
    return str(path)


def test_every_row_of_a_table_has_a_prediction(start, tmp_path):
    agent = start(SCRIPT, environment=saved(tmp_path))
    first = written(tmp_path / "first.csv", "b,extra,a\n9,x,5\n1,y,0.5\n")
    second = written(tmp_path / "second.CSV", "a,b\n6.5,7\n")
    event = agent.run([first, second, written(tmp_path / "none.csv", "a,b\n")])
    assert rows(event) == [["first.csv", "large"], ["first.csv", "small"], ["second.CSV", "large"]]
    assert (event["returned"], event.get("warnings")) == (3, None), "three files succeeded"
    agent.finish()


def test_file_that_is_not_an_input_is_named(start, tmp_path):
    agent = start(SCRIPT, environment=saved(tmp_path))
    for name, text, reason in (
        ("x.parquet", "", "File type 'parquet' is not supported"),
        ("x", "", "File without an extension is not supported"),
        ("x.csv", "a,b\n1,many\n", "many"),
        ("x.csv", "a,c\n1,2\n", "Columns of the signature are missing: b; the file has: a, c"),
        ("x.csv", "", "No columns to parse from file"),
        ("x.png", "no image", "An image is one column of type binary, and the signature has double, long"),
    ):
        path = written(tmp_path / name, text)
        event = agent.run([path])
        assert event["status"] == "run_raised", reason
        assert event["error"]["message"].startswith(f"Error processing input file: '{path}'. ")
        assert reason in event["error"]["message"]


def image(path, mode="RGB"):
    from PIL import Image

    Image.new(mode, (4, 2), 3).save(path)
    return str(path)


@pytest.mark.parametrize(
    ("inputs", "shape"),
    [
        (None, (1, 2, 4, 3, "uint8")),
        ([{"type": "tensor", "tensor-spec": {"dtype": "object", "shape": [-1]}}], (1, "object")),
        ([{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2, 4, 3]}}], (1, 2, 4, 3, "float32")),
        ([{"type": "tensor", "tensor-spec": {"dtype": "uint8", "shape": [-1, -1, -1, 3]}}], (1, 2, 4, 3, "uint8")),
        ([{"name": "x", "type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [2, 12]}}], (2, 12, "int64")),
    ],
)
def test_image_is_an_array_in_the_shape_of_the_signature(start, tmp_path, inputs, shape):
    signature = f"signature:\n  inputs: '{json.dumps(inputs)}'\n" if inputs else ""
    environment = saved(tmp_path, LOADED + signature, "[[*given.shape, str(given.dtype)]]")
    agent = start(SCRIPT, environment=environment)
    assert rows(agent.run([image(tmp_path / "a.png")])) == [["a.png", [*shape]]]


def test_image_is_a_column_of_bytes_for_a_signature_of_columns(start, tmp_path):
    def process(folder, columns):
        signature = f"signature:\n  inputs: '{json.dumps(columns)}'\n"
        environment = saved(tmp_path / folder, LOADED + signature, "[given['picture'][0][1:4].decode()]")
        return start(SCRIPT, environment=environment)

    path = image(tmp_path / "a.png")
    picture = {"type": "binary", "name": "picture"}
    assert rows(process("one", [picture]).run([path])) == [["a.png", "PNG"]]
    event = process("two", [picture, {"type": "long", "name": "size"}]).run([path])
    assert "An image is one column of type binary, and the signature has binary, long" in event["error"]["message"]


def test_file_that_is_not_an_image_is_named(start, tmp_path):
    agent = start(SCRIPT, environment=saved(tmp_path, LOADED, "[0]"))
    event = agent.run([written(tmp_path / "a.png", "no image")])
    assert "a.png'. cannot identify image file" in event["error"]["message"]


def test_predictions_are_literals(start, tmp_path):
    agent = start(SCRIPT, environment=saved(tmp_path, LOADED, ""))
    path = written(tmp_path / "a.csv", "a,b\n1,p\n2,\n")
    for result, predictions in (
        ("numpy.array([0.5, numpy.nan], dtype='float32')", [0.5, None]),
        ("numpy.eye(2)", [[1.0, 0.0], [0.0, 1.0]]),
        ("given.rename(columns={'a': 'x'})", [{"x": 1, "b": "p"}, {"x": 2, "b": None}]),
        ("given[['a']]", [1, 2]),
        ("given['b']", ["p", None]),
        ("{'s': numpy.arange(2), 't': ['q', 'r']}", [{"s": 0, "t": "q"}, {"s": 1, "t": "r"}]),
        ("[self.known, numpy.datetime64('2020-01-02')]", ["data", "2020-01-02"]),
    ):
        written(tmp_path / "models/result", result)
        assert rows(agent.run([path])) == [["a.csv", prediction] for prediction in predictions], result


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no file MLmodel in "),
        ("a: [", "is not valid YAML: "),
        ("a: 1", "names no flavors"),
        ("flavors: {keras: {data: d}}", "has no flavor python_function (it has: keras)"),
        (
            "flavors: {xgboost: {}, python_function: {loader_module: mlflow.xgboost}}",
            "(xgboost) needs the package mlflow: add it to the environment of the job, for example `mlflow xgboost`",
        ),
        (SKLEARN.replace("cloudpickle", "skops"), "needs the package skops: add it to the environment of the job"),
        (SKLEARN.replace("cloudpickle", "onnx"), "was saved as onnx, which only the package mlflow can read"),
    ],
)
def test_model_that_cannot_be_loaded_is_one_clear_error(start, tmp_path, text, reason):
    environment = saved(tmp_path, text or "")
    if text is None:
        (tmp_path / "models/digits/MLmodel").unlink()
    agent = start(SCRIPT, ready=False, environment=environment)
    event = agent.receive()
    assert event["frame"] == "init_failed"
    assert reason in event["error"]["message"]
