"""Makes the worker package importable and starts worker processes for tests."""

import sys
import textwrap

import pytest
from agent import PACKAGE, Agent

sys.path.insert(0, str(PACKAGE))


@pytest.fixture
def start(tmp_path):
    """Starts a worker process with a script; `start(script, ...)` waits until it is ready, unless `ready=False`."""
    agents = []

    def start(script, *, ready=True, **options):
        folder = tmp_path / f"agent{len(agents)}"
        agent = Agent(folder, textwrap.dedent(script), **options)
        agents.append(agent)
        if ready:
            agent.ready()
        return agent

    yield start
    for agent in agents:
        agent.close()
