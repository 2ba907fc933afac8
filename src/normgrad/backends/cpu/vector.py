"""Vectors of 64 bytes in Numba: loads that widen, stores that round once, sums in fixed order.

Everything is LLVM's own vector arithmetic, so that what is vectorized does not depend on an
optimizer's mood, results over operands need no aliasing checks, and lanes add up in one order on
every machine. Without the compiler the same names come from `checked`.
"""

# ruff: noqa: F401 (one place to import the operations from)

from normgrad.backends.cpu import jit

if jit.ENABLED:
    from normgrad.backends.cpu.lowering import (
        add_atomic,
        call_task,
        fence,
        float_of,
        fma,
        lanes,
        load,
        load_part,
        move,
        pause,
        prefetch,
        read,
        size_of,
        splat,
        store,
        store_part,
        store_wide,
        stream,
        total,
        widen,
        write,
        zero,
    )
else:
    from normgrad.backends.cpu.checked import (
        add_atomic,
        call_task,
        fence,
        float_of,
        fma,
        lanes,
        load,
        load_part,
        move,
        pause,
        prefetch,
        read,
        size_of,
        splat,
        store,
        store_part,
        store_wide,
        stream,
        total,
        widen,
        write,
        zero,
    )
