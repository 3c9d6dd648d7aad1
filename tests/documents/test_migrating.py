"""The page `MIGRATING.md`: each row of its tables has a case here, and what the row says is true."""

import json
import os
import re
import subprocess
import sys

import pytest

import azure_documents
from azure_documents import DEPLOYMENT, changed
from harness import COMPLETED, INVALID, ROOT

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
CONVERTED = {**DOCUMENTS, **ENVIRONMENTS}
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
        )
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
ELSEWHERE = {
    "packages of conda": (
        "tests/engine/test_environments_and_reuse.py",
        "test_conda_packages_are_installed_by_a_tool_of_conda",
    ),
}
"""Rows whose case needs more than a document: file and test."""


def rows_of_page():
    """Returns the first cell of each row of each table."""
    lines = PAGE.read_text().splitlines()
    heads = [place - 1 for place, line in enumerate(lines) if line.startswith("|---")]
    rows = [line for place, line in enumerate(lines) if line.startswith("| ") and place not in heads]
    return [row.removeprefix("| ").split(" | ")[0] for row in rows]


def test_each_row_of_the_page_has_a_case():
    cases = [*DOCUMENTS, *DEPLOYMENTS, *TABLES, *ENVIRONMENTS, *FROM_PYTHON, *ELSEWHERE]
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
            "side/a": "",
            "requests.jsonl": "{}\n",
            "requirements.txt": "six\n",
            "conda.yml": "dependencies: [python=3.12, {pip: [six]}]\n",
            "gristmill.toml": '[azureml.environments]\n"old:3" = "requirements.txt"\n'
            '[azureml.datastores]\nmine = "s3://bucket/mine"\n',
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
