"""A fleet of a thousand nodes in virtual time: its requests, what its roles need, and how both grow."""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import chart
from report import commit, table

SIMULATED = (10_000, 100_000, 1_000_000, 10_000_000)
NODES = 1000
BROKER_DOLLARS = 3 * 0.288
"""An hour of three `mq.m5.large` (infra/COSTS.md)."""
GETS_A_SECOND_MAX = 5500
BYTES_A_SECOND = 85e6
"""What one request to S3 gets, as Amazon says."""


def play(simulation: str, sizes: list[int]) -> Iterator[dict]:
    """Plays a fleet with each number of mini-batches."""
    for mini_batches in sizes:
        print(f"{NODES} nodes in virtual time, {mini_batches:,} mini-batches", file=sys.stderr, flush=True)
        began = time.perf_counter()
        played = subprocess.run([simulation, str(NODES), str(mini_batches)], check=True, capture_output=True, text=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        yield json.loads(played.stdout) | {"played_seconds": time.perf_counter() - began, "played_mib": peak}


def seconds(time: float) -> str:
    return f"{time:,.0f} s" if time >= 100 else f"{time:.2f} s"


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else f"{size / 1e6:.1f} MB"


HEADS = (
    "mini-batches",
    "virtual time",
    "SQS",
    "S3 PUT, LIST",
    "S3 GET",
    "requests a mini-batch",
    "dollars",
    "RabbitMQ: messages",
    "bytes",
    "ledger",
    "segments",
    "most in flight",
    "largest message",
    "most SQS / s",
    "most PUT / s",
    "most GET / s",
)


def rows(fleets: list[dict]) -> Iterator[list[str]]:
    for one in fleets:
        yield [
            f"{one['mini_batches']:,}",
            seconds(one["seconds"]),
            f"{one['sqs']:,}",
            f"{one['puts']:,}",
            f"{one['gets']:,}",
            f"{(one['sqs'] + one['puts'] + one['gets']) / one['mini_batches']:.2f}",
            f"{one['dollars']:.2f}",
            f"{one['messages']:,}",
            megabytes(one["message_bytes"]),
            megabytes(one["ledger_bytes"]),
            f"{one['segments']:,}",
            f"{one['in_flight_max']:,}",
            f"{one['message_bytes_max']:,} bytes",
            f"{one['sqs_a_second_max']:,}",
            f"{one['puts_a_second_max']:,}",
            f"{one['gets_a_second_max']:,}",
        ]


NEED_HEADS = (
    "mini-batches",
    "`status`",
    "restart: GET",
    "time",
    "reducer's memory",
    "`retry`: requests",
    "time",
    "partitioner's memory",
    "RabbitMQ: messages / s",
    "dollars",
)


def restart_seconds(one: dict) -> float:
    return one["restart"]["seconds"] + one["ledger_bytes"] / BYTES_A_SECOND


def broker_dollars(one: dict) -> float:
    return one["seconds"] / 3600 * BROKER_DOLLARS


def need_rows(fleets: list[dict]) -> Iterator[list[str]]:
    for one in fleets:
        yield [
            f"{one['mini_batches']:,}",
            seconds(one["status"]["seconds"]),
            f"{one['restart']['gets']:,}",
            seconds(restart_seconds(one)),
            megabytes(one["restart"]["memory"]),
            f"{one['retry']['requests']:,}",
            seconds(one["retry"]["seconds"]),
            megabytes(one["retry"]["memory"]),
            f"{one['messages'] / one['seconds']:,.0f}",
            f"{broker_dollars(one):.3f}",
        ]


GROWING: dict[str, Callable[[dict], float]] = {
    "virtual time": lambda one: one["seconds"],
    "SQS": lambda one: one["sqs"],
    "PUT, LIST": lambda one: one["puts"],
    "GET": lambda one: one["gets"],
    "dollars, SQS": lambda one: one["dollars"],
    "dollars, RabbitMQ": broker_dollars,
    "messages": lambda one: one["messages"],
    "ledger": lambda one: one["ledger_bytes"],
    "segments": lambda one: one["segments"],
    "restart": restart_seconds,
    "reducer's memory": lambda one: one["restart"]["memory"],
    "`retry`": lambda one: one["retry"]["seconds"],
    "partitioner's memory": lambda one: one["retry"]["memory"],
}


def growth_rows(fleets: list[dict]) -> Iterator[list[str]]:
    """Returns the exponents of each size and the one before: at 1, a value grows in proportion."""
    for smaller, larger in itertools.pairwise(fleets):
        factor = math.log(larger["mini_batches"] / smaller["mini_batches"])
        exponents = [math.log(value(larger) / value(smaller)) / factor for value in GROWING.values()]
        yield [f"{larger['mini_batches']:,}", *(f"{exponent:.2f}" for exponent in exponents)]


def curves(fleets: list[dict]) -> str:
    values = {"job": GROWING["virtual time"], "restart": restart_seconds, "retry": GROWING["`retry`"]}
    drawn = [
        chart.Curve(name, [(one["mini_batches"], value(one), f"{one['mini_batches']:,}") for one in fleets])
        for name, value in values.items()
    ]
    return chart.curves(f"{NODES:,} nodes: virtual time by number of mini-batches", drawn)


def section(simulated: list[dict]) -> str:
    last = simulated[-1]
    # Where all read the job. With more segments than that, the most is at the end.
    begin = min(one["gets_a_second_max"] for one in simulated)
    told = TOLD.format(
        asked=table(HEADS, rows(simulated)),
        needed=table(NEED_HEADS, need_rows(simulated)),
        growth=table(("mini-batches", *GROWING), growth_rows(simulated)),
        gets_of_a_node=begin / last["nodes"],
        nodes_at_the_limit=GETS_A_SECOND_MAX * last["nodes"] // begin,
        dollars_an_hour=BROKER_DOLLARS,
        megabytes_a_second=BYTES_A_SECOND / 1e6,
        played_minutes=last["played_seconds"] / 60,
        played_gib=last["played_mib"] / 1024,
        in_flight_each=last["in_flight_max"] / last["nodes"],
        **last,
    )
    return f"{TITLE}{told}\nCommit {commit()}, {time.strftime('%Y-%m-%d')}.\n"


TITLE = "## A fleet of "
TOLD = """{nodes:,} nodes

Partitioner, nodes and reducer run their own code in virtual time (`tests/simulation`), with two processes on each node,
runs of {run_seconds:g} s, and requests that take 1 to 20 ms. Queues and store are simulated: requests to SQS are
counted as the SQS backend would send them, ten messages at a time, and dollars follow from them with the list prices of
`services/engine/src/cost.rs`. The partitioner publishes with 16 requests at a time. Logs and reports are
left out, whose requests grow with time and nodes, not with mini-batches. Nothing here is extrapolated: the
largest job is {mini_batches:,} mini-batches, for which the simulation, which keeps all objects of the store in memory,
took {played_minutes:.0f} minutes and {played_gib:.1f} GiB; one of ten times the size would take ten times both.

![Virtual time by number of mini-batches](size-fleet.svg)

{asked}
Limits that AWS publishes: 120 000 messages of a standard queue in flight, 256 KiB a message, nearly any number of
requests to a standard queue, 3 500 PUT and 5 500 GET a second for each prefix of S3, and each job is a prefix. The
busiest second of the nodes is the first one, in which each reads the job: {gets_of_a_node:.1f} GET. So
{nodes_at_the_limit:,} nodes that begin the same job in the same second reach the limit. S3 answers some of them with
503 then, and they ask again after a pause. A reducer reads all segments when it writes the output; this takes no
virtual time here, so a job with more segments than first requests shows them as its most GET in a second.

*RabbitMQ: messages* and *bytes* are those of the same job where each descriptor has a message of its own, without AMQP
frames. A message may have 16 MiB, the default of RabbitMQ's `max_message_size`.

{needed}
- *restart* is a reducer that opens the complete ledger: its requests, with {latency_milliseconds} ms each (Amazon names
  100 to 200 for small objects), and the bytes of the ledger at {megabytes_a_second:g} MB/s, which Amazon names for one
  request at a time. The time of processors is in the table at the top.
- *`status`* reads the job and its last progress, whatever the size of the job.
- *`retry`* publishes every mini-batch of the stored plan again.
- *memory* is the most that reducer and partitioner had allocated meanwhile. A worker holds
  {in_flight_each:.1f} mini-batches at a time, whatever the size of the job.
- *RabbitMQ: messages / s* is the rate that a broker has to take and to deliver, so that the job takes as long as with
  SQS. In [FLEET.md](FLEET.md) a broker takes and delivers some 10 000 a second on a machine that it shares with all
  roles. Its *dollars* are {dollars_an_hour:.3f} an hour for three `mq.m5.large`
  ([COSTS.md](../../infra/COSTS.md)), as long as the job takes.

Growth is the exponent from the size before: at 1 a value grows in proportion, below 1 more slowly.

{growth}"""
