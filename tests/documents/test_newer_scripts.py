"""Entry scripts of the newer contract, whole: a component whose script is a package, works on mini-batches by itself,
and has options of the engine in its arguments."""

import json

import pytest

from harness import COMPLETED

COMPONENT = """
    $schema: http://azureml/sdk-2-0/ParallelComponent.json
    type: parallel
    name: ask
    is_deterministic: False
    inputs:
      resume_from: {type: string, optional: True}
      async_mode: {type: boolean, optional: True, default: False}
      settings: {type: uri_file, optional: False}
      questions: {type: mltable}
    outputs:
      answers: {type: uri_file}
      details: {type: uri_folder}
    max_concurrency_per_instance: 1
    resources: {instance_count: 1}
    mini_batch_size: 300
    mini_batch_error_threshold: 0
    logging_level: "DEBUG"
    retry_settings: {max_retries: 2, timeout: 60}
    input_data: ${{inputs.questions}}
    task:
      type: run_function
      code: src
      entry_script: asking.main
      program_arguments: >-
        $[[--amlbi_async_mode ${{inputs.async_mode}}]]
        --append_row_safe_output true
        --amlbi_dataframe_mixed_types true
        --settings ${{inputs.settings}}
        --details ${{outputs.details}}
        $[[--resume_from ${{inputs.resume_from}}]]
      append_row_to: ${{outputs.answers}}
"""
MAIN = """
    import argparse, json, os, threading
    from concurrent.futures import ThreadPoolExecutor
    from . import answers
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("settings", "details", "amlbi_async_mode", "resume_from"):
        parser.add_argument(f"--{name}")
    working, finished, lock = set(), {}, threading.Lock()

    def init():
        global arguments, greeting, pool
        arguments, _ = parser.parse_known_args()
        with open(arguments.settings) as file:
            greeting = json.load(file)["greeting"]
        pool = ThreadPoolExecutor(4)

    def run(frame, context):
        rows = [answers.answer(greeting, row) for row in frame.to_dict("records")]
        name = f"{context.minibatch_index}.jsonl"
        with open(os.path.join(arguments.details, name), "w") as file:
            about = {"mode": arguments.amlbi_async_mode, "from": arguments.resume_from, "retry": context.retry_count}
            json.dump(about, file)
        return rows

    def enqueue(frame, context):
        with lock:
            working.add(context.minibatch_index)
        pool.submit(work, frame, context)

    def work(frame, context):
        result = {"ret": None, "mini_batch_context": context, "exception": None}
        try:
            if context.minibatch_index == 1 and context.retry_count == 0:
                raise ConnectionError("try again")
            result["ret"] = run(frame, context)
        except Exception as error:
            result["exception"] = error
        with lock:
            finished[context.minibatch_index] = result
            working.discard(context.minibatch_index)

    def check_all_tasks_processed():
        return not working

    def get_processing_batch_number():
        return len(working)

    def get_finished_batch_result():
        with lock:
            found = dict(finished)
            finished.clear()
        return found

    def shutdown():
        pool.shutdown()
"""
ANSWERS = """
    import json
    def answer(greeting, row):
        return json.dumps({"id": row["id"], "answer": f"{greeting} {row['text']}"}, ensure_ascii=False)
"""
QUESTIONS = "".join(f'{{"id": {number}, "text": "{number} apples, ä"}}\n' for number in range(40))


@pytest.fixture
def asking(workplace):
    workplace.write(
        {
            "spec.yaml": COMPONENT,
            "src/asking/__init__.py": "",
            "src/asking/main.py": MAIN,
            "src/asking/answers.py": ANSWERS,
            "settings.json": '{"greeting": "hello"}',
            "table/questions.jsonl": QUESTIONS,
            "table/MLTable": """
                paths: [{file: ./questions.jsonl}]
                transformations: [{read_json_lines: {encoding: utf8}}]
            """,
        }
    )
    return workplace


@pytest.mark.parametrize("mode", ["True", "False"])
def test_component_runs_in_both_modes(asking, mode):
    inputs = [f"async_mode={mode}", "questions=table", "settings=settings.json", "resume_from=earlier"]
    ended = asking.command("run", "spec.yaml", "--json", *(word for one in inputs for word in ("--input", one)))
    assert ended.exit_status == COMPLETED, str(ended)
    result = json.loads(ended.stdout)
    assert result["mini_batches"]["total"] > 3
    rows = [json.loads(line) for line in next((asking.folder / "spec-output/answers").iterdir()).open()]
    assert rows == [{"id": number, "answer": f"hello {number} apples, ä"} for number in range(40)]
    details = [json.loads(file.read_text()) for file in (asking.folder / "spec-output/details").iterdir()]
    assert {one["mode"] for one in details} == {mode} and {one["from"] for one in details} == {"earlier"}
    assert len(details) == result["mini_batches"]["total"]
    assert any(one["retry"] == 1 for one in details) == (mode == "True"), "a mini-batch that fails is handed over again"
    for option in ("append_row_safe_output", "amlbi_dataframe_mixed_types", "resume_from"):
        assert f'"--{option}" is an engine option without effect here' in ended.stderr
    assert '"--amlbi_async_mode"' not in ended.stderr, "this one has an effect"
