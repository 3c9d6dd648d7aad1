"""Servers with made jobs for the tests of the portal's page."""

from collections.abc import Iterator

import pytest

from stand_in import StandIn


@pytest.fixture(scope="session")
def stand_in() -> Iterator[StandIn]:
    """A server with jobs of many kinds, which no test changes."""
    server = StandIn().start()
    yield server
    server.shutdown()


@pytest.fixture
def own_stand_in() -> Iterator[StandIn]:
    """The same for one test."""
    server = StandIn().start()
    yield server
    server.is_down = True
    server.shutdown()
