"""Vectors of 64 bytes in Numba: loads that widen, stores that round once, sums in fixed order.

Everything is LLVM's own vector arithmetic, so that what is vectorized does not depend on an
optimizer's mood, results over operands need no aliasing checks, and lanes add up in one order on
every machine. Without the compiler the same names come from `checked`.
"""

import importlib

from normgrad.backends.cpu import jit

_THREADS = importlib.import_module(
    "normgrad.backends.cpu.sharing" if jit.ENABLED else "normgrad.backends.cpu.checked"
)
_SOURCE = importlib.import_module(
    "normgrad.backends.cpu.lowering" if jit.ENABLED else "normgrad.backends.cpu.checked"
)

add_atomic = _THREADS.add_atomic
call_task = _THREADS.call_task
fence = _SOURCE.fence
float_of = _SOURCE.float_of
fma = _SOURCE.fma
four_totals = _SOURCE.four_totals
lanes = _SOURCE.lanes
load = _SOURCE.load
load_pair = _SOURCE.load_pair
load_part = _SOURCE.load_part
move = _SOURCE.move
pause = _THREADS.pause
prefetch = _SOURCE.prefetch
read = _SOURCE.read
rounded = _SOURCE.rounded
size_of = _SOURCE.size_of
splat = _SOURCE.splat
splat_pair = _SOURCE.splat_pair
store = _SOURCE.store
store_pair = _SOURCE.store_pair
store_part = _SOURCE.store_part
store_wide = _SOURCE.store_wide
stream = _SOURCE.stream
stream_line = _SOURCE.stream_line
stream_pair = _SOURCE.stream_pair
total = _SOURCE.total
widen = _SOURCE.widen
write = _SOURCE.write
zero = _SOURCE.zero
