"""The page `MIGRATING.md`: each row of its tables has a case here, and what the row says is true."""

import json
import os
import re
import subprocess
import sys

import pytest

import azure_documents
from azure_documents import DEPLOYMENT, changed
from harness import COMPLETED, FAILED, INVALID, ROOT, next_second
from http_server import HttpServer

PAGE = ROOT / "services/cli/MIGRATING.md"
SCHEMA = "https://azuremlschemas.azureedge.net/latest/{}.schema.json"
COMPONENT = azure_documents.changed(
    azure_documents.COMPONENT, {"name": "rate", "inputs.side": {"type": "uri_folder", "path": "side"}}
)
PIPELINE = {
    "type": "pipeline",
    "inputs": {"raw": {"type": "uri_folder", "path": "data"}, "level": 3},
    "outputs": {"all": {"type": "uri_folder"}},
    "settings": {"default_datastore": "azureml:mine"},
    "jobs": {
        "cut": {
            "type": "command",
            "command": "cut ${{inputs.raw}} ${{inputs.level}} ${{outputs.parts}} $[[--note ${{inputs.note}}]]",
            "inputs": {
                "raw": "${{parent.inputs.raw}}",
                "level": "${{parent.inputs.level}}",
                "note": {"type": "string", "optional": True},
            },
            "outputs": {"parts": {"type": "uri_folder"}},
        },
        "rate": {
            **COMPONENT,
            "inputs": {"data": {"type": "uri_folder", "path": "${{parent.jobs.cut.outputs.parts}}"}},
            "outputs": {
                "rows": {"type": "uri_file", "path": "azureml://datastores/${{default_datastore}}/paths/${{name}}.txt"},
                "more": "${{parent.outputs.all}}",
                "last": {"type": "uri_folder", "path": "kept/${{output_name}}"},
            },
        },
    },
}
TABLE = {
    "paths": [{"pattern": "./*/*.csv"}],
    "transformations": [{"read_delimited": {"delimiter": ";"}}],
}


def step(changes, *lines, says=()):
    """A component, and lines of the job file that it becomes."""
    return (changed(COMPONENT, changes), [], lines, says)


def deployment(changes, *lines, says=()):
    return (changed(DEPLOYMENT, changes), ["--input", "data"], lines, says)


def pipeline(*lines):
    return (PIPELINE, [], lines, ())


def table(steps, found, /, **changes):
    """An MLTable with these steps after its reader, and what the specification of its job contains."""
    steps = [*TABLE["transformations"], *steps]
    return (changed({**TABLE, "transformations": steps}, changes), found)


