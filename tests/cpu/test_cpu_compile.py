"""What compiling costs: how often Numba makes the same part."""

from collections import Counter

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
