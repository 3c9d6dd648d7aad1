"""Documents of Azure ML from Python: pipelines, whose steps are jobs, and deployments, whose data the call passes."""

import textwrap
from pathlib import Path

import pytest

import gristmill

PIPELINE = """
    type: pipeline
    inputs: {count: 2}
    jobs:
      make:
        type: command
        command: >-
          for i in $(seq ${{inputs.count}}); do echo item $i > ${{outputs.texts}}/$i.txt; done
        inputs: {count: '${{parent.inputs.count}}'}
        outputs: {texts: {type: uri_folder}}
      upper:
        type: parallel
        inputs: {data: {path: '${{parent.jobs.make.outputs.texts}}', type: uri_folder}}
        outputs: {rows: {type: uri_file}}
        input_data: ${{inputs.data}}
        task: {type: run_function, code: code, entry_script: upper.py, append_row_to: '${{outputs.rows}}'}
"""
DEPLOYMENT = """
    name: upper
    endpoint_name: upper
    code_configuration: {code: code, scoring_script: upper.py}
"""


@pytest.fixture(autouse=True)
def folder(home):
    Path("code").mkdir()
    Path("code/upper.py").write_text("def run(files): return [open(file).read().strip().upper() for file in files]")
    Path("pipeline.yml").write_text(textwrap.dedent(PIPELINE))
    Path("deployment.yml").write_text(textwrap.dedent(DEPLOYMENT))


def test_pipeline_is_waited_for_to_its_last_step():
    pipeline = gristmill.submit("pipeline.yml")
    assert pipeline.wait(timeout=60, progress=False) is pipeline
    assert pipeline.state == "Completed" and list(pipeline.steps) == ["make", "upper"]
    assert pipeline.id == pipeline.steps["upper"].id
    assert Path(pipeline.output).read_text() == "ITEM 1\nITEM 2\n" == Path(pipeline.steps["upper"].output).read_text()
    again = gristmill.run("pipeline.yml", {"count": 3}, progress=False)
    assert Path(again.output).read_text().splitlines()[-1] == "ITEM 3"


def test_step_that_fails_fails_the_pipeline():
    text = Path("pipeline.yml").read_text()
    Path("pipeline.yml").write_text(text.replace("for i in", "exit 3; for i in"))
    pipeline = gristmill.submit("pipeline.yml")
    with pytest.raises(gristmill.JobFailed, match="the command ended with exit status 3"):
        pipeline.wait(timeout=60, progress=False)
    assert pipeline.state == "Failed" and list(pipeline.steps) == ["make"]
    Path("pipeline.yml").write_text(text)
    assert pipeline.retry(progress=False).state == "Completed"


def test_deployment_gets_its_data_as_inputs():
    Path("data").mkdir()
    Path("data/a.txt").write_text("one")
    assert Path(gristmill.run("deployment.yml", "data", progress=False).output).read_text() == "ONE\n"
    assert gristmill.run("deployment.yml", {"input": Path("data")}, progress=False).result["reused"]
    with pytest.raises(gristmill.InvalidJob, match="--input"):
        gristmill.run("deployment.yml", progress=False)
    with pytest.raises(TypeError, match="one path, or a mapping"):
        gristmill.run("deployment.yml", ["data"], progress=False)
