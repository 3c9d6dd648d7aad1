"""Datasets, datastores and environments by the tables of names, off Azure."""

import json
import sys

import pytest
from agent import PACKAGE
from calls import check_errors

from gristmill.mltable.definition import READERS

SETUP = """
    import json, os
    from azureml.core import Dataset, Datastore, Environment, Run, Workspace
    ws = Workspace.from_config()
"""


@pytest.fixture
def named(script, tmp_path):
    """Runs a script with tables of names, and returns what it printed."""
    stores = {"blobs": str(tmp_path / "blobs"), "far": "abfss://files@a.dfs.core.windows.net/x"}
    data = {
        "sales": str(tmp_path / "sales"),
        "sales:1": str(tmp_path / "old.csv"),
        "table": str(tmp_path / "table"),
        "images": str(tmp_path / "images"),
        "versions:2": str(tmp_path / "old.csv"),
        "versions:10": str(tmp_path / "sales/b.csv"),
    }
    files = {
        "sales/a.csv": "k,v\nx,1.5\ny,2.5\n",
        "sales/b.csv": "k,v\nz,3.5\n",
        "old.csv": "k,v\nold,0.5\n",
        "table/MLTable": "paths:\n  - file: ./t.csv\ntransformations:\n  - read_delimited: {delimiter: ;}\n",
        "table/t.csv": "p;q\n5;a,b\n",
        "images/one/1.png": "",
        "images/2.png": "",
        "blobs/in/a.csv": "k,v\nx,1.5\n",
    }
    tables = json.dumps({"datastores": stores, "data": data})

    def run(text, fails=False, **environment):
        return script(SETUP + text, fails, files, **{"GRISTMILL_AZUREML_NAMES": tables, **environment})

    return run


def test_registered_datasets_and_side_inputs_are_found_and_read(named, tmp_path):
    said = named(
        """
    import warnings
    for name, version in (("sales", "latest"), ("sales", 1), ("sales", 7), ("versions", None), ("table", "latest")):
        found = Dataset.get_by_name(ws, name, version=version)
        print(found.name, found.version, found.to_pandas_dataframe().to_dict("list"))
    print(sorted(ws.datasets), Dataset.get_by_id(ws, "versions:2").to_pandas_dataframe()["k"].tolist())
    labels = Run.get_context().input_datasets["labels"]
    print(os.path.basename(labels), labels.to_pandas_dataframe()["k"].tolist(), isinstance(labels, str))
    for on_error in ("null", "fail"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            Dataset.get_by_name(ws, "sales").to_pandas_dataframe(on_error=on_error)
        print(*[str(one.message).partition(",")[0] for one in seen])
    """,
        AZURE_ML_INPUT_labels=str(tmp_path / "sales"),
    )
    assert said.splitlines() == [
        "sales 1 {'k': ['x', 'y', 'z'], 'v': [1.5, 2.5, 3.5]}",
        "sales 1 {'k': ['old'], 'v': [0.5]}",
        "sales 7 {'k': ['x', 'y', 'z'], 'v': [1.5, 2.5, 3.5]}",
        "versions 10 {'k': ['z'], 'v': [3.5]}",
        "table 1 {'p': [5], 'q': ['a,b']}",
        "['images', 'sales', 'table', 'versions'] ['old']",
        "sales ['x', 'y', 'z'] True",
        "",
        "to_pandas_dataframe: on_error and out_of_range_datetime have no effect here",
    ]


def test_files_of_datasets_are_mounted_alone(named, tmp_path):
    assert named("""
    images = Dataset.get_by_name(ws, "images")
    print(images.to_path(), [os.path.relpath(path, "copy") for path in images.download("copy")])
    with images.mount() as mounted:
        print(os.path.relpath(mounted.mount_point))
    files = Dataset.File.from_files((Datastore.get(ws, "blobs"), "in/**"))
    copies = Dataset.File.from_files("sales/*.csv").download()
    print(files.to_path(), [os.path.basename(path) for path in copies])
    open("sales/notes.txt", "w").write("n")
    for paths in ("sales/*.csv", "sales/a.csv", ["sales/a.csv", "old.csv"], "sales"):
        with Dataset.File.from_files(paths).mount() as mounted:
            found = [os.path.join(root, name) for root, _, names in os.walk(mounted.mount_point) for name in names]
            print(sorted(os.path.relpath(path, mounted.mount_point) for path in found), len(open(found[0]).read()) > 0)
    """).splitlines() == [
        "['/2.png', '/one/1.png'] ['2.png', 'one/1.png']",
        "images",
        "['/a.csv'] ['a.csv', 'b.csv']",
        "['a.csv', 'b.csv'] True",
        "['a.csv'] True",
        "['old.csv', 'sales/a.csv'] True",
        "['a.csv', 'b.csv', 'notes.txt'] True",
    ]
    assert (tmp_path / "copy/one/1.png").exists()


