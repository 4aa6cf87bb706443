import pytest
from console_client import POLICY, site


@pytest.fixture
async def shop(tmp_path, request):
    async with site(tmp_path, getattr(request, "param", POLICY)) as made:
        yield made


@pytest.fixture
async def client(shop):
    async with shop.client() as client:
        yield client
