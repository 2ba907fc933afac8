"""The checks that need a GPU."""

import cuda_checks
import pytest
import torch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.mark.parametrize("check", cuda_checks.CHECKS, ids=lambda check: check.__name__)
def test_on_cuda(check):
    check()
