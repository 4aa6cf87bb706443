import pytest
from console_client import site


@pytest.fixture
async def shop(tmp_path):
    async with site(tmp_path) as made:
        yield made


@pytest.fixture
async def client(shop):
    async with shop.client() as client:
        yield client
