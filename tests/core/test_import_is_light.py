"""`import normgrad` loads NumPy and nothing heavier."""

import json
import subprocess
import sys

import pytest

import normgrad

HEAVY = ("torch", "numba", "llvmlite", "triton", "rich", "ml_dtypes", "cffi", "matplotlib", "jax")


def modules_after(code):
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout))


def heavy(loaded):
    return [name for name in HEAVY if name in loaded]


def test_import_loads_numpy_and_nothing_heavier():
    loaded = modules_after("import normgrad")
    assert heavy(loaded) == []
    assert "numpy" in loaded
    assert not {name for name in loaded if name.startswith(("normgrad.verify", "normgrad.cli"))}


def test_the_reference_on_numpy_arrays_needs_nothing_more():
    loaded = modules_after(
        "import numpy as np, normgrad as ng\n"
        "x, one = np.ones((2, 3)), np.ones(3)\n"
        "ng.batch_norm_backward(x, x, one, one, backend='reference')"
    )
    assert heavy(loaded) == []


def test_the_judge_needs_nothing_more():
    """It runs on machines that have torch and NumPy alone."""
    loaded = modules_after(
        "from normgrad import verify\n"
        "problem = verify.make_problem(verify.CASES[0], 'float32')\n"
        "verify.judge(problem, verify.run_backend(problem, 'reference'))"
    )
    assert heavy(loaded) == []


def test_a_listing_has_public_names_alone():
    import normgrad.aclnn
    from normgrad import backends, verify  # noqa: F401

    listed = set(dir(normgrad))
    assert set(normgrad.__all__) | {"aclnn"} <= listed
    assert listed <= {*normgrad.__all__, "aclnn", "infiniop", "torch"}


def test_a_listing_of_the_torch_package_has_public_names_alone():
    torch_package = pytest.importorskip("normgrad.torch")
    assert set(dir(torch_package)) == set(torch_package.__all__)


def test_everything_public_is_listed_and_documented():
    for name in normgrad.__all__:
        if name != "__version__":
            assert getattr(normgrad, name).__doc__
    assert {"batch_norm_backward", "layer_norm_backward", "group_norm_backward"} <= set(
        normgrad.__all__
    )
