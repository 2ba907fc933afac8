"""Tritons whose inner parts are others than those that the kernels are compiled by."""

import sys
import types

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
from normgrad.backends.cuda import backend
from normgrad.backends.cuda.run import launch


@pytest.fixture(autouse=True)
def anew():
    launch.unsupported_triton.cache_clear()
    yield
    launch.unsupported_triton.cache_clear()


def test_this_one_is_supported():
    assert launch.unsupported_triton() is None


@pytest.mark.parametrize(
    "module", ["triton.experimental.gluon._runtime", "triton.compiler.compiler"]
)
def test_another_is_refused_with_its_version_and_the_way_out(module, monkeypatch):
    import torch
    import triton

    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backend, "interpreting", lambda: False)
    reason = backend.CudaBackend().unavailable()
    assert f"does not support Triton {triton.__version__}" in reason
    assert module in reason
    assert "pip install 'triton==3.6.*'" in reason


def test_compiled_kernels_of_another_form_are_refused():
    class Compiled:
        metadata = types.SimpleNamespace(shared=0)  # no named tuple

    from triton.backends.compiler import GPUTarget

    with pytest.raises(RuntimeError, match="does not support Triton"):
        launch._add_shared(Compiled(), GPUTarget("cuda", 90, 32), 128)