def test_models_of_the_table(named, tmp_path):
    models = {"net": str(tmp_path / "images"), "far": "s3://bucket/net", "old:1": str(tmp_path / "old.csv")}
    tables = {"GRISTMILL_AZUREML_NAMES": json.dumps({"models": models})}
    text = """
    from azureml.core import Model
    print(Model.get_model_path("net"), Model.get_model_path("old", version=1), Model(ws, "net").version)
    Model.register(ws, "old.csv", "net")
    print(os.path.basename(Model.get_model_path("net")))
    Model.get_model_path(NAME)
    """
    assert named(text.replace("NAME", "'old'"), **tables).splitlines() == [
        f"{tmp_path}/images {tmp_path}/old.csv 1",
        "old.csv",
    ]
    for name, said in (
        ("'far'", "model far is at s3://bucket/net, which only jobs reach"),
        ("'old', 2", "model old, version 2 was not found"),
    ):
        assert said in named(text.replace("NAME", name), fails=True, **tables)


def test_tables_of_files(named):
    assert named("""
    blobs = Datastore(ws, "blobs")
    from azureml.data.dataset_factory import DataType, PromoteHeadersBehavior
    table = Dataset.Tabular.from_delimited_files(
        path=[(blobs, "in/a.csv")], header=PromoteHeadersBehavior.ALL_FILES_HAVE_SAME_HEADERS,
        set_column_types={"v": DataType.to_string()}, include_path=True,
    )
    print(table.take(1).drop_columns("Path").to_pandas_dataframe().to_dict("list"))
    print(table.keep_columns(["k"]).skip(1).to_pandas_dataframe().shape)
    table.to_pandas_dataframe().to_parquet("t.parquet")
    print(Dataset.Tabular.from_parquet_files("t.parquet").to_pandas_dataframe()["v"].tolist())
    """).splitlines() == ["{'k': ['x'], 'v': ['1.5']}", "(0, 1)", "['1.5']"]


def test_datasets_are_inputs_of_steps(named, tmp_path):
    lines = named("""
    blobs = Datastore.get(ws, "blobs")
    table = Dataset.Tabular.from_delimited_files((blobs, "in/*.csv"), separator=";", header=False)
    files = Dataset.File.from_files((Datastore.get(ws, "far"), "in"), partition_format="/{k}/{f}.csv")
    for one in (table, files, Dataset.get_by_name(ws, "sales"), Dataset.get_by_name(ws, "images"),
                Dataset.get_by_name(ws, "table"), blobs.path("in")):
        keys = one.job_input()
        # Of a table, its definition.
        definition = os.path.join(keys.get("path", ""), "MLTable")
        print(json.dumps(json.load(open(definition)) if "path" in keys else keys))
    print(table.as_named_input("rows").job_input() == table.job_input(), blobs.path_of("x/y"))
    """).splitlines()
    # Of a table: its paths, its reader, and the settings that are not the defaults.
    found = [json.loads(line) for line in lines[:-1]]
    for position, one in enumerate(found):
        if "transformations" in one:
            ((reader, settings),) = one["transformations"][0].items()
            changed = {name: value for name, value in settings.items() if value != READERS[reader][name]}
            found[position] = (one["paths"], reader, changed)
    assert found == [
        ([{"pattern": f"{tmp_path}/blobs/in/*.csv"}], "read_delimited", {"delimiter": ";", "header": "no_header"}),
        {
            "type": "file",
            "paths": ["abfss://files@a.dfs.core.windows.net/x/in"],
            "partition_format": "/{k}/{f}.csv",
        },
        ([{"folder": str(tmp_path / "sales")}], "read_delimited", {}),
        {"type": "file", "paths": [str(tmp_path / "images")]},
        ([{"file": str(tmp_path / "table/t.csv")}], "read_delimited", {"delimiter": ";"}),
        {"type": "file", "paths": [str(tmp_path / "blobs/in")]},
    ]
    assert lines[-1] == f"True {tmp_path}/blobs/x/y"


