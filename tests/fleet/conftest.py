"""Targets of each kind, and a fleet under faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from components import Components
from faulty_fleet import GatedFleet
from harness import Workplace
from targets import KINDS, Target, lend


@pytest.fixture
def target(request: pytest.FixtureRequest, workplace: Workplace, components: Components) -> Iterator[Target]:
    """Each kind of target in turn, or those in `TARGETS` of the module."""
    yield from lend(request.param, workplace, components)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers("parametrize")
    is_given = any("target" in (mark.args[0], *mark.args[0]) for mark in marks)
    if "target" in metafunc.fixturenames and not is_given:
        metafunc.parametrize("target", getattr(metafunc.module, "TARGETS", KINDS), indirect=True)


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest,
    workplace: Workplace,
    components: Components,
    record_property: Callable[[str, object], None],
) -> Iterator[GatedFleet]:
    fleet = GatedFleet(request.param, workplace, components, record_property)
    yield fleet
    fleet.close()
