"""Implementations for check --impl: a right one, and some that must be caught."""

import functools
import itertools

import numpy as np

import normgrad
from normgrad import functional

_turn = itertools.count()
# The reference: each check has a process of its own, which need not load a compiler first.
_ours = functools.partial(functional.layer_norm_backward, backend="reference")


def layer_norm_backward(grad_out, input, mean, rstd, normalized_shape, *, variance=None, **options):
    """Right: it is ours under another name."""
    return _ours(grad_out, input, mean, rstd, normalized_shape, variance=variance, **options)


def with_history(*operands, **options):
    """Right, as autograd may give it: with a graph behind it, negated when it is read."""
    import torch

    grads = _ours(*operands, **options)
    return tuple(
        None if one is None else torch._neg_view(-one.requires_grad_()) for one in grads[:3]
    )


class _Compiled:
    """A function whose signature Python cannot read."""

    @property
    def __signature__(self):
        raise ValueError("no signature found")

    def __call__(self, *operands, **options):
        return _ours(*operands, **options)


compiled = _Compiled()


def without_the_mean(*operands, **options):
    """Wrong: the mean of dy is put back."""
    grads = _ours(*operands, **options)
    if grads.grad_input is None:
        return grads
    shifted = (np.asarray(grads.grad_input, np.float64) + 0.01).astype(grads.grad_input.dtype)
    return normgrad.Gradients(shifted, *grads[1:])


def of_the_moment(*operands, **options):
    """Within the budget, but another last bit every other time."""
    grads = _ours(*operands, **options)
    result = grads.grad_input
    if result is not None and result.size and next(_turn) % 2 and result.dtype == np.float32:
        result.flat[0] = np.nextafter(result.flat[0], np.float32(np.inf))
    return grads


def in_place(grad_out, input, *rest, **options):
    """Right results, but the operand is gone."""
    grads = _ours(grad_out, input, *rest, **options)
    if input.size:
        input[...] = 0
    return grads


def crashes(*operands, **options):
    """Takes the process with it."""
    import ctypes

    ctypes.string_at(0)


def dies_of_a_signal_without_name(*operands, **options):
    """The same, by a signal that Python cannot name."""
    import os

    os.kill(os.getpid(), 40)


def stopped_by_hand(*operands, **options):
    """Ctrl-C, which a terminal sends to all processes of the command, and no answer."""
    import os
    import signal
    import time

    os.killpg(0, signal.SIGINT)
    time.sleep(60)


def hears_a_signal(*operands, **options):
    """Right, and gets Ctrl-C, which is the caller's to answer."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)
    return _ours(*operands, **options)


def of_another_type(*operands, **options):
    """Right numbers, but always in float64."""
    grads = _ours(*operands, **options)
    return tuple(None if one is None else np.asarray(one, np.float64) for one in grads[:3])


def whatever_the_mask(*operands, output_mask, **options):
    """Right numbers, also of results that nobody asked for."""
    return _ours(*operands, **options)


def of_another_shape(*operands, **options):
    """Right numbers, wrong shape."""
    grads = _ours(*operands, **options)
    return tuple(None if one is None else one.reshape(-1) for one in grads[:3])


def raises(*operands, **options):
    raise RuntimeError("out of paper")


def of_two_operands(grad_out, input):
    """One that takes its statistics from elsewhere."""


def rounded_early(grad_out, *operands, **options):
    """As many do it: dy goes through 16 bits first."""
    return _ours(grad_out.astype(np.float16).astype(grad_out.dtype), *operands, **options)
