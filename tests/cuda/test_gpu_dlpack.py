"""On a GPU: arrays of other libraries through DLPack."""

import types

import pytest
from cuda_calls import GPU, differences, each_request, make, replaced, run, torch

pytestmark = GPU


class Wrapped:
    """GPU memory of a library we know nothing of."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=lambda one: Wrapped(torch.from_dlpack(one)))


def wrapped(problem):
    return replaced(problem, **{role: Wrapped(one) for role, one in problem.operands.items()})


@each_request
def test_results_are_the_callers_kind_with_the_same_bits(request_):
    problem = make(*request_)
    want = run(problem)
    results = run(wrapped(problem))
    assert all(isinstance(one, Wrapped) for one in results.values())
    plain = {role: one.tensor for role, one in results.items()}
    assert all(one.is_cuda for one in plain.values())
    assert int(differences(plain, want)) == 0


@each_request
def test_given_results(request_):
    problem = make(*request_)
    want = run(problem)
    out = problem.poisoned()
    run(wrapped(problem), tuple(None if one is None else Wrapped(one) for one in out))
    given = dict(zip(want, (one for one in out if one is not None), strict=True))
    assert int(differences(given, want)) == 0


def test_a_result_that_lies_over_an_operand_one_element_on():
    """It is computed elsewhere and copied by the GPU: the host cannot write there."""
    problem = make("batch_norm_backward", "8x16x28x28", "float32")
    want = run(problem)
    x = problem.operands["x"]
    room = torch.empty(x.numel() + 1, device="cuda")
    under, over = (room[start : start + x.numel()].view(x.shape) for start in (0, 1))
    under.copy_(x)
    mine = wrapped(replaced(problem, x=under))
    _, *others = problem.poisoned()
    run(mine, (Wrapped(over), *map(Wrapped, others)))
    assert int(differences({"dx": over}, {"dx": want["dx"]})) == 0


@pytest.mark.filterwarnings("ignore")  # CuPy's own, on import
def test_cupy():
    cupy = pytest.importorskip("cupy")
    problem = make("batch_norm_backward", "16x32x28x28", "float32")
    want = run(problem)
    theirs = {role: cupy.from_dlpack(one) for role, one in problem.operands.items()}
    results = run(replaced(problem, **theirs))
    assert all(isinstance(one, cupy.ndarray) for one in results.values())
    plain = {role: torch.from_dlpack(one) for role, one in results.items()}
    assert int(differences(plain, want)) == 0
