"""Names in documents: components, assets that steps register, `gristmill.toml` beside the document, and `--set` with
the keys of a document."""

import json
import sys

import pytest

from azure_documents import run
from harness import INVALID

COPY = """
    $schema: https://azuremlschemas.azureedge.net/latest/parallelComponent.schema.json
    name: copy
    version: 3
    type: parallel
    inputs:
      data: {type: uri_folder}
      suffix: {type: string, default: x}
    outputs:
      rows: {type: uri_folder}
    input_data: ${{inputs.data}}
    mini_batch_size: "1"
    task:
      type: run_function
      code: .
      entry_script: copy_rows.py
      environment: azureml:py:1
      program_arguments: --suffix ${{inputs.suffix}}
      append_row_to: ${{outputs.rows}}
"""
COPY_ROWS = """
    import sys
    def run(files):
        return [open(file).read() + sys.argv[sys.argv.index("--suffix") + 1] for file in files for _ in range(2)]
"""
PIPELINE = """
    type: pipeline
    inputs:
      suffix: a
      data: {type: uri_folder, path: ./data}
    outputs:
      rows: {type: uri_folder, name: rows}
    jobs:
      copy:
        type: parallel
        component: azureml:copy:3
        inputs:
          data: ${{parent.inputs.data}}
          suffix: ${{parent.inputs.suffix}}
        outputs:
          rows: ${{parent.outputs.rows}}
      count:
        type: command
        command: cat ${{inputs.rows}}/* | wc -l > ${{outputs.count}}/count.txt
        inputs:
          rows: {type: uri_folder, path: 'azureml:rows@latest'}
        outputs:
          count: {type: uri_folder, name: count, version: 7}
"""
READER = """
    type: pipeline
    jobs:
      read:
        type: command
        command: cat ${{inputs.count}}/count.txt > ${{outputs.copy}}/count.txt
        inputs:
          count: {type: uri_folder, path: 'azureml:count:7'}
        outputs:
          copy: {type: uri_folder}
"""


@pytest.fixture
def project(workplace):
    workplace.data(3, "project/data")
    workplace.write(
        {
            "project/doc.yml": PIPELINE,
            "project/reader.yml": READER,
            "project/parts/copy/spec.yaml": COPY,
            "project/parts/copy/copy_rows.py": COPY_ROWS,
            "project/gristmill.toml": f"""
                [azureml.components]
                copy = "parts"
                [azureml.environments]
                py = "{sys.executable}"
            """,
        }
    )
    return workplace


def test_outputs_are_registered_and_read_by_later_steps_and_jobs(project):
    """`gristmill.toml` lies beside the document, not in the working folder."""
    ended = run(project, "project/doc.yml")
    assets = project.home / "assets/data"
    rows = json.loads((assets / "rows/1.json").read_text())
    output = project.folder / "project/doc-output"
    assert rows["path"] == str(output / "outputs/rows") and rows["type"] == "uri_folder"
    assert f"azureml:rows:1 is {output}/outputs/rows" in ended.stderr, str(ended)
    assert (output / "count/count/count.txt").read_text().strip() == "6"
    assert "warnings" not in ended.stdout, "two rows for an item are no alarm"
    assert f"  output: {output}/outputs/rows/parallel_run_step.txt" in ended.stdout
    assert f"  output count: {output}/count/count" in ended.stdout, str(ended)
    run(project, "project/doc.yml")
    assert [path.name for path in (assets / "rows").iterdir()] == ["1.json"], "a reused result is no new version"
    run(project, "project/doc.yml", "--set", "inputs.suffix=b")
    assert sorted(path.name for path in (assets / "rows").iterdir()) == ["1.json", "2.json"]
    run(project, "project/reader.yml")
    assert (project.folder / "project/reader-output/read/copy/count.txt").read_text().strip() == "6"


def test_each_run_has_its_own_folder_where_the_path_says_so(project):
    place = "rows: {type: uri_folder, name: rows, path: 'kept/{run-id}'}"
    document = PIPELINE.replace("rows: {type: uri_folder, name: rows}", place)
    document = document.replace("'azureml:rows@latest'", "'${{parent.jobs.copy.outputs.rows}}'")
    project.write({"project/doc.yml": document})
    jobs = []
    for suffix in ("a", "b", "a"):
        ended = run(project, "project/doc.yml", "--input", f"suffix={suffix}", "--json")
        steps = json.loads(ended.stdout)["steps"]
        jobs.append(steps[0]["result"]["job_id"])
        rows = project.folder / "project/kept" / jobs[-1]
        assert (rows / "parallel_run_step.txt").read_text().splitlines()[0] == f"000{suffix}"
        assert json.loads((project.home / f"assets/data/rows/{len(jobs)}.json").read_text())["path"] == str(rows)
    assert jobs[0] == jobs[2] != jobs[1], "the result of the first run is reused, and still there"


