"""What compiling costs, and that what is made with fewer steps computes the same."""

import ctypes
import gc
from collections import Counter

import numpy as np
import pytest
from numba.core import codegen, errors, types

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots

if not jit.ENABLED:
    pytest.skip("nothing is compiled", allow_module_level=True)

from normgrad.backends.cpu.vectors.traced import Traced

# A part is typed when the first caller's types are inferred: no machine code is needed to count.
COMPILED = """
import numba
from numba.core import compiler, event, funcdesc, typed_passes, types
from normgrad.backends.cpu import jit, tasks
from normgrad.backends.cpu.formulas import Formula
from normgrad.backends.cpu.vectors.formats import F32

FORM = Formula()

class Parts(event.Listener):
    def on_start(self, event):
        pass

    def on_end(self, event):
        name = event.data["dispatcher"].py_func.__name__
        constants = [a for a in event.data["args"] if isinstance(a, types.Literal)]
        print(name, len(constants))

def lower_nothing(self, state):
    described = funcdesc.PythonFunctionDescriptor.from_specialized_function(
        state.func_ir, state.typemap, state.return_type, state.calltypes,
        mangler=state.targetctx.mangler, inline=False, noalias=False, abi_tags=[],
    )
    state["cr"] = compiler._LowerResult(described, None, cfunc=abs, env=None)  # any
    return True

class Typed:
    address = 0

    def __init__(self, signature, function):
        jit.inner(function).compile(signature.args)

typed_passes.BaseNativeLowering.run_pass = lower_nothing
jit.compiled = Typed
with event.install_listener("numba:compile", Parts()):
    tasks.address("slabs", FORM, F32, True)
    tasks.address("slabs", FORM, F32, False)
    tasks.address("single_segment_slabs", FORM, F32, F32)
    tasks.address("sum_pieces", FORM, F32, True)
    tasks.address("write_pieces", FORM, F32, False)
    tasks.address("side_by_side_planes", FORM, F32, F32)
    tasks.address("write_row_blocks", FORM, F32, F32)
    tasks.address("whole_samples", FORM, F32, F32)
    tasks.address("rows", FORM, F32, F32, F32, F32, True)
    tasks.address("column_blocks_of_rows", FORM, F32, F32)
"""


def test_no_part_is_compiled_for_a_constant(python):
    # Numba's way: one for each constant that it is called with, 16 of a single one in `rows`.
    lines = python("-c", COMPILED).splitlines()
    made = Counter(line.split()[0] for line in lines)
    assert {line for line in lines if not line.endswith(" 0")} == set()
    assert made["four_rows"] == made["sums"] == made["written"] == 1


@jit.inner
def part(slot, numbers, half):
    """What kernels have that our compiler treats in its own way."""
    at = slots.DY + slots.BY_OUTER + slot
    least = min(at, 7 * slot, -slot // 2)
    if half:
        return numbers[1] + least, 0.5 * slot
    return numbers[0] - min(at, slots.X), slot / 4


@jit.inner
def beside(slot):
    """Another caller of the same part."""
    whole, share = part(slot, (slot, slots.WIDTH), slot > 3)
    return whole if share < 1.0 else -whole


def task(slot):
    total = slots.CODE
    for one in range(-3, 8):
        whole, share = part(one, (slot, 2 * slot), one % 2 == 0)
        total += whole * 3 + np.int64(8 * share) + beside(one)
    return np.int32(total)


def test_a_kernel_computes_what_python_does_and_is_made_once(monkeypatch):
    made = []
    optimize = codegen.JITCodeLibrary._optimize_final_module

    def counted(self):
        made.append(self.name)
        optimize(self)

    monkeypatch.setattr(codegen.JITCodeLibrary, "_optimize_final_module", counted)
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(
        jit.compiled(jit.HELPER_LOOP_SIGNATURE, task).address
    )
    # Parts are in it, and on their own no machine code is made of them.
    assert [name for name in made if name in ("task", "part", "beside")] == ["task"]
    for name, function in (("part", part), ("beside", beside)):
        monkeypatch.setitem(globals(), name, function.py_func)
    assert [kernel(slot) for slot in (-5, 0, 11)] == [task(slot) for slot in (-5, 0, 11)]


def test_the_collector_is_as_it_was_after_compiling(monkeypatch):
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    before = gc.isenabled()
    try:
        for wanted in (gc.enable, gc.disable):
            wanted()
            was = gc.isenabled()
            with pytest.raises(errors.NumbaError):
                jit.compiled(jit.HELPER_LOOP_SIGNATURE, lambda address: address.unknown)
            assert gc.isenabled() == was
    finally:
        (gc.enable if before else gc.disable)()


# Numba is there already, so that it alone knows the Python that runs.
NEWER = """
import sys
import numba, numba.extending
sys.version_info = (*map(int, sys.argv[1].split(".")), 0, "final", 0)
import numpy as np
import normgrad as ng
from normgrad.backends.cpu import jit
x, dy = np.random.default_rng(3).standard_normal((2, 5, 6, 37), dtype=np.float32)
y = ng.batch_norm(x, activation="silu", backend="cpu")
made = [y.output, *ng.layer_norm_backward(dy, x, x.mean(-1), x.std(-1), 37, backend="cpu")[:3]]
print("PartCompiler" in str(jit._PART), *(one.tobytes().hex() for one in made))
"""


@pytest.mark.slow(9)
def test_newer_pythons_take_all_of_numbas_steps(python, tmp_path):
    older, newer = (
        python("-c", NEWER, version, NUMBA_CACHE_DIR=str(tmp_path / version)).split()
        for version in ("3.13", "3.14")
    )
    assert (older[0], newer[0]) == ("True", "False")
    assert older[1:] == newer[1:]


def test_what_is_traced_has_no_branches():
    one = Traced(types.int64)
    with pytest.raises(TypeError, match="no branches"):
        bool(one)
