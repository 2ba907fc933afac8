"""What compiling costs: how often Numba makes the same part."""

from collections import Counter

COMPILED = """
from numba.core import event, types
from normgrad.backends.cpu import tasks
from normgrad.backends.cpu.vectors.formats import F32

class Parts(event.Listener):
    def on_start(self, event):
        pass

    def on_end(self, event):
        name = event.data["dispatcher"].py_func.__name__
        constants = [a for a in event.data["args"] if isinstance(a, types.Literal)]
        print(name, len(constants))

with event.install_listener("numba:compile", Parts()):
    tasks.address("slabs", F32)
    tasks.address("lone_slabs", F32, F32)
    tasks.address("units_in", F32)
    tasks.address("units_out", F32)
    tasks.address("strips", F32, F32)
    tasks.address("blocks_out", F32, F32)
    tasks.address("samples", F32, F32)
    tasks.address("rows", F32, F32, F32, F32)
    tasks.address("row_strips", F32, F32)
"""


def test_no_part_is_compiled_for_a_constant(python, tmp_path):
    # Numba's way: one for each constant that it is called with, 16 of a single one in `rows`.
    lines = python("-c", COMPILED, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()
    made = Counter(line.split()[0] for line in lines)
    assert {line for line in lines if not line.endswith(" 0")} == set()
    assert made["four_rows"] == made["sums"] == made["gradients"] == 1
