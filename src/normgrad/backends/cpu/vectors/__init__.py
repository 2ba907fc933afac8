"""Vectors of 64 bytes in Numba: loads that widen, stores that round once, sums in fixed order.

Everything is LLVM's own vector arithmetic, so that what is vectorized does not depend on an
optimizer's mood, results over operands need no aliasing checks, and lanes add up in one order on
every machine. Without the compiler the same names come from `checked`.
"""

import importlib
from types import ModuleType

from normgrad.backends.cpu import jit


def _one_of(compiled: str) -> ModuleType:
    """The module of that name, or its stand-in."""
    name = compiled if jit.ENABLED else "vectors.checked"
    return importlib.import_module(f"normgrad.backends.cpu.{name}")


_THREADS = _one_of("threads.sharing")
_MEMORY = _one_of("vectors.lowering")
_NUMBERS = _one_of("vectors.arithmetic")
_NUMERALS = _one_of("vectors.conversions")
_MOVES = _one_of("vectors.moves")
_TRACED = _one_of("vectors.traced")

FLUSHES_BF16: bool = _NUMERALS.FLUSHES_BF16
absolute = _NUMBERS.absolute
add_atomic = _THREADS.add_atomic
any_above = _NUMBERS.any_above
as_stored = _MEMORY.as_stored
at_most = _NUMBERS.at_most
bits_above = _NUMBERS.bits_above
call_task = _THREADS.call_task
fence = _MEMORY.fence
fills_line = _NUMBERS.fills_line
float_of = _NUMBERS.float_of
fma = _NUMBERS.fma
four_totals = _NUMBERS.four_totals
hidden_constant = _NUMBERS.hidden_constant
in_float32 = _NUMBERS.in_float32
in_type_of = _NUMBERS.in_type_of
kept = _NUMBERS.kept
kept_where = _NUMBERS.kept_where
lane_of = _NUMBERS.lane_of
lanes = _NUMBERS.lanes
load = _MEMORY.load
load_pair = _MEMORY.load_pair
load_part = _MEMORY.load_part
move = _MEMORY.move
move_line = _MOVES.move_line
pause = _THREADS.pause
prefetch = _MEMORY.prefetch
put_byte = _MEMORY.put_byte
read = _MEMORY.read
set_arithmetic = _THREADS.set_arithmetic
side = _MOVES.side
size_of = _NUMBERS.size_of
splat = _NUMBERS.splat
splat_pair = _NUMBERS.splat_pair
square_root = _NUMBERS.square_root
store = _MEMORY.store
store_pair = _MEMORY.store_pair
store_part = _MEMORY.store_part
store_rounded = _MEMORY.store_rounded
stream = _MEMORY.stream
stream_line = _MEMORY.stream_line
stream_pair = _MEMORY.stream_pair
take_byte = _MEMORY.take_byte
times_power = _NUMBERS.times_power
total = _NUMBERS.total
totals_in_lanes = _NUMBERS.totals_in_lanes
traced = _TRACED.traced
transpose = _MOVES.transpose
widen = _NUMBERS.widen
with_lane = _NUMBERS.with_lane
write = _MEMORY.write
zero = _NUMBERS.zero
