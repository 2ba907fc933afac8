"""Plans: cached, with a backend that was asked and did not refuse."""

import dataclasses
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

import normgrad as ng
from neutral import neutral
from normgrad import backends
from normgrad.arrays import host_memory
from normgrad.backends.base import Backend, Offers
from normgrad.core.geometry import Geometry
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, SLOT, Op, Spec, TensorSpec

X = TensorSpec.contiguous((2, 4, 3), "float32")
VECTOR = TensorSpec.contiguous((4,), "float32")
SPEC = Spec(op=Op.BATCH_NORM_BACKWARD, dy=X, x=X, dx=X, dgamma=VECTOR, dbeta=VECTOR)


class Fake:
    """A backend that notes what it is asked for."""

    def __init__(self, name, *, absent=None, refusal=None, workspace=0):
        self.name, self.absent, self.refusal, self.workspace = name, absent, refusal, workspace
        self.runs = []

    def unavailable(self):
        return self.absent

    def refuses(self, spec, geometry):
        return self.refusal

    def configure(self, spec, geometry, compute):
        return f"config in {compute}", self.workspace

    def run(self, plan, addresses, workspace, stream):
        self.runs.append((plan, list(addresses), workspace, stream))


def test_backends_have_the_declared_methods():
    """By their names and those of their parameters; what only some have is looked up by name."""
    for name in backends.NAMES:
        kind = type(backends.get(name))
        for protocol in (Backend, Offers):
            for method, declared in inspect.getmembers(protocol, inspect.isfunction):
                if method.startswith("_") or (protocol is Offers and not hasattr(kind, method)):
                    continue
                own = inspect.signature(getattr(kind, method)).parameters
                assert list(own) == list(inspect.signature(declared).parameters), (name, method)
    assert hasattr(backends.get("cpu"), "compiled")
    assert hasattr(backends.get("cpu"), "generate_call")


def test_equal_requests_share_one_plan():
    again = Spec(**{field.name: getattr(SPEC, field.name) for field in dataclasses.fields(SPEC)})
    assert again is not SPEC
    assert make_plan(SPEC, "reference") is make_plan(again, "reference")
    other = dataclasses.replace(SPEC, eps=0.5)
    assert make_plan(SPEC, "reference") is not make_plan(other, "reference")


def test_a_request_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.eps = 1.0


def test_the_first_that_does_not_refuse_computes_and_a_slower_one_is_told(install):
    first, second = Fake("cpu"), Fake("reference")
    install(first)
    install(second)
    assert make_plan(SPEC).backend is first
    first.refusal = "too small"
    with pytest.warns(ng.FallbackWarning, match="too small"):
        assert make_plan(dataclasses.replace(SPEC, eps=1.0)).backend is second


def test_one_error_carries_every_reason(install):
    install(Fake("cpu", absent="no compiler here"))
    install(Fake("reference", refusal="not in the mood"))
    with pytest.raises(ng.BackendError) as caught:
        make_plan(SPEC)
    assert caught.value.reasons == {"cpu": "no compiler here", "reference": "not in the mood"}
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == (
        "no backend takes batch_norm_backward on cpu "
        "(cpu: no compiler here; reference: not in the mood)"
    )


@pytest.mark.parametrize("refusal", [{"absent": "not installed"}, {"refusal": "not this shape"}])
def test_a_named_backend_never_falls_back(install, refusal):
    install(Fake("cpu", **refusal))
    reference = install(Fake("reference"))
    out = (np.full((2, 3), 7.0), np.full(3, 7.0), np.full(3, 7.0))
    with pytest.raises(ng.BackendError, match="no backend takes") as caught:
        ng.batch_norm_backward(
            np.ones((2, 3)), np.ones((2, 3)), *neutral(np.ones((2, 3))), out=out, backend="cpu"
        )
    assert list(caught.value.reasons) == ["cpu"]
    assert not reference.runs
    assert all((one == 7.0).all() for one in out)


