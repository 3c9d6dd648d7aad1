"""Documents of Azure ML become job files: what each key amounts to."""

import json
import re

import pytest

import azure_documents
from azure_documents import DEPLOYMENT, changed
from harness import COMPLETED, FAILED
from http_server import HttpServer

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


def step(changes, *lines, says=()):
    """A component, and lines of the job file that it becomes."""
    return (changed(COMPONENT, changes), [], lines, says)


def deployment(changes, *lines, says=()):
    return (changed(DEPLOYMENT, changes), ["--input", "data"], lines, says)


def address(text, found):
    """An input at an address, and its path in the job file."""
    return step({"inputs.data.path": text}, f"path: {found}")


ROWS_OF_FILES = {"inputs.data.path": "requests.jsonl", "task.program_arguments": "--amlbi_file_format jsonl"}
COMPONENTS = [
    step(
        {},
        *("name: rate", "source_directory: code", "entry_script: rate.py", "output_action: append_row"),
        *("output: doc-output/rows", "data:", "path: data", "side_inputs:", "side: side"),
    ),
    step({"type": None, "$schema": SCHEMA.format("parallelComponent")}, "name: rate"),
    step(
        {
            "task.program_arguments": "--a ${{inputs.side}} 'b c'",
            "task.model": "net",
            "task.environment": "requirements.txt",
            "mini_batch_size": "5",
            "error_threshold": 3,
            "mini_batch_error_threshold": 4,
            "retry_settings": {"max_retries": 1, "timeout": 9},
            "max_concurrency_per_instance": 6,
            "resources.instance_count": 2,
            "logging_level": "DEBUG",
            "environment_variables": {"A": "b"},
            "is_deterministic": False,
        },
        *("- --a", "- ${{side_inputs.side}}", "- b c", "model: net", "environment: requirements.txt"),
        *("mini_batch_size: 5", "error_threshold: 3", "allowed_failed_count: 4", "run_max_try: 2"),
        *("run_invocation_timeout: 9", "process_count_per_node: 6", "logging_level: DEBUG"),
        *("environment_variables:", "A: b", "allow_reuse: false"),
        says=["this machine is one node"],
    ),
    step({"mini_batch_size": 5, "partition_keys": ["k"]}, "partition_keys:", "- k", says=["has no effect with"]),
    step(ROWS_OF_FILES, "type: tabular", "format: jsonl"),
    step(
        {**ROWS_OF_FILES, "task.program_arguments": "--amlbi_file_format jsonl --amlbi_mini_batch_rows 100"},
        "mini_batch_size: 100 rows",
    ),
    step({"outputs.rows.path": "kept/all.txt"}, "output: kept", "append_row_file_name: all.txt"),
    step({"task.append_row_to": None}, "output_action: summary_only", "rows: doc-output/rows"),
    step({"inputs.side": {"type": "uri_file", "mode": "download", "path": "https://h/f"}}, "side: https://h/f"),
    *(
        step({"inputs.side.mode": mode}, "side: side")
        for mode in ("ro_mount", "rw_mount", "mount", "download", "direct")
    ),
    step({"task.environment": {"conda_file": "conda.yml"}}, "environment: conda.yml"),
    step(
        {"task.environment": {"conda_file": {"dependencies": ["python=3.12", {"pip": ["six"]}]}}},
        re.compile(r"environment: .*/document-files/[0-9a-f]{16}\.yml"),
    ),
    step({"task.environment": {"image": "i"}}, says=["i is not used; the script runs with the default"]),
    step({"task.environment": {"build": {"path": "."}}}, says=["a Dockerfile is not used"]),
    step({"task.environment": "azureml:old:3"}, "environment: requirements.txt"),
]
PIPELINES = [
    (changed(PIPELINE, changes), [], lines, ())
    for changes, lines in [
        (
            {},
            [
                *("# Step rate, after cut", "- cut ${{side_inputs.raw}} 3 ${{outputs.parts}}", "raw: data"),
                *("more: doc-output/outputs/all", "path: doc-output/cut/parts", "output: s3://bucket/mine"),
                *("append_row_file_name: rate.txt", "last: kept/last"),
            ],
        ),
        ({"type": None}, ["# Step rate, after cut"]),
        ({"type": None, "$schema": SCHEMA.format("pipelineJob")}, ["name: doc-cut"]),
    ]
]
OLDER = {"type": None, "settings": None}
DEPLOYMENTS = [
    deployment(
        {},
        *("name: rate", "model: net", "source_directory: code", "entry_script: rate.py", "mini_batch_size: 10"),
        *("process_count_per_node: 1", "output_action: append_row", "output: doc-output"),
        *("append_row_file_name: predictions.csv", "error_threshold: -1", "run_max_try: 4"),
        *("run_invocation_timeout: 30", "logging_level: info"),
    ),
    deployment(
        {
            "settings": {
                "mini_batch_size": 3,
                "max_concurrency_per_instance": 3,
                "output_file_name": "rows.csv",
                "error_threshold": 2,
                "retry_settings": {"max_retries": 0, "timeout": 8},
                "logging_level": "warning",
            }
        },
        *("mini_batch_size: 3", "process_count_per_node: 3", "append_row_file_name: rows.csv", "error_threshold: 2"),
        *("run_max_try: 1", "run_invocation_timeout: 8", "logging_level: warning"),
    ),
    deployment({"settings.output_action": "summary_only"}, "output_action: summary_only", "output: doc-output"),
    deployment({**OLDER, "error_threshold": 7}, "error_threshold: 7"),
    deployment(
        {**OLDER, "code_configuration": None, "endpoint_name": "e", "model": {"path": "mlflow"}},
        *("entry_script: gristmill.mlflow_model", "model: mlflow"),
        says=["endpoint_name (names and notes for people)", "the model runs with the default interpreter"],
    ),
    deployment({**OLDER, "$schema": SCHEMA.format("batchDeployment")}, "name: rate"),
    deployment(
        {"code_configuration": None, "model.path": "listed"},
        *("entry_script: gristmill.mlflow_model", "environment: listed/requirements.txt"),
    ),
]
WORKSPACE = "/subscriptions/s/resourceGroups/g/providers/p/workspaces/w"
STORE = "azureml://subscriptions/s/resourcegroups/g/workspaces/w/datastores/mine/paths"
ADDRESSES = [
    *(address(path, "side/a") for path in ("side/a", "azureml:./side/a")),
    address("azureml:digits:2", "side"),
    address("azureml:digits@latest", "data"),
    *(
        address(path, "s3://bucket/mine/x")
        for path in ("azureml://datastores/mine/paths/x", f"{STORE}/x", f"azureml:{STORE}/x")
    ),
    *(
        address(path, "side")
        for path in (
            "azureml://locations/l/workspaces/w/data/digits/versions/2",
            f"{WORKSPACE}/data/digits/versions/2",
            f"azureml:{WORKSPACE}/data/digits/versions/2",
        )
    ),
    *(
        step({"task.model": f"azureml://registries/r/models/classifier/{version}"}, "model: net")
        for version in ("versions/4", "labels/latest")
    ),
    address("wasbs://c@a.blob.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
    *(address(url, url) for url in ("abfss://c@a.dfs.core.windows.net/x", "https://host/x.csv")),
]
CASES = [*COMPONENTS, *PIPELINES, *DEPLOYMENTS, *ADDRESSES]


@pytest.mark.parametrize(("document", "arguments", "lines", "says"), CASES)
def test_keys_of_a_document_become_keys_of_a_job(workplace, document, arguments, lines, says):
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
            # Any JSON document is a YAML document.
            "doc.yml": json.dumps(document, indent=1),
        }
    )
    ended = workplace.command("convert", "doc.yml", *arguments)
    assert ended.exit_status == COMPLETED, str(ended)
    found = [line.strip().replace('"', "").replace("\\", "") for line in ended.stdout.splitlines()]
    for line in lines:
        is_there = line in found if isinstance(line, str) else any(map(line.fullmatch, found))
        assert is_there, f"{line}\n{ended}"
    assert len(ended.stderr.splitlines()) == len(says), str(ended)
    for text in says:
        assert text in ended.stderr, str(ended)


def test_missing_and_surplus_results_count_as_azure_counts_them(workplace):
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


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_credentials_of_azure_reach_the_storage(workplace, kind):
    """A stand-in for the storage, for the service of tokens and for that of the machine's identity."""
    variables, expected = CREDENTIALS[kind]
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