FILES = """
    type: pipeline
    inputs:
      word: a
    jobs:
      write:
        type: command
        command: echo "${{inputs.word}} {run-id}" > ${{outputs.note}}
        inputs: {word: '${{parent.inputs.word}}'}
        outputs:
          note: {type: uri_file, name: note, path: './kept/{run-id}.txt'}
      read:
        type: command
        command: cat ${{inputs.note}} > ${{outputs.copy}}/copy.txt
        inputs:
          note: {type: uri_file, path: '${{parent.jobs.write.outputs.note}}'}
        outputs:
          copy: {type: uri_folder}
"""


def test_each_run_has_its_own_file_where_the_path_says_so(project):
    project.write({"project/files.yml": FILES})
    for version, word in enumerate(("a", "b"), 1):
        ended = run(project, "project/files.yml", "--input", f"word={word}", "--json")
        job_id = json.loads(ended.stdout)["steps"][0]["result"]["job_id"]
        kept = project.folder / "project/kept" / f"{job_id}.txt"
        assert kept.read_text() == f"{word} {{run-id}}\n", "the word stands for the id in paths alone"
        assert json.loads((project.home / f"assets/data/note/{version}.json").read_text())["path"] == str(kept)
        assert (project.folder / "project/files-output/read/copy/copy.txt").read_text() == kept.read_text()
    assert len([*(project.folder / "project/kept").iterdir()]) == 2


def test_document_takes_set_in_its_own_words(project):
    for key, expected in [
        ("inputs.suffix=q", "000q"),
        ("jobs.copy.inputs.suffix=r", "000r"),
        ("jobs.copy.task.program_arguments=--suffix s", "000s"),
    ]:
        run(project, "project/doc.yml", "--step", "copy", "--set", key)
        rows = project.folder / "project/doc-output/outputs/rows/parallel_run_step.txt"
        assert rows.read_text().splitlines()[0] == expected, key
    project.data(1, "project/few")
    plan = project.command("plan", "project/doc.yml", "--step", "copy", "--set", "inputs.data.path=few")
    assert "1 mini-batch of 1 file" in plan.stdout, str(plan)


def test_mistake_names_the_file_that_was_read(project):
    toml = project.folder / "project/gristmill.toml"
    toml.write_text(toml.read_text().replace("\npy =", "\nother ="))
    ended = run(project, "project/doc.yml", expect=INVALID)
    assert f'add `"py:1" = "…"`, an interpreter or a requirements file, below [azureml.environments] in {toml}' in (
        ended.stderr
    )
    toml.write_text("[azureml.component]\n")
    ended = project.command("run", "project/doc.yml")
    assert f"{toml}:1: unknown key" in ended.stderr, str(ended)
    toml.unlink()
    ended = run(project, "project/doc.yml", expect=INVALID)
    assert "in gristmill.toml, a file beside the document, in the working folder or above one of them" in ended.stderr


def test_target_beside_the_document_is_found_and_its_password_stays_secret(project):
    """The address of a broker may hold a password, which no script gets."""
    toml = project.folder / "project/gristmill.toml"
    toml.write_text(toml.read_text() + "[targets.prod]\nqueue = 'amqp://me:${BROKER_PASSWORD}@127.0.0.1:1/'\n")
    command = 'echo "${BROKER_PASSWORD:-none}"'
    project.write({"project/secret.yml": READER.replace("cat ${{inputs.count}}/count.txt", command)})
    run(project, "project/doc.yml", BROKER_PASSWORD="s3cr3t")
    run(project, "project/secret.yml", BROKER_PASSWORD="s3cr3t")
    assert (project.folder / "project/secret-output/read/copy/count.txt").read_text() == "none\n"
    ended = project.command("run", "project/doc.yml", "--target", "prodd", BROKER_PASSWORD="s3cr3t")
    assert f"{toml} has: prod" in ended.stderr, str(ended)


def test_jobs_of_documents_in_other_folders_do_not_collide(project):
    for folder in ("one", "two"):
        project.data(2, f"project/{folder}/data")
        project.write({f"project/{folder}/pipeline.yml": PIPELINE})
    first = run(project, "project/one/pipeline.yml", "--json")
    second = run(project, "project/two/pipeline.yml")
    assert "earlier" not in second.stderr and "job one-copy" not in second.stderr, str(second)
    assert json.loads(first.stdout)["steps"][0]["result"]["job_id"].startswith("one-copy-")