def test_datastores_are_folders_whose_other_content_stays(named, tmp_path):
    said = named("""
    import warnings
    store = ws.datastores["blobs"]
    os.makedirs("made/deep"); open("made/deep/x.txt", "w").close()
    print(store.upload("made", "up").path_on_datastore, store.upload_files(["old.csv"], target_path="up").located())
    print(store.download("down", prefix="up/deep"), os.listdir("down/up/deep"))
    print(sorted(ws.datastores), ws.get_default_datastore().name)
    ws.get_default_datastore().upload_files(["old.csv"])
    store = Datastore.get(ws, "blobs")
    for overwrite in (False, False, True):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            store.upload_files(["old.csv"], target_path="kept", overwrite=overwrite)
        print(*[one.message for one in seen], open("blobs/kept/old.csv").read().splitlines()[1])
        open("old.csv", "a").write("more,1\\n") if not seen else open("old.csv", "w").write("k,v\\nnew,1\\n")
    """)
    stays = f"{tmp_path}/blobs/kept/old.csv exists and differs from old.csv: pass overwrite=True to replace it"
    assert said.splitlines() == [
        f"up {tmp_path}/blobs/up",
        "1 ['x.txt']",
        "['blobs', 'far', 'workspaceblobstore'] workspaceblobstore",
        "old,0.5",
        f"{stays} old,0.5",
        "new,1",
    ]
    assert (tmp_path / "blobs/up/old.csv").exists()
    assert (tmp_path / "home/datastores/workspaceblobstore/old.csv").exists()


def test_names_that_a_driver_registers_are_known_to_it(named):
    assert named("""
    import pandas, warnings
    from azureml.exceptions import UserErrorException
    from azureml.data.datapath import DataPath
    store = Datastore.get(ws, "blobs")
    for value, target in enumerate((store, (store, "frames"), DataPath(store, "frames"))):
        Dataset.Tabular.register_pandas_dataframe(pandas.DataFrame({"a": [value]}), target, "frame")
        print(Dataset.get_by_name(ws, "frame").to_pandas_dataframe()["a"].tolist())
    print(Dataset.get_by_name(ws, "frame", version=1).to_pandas_dataframe()["a"].tolist())
    print(sorted(os.listdir("blobs")))
    Dataset.File.from_files("old.csv").register(ws, "versions")
    try:
        Dataset.get_by_name(ws, "versions", version=3)
    except UserErrorException as error:
        # The versions of the table, and those of the register.
        print(str(error).partition(":")[2].partition(")")[0])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = Dataset.File.from_files("old.csv").register(workspace=ws, name="mine", create_new_version=True)
        print(seen, Dataset.get_by_name(ws, "mine").name, made.version)
        Dataset.File.from_files("old.csv").register(ws, "sales")
    print(seen[0].message)
    """).splitlines() == [
        *("[0]", "[1]", "[2]", "[0]", "['frame', 'frames', 'in']"),
        " 1, 2, 10",
        "[] mine 1",
        "dataset sales is registered as version 1, but [azureml.data] of gristmill.toml has a line for this name, "
        "which takes precedence",
    ]


UNKNOWN = [
    (
        'Dataset.get_by_name(ws, "none")',
        'data none has no place here (known: images, sales, sales:1, table, versions:10, versions:2): add the line '
        '`none = "PATH OR URL"` below [azureml.data] in gristmill.toml',
    ),
    (
        'Dataset.get_by_name(ws, "versions", version=3)',
        'data versions has no version 3 (versions: 2, 10): ask for one of these, or add the line '
        '`"versions:3" = "PATH OR URL"` below [azureml.data] in gristmill.toml',
    ),
    ('Dataset.File.from_files("azureml:versions:3").to_path()', "data versions has no version 3 (versions: 2, 10)"),
    ('Datastore.get(ws, "none")', "below [azureml.datastores] in gristmill.toml"),
    ('Datastore.get(ws, "far").upload("sales")', "which only jobs reach: make it an input or the output"),
    ('Datastore.get(ws, "blobs").mount()', "Datastore.mount is not supported by the stand-in"),
    ('Dataset.get_by_name(ws, "sales").to_spark_dataframe()', "RegisteredDataset.to_spark_dataframe is not"),
    (
        'Dataset.get_by_name(ws, "sales").keep_columns(["key"], validate=True)',
        "InvalidTable: keep_columns: the table has no column key; it has k, v",
    ),
    ('Dataset.get_by_name(ws, "images").to_pandas_dataframe()', "is not a table: its first file is "),
    ('from azureml.data.dataset_factory import DataType; DataType.to_float(decimal_mark=",")', "mark is a point"),
    ('Dataset.File.from_files("azureml:none:1").to_path()', '`"none:1" = "PATH OR URL"`'),
    ('Dataset.File.from_files("azureml://x/y").to_path()', "is not an address of a datastore"),
]  # fmt: skip


def test_unknown_names_are_reported(named):
    check_errors(named, "", dict(UNKNOWN))