LIMITS = {"task.program_arguments": "--a ${{inputs.side}} 'b c'"}
ROWS_OF_FILES = {"inputs.data.path": "requests.jsonl", "task.program_arguments": "--amlbi_file_format jsonl"}
DOCUMENTS = {
    "pipeline job": [
        (PIPELINE, [], ["# Step rate, after cut"], ()),
        (changed(PIPELINE, {"type": None}), [], ["# Step rate, after cut"], ()),
        (changed(PIPELINE, {"type": None, "$schema": SCHEMA.format("pipelineJob")}), [], ["name: doc-cut"], ()),
    ],
    "parallel component": [
        step({}, "name: rate"),
        step({"type": None, "$schema": SCHEMA.format("parallelComponent")}, "name: rate"),
    ],
    "batch deployment": [deployment({}, "name: rate")],
    "older batch deployment": [
        deployment({"type": None, "settings": None, "error_threshold": 7}, "error_threshold: 7"),
        deployment(
            {
                "type": None,
                "settings": None,
                "code_configuration": None,
                "endpoint_name": "e",
                "model": {"path": "mlflow"},
            },
            "entry_script: gristmill.mlflow_model",
        ),
        deployment({"type": None, "settings": None, "$schema": SCHEMA.format("batchDeployment")}, "name: rate"),
    ],
    "`task.code`": [step({}, "source_directory: code")],
    "`task.entry_script`": [step({}, "entry_script: rate.py")],
    "`task.program_arguments`": [step(LIMITS, "- --a", "- ${{side_inputs.side}}", "- b c")],
    "`--amlbi_file_format jsonl` in `task.program_arguments`": [step(ROWS_OF_FILES, "type: tabular", "format: jsonl")],
    "`--amlbi_mini_batch_rows 100` beside it": [
        step(
            {**ROWS_OF_FILES, "task.program_arguments": "--amlbi_file_format jsonl --amlbi_mini_batch_rows 100"},
            "mini_batch_size: 100 rows",
        )
    ],
    "`task.append_row_to: ${{outputs.rows}}`": [
        step({}, "output_action: append_row", "output: doc-output/rows"),
        step(
            {"outputs.rows.path": "kept/all.txt"},
            "output_action: append_row",
            "output: kept",
            "append_row_file_name: all.txt",
        ),
        step({"task.append_row_to": None}, "output_action: summary_only", "rows: doc-output/rows"),
    ],
    "`task.model`": [step({"task.model": "net"}, "model: net")],
    "`task.environment`": [step({"task.environment": "requirements.txt"}, "environment: requirements.txt")],
    "`input_data: ${{inputs.data}}`": [step({}, "data:", "path: data", "side_inputs:", "side: side")],
    "`mini_batch_size`": [
        step({"mini_batch_size": "5"}, "mini_batch_size: 5"),
        step(
            {"mini_batch_size": 5, "partition_keys": ["k"]}, "partition_keys:", says=["without effect beside partition"]
        ),
    ],
    "`partition_keys`": [step({"partition_keys": ["store"]}, "partition_keys:", "- store")],
    "`error_threshold`": [step({"error_threshold": 3}, "error_threshold: 3")],
    "`mini_batch_error_threshold`": [step({"mini_batch_error_threshold": 4}, "allowed_failed_count: 4")],
    "`retry_settings.max_retries`": [step({"retry_settings.max_retries": 1}, "run_max_try: 2")],
    "`retry_settings.timeout`": [step({"retry_settings.timeout": 9}, "run_invocation_timeout: 9")],
    "`max_concurrency_per_instance`": [step({"max_concurrency_per_instance": 6}, "process_count_per_node: 6")],
    "`resources.instance_count`": [
        step({"resources.instance_count": 2}, "name: rate", says=["this machine is one node"]),
    ],
    "`logging_level`": [step({"logging_level": "DEBUG"}, "logging_level: DEBUG")],
    "`environment_variables`": [step({"environment_variables": {"A": "b"}}, "environment_variables:", "A: b")],
    "`is_deterministic: false`": [step({"is_deterministic": False}, "allow_reuse: false")],
    "`mode: ro_mount`, `rw_mount`, `mount`, `download`, `direct`": [
        step({"inputs.side.mode": mode}, "side: side")
        for mode in ("ro_mount", "rw_mount", "mount", "download", "direct")
    ]
    + [step({"inputs.side": {"type": "uri_file", "mode": "download", "path": "https://h/f"}}, "side: https://h/f")],
    "`${{inputs.NAME}}`, `${{outputs.NAME}}`": [
        pipeline("- cut ${{side_inputs.raw}} 3 ${{outputs.parts}}"),
    ],
    "`${{parent.inputs.NAME}}`, `${{parent.outputs.NAME}}`": [pipeline("raw: data", "more: doc-output/outputs/all")],
    "`${{parent.jobs.STEP.outputs.NAME}}`": [pipeline("path: doc-output/cut/parts")],
    "`${{name}}`, `${{output_name}}`, `${{default_datastore}}`": [
        pipeline("output: s3://bucket/mine", "append_row_file_name: rate.txt", "last: kept/last")
    ],
    "`$[[--option ${{inputs.NAME}}]]`": [pipeline("- cut ${{side_inputs.raw}} 3 ${{outputs.parts}}")],
}
DEPLOYMENTS = {
    "`model`": [deployment({}, "model: net")],
    "`code_configuration.code`, `.scoring_script`": [deployment({}, "source_directory: code", "entry_script: rate.py")],
    "no `code_configuration`, a model with `MLmodel`": [
        deployment(
            {"code_configuration": None, "model.path": "mlflow"},
            "entry_script: gristmill.mlflow_model",
            "model: mlflow",
        )
    ],
    "`mini_batch_size` (10)": [
        deployment({}, "mini_batch_size: 10"),
        deployment({"settings.mini_batch_size": 3}, "mini_batch_size: 3"),
    ],
    "`max_concurrency_per_instance` (1)": [
        deployment({}, "process_count_per_node: 1"),
        deployment({"settings.max_concurrency_per_instance": 3}, "process_count_per_node: 3"),
    ],
    "`output_action` (append_row)": [
        deployment({}, "output_action: append_row"),
        deployment({"settings.output_action": "summary_only"}, "output_action: summary_only", "output: doc-output"),
    ],
    "`output_file_name` (predictions.csv)": [
        deployment({}, "output: doc-output", "append_row_file_name: predictions.csv"),
        deployment({"settings.output_file_name": "rows.csv"}, "append_row_file_name: rows.csv"),
    ],
    "`error_threshold` (-1)": [
        deployment({}, "error_threshold: -1"),
        deployment({"settings.error_threshold": 2}, "error_threshold: 2"),
    ],
    "`retry_settings.max_retries` (3), `.timeout` (30)": [
        deployment({}, "run_max_try: 4", "run_invocation_timeout: 30"),
        deployment(
            {"settings.retry_settings": {"max_retries": 0, "timeout": 8}}, "run_max_try: 1", "run_invocation_timeout: 8"
        ),
    ],
    "`logging_level` (info)": [
        deployment({}, "logging_level: info"),
        deployment({"settings.logging_level": "warning"}, "logging_level: warning"),
    ],
}
DEPLOYMENTS["no `environment` either"] = [
    deployment(
        {"code_configuration": None, "model.path": "listed"},
        "entry_script: gristmill.mlflow_model",
        "environment: listed/requirements.txt",
    )
]
STORE = "subscriptions/s/resourcegroups/g/workspaces/w/datastores/mine/paths"
PLACE = "s3://bucket/mine/x"


