"""`limits` of a job on a target: its nodes share them, and keep them when one dies."""

import signal

from counted_service import ASK, CountedService
from harness import file_names, wait_until

ASKS = f"""{ASK}
    from recorder import record

    async def run_item(item, context):
        await context.limit.acquire(tokens=10)
        answer = await asyncio.to_thread(ask, item)
        record("asked", node=context.node_id)
        return answer
"""


def test_nodes_share_limits_and_one_dies(workplace, target):
    workplace.data(120)
    with CountedService() as service:
        job = workplace.job(
            ASKS,
            mini_batch_size=4,
            process_count_per_node=1,
            limits={"requests_per_minute": 480, "tokens_per_minute": 4800},
            environment_variables={"SERVICE": service.url},
        )
        target.reducer()
        first, _ = [
            target.worker("--process-count", 1, "--node", node, GRISTMILL_LEASE_SECONDS="5") for node in ("a", "b")
        ]
        job_id = target.enqueue(job)

        def asked():
            return {node: sum(fact["node"] == node for fact in workplace.recorded("asked")) for node in ("a", "b")}

        wait_until(lambda: min(asked().values()) >= 10, "requests of both nodes")
        first.send(signal.SIGKILL)
        result = target.wait_for_end(job_id)
    lines = target.output(result).decode().split()
    assert lines == file_names(120)
    service.check_rate(480)
    assert not any("never asked" in warning for warning in result["first_warnings"])