def test_addresses_of_the_tables(named, tmp_path):
    assert named("""
    from gristmill.azureml_core.names import located
    long = "azureml://subscriptions/s/resourcegroups/g/workspaces/w"
    for address in ("azureml://datastores/blobs/paths/in/a.csv", f"{long}/datastores/far/paths/y", "azureml:sales:1",
                    "azureml:sales@latest", f"{long}/data/sales/versions/1", "azureml:sales", "/x", "https://x/y"):
        print(located(address))
    """).splitlines() == [
        f"{tmp_path}/blobs/in/a.csv",
        "abfss://files@a.dfs.core.windows.net/x/y",
        f"{tmp_path}/old.csv",
        f"{tmp_path}/sales",
        f"{tmp_path}/old.csv",
        f"{tmp_path}/sales",
        "/x",
        "https://x/y",
    ]


def test_environments_are_files_or_packages(named):
    lines = named("""
    from azureml.core.conda_dependencies import CondaDependencies
    from azureml.core.compute import AmlCompute, ComputeTarget
    from azureml.core.compute_target import ComputeTargetException
    open("req.txt", "w").close()
    print(os.path.basename(Environment.from_pip_requirements("e", "req.txt").python_of_job()))
    made = Environment("made")
    made.docker.enabled = True
    made.python.conda_dependencies = CondaDependencies.create(pip_packages=["a"], conda_packages=["b"])
    made.python.conda_dependencies.add_pip_package("c==1")
    print(made.python_of_job(), json.dumps(made.conda_file))
    print(Environment.get(ws, "AzureML-Minimal").python_of_job())
    config = AmlCompute.provisioning_configuration(vm_size="STANDARD_D2", max_nodes=4)
    if "cluster" not in ws.compute_targets:
        ComputeTarget.create(ws, "cluster", config).wait_for_completion(show_output=True)
    print(ComputeTarget(workspace=ws, name="cluster").name)
    """).splitlines()
    assert lines == ["req.txt", 'None {"dependencies": ["b", {"pip": ["a", "c==1"]}]}', "None", "cluster"]


INSTALLED = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/dataset.py": """
        class Dataset:
            @staticmethod
            def get_by_name(workspace, name, version="latest"): return "the SDK"
    """,
    "core/datastore.py": """
        class Datastore:
            def __new__(cls, workspace, name=None): return "the SDK"
            @staticmethod
            def get(workspace, datastore_name): return "the SDK"
    """,
}


def test_installed_sdk_falls_back_for_a_local_workspace(script, tmp_path):
    said = script(
        """
        from azureml.core.dataset import Dataset
        from azureml.core.datastore import Datastore
        from gristmill.azureml_core.workspace import Workspace
        ws = Workspace()
        print(Dataset.get_by_name("theirs", "x"), len(Dataset.get_by_name(ws, name="sales").to_pandas_dataframe()))
        print(Datastore.get("theirs", "x"), Datastore("theirs"), Datastore(ws, "blobs").name)
        print(Datastore.get(ws, "blobs").name)
        try:
            import azureml.pipeline
        except ImportError as error:
            print(error)
        """,
        files={"sales.csv": "a\n1\n2\n"} | {f"site/azureml/{name}": text for name, text in INSTALLED.items()},
        PYTHONPATH=f"{tmp_path / 'site'}:{PACKAGE}",
        GRISTMILL_AZUREML_NAMES=json.dumps(
            {"data": {"sales": str(tmp_path / "sales.csv")}, "datastores": {"blobs": str(tmp_path)}}
        ),
    )
    assert said.splitlines() == ["the SDK 2", "the SDK the SDK blobs", "blobs", "No module named 'azureml.pipeline'"]


TOML = """
[targets.prod]
queue = "sqs://x"
[azureml.datastores]
blobs = "store"
far = "abfss://files@a.dfs.core.windows.net/x"
[azureml.data]
sales = "sales.csv"
"sales:2" = "/elsewhere/new.csv"
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="only newer interpreters read the file")
def test_tables_of_the_nearest_file(script, tmp_path):
    (tmp_path / "gristmill.toml").write_text(TOML)
    (tmp_path / "sales.csv").write_text("a\n5\n")
    (tmp_path / "deep").mkdir()
    text = (
        SETUP
        + """
    os.chdir(os.environ.get("WHERE", "deep"))
    print(Dataset.get_by_name(ws, "sales", version=1).to_pandas_dataframe()["a"].tolist())
    print(Datastore.get(ws, "blobs").path_of("x"), Datastore.get(ws, "far").path_of("x"), sorted(ws.datastores))
    """
    )
    expected = [
        "[5]",
        f"{tmp_path}/store/x abfss://files@a.dfs.core.windows.net/x/x ['blobs', 'far', 'workspaceblobstore']",
    ]
    assert script(text).splitlines() == expected
    state = json.dumps({"working_dir": str(tmp_path / "deep")})
    assert script(text, WHERE="/", GRISTMILL_ENTRY_SCRIPT=state).splitlines() == expected, "the folder of the code"
    (tmp_path / "gristmill.toml").write_text("azureml")
    assert "gristmill.toml is not valid: " in script(text, fails=True)