def address(text, found):
    """An input at an address, and its path in the job file."""
    return step({"inputs.data.path": text}, f"path: {found}")


ADDRESSES = {
    "`data/x`, `azureml:./data/x`": [address("side/a", "side/a"), address("azureml:./side/a", "side/a")],
    "`azureml:NAME:VERSION`, `azureml:NAME@latest`": [
        address("azureml:digits:2", "side"),
        address("azureml:digits@latest", "data"),
    ],
    "`azureml://datastores/NAME/paths/PATH`": [address("azureml://datastores/mine/paths/x", PLACE)],
    "`azureml://subscriptions/…/workspaces/W/datastores/NAME/paths/PATH`": [
        address(f"azureml://{STORE}/x", PLACE),
        address(f"azureml:azureml://{STORE}/x", PLACE),
    ],
    "`azureml://locations/…/workspaces/W/data/NAME/versions/VERSION`": [
        address("azureml://locations/l/workspaces/w/data/digits/versions/2", "side")
    ],
    "`azureml://registries/R/models/NAME/versions/VERSION` or `…/labels/latest`": [
        step({"task.model": f"azureml://registries/r/models/classifier/{version}"}, "model: net")
        for version in ("versions/4", "labels/latest")
    ],
    "`/subscriptions/…/data/NAME/versions/VERSION`, also after `azureml:`": [
        address(f"{prefix}/subscriptions/s/resourceGroups/g/providers/p/workspaces/w/data/digits/versions/2", "side")
        for prefix in ("", "azureml:")
    ],
    "`wasbs://CONTAINER@ACCOUNT.blob.core.windows.net/PATH`": [
        address("wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x")
    ],
    "`abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, `https://…`": [
        address(url, url) for url in ("abfss://c@a.dfs.core.windows.net/x", "https://host/x.csv")
    ],
}
ENVIRONMENTS = {
    "`conda_file: env.yml`, or a mapping": [
        step({"task.environment": {"conda_file": "conda.yml"}}, "environment: conda.yml"),
        step(
            {"task.environment": {"conda_file": {"dependencies": ["python=3.12", {"pip": ["six"]}]}}},
            re.compile(r"environment: .*/document-files/[0-9a-f]{16}\.yml"),
        ),
    ],
    "`image` or `build` alone": [
        step({"task.environment": {"image": "i"}}, says=["i is not used; the script runs with the default"]),
        step({"task.environment": {"build": {"path": "."}}}, says=["a Dockerfile is not used"]),
    ],
    "`azureml:NAME:VERSION`": [step({"task.environment": "azureml:old:3"}, "environment: requirements.txt")],
}
CONVERTED = {**DOCUMENTS, **ENVIRONMENTS, **ADDRESSES}
TABLES = {
    "`paths` with `file`, `folder`, `pattern`": [
        table([], {"rows": ["1 2 x", "3 4 y"]}),
        table([], {"rows": ["True 2 x"]}, paths=[{"file": "a/1.csv"}]),
        table([], {"rows": ["3 4 y"]}, paths=[{"folder": "./b"}]),
    ],
    "`read_delimited` with `delimiter`, `encoding`, `header`, `infer_column_types`, `support_multi_line`, "
    "`empty_as_string`": [
        table(
            [],
            {"format": "csv", "delimiter": 59, "encoding": "latin1", "header": "no_header"}
            | {"infer_column_types": False, "support_multi_line": True, "empty_as_string": True},
            transformations=[
                {
                    "read_delimited": {
                        **{"delimiter": ";", "encoding": "latin1", "header": "no_header"},
                        **{"infer_column_types": False, "support_multi_line": True, "empty_as_string": True},
                    }
                }
            ],
        )
    ],
    "`include_path_column: true`": [
        table(
            [],
            {"path_column": "Path"},
            transformations=[{"read_delimited": {"delimiter": ";", "include_path_column": True}}],
        ),
        table(
            [],
            {"path_column": "from"},
            transformations=[{"read_delimited": {"include_path_column": True, "path_column": "from"}}],
        ),
    ],
    "`infer_column_types: {column_type_overrides: {…}}`": [
        table(
            [],
            {"column_types": {"id": "text"}, "infer_column_types": True},
            transformations=[
                {
                    "read_delimited": {
                        "delimiter": ";",
                        "infer_column_types": {"sample_size": 5, "column_type_overrides": {"id": "string"}},
                    }
                }
            ],
        )
    ],
    "`invalid_lines`": [
        table(
            [],
            {"format": "jsonl", "on_type_mismatch": "missing", "rows": ["1"]},
            paths=[{"file": "c.jsonl"}],
            transformations=[{"read_json_lines": {"invalid_lines": mode}}],
        )
        for mode in ("error", "drop")
    ],
    "`header: from_first_file`, `all_files_different_headers`": [
        table([], {"header": mode}, transformations=[{"read_delimited": {"delimiter": ";", "header": mode}}])
        for mode in ("from_first_file", "all_files_different_headers")
    ],
    "`read_json_lines`, `read_parquet`": [
        table([], {"format": "jsonl"}, paths=[{"file": "c.jsonl"}], transformations=["read_json_lines"]),
        table([], {"format": "parquet"}, paths=[{"file": "d.parquet"}], transformations=[{"read_parquet": {}}]),
    ],
    "`extract_columns_from_partition_format`": [
        table([{"extract_columns_from_partition_format": "{Store}/{file}.csv"}], {"rows": ["1 2 x a 1", "3 4 y b 2"]})
    ],
    "`drop_columns`, `keep_columns`": [
        table([{"drop_columns": ["price"]}], {"columns": ["id", "note"], "rows": ["1 x", "3 y"]}),
        table([{"keep_columns": ["note", "id"]}], {"columns": ["note", "id"]}),
        table(
            [{"extract_columns_from_partition_format": "{Store}/{file}.csv"}, {"drop_columns": ["file"]}],
            {"rows": ["1 2 x a", "3 4 y b"], "partition_format": "{Store}/*.csv"},
        ),
    ],
    "`convert_column_types`": [
        table(
            [{"convert_column_types": [{"columns": "id", "column_type": "string"}]}], {"column_types": {"id": "text"}}
        )
    ],
    "`take`, `skip`": [
        table([{"skip": 1}], {"skip": 1, "rows": ["3 4 y"]}),
        table([{"take": 1}], {"take": 1, "rows": ["1 2 x"]}),
    ],
}
FROM_PYTHON = {
    "`ParallelRunConfig(entry_script, source_directory, mini_batch_size, …)`": {
        "entry_script": "rate.py",
        "mini_batch_size": {"unit": "files", "count": 2},
    },
    "`ParallelRunConfig(compute_target, node_count, process_count_per_node)`": {"process_count_per_node": 1},
    "`ParallelRunConfig(environment)`": {"environment": {"kind": "interpreter", "path": sys.executable}},
    "`ParallelRunStep(name, arguments, side_inputs, allow_reuse)`": {"name": "rate", "allow_reuse": False},
    '`ParallelRunStep(inputs=[dataset.as_named_input("data")])`': {"inputs.0.name": "data", "inputs.0.kind": "file"},
    "`ParallelRunStep(output=…)`": {"output.file_name": "parallel_run_step.txt"},
}
THIS = "tests/documents/test_migrating.py"
DRIVERS = "services/python/tests/test_drivers.py"
ELSEWHERE = {
    "packages of conda": (
        "tests/engine/test_environments_and_reuse.py",
        "test_conda_packages_are_installed_by_a_tool_of_conda",
    ),
    "a document, and `az ml job create`": (THIS, "test_row_is_true_of_commands"),
    "a deployment, and `az ml batch-endpoint invoke`": (THIS, "test_row_is_true_of_commands"),
    "a driver of SDK v2 (`azure.ai.ml`)": (THIS, "test_dump_of_the_second_sdk_runs"),
    "a driver of the first SDK (`azureml.core`, `azureml.pipeline`)": (THIS, "test_rows_are_true_of_the_first_version"),
    "an entry script alone": (
        "tests/engine/test_environments_and_reuse.py",
        "test_environment_is_created_once_from_requirements",
    ),
    "a schedule": (THIS, "test_scheduled_command_runs"),
    "`adl://…`": (THIS, "test_first_generation_of_the_data_lake_is_refused"),
    "`run()` returns fewer results than items": (THIS, "test_service_differs_from_its_documentation"),
    "`run()` returns more results than items": (THIS, "test_service_differs_from_its_documentation"),
    "no item succeeds, with `append_row` and `error_threshold: -1`": (
        THIS,
        "test_service_differs_from_its_documentation",
    ),
    "rows of a DataFrame": (THIS, "test_service_differs_from_its_documentation"),
    "`--task_overhead_timeout`": (THIS, "test_service_differs_from_its_documentation"),
    '`ParallelRunConfig.load_yaml(ws, "parallel.yml")`': (
        DRIVERS,
        "test_configuration_of_a_file_and_a_dataset_that_is_registered",
    ),
    "`PythonScriptStep(script_name, arguments, inputs, outputs, runconfig)`": (
        DRIVERS,
        "test_a_script_prepares_and_another_one_collects",
    ),
    '`Pipeline(ws, steps)`, `Experiment(ws, "e").submit(pipeline)`': (
        DRIVERS,
        "test_a_script_prepares_and_another_one_collects",
    ),
    '`run.wait_for_completion()`, `run.find_step_run("rate")`': (
        DRIVERS,
        "test_images_of_a_container_with_a_parameter_and_a_download",
    ),
    '`get_output_data("rows").download("to")`': (DRIVERS, "test_images_of_a_container_with_a_parameter_and_a_download"),
    '`Dataset.get_by_name(ws, "digits")`': (DRIVERS, "test_registered_datasets_keep_their_kind_and_their_steps"),
    "`output.read_delimited_files()`, `output.parse_parquet_files()`": (
        DRIVERS,
        "test_outputs_are_read_as_tables_with_what_was_said_of_them",
    ),
    '`dataset.partition_by(["store"], (datastore, "parts"), "parts")`': (
        DRIVERS,
        "test_table_is_divided_by_its_values",
    ),
    '`Datastore.register_azure_blob_container(ws, "images", "c", "account")`': (
        DRIVERS,
        "test_images_of_a_container_with_a_parameter_and_a_download",
    ),
    '`ws.compute_targets["cluster"]`': (DRIVERS, "test_images_of_a_container_with_a_parameter_and_a_download"),
    "`Workspace.from_config()`, `ws.name`, `ws.subscription_id`, `ws.location`": (
        DRIVERS,
        "test_images_of_a_container_with_a_parameter_and_a_download",
    ),
    '`pipeline.publish("name")`, `Schedule.create(ws)`': (DRIVERS, "test_what_needs_a_workspace_is_refused_by_name"),
}
"""Rows whose case needs more than a document: file and test."""

