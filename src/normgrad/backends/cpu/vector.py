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
_MEMORY = importlib.import_module(
    "normgrad.backends.cpu.lowering" if jit.ENABLED else "normgrad.backends.cpu.checked"
)
_NUMBERS = importlib.import_module(
    "normgrad.backends.cpu.arithmetic" if jit.ENABLED else "normgrad.backends.cpu.checked"
)

add_atomic = _THREADS.add_atomic
call_task = _THREADS.call_task
fence = _MEMORY.fence
float_of = _NUMBERS.float_of
fills_line = _NUMBERS.fills_line
fma = _NUMBERS.fma
four_totals = _NUMBERS.four_totals
lanes = _NUMBERS.lanes
load = _MEMORY.load
load_pair = _MEMORY.load_pair
load_part = _MEMORY.load_part
move = _MEMORY.move
pause = _THREADS.pause
prefetch = _MEMORY.prefetch
read = _MEMORY.read
rounded = _NUMBERS.rounded
size_of = _NUMBERS.size_of
splat = _NUMBERS.splat
splat_pair = _NUMBERS.splat_pair
store = _MEMORY.store
store_pair = _MEMORY.store_pair
store_part = _MEMORY.store_part
store_wide = _MEMORY.store_wide
stream = _MEMORY.stream
stream_line = _MEMORY.stream_line
stream_pair = _MEMORY.stream_pair
total = _NUMBERS.total
widen = _NUMBERS.widen
write = _MEMORY.write
zero = _NUMBERS.zero
