"""Features for newer entry scripts: the asynchronous mode, and options that change what ``run`` gets or returns."""

import json

import pyarrow
import pytest

ASYNC = ["--x", "1", "--amlbi_async_mode", "True"]
ENQUEUE = """
    import threading
    waiting, finished = {}, {}
    def init():
        print("ready")
    def work(batch, context):
        number = context.minibatch_index
        error = ValueError(f"no {batch[0]}") if batch[0] == "bad" else None
        finished[number] = {"ret": [item.upper() for item in batch], "mini_batch_context": context, "exception": error}
        del waiting[number]
    def enqueue(batch, context):
        waiting[context.minibatch_index] = batch
        threading.Timer(0.05, work, (batch, context)).start()
    def check_all_tasks_processed():
        return not waiting
    def get_processing_batch_number():
        return len(waiting)
    def get_finished_batch_result():
        found = dict(finished)
        finished.clear()
        return found
"""


@pytest.mark.parametrize(("key", "argv"), [("number", ASYNC), ("str(number)", ["--amlbi_async_mode=true"])])
def test_enqueued_mini_batches_are_collected_by_numbers_or_texts(start, key, argv):
    agent = start(ENQUEUE.replace("finished[number]", f"finished[{key}]"), argv=argv)
    assert agent.run(["a", "b"])["rows"] == b"A\nB\n"
    event = agent.run(["bad"])
    assert (event["status"], event["error"]["category"]) == ("run_raised", "ValueError")
    assert event["error"]["message"] == "no bad"
    agent.hand_over(agent.files(["c"]), agent.files(["d"]))
    assert [agent.receive()["rows"], agent.receive()["rows"]] == [b"C\n", b"D\n"]
    agent.finish()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("finished[number] =", "finished[-1] =", "never returned a result of mini-batch 0: its keys must be"),
        ('"ret": [item.upper() for item in batch]', '"ret": None', "should return a list or a pandas DataFrame"),
        ("waiting[context.minibatch_index] = batch", "raise OSError('full')", "full"),
        ('{"ret"', '[1] or {"ret"', "must return dictionaries with ret, mini_batch_context and exception, not list"),
    ],
)
def test_mini_batch_without_a_valid_result_fails(start, old, new, reason):
    agent = start(ENQUEUE.replace(old, new), argv=ASYNC)
    event = agent.run(["a"])
    assert event["status"] in ("run_raised", "illegal_result")
    assert reason in event["error"]["message"]
    agent.finish()


def test_asynchronous_mode_needs_its_functions(start):
    script = ENQUEUE.replace("get_processing_batch_number", "other")
    event = start(script, argv=ASYNC, ready=False).receive()
    assert event["error"]["message"] == (
        "score.py has no function get_processing_batch_number(): "
        "the entry script must define one with --amlbi_async_mode"
    )


def test_script_for_both_modes_uses_run_without_the_option(start):
    script = ENQUEUE + "    def run(batch, context): return [f'{context.retry_count} {batch.task_id}']\n"
    for argv in ([], ["--amlbi_async_mode", "False"], ["--amlbi_async_mod", "True"]):
        assert start(script, argv=argv).run(["a"])["rows"] == b"0 0\n", argv


ROWS = pyarrow.RecordBatch.from_pydict(
    {"id": [1, 2], "text": ["ä", None], "score": [0.5, None], "good": [True, False]},
)


@pytest.mark.parametrize(
    "argv", [["--amlbi_pf_enabled", "True", "--amlbi_file_format", "jsonl"], ["--amlbi_mini_batch_rows", "1"]]
)
def test_rows_are_dictionaries(start, argv):
    script = """
        import json
        def run(rows, context):
            assert context.dataset is rows and rows.task_id == 0
            return [json.dumps(row) for row in rows]
    """
    agent = start(script, argv=argv, tabular=True)
    event = agent.run_table(ROWS)
    assert [json.loads(line) for line in event["rows"].splitlines()] == [
        {"id": 1, "text": "ä", "score": 0.5, "good": True},
        {"id": 2, "text": None, "score": None, "good": False},
    ]
    files = start("def run(paths): return [type(paths[0]).__name__]", argv=argv)
    assert files.run(["a"])["rows"] == b"str\n", "an input of files stays one"


def test_outputs_of_a_flow_are_written_alone(start):
    script = """
        import json
        def run(rows):
            return [json.dumps({"line_number": 0, "output": {"a": "ä"}}), '{"output": "b"}', "text", "[1]", 3]
    """
    agent = start(script, argv=["--amlbi_pf_run_mode", "component"])
    assert agent.run(["a"])["rows"].decode().splitlines() == ['{"a": "ä"}', '"b"', "text", "[1]", "3"]
    assert start(script).run(["a"])["rows"].decode().splitlines()[1] == '{"output": "b"}'