INVOKE = "`az ml batch-endpoint invoke"
COMMANDS = {
    "`az ml job create --file pipeline.yml`": (["run", "pipeline.yml"], "-rate-"),
    "`az ml job create --file pipeline.yml --stream`": (["run", "pipeline.yml"], "-rate-"),
    "`az ml job validate --file pipeline.yml`": (["validate", "pipeline.yml"], "pipeline.yml is valid"),
    "`az ml job stream --name JOB`": (["status", "JOB", "--watch"], "completed"),
    "`az ml job show --name JOB`": (["status", "JOB", "--json"], '"output":'),
    "`az ml job list`": (["jobs", "--json"], '"state":'),
    "`az ml job download --name JOB`": (["logs", "JOB"], "job_result.txt"),
    "`az ml job cancel --name JOB`": (["cancel", "JOB"], ""),
    f"{INVOKE} --input DATA`": (["run", "deployment.yml", "--input", "data"], "output: "),
    f"{INVOKE} --mini-batch-size 5`": (
        ["convert", "deployment.yml", "--input", "data", "--set", "mini_batch_size=5"],
        "mini_batch_size: 5",
    ),
    f"{INVOKE} --output-path OUT --set output_file_name=rows.csv`": (
        ["run", "deployment.yml", "--input", "data", "--set", "output=OUT", "--set", "append_row_file_name=rows.csv"],
        "/OUT/rows.csv",
    ),
    "`az ml batch-endpoint list-jobs --name NAME`": (["jobs", "--name", "rate"], "rate-"),
}
KEY = "a2V5"
CREDENTIALS = {
    "key of the account": ({"AZURE_STORAGE_ACCOUNT_KEY": KEY}, "SharedKey a:"),
    "SAS of the account or container": ({"AZURE_STORAGE_SAS_TOKEN": "sv=2024&sig=abc"}, "sig=abc"),
    "service principal": (
        {"AZURE_CLIENT_ID": "i", "AZURE_CLIENT_SECRET": "s", "AZURE_TENANT_ID": "t"},
        "Bearer of client_secret=s",
    ),
    "token of your own": ({"AZURE_STORAGE_TOKEN": "mine"}, "Bearer mine"),
    "managed identity of the machine": ({}, "Bearer of the machine"),
    "public container, such as those of the examples": ({"AZURE_SKIP_SIGNATURE": "true"}, "nothing"),
}