def test_the_host_backends_refuse_a_gpu(install):
    spec = dataclasses.replace(SPEC, device="cuda:0")
    with pytest.raises(ng.BackendError, match="reference: it reads host memory only"):
        make_plan(spec, "reference")
    install(Fake("cuda", absent="no GPU"))
    with pytest.raises(
        ng.BackendError, match=r"no backend takes batch_norm_backward on cuda:0 \(cuda: no"
    ):
        make_plan(spec)


def test_every_listed_backend_says_whether_it_works():
    for name in backends.NAMES:
        backend = backends.get(name)
        assert backend.name == name
        reason = backend.unavailable()
        assert reason is None or len(reason) > 10


WITH_BROKEN = """
import contextlib, io, sys, warnings
import numpy as np
sys.path.insert(0, sys.argv[1])
import normgrad as ng
from normgrad import backends, cli
assert not {"numba", "torch"} & set(sys.modules)
for name, words in (("cpu", "numba cannot be imported: ImportError: Numba needs NumPy 1.0 or less"),
                    ("cuda", "torch cannot be imported: OSError: libcudart.so: cannot open")):
    assert backends.get(name).unavailable() == words, backends.get(name).unavailable()
    try:
        ng.layer_norm_backward(*[np.ones((2, 3))] * 2, *[np.ones(2)] * 2, 3, backend=name)
    except ng.BackendError as error:
        assert words in str(error)
operands = *[np.ones((2, 3))] * 2, *[np.ones(2)] * 2, 3
ng.layer_norm_backward(*operands, backend="reference")  # asked for by name: no warning
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert ng.layer_norm_backward(*operands).grad_bias.sum() == 6
    ng.batch_norm_backward(*[np.ones((2, 3))] * 2, *[np.ones(3)] * 2)
(one,) = told
assert one.category is ng.FallbackWarning
assert one.filename == "<string>"  # the caller's line, not ours
assert "numba cannot be imported: ImportError: Numba needs NumPy 1.0 or less" in str(one.message)
assert "backend=" in str(one.message)
with contextlib.redirect_stdout(io.StringIO()) as out:
    assert cli.main(["env"]) == 0
    assert cli.main(["plan", "--op", "layer_norm_backward", "--shape", "4x8"]) == 0
assert "gpu: unknown, as torch cannot be imported: OSError" in out.getvalue(), out.getvalue()
assert "  cpu: numba cannot be imported" in out.getvalue()
"""


def test_a_package_that_cannot_be_imported_is_a_reason(tmp_path):
    """Installed, but for another NumPy or without its shared libraries: the reference computes."""
    for name, text in (
        ("numba", "raise ImportError('Numba needs NumPy 1.0 or less')"),
        ("torch", "raise OSError('libcudart.so: cannot open')"),
        ("triton", ""),
    ):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", WITH_BROKEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_does_not_start_is_told_once():
    """Such calls are some 50 times slower, and in other bits: not a matter for silence."""
    code = (
        "import numpy as np, normgrad as ng\n"
        "for _ in range(2):\n"
        "    ng.layer_norm_backward(*[np.ones((2, 3))] * 2, *[np.ones(2)] * 2, 3)\n"
        "    ng.layer_norm_backward(*[np.ones((5, 4))] * 2, *[np.ones(5)] * 2, 4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "NUMBA_NUM_THREADS": "0"},
    )
    assert done.stderr.count("FallbackWarning") == 1
    assert "Number of threads specified must be > 0" in done.stderr


def test_nothing_wanted_runs_nothing(install):
    fake = install(Fake("cpu"))
    got = ng.batch_norm_backward(
        np.ones((2, 3)),
        np.ones((2, 3)),
        *neutral(np.ones((2, 3))),
        output_mask=(False, False, False),
        backend="cpu",
    )
    assert got == (None, None, None, None)
    assert fake.runs == []


def test_empty_data_of_sizes_that_numpy_has_no_array_for(host_backend):
    """Addresses say nothing of a size: an aclTensor may be 0 x 4 x 2**62."""
    x = TensorSpec.contiguous((0, 4, 2**62), "float32")
    spec = Spec(op=Op.BATCH_NORM_BACKWARD, dy=x, x=x, dx=x, dgamma=VECTOR, dbeta=VECTOR)
    sums = np.full((2, 4), np.nan, np.float32)
    addresses = [None] * len(ROLES)
    addresses[SLOT["dgamma"]], addresses[SLOT["dbeta"]] = (one.ctypes.data for one in sums)
    plan = make_plan(spec, host_backend)
    owner, scratch = host_memory.aligned_bytes(plan.workspace_bytes)
    plan.run(addresses, scratch, 0)
    del owner
    assert not sums.any()


