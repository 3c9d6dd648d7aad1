"""Keys that Azure ML documents for steps, components and batch deployments are read, or a warning says why not.

`test_converted_documents.py` shows what the others become.
"""

import json

import pytest

from azure_documents import COMPONENT, DEPLOYMENT, changed
from harness import COMPLETED, INVALID

MACHINES = "a job runs on this machine, or on a target of gristmill.toml"
CONTAINER = "no container is made"
PEOPLE = "names and notes for people"
ACCESS = "access to data comes from the tools of its store"
NODES = "this machine is one node"
READ = None

OF_COMPONENTS = [
    ("description", "what it does", READ),
    ("display_name", "Rate", PEOPLE),
    ("tags", {"team": "a"}, PEOPLE),
    ("version", 3, PEOPLE),
    ("experiment_name", "e", PEOPLE),
    ("compute", "azureml:cpu-cluster", MACHINES),
    ("identity", {"type": "managed"}, ACCESS),
    ("resources.instance_count", 2, NODES),
    ("resources.instance_count", -1, READ),
    ("resources.instance_type", "Standard_NC6", MACHINES),
    ("resources.shm_size", "2g", CONTAINER),
    ("resources.docker_args", "--gpus all", CONTAINER),
    ("append_row_to", "${{outputs.rows}}", READ),
    ("output_data", "${{outputs.rows}}", "not read: rows go to append_row_to"),
    ("task.args", "--a b", READ),
    ("task.model", {"path": "net"}, READ),
    ("task.environment", {"image": "example.com/image"}, "image"),
    *[("inputs.data.mode", mode, READ) for mode in ("eval_mount", "eval_download")],
    *[("outputs.rows.mode", mode, READ) for mode in ("rw_mount", "mount", "upload", "direct")],
    *[
        ("inputs.value", {"type": kind, "default": value}, READ)
        for kind, value in [("string", "a"), ("integer", 3), ("number", 0.5), ("boolean", True)]
    ],
]
OF_DEPLOYMENTS = [
    ("description", "what it does", READ),
    ("endpoint_name", "e", PEOPLE),
    ("compute", "azureml:cpu-cluster", MACHINES),
    ("environment", {"image": "example.com/image"}, "image"),
    ("resources.instance_count", 2, NODES),
    ("settings.environment_variables.LEVEL", "3", READ),
]


@pytest.fixture
def folder(workplace):
    workplace.data(1)
    workplace.write({"code/rate.py": "def run(files): return files\n", "net/weights": "w"})
    return workplace


def validated(folder, document, *arguments):
    # Any JSON document is a YAML document.
    folder.write({"doc.yml": json.dumps(document, indent=1)})
    ended = folder.command("validate", "doc.yml", "--json", *arguments)
    assert ended.exit_status == COMPLETED, str(ended)
    return "\n".join(json.loads(ended.stdout)["warnings"])


def check(folder, document, table, *arguments):
    before = validated(folder, document, *arguments)
    wrong = []
    for path, value, reason in table:
        warnings = validated(folder, changed(document, {path: value}), *arguments)
        said = warnings.replace(before, "").strip()
        if (said != "") if reason is READ else (reason not in said or path not in said):
            wrong.append(f"{path}: {value!r}: expected {reason!r}, said {said!r}")
    assert not wrong, "\n".join(wrong)


def test_keys_of_components_are_read_or_named(folder):
    check(folder, COMPONENT, OF_COMPONENTS)


def test_keys_of_deployments_are_read_or_named(folder):
    check(folder, DEPLOYMENT, OF_DEPLOYMENTS, "--input", "data")


def test_boolean_reaches_the_arguments_as_azure_writes_it(folder):
    """Scripts compare the text."""
    document = changed(
        COMPONENT,
        {"inputs.deep": {"type": "boolean", "default": True}, "task.program_arguments": "--deep ${{inputs.deep}}"},
    )
    folder.write({"doc.yml": json.dumps(document)})
    for arguments, expected in [([], "True"), (["--input", "deep=false"], "False")]:
        converted = folder.command("convert", "doc.yml", *arguments).stdout
        assert expected in converted[converted.index("--deep") :], converted


def test_component_may_stand_in_the_step(folder):
    step = {"type": "parallel", "component": COMPONENT, "inputs": {"data": {"type": "uri_folder", "path": "data"}}}
    folder.write({"doc.yml": json.dumps({"type": "pipeline", "jobs": {"rate": step}})})
    ended = folder.command("run", "doc.yml", "--json")
    assert ended.exit_status == COMPLETED, str(ended)
    assert (folder.folder / "doc-output/rate/rows/parallel_run_step.txt").read_text().count("\n") == 1


@pytest.mark.parametrize("kind", ["automl", "sweep", "spark", "import", "data_transfer"])
def test_other_steps_are_refused_by_name(folder, kind):
    folder.write({"doc.yml": json.dumps({"type": "pipeline", "jobs": {"other": {"type": kind}}}, indent=1)})
    ended = folder.command("validate", "doc.yml")
    assert ended.exit_status == INVALID and ended.stderr.count("\n") == 1, str(ended)
    assert kind in ended.stderr and "jobs.other" in ended.stderr, str(ended)