def rows_of_page():
    """Returns the first cell of each row of each table."""
    lines = PAGE.read_text().splitlines()
    heads = [place - 1 for place, line in enumerate(lines) if line.startswith("|---")]
    rows = [line for place, line in enumerate(lines) if line.startswith("| ") and place not in heads]
    return [row.removeprefix("| ").split(" | ")[0] for row in rows]


def test_each_row_of_the_page_has_a_case():
    cases = [*CONVERTED, *DEPLOYMENTS, *TABLES, *FROM_PYTHON, *ELSEWHERE, *COMMANDS, *CREDENTIALS]
    rows = rows_of_page()
    assert len(rows) > 50
    assert sorted(rows) == sorted(cases)
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (ROOT / file).read_text()


def flat(cases):
    return [pytest.param(*case, id=f"{row}-{number}") for row, all in cases for number, case in enumerate(all)]


@pytest.fixture
def estate(workplace):
    """The files that the documents of this page name."""
    workplace.data(1)
    workplace.write(
        {
            "code/rate.py": "def run(files): return files\n",
            "net/weights": "w",
            "mlflow/MLmodel": "flavors: {}\n",
            "listed/MLmodel": "flavors: {}\n",
            "listed/requirements.txt": "six\n",
            "side/a": "",
            "requests.jsonl": "{}\n",
            "requirements.txt": "six\n",
            "conda.yml": "dependencies: [python=3.12, {pip: [six]}]\n",
            "gristmill.toml": '[azureml.environments]\n"old:3" = "requirements.txt"\n'
            '[azureml.datastores]\nmine = "s3://bucket/mine"\n'
            '[azureml.data]\n"digits:2" = "side"\n"digits:10" = "data"\n[azureml.models]\nclassifier = "net"\n',
        }
    )
    return workplace


