"""What the tests of both interfaces share."""

import pytest

from normgrad import aclnn


@pytest.fixture(autouse=True)
def _default_product():
    aclnn.set_product("ascend950")
    yield
    aclnn.set_product("ascend950")


@pytest.fixture
def device():
    assert aclnn.aclrtSetDevice(0) == 0
