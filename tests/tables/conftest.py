"""A bucket for tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from components import Components
from harness import Workplace


class Bucket:
    """A separate S3 bucket, and a workplace whose commands find it."""

    def __init__(self, workplace: Workplace, components: Components) -> None:
        self.name = f"tables-{uuid.uuid4().hex[:12]}"
        self.s3 = components.client("s3")
        self.s3.create_bucket(Bucket=self.name)
        workplace.environment.update(components.environment_of_aws)

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.name, Key=key, Body=body)

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


@pytest.fixture
def bucket(workplace: Workplace, components: Components) -> Iterator[Bucket]:
    bucket = Bucket(workplace, components)
    yield bucket
    workplace.kill_what_still_runs()
    components.remove(bucket.name)
