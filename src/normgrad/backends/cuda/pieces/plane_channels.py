"""Channels of `planes`: their statistics and weights, the sums and numbers of their elements.

Where planes of a small image lie side by side in a line of a tile, elements change places so that
a warp has those of one channel.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import (
    divide_by_magic,
    load_or,
    load_rstd,
    pack_pair,
    sum_pairs,
    unpack_pair,
)
from normgrad.backends.cuda.pieces.gluon import gl, jit
from normgrad.backends.cuda.pieces.moments import merged
from normgrad.backends.cuda.pieces.plane_runs import elements_before
from normgrad.backends.cuda.pieces.plane_tiles import origin_of


@jit
def statistics_of(
    mean, rstd, gamma, which, count, eps, GROUP: tl.constexpr, VARIANCE: tl.constexpr
):
    """What a channel or a group has one of: mean, reciprocal deviation, gamma if no group norm."""
    ok = which < count
    centre = load_or(mean, which, ok, 0.0, tl.float32)
    rs = load_rstd(rstd, which, ok, eps, VARIANCE, tl.float32)
    weight = load_or(None if GROUP else gamma, which, ok, 1.0, tl.float32)
    return centre, rs, weight


@jit
def bias_of(beta, which, count, GROUP: tl.constexpr):
    """Beta of a channel, which an activation is to see."""
    return load_or(None if GROUP else beta, which, which < count, 0.0, tl.float32)


@jit
def base_and_weights(
    x, gamma, beta, slab, chan, steps, count, GROUP: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """For a forward formula: the base of the mean, gamma and beta."""
    which = slab * CHANNELS + chan
    ok = which < count
    base = tl.load(x + origin_of(slab, steps, ALIGN) + chan * PIXELS, mask=ok, other=0.0)
    weight = load_or(None if GROUP else gamma, which, ok, 1.0, tl.float32)
    bias = load_or(None if GROUP else beta, which, ok, 0.0, tl.float32)
    return base.to(tl.float32), weight, bias


@jit
def line_of(parts):
    """Parts of a tile in one row."""
    SIZE: tl.constexpr = parts[0].shape[0] * parts[0].shape[1]
    return (
        gl.reshape(parts[0], [SIZE]), gl.reshape(parts[1], [SIZE]), gl.reshape(parts[2], [SIZE])
    )  # fmt: skip


@jit
def merge_channels(
    FORMULA: tl.constexpr, parts, layout: tl.constexpr, PLANE: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Parts of each channel from those of each element of a line: see `sum_channels`."""
    COLS: tl.constexpr = parts[0].shape[0]
    EACH: tl.constexpr = COLS // PLANE * PIXELS
    SIZE: tl.constexpr = triton.next_power_of_2(EACH)
    chan = gl.arange(0, CHANNELS, gl.SliceLayout(1, layout))[:, None]
    number = gl.arange(0, SIZE, gl.SliceLayout(0, layout))[None, :]
    ok = (number < EACH) & (chan < CHANNELS)
    at = number + number // PIXELS * (PLANE - PIXELS) + chan * PIXELS
    at = gl.reshape(gl.where(ok, at, 0), [CHANNELS * SIZE])
    found = ()
    for part in gl.static_range(3):
        one = gl.reshape(gl.gather(parts[part], at, 0), [CHANNELS, SIZE])
        found = found + (gl.where(ok, gl.convert_layout(one, layout), 0.0),)
    return merged(FORMULA, found, 1)


@jit
def elements_in(
    member, sizes, before, plane_step, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """How many elements a block's rows have."""
    share, rows, magic, pieces, piece, run = sizes
    if WIDE:
        piece, run = piece.to(tl.int64), run.to(tl.int64)
    first = gl.minimum(member * share, rows)
    last = gl.minimum(first + share, rows)
    if WINDOW:
        start = _seen_before(first, sizes, before, plane_step, ALIGN, WINDOW)
        count = _seen_before(last, sizes, before, plane_step, ALIGN, WINDOW) - start
    else:
        count = elements_before(last, magic, pieces, piece, run)
        count = (count - elements_before(first, magic, pieces, piece, run)) * ALIGN
    return count.to(tl.float32)


@jit
def _seen_before(row, sizes, before, plane_step, ALIGN: tl.constexpr, WINDOW: tl.constexpr):
    """Elements of a slab before a row of windows."""
    _, _, magic, pieces, piece, run = sizes
    plane = divide_by_magic(row, magic)
    far = plane.to(tl.int64)
    low = (before + far * plane_step * ALIGN) % WINDOW
    inside = (row - plane * pieces) * piece * WINDOW - low
    return far * run * ALIGN + gl.minimum(gl.maximum(inside, 0), run * ALIGN)


@jit
def sum_channels(
    sum_d,
    sum_dt,
    layout: tl.constexpr,
    PLANE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Sums of each channel from those of each element of a line.

    Elements change places so that a warp has those of one channel. (A thread would else need a
    mask for each channel: in 16 bits 300 instructions beside 100 for a tile.)
    """
    COLS: tl.constexpr = sum_d.shape[0]
    EACH: tl.constexpr = COLS // PLANE * PIXELS  # elements of a channel
    SIZE: tl.constexpr = triton.next_power_of_2(EACH)
    chan = gl.arange(0, CHANNELS, gl.SliceLayout(1, layout))[:, None]
    number = gl.arange(0, SIZE, gl.SliceLayout(0, layout))[None, :]
    ok = (number < EACH) & (chan < CHANNELS)
    at = number + number // PIXELS * (PLANE - PIXELS) + chan * PIXELS
    at = gl.reshape(gl.where(ok, at, 0), [CHANNELS * SIZE])
    sum_d = gl.reshape(gl.gather(sum_d, at, 0), [CHANNELS, SIZE])
    sum_dt = gl.reshape(gl.gather(sum_dt, at, 0), [CHANNELS, SIZE])
    sum_d = gl.where(ok, gl.convert_layout(sum_d, layout), 0.0)
    sum_dt = gl.where(ok, gl.convert_layout(sum_dt, layout), 0.0)
    return sum_pairs(sum_d, sum_dt, 1)


@jit
def spread(first, second, col_chan):
    """Two numbers of each channel for each column of a tile."""
    pair = gl.gather(pack_pair(first, second), col_chan, 0)
    first, second = unpack_pair(pair)
    return first[None, :], second[None, :]