@pytest.mark.parametrize(("document", "arguments", "lines", "says"), flat([*CONVERTED.items(), *DEPLOYMENTS.items()]))
def test_row_is_true_of_documents(estate, document, arguments, lines, says):
    # Any JSON document is a YAML document.
    estate.write({"doc.yml": json.dumps(document, indent=1)})
    ended = estate.command("convert", "doc.yml", *arguments)
    assert ended.exit_status == COMPLETED, str(ended)
    found = [line.strip().replace('"', "").replace("\\", "") for line in ended.stdout.splitlines()]
    for line in lines:
        is_there = line in found if isinstance(line, str) else any(map(line.fullmatch, found))
        assert is_there, f"{line}\n{ended}"
    for text in says:
        assert text in ended.stderr, str(ended)


@pytest.mark.parametrize(("definition", "found"), flat(TABLES.items()))
def test_row_is_true_of_tables(workplace, definition, found):
    import pandas

    files = {"a/1.csv": "id;price;note\n1;2;x\n", "b/2.csv": "id;price;note\n3;4;y\n", "c.jsonl": '{"a": 1}\n'}
    workplace.write({f"sales/{name}": text for name, text in files.items()})
    workplace.write({"sales/MLTable": json.dumps(definition)})
    pandas.DataFrame({"a": [1]}).to_parquet(workplace.folder / "sales/d.parquet")
    script = "def run(frame): return [' '.join(map(str, row)) for row in frame.itertuples(index=False)]\n"
    inputs = [{"name": "data", "type": "tabular", "format": "mltable", "path": "sales"}]
    ended = workplace.job(script, inputs=inputs).run()
    spec = json.loads((workplace.home / "jobs" / ended.job_id / "spec.json").read_text())["inputs"][0]
    facts = {**spec["table"], "partition_format": spec["partition_format"], "rows": ended.lines}
    assert {key: facts.get(key) for key in found} == found