def test_scratch_memory_is_aligned_and_addresses_come_in_the_order_of_roles(install):
    fake = install(Fake("cpu", workspace=1000))
    dy, x = np.ones((2, 3)), np.ones((2, 3))
    mask, statistics = (True, False, True), neutral(x)
    got = ng.batch_norm_backward(dy, x, *statistics, output_mask=mask, backend="cpu")
    ((plan, addresses, workspace, stream),) = fake.runs
    assert workspace % 64 == 0
    assert stream == 0
    assert plan.config == "config in float64"
    arrays = dict(zip(("dy", "x", "mean", "rstd"), (dy, x, *statistics), strict=True))
    arrays |= {"dx": got.grad_input, "dbeta": got.grad_bias}
    assert len(addresses) == len(ROLES)
    for role, address in zip(ROLES, addresses, strict=True):
        array = arrays.get(role)
        assert address == (None if array is None else array.ctypes.data), role


@pytest.mark.parametrize(
    ("dtypes", "compute"),
    [
        (("float16", "float16"), "float32"),
        (("bfloat16", "float32"), "float32"),
        (("float32", "float64"), "float64"),
    ],
)
def test_arithmetic_is_float32_or_wider(dtypes, compute):
    x = TensorSpec.contiguous((2, 4), dtypes[0])
    gamma = TensorSpec.contiguous((4,), dtypes[1])
    assert (
        make_plan(Spec(op=Op.BATCH_NORM_BACKWARD, dy=x, x=x, gamma=gamma, dx=x)).compute == compute
    )


def test_geometry_of_the_operators():
    stat = TensorSpec.contiguous((2,), "float32")
    layer = Spec(
        op=Op.LAYER_NORM_BACKWARD, dy=X, x=X, mean=stat, rstd=stat, normalized_shape=(4, 3)
    )
    assert make_plan(layer).geometry == Geometry(2, 1, 12, 1, "row")
    stats = TensorSpec.contiguous((2, 2), "float32")
    group = Spec(op=Op.GROUP_NORM_BACKWARD, dy=X, x=X, mean=stats, rstd=stats, num_groups=2)
    assert make_plan(group).geometry == Geometry(2, 2, 2, 3, "row")
    assert make_plan(SPEC).geometry == Geometry(2, 1, 4, 3, "channel")
    assert make_plan(SPEC).geometry.count == 6
    assert make_plan(group).geometry.count == 6


def test_group_norm_may_read_its_data_in_other_sizes():
    """As the published interface does: N, C and HxW beside any shape of the same size."""
    data = TensorSpec.contiguous((24,), "float32")
    stat = TensorSpec.contiguous((4,), "float32")
    spec = Spec(
        op=Op.GROUP_NORM_BACKWARD,
        dy=X,
        x=data,
        mean=stat,
        rstd=stat,
        num_groups=2,
        extents=(2, 4, 3),
    )
    assert make_plan(spec).geometry == Geometry(2, 2, 2, 3, "row")
    with pytest.raises(ng.ShapeError, match=r"input must have N\*C\*HxW = 30 elements, got 24"):
        make_plan(
            dataclasses.replace(spec, dy=TensorSpec.contiguous((30,), "float32"), extents=(2, 5, 3))
        )
    with pytest.raises(ng.OptionError, match="extents must not be negative"):
        make_plan(dataclasses.replace(spec, extents=(2, -4, 3)))


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_an_operator_to_come_is_refused(name):
    later = dataclasses.replace(
        SPEC, op="weight_norm", device={"cpu": "cpu", "cuda": "cuda:0"}[name]
    )
    sizes = Geometry(2, 1, 4, 3, "channel")
    assert backends.get(name).refuses(later, sizes) == "it has no weight_norm"
