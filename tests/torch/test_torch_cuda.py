"""The checks that need a GPU."""

import cuda_checks
import pytest
import torch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
    # torch's own: inductor scripts a method, and the check for synchronizations is a prototype.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]


@pytest.mark.parametrize("check", cuda_checks.CHECKS, ids=lambda check: check.__name__)
def test_on_cuda(check):
    check()