def test_rows_are_true_of_the_first_version(estate, executable):
    estate.write(
        {
            "driver.py": """
                import sys
                import gristmill
                from azureml.core import Dataset
                data = Dataset.File.from_files(path="data/*.txt", validate=False)
                config = gristmill.ParallelRunConfig(
                    environment=sys.executable, entry_script="rate.py", source_directory="code", mini_batch_size=2,
                    error_threshold=-1, output_action="append_row", compute_target="local", node_count=1,
                    process_count_per_node=1,
                )
                step = gristmill.ParallelRunStep(
                    name="rate", parallel_run_config=config, inputs=[data.as_named_input("data")], output="out",
                    side_inputs=["side"], arguments=["--a", "b"], allow_reuse=False,
                )
                job = step.submit()
                job.wait(progress=False)
                print(job.id)
            """
        }
    )
    environment = {**estate.environment, "PYTHONPATH": str(executable.parent / "python"), "GRISTMILL": str(executable)}
    environment["PATH"] = os.pathsep.join([str(executable.parent), environment["PATH"]])
    ended = subprocess.run(
        [sys.executable, "driver.py"], cwd=estate.folder, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    spec = json.loads((estate.home / "jobs" / ended.stdout.split()[-1] / "spec.json").read_text())
    for row, expected in FROM_PYTHON.items():
        for path, value in expected.items():
            found = spec
            for key in path.split("."):
                found = found[int(key)] if key.isdigit() else found[key]
            assert found == value, f"{row}: {path}"


def test_names_that_the_page_does_not_have_are_refused(estate):
    estate.write({"doc.yml": json.dumps({**COMPONENT, "mini_batch_sise": 1})})
    assert estate.command("convert", "doc.yml").exit_status == INVALID


def test_row_is_true_of_commands(estate):
    """Each command beside one of `az` does what the row says, in the order of the page."""
    deployment = changed(DEPLOYMENT, {"code_configuration.scoring_script": "rate.py"})
    estate.write({"pipeline.yml": json.dumps({"type": "pipeline", "jobs": {"rate": COMPONENT}})})
    estate.write({"deployment.yml": json.dumps(deployment)})
    for row, (arguments, said) in COMMANDS.items():
        jobs = estate.job_ids()
        ended = estate.command(*(jobs[-1] if word == "JOB" else word for word in arguments))
        # A job that has ended cannot be canceled.
        assert ended.exit_status == COMPLETED or arguments[0] == "cancel", f"{row}\n{ended}"
        assert said in ended.stdout + ended.stderr, f"{row}\n{ended}"


def test_scheduled_command_runs(estate):
    """The same command twice: the second returns the result of the first, and `--fresh` runs again."""
    estate.write({"pipeline.yml": json.dumps({"type": "pipeline", "jobs": {"rate": COMPONENT}})})
    for options, jobs in (((), 1), ((), 1), (("--fresh",), 2)):
        ended = estate.command("run", "pipeline.yml", "--quiet", *options)
        assert ended.exit_status == COMPLETED, str(ended)
        assert len(estate.job_ids()) == jobs
        next_second()


def test_first_generation_of_the_data_lake_is_refused(estate):
    estate.write({"doc.yml": json.dumps(changed(COMPONENT, {"inputs.data.path": "adl://a.azuredatalakestore.net/x"}))})
    ended = estate.command("validate", "doc.yml")
    assert ended.exit_status == INVALID and "copy the data to Gen2, and write abfss://" in ended.stderr, str(ended)


def test_service_differs_from_its_documentation(workplace):
    workplace.data(2)
    common = {"mini_batch_size": 2, "isolate": "off"}
    short = workplace.job("def run(files): return []\n", **common, output_action="summary_only", allowed_failed_count=0)
    short.settings.pop("append_row_file_name")
    short.file.write_text(json.dumps(short.settings))
    ended = short.run()
    assert ended.mini_batches == (1, 1, 0) and ended.items == (2, 0, 2)
    more = workplace.job("def run(files): return files * 2\n", **common).run()
    assert more.items == (2, 2, 0) and len(more.lines) == 4
    assert "0 of 2 items succeeded" in workplace.job("def run(files): return []\n", **common).run(expect=FAILED).cause
    frame = "import pandas\ndef run(files): return pandas.DataFrame({'a': [1, 2], 'b': ['x', 'y z']})\n"
    rows = workplace.job(frame, **common, append_row_file_name="rows.csv").run()
    assert rows.output == b'1 x\n2 "y z"\n'
    spec = json.loads((workplace.home / "jobs" / rows.job_id / "spec.json").read_text())
    assert spec["task_overhead_timeout_seconds"] == 30


DUMPED = """
    description: all
    display_name: scoring
    experiment_name: e
    inputs:
      raw: {path: 'azureml:./data', type: uri_folder}
    jobs:
      p:
        component:
          code: HERE/steps
          command: python prep.py ${{inputs.raw}} ${{inputs.n}} ${{outputs.parts}}
          inputs:
            n: {default: '3', type: integer}
            raw: {type: uri_folder}
          is_deterministic: true
          name: prep
          outputs:
            parts: {mode: rw_mount, type: uri_folder}
          type: command
        inputs:
          n: 3
          raw: {path: '${{parent.inputs.raw}}'}
        outputs:
          parts: {mode: rw_mount, type: uri_folder}
        type: command
      score:
        component:
          input_data: ${{inputs.data}}
          inputs:
            data: {type: uri_folder}
            note: {default: x, type: string}
          mini_batch_size: '2'
          name: score
          outputs:
            rows: {type: uri_file}
          resources: {instance_count: 2}
          task: &task
            append_row_to: ${{outputs.rows}}
            code: HERE/code
            entry_script: noted.py
            program_arguments: --note ${{inputs.note}} --allowed_failed_percent 30
            type: run_function
          type: parallel
        compute: azureml:gpu
        input_data: ${{inputs.data}}
        inputs:
          data: {path: '${{parent.jobs.p.outputs.parts}}'}
          note: hello
        logging_level: DEBUG
        mini_batch_size: '2'
        outputs:
          rows: ${{parent.outputs.all}}
        resources: {instance_count: 3}
        retry_settings: {max_retries: 1, timeout: 60}
        task: *task
        type: parallel
    outputs:
      all: {path: 'azureml://datastores/workspaceblobstore/paths/out/${{name}}/rows.txt', type: uri_file}
    settings: {default_compute: 'azureml:cpu-cluster', default_datastore: 'azureml:workspaceblobstore'}
    type: pipeline
"""


def test_dump_of_the_second_sdk_runs(workplace):
    """A document as `pipeline_job.dump` writes it: steps repeat their component, and code has absolute paths."""
    workplace.data(3)
    prep = """
        import os, shutil, sys
        _, raw, count, parts = sys.argv
        for name in sorted(os.listdir(raw))[: int(count)]:
            shutil.copy(os.path.join(raw, name), parts)
    """
    noted = """
        import os, sys
        note = sys.argv[sys.argv.index("--note") + 1]
        def run(files):
            return [f"{note} {os.path.basename(file)}" for file in files]
    """
    workplace.write({"steps/prep.py": prep, "code/noted.py": noted})
    workplace.write({"pipeline.yml": DUMPED.replace("HERE", str(workplace.folder))})
    ended = workplace.command("run", "pipeline.yml")
    assert ended.exit_status == COMPLETED, str(ended)
    (rows,) = (workplace.folder / "pipeline-output").rglob("rows.txt")
    assert sorted(rows.read_text().split("\n")) == ["", "hello 000.txt", "hello 001.txt", "hello 002.txt"]


@pytest.mark.parametrize("row", CREDENTIALS)
def test_row_is_true_of_credentials(workplace, row):
    """A stand-in for the storage, for the service of tokens and for that of the machine's identity."""
    variables, expected = CREDENTIALS[row]
    seen = []

    def answer(request):
        body = request.body.decode()
        if request.path.startswith("/machine") or "oauth2" in request.path:
            secret = next((pair for pair in body.split("&") if pair.startswith("client_secret")), None)
            token = f"of {secret}" if secret else "of the machine"
            content = {"access_token": token, "expires_in": "3600", "expires_on": "9999999999", "token_type": "Bearer"}
            content["expires_in"] = 3600 if secret else "3600"
            return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()
        seen.append(f"{request.headers.get('Authorization') or 'nothing'} {request.path}")
        empty = b'<?xml version="1.0"?><EnumerationResults><Blobs></Blobs><NextMarker/></EnumerationResults>'
        return 200, {"Content-Type": "application/xml"}, empty

    with HttpServer(answer) as server:
        inputs = [{"name": "data", "type": "file", "path": "abfss://c@a.dfs.core.windows.net/x/"}]
        workplace.job("def run(files): return files\n", inputs=inputs)
        stand_in = {
            "AZURE_STORAGE_ENDPOINT": server.url,
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_AUTHORITY_HOST": server.url,
            "AZURE_IDENTITY_ENDPOINT": f"{server.url}/machine",
        }
        workplace.command("plan", "job.yaml", **stand_in, **variables)
    assert seen and expected in seen[0], seen
