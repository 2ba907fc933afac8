"""What threads share, as LLVM instructions and calls of the system."""

import os
import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils

from normgrad.backends.cpu.vectors.conversions import I32, I64, X86, call, pointer
from normgrad.backends.cpu.vectors.traced import intrinsic

_LINUX = sys.platform.startswith("linux")
CPUS = 1024  # as many as Linux's sets of processors have room for


@intrinsic
def call_task(typingctx, function, params, addresses, workspace, argument, index, after):
    """Call a task by its address."""

    def codegen(context, builder, signature, arguments):
        kinds = [value.type for value in arguments[1:]]
        target = pointer(builder, arguments[0], ir.FunctionType(I32, kinds))
        return builder.call(target, list(arguments[1:]))

    return types.int32(types.int64, params, addresses, *[types.int64] * 4), codegen


@intrinsic
def add_atomic(typingctx, address, amount):
    """Add to a shared integer and return what it was; orders all memory around it."""

    def codegen(context, builder, signature, arguments):
        target = pointer(builder, arguments[0], I64)
        return builder.atomic_rmw("add", target, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def replace_atomic(typingctx, address, expected, value):
    """Write a shared integer if it is what was expected; whether it was."""

    def codegen(context, builder, signature, arguments):
        target = pointer(builder, arguments[0], I64)
        pair = builder.cmpxchg(target, *arguments[1:], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def at_address(typingctx, address):
    """The 64-bit integers at an address."""

    def codegen(context, builder, signature, arguments):
        return pointer(builder, arguments[0], I64)

    return types.CPointer(types.int64)(types.int64), codegen


def _system(name, count):
    """A function of the system that takes one or two addresses."""

    def codegen(context, builder, signature, arguments):
        pointers = [pointer(builder, address, ir.IntType(8)) for address in arguments]
        call(builder, name, I32, pointers)
        return context.get_dummy_value()

    if count == 1:
        return intrinsic(lambda typingctx, first: (types.none(types.int64), codegen))
    return intrinsic(
        lambda typingctx, first, second: (types.none(types.int64, types.int64), codegen)
    )


lock = _system("pthread_mutex_lock", 1)
unlock = _system("pthread_mutex_unlock", 1)
sleep = _system("pthread_cond_wait", 2)
wake = _system("pthread_cond_signal", 1)


@intrinsic
def this_thread(typingctx):
    """The number that Python's ``threading.get_ident`` has for it."""

    def codegen(context, builder, signature, arguments):
        return call(builder, "pthread_self", I64, [])

    return types.int64(), codegen


@intrinsic
def this_cpu(typingctx):
    """Where the caller runs; -1 where the system does not tell."""

    def codegen(context, builder, signature, arguments):
        if not _LINUX:
            return I64(-1)
        return builder.sext(call(builder, "sched_getcpu", I32, []), I64)

    return types.int64(), codegen


@intrinsic
def keep_off(typingctx, thread, cpu):
    """Let a thread run where the caller may, but not on one processor; nothing if that is all."""

    def codegen(context, builder, signature, arguments):
        if not _LINUX:
            return context.get_dummy_value()
        thread, cpu = arguments
        words = ir.ArrayType(I64, CPUS // 64)
        mask = builder.alloca(words)
        builder.store(ir.Constant(words, None), mask)
        size = I64(CPUS // 8)
        call(builder, "sched_getaffinity", I32, [I32(0), size, mask])
        here = builder.gep(mask, [I32(0), builder.lshr(cpu, I64(6))])
        bit = builder.shl(I64(1), builder.and_(cpu, I64(63)))
        builder.store(builder.and_(builder.load(here), builder.not_(bit)), here)
        call(builder, "sched_setaffinity", I32, [builder.trunc(thread, I32), size, mask])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def moment(typingctx, clock):
    """Nanoseconds of a clock of the system."""

    def codegen(context, builder, signature, arguments):
        time = builder.alloca(ir.ArrayType(I64, 2))
        call(builder, "clock_gettime", I32, [builder.trunc(arguments[0], I32), time])
        seconds, rest = (builder.load(builder.gep(time, [I32(0), I32(at)])) for at in (0, 1))
        return builder.add(builder.mul(seconds, I64(10**9)), rest)

    return types.int64(types.int64), codegen


@intrinsic
def set_arithmetic(typingctx, wanted):
    """How this thread rounds, traps and flushes subnormals from now on; how it did until now.

    To look takes 1 ns, which is nearly always all; elsewhere than on x86 nothing is changed.
    """

    def codegen(context, builder, signature, arguments):
        if not X86:
            return arguments[0]
        place = cgutils.alloca_once(builder, I32)  # not in a loop: helpers never return
        pointer_to = builder.bitcast(place, ir.IntType(8).as_pointer())
        call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [pointer_to])
        before, after = builder.load(place), builder.trunc(arguments[0], I32)
        builder.store(after, place)
        modes = builder.and_(builder.xor(before, after), I32(0xFFC0))  # the others tell what was
        with builder.if_then(builder.icmp_unsigned("!=", modes, I32(0)), likely=False):
            call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [pointer_to])
        return builder.zext(before, I64)

    return types.int64(types.int64), codegen


@intrinsic
def call_parallel(typingctx, function, work, data, threads):
    """Call OpenMP's entry by its address: a function of one pointer, on so many threads."""

    def codegen(context, builder, signature, arguments):
        void, byte = ir.VoidType(), ir.IntType(8).as_pointer()
        body = ir.FunctionType(void, [byte])
        kind = ir.FunctionType(void, [body.as_pointer(), byte, I32, I32])
        target, work, data, threads = arguments
        given = [pointer(builder, work, body), pointer(builder, data, ir.IntType(8))]
        given += [builder.trunc(threads, I32), I32(0)]
        builder.call(pointer(builder, target, kind), given)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 4), codegen


@intrinsic
def pause(typingctx, give_way):
    """Wait a moment inside a loop that polls; optionally let other threads have the core."""

    def codegen(context, builder, signature, arguments):
        if X86:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        if os.name == "posix":
            with builder.if_then(arguments[0]):
                call(builder, "sched_yield", I32, [])
        return context.get_dummy_value()

    return types.none(types.boolean), codegen
