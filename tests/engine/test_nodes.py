"""Several nodes on one machine share the queue."""

from harness import file_names


def test_two_nodes_share_the_work(workplace):
    workplace.data(20)
    script = """
        import os
        from recorder import record, recorded, wait_for
        def run(files, context):
            record("run", node=context.node_id, process=context.process_name, count=os.environ["AZUREML_NODE_COUNT"])
            # Both nodes get work before either continues.
            wait_for(lambda: len({fact["node"] for fact in recorded("run")}) == 2)
            return [os.path.basename(file) for file in files]
    """
    ended = workplace.job(script, node_count=2, process_count_per_node=2).run()
    assert ended.lines == file_names(20)
    runs = workplace.recorded("run")
    assert {fact["node"] for fact in runs} == {"0", "1"}
    assert {fact["count"] for fact in runs} == {"2"}
    assert len(runs) == 20, "no mini-batch ran on two nodes"
    for node in ("0", "1"):
        assert "exits with returncode 0." in ended.log(f"sys/node/{node}/_main.txt")
        assert (ended.logs / "user" / "stdout" / node).is_dir()
    assert len(ended.table("sys/job_report/node_summary.csv")) == 2, "a line for each node"
