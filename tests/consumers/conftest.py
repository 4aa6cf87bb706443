"""Fixtures of the tests of workers."""

import pytest
from shop import Shop

from ayes.ledger.log import EventLog


@pytest.fixture
def shop(port: EventLog) -> Shop:
    return Shop(port)
