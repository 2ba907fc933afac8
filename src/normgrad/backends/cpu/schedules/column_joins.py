"""Sums of columns joined over blocks of rows, in float64."""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.vectors import (
    lanes,
    load,
    load_part,
    size_of,
    store_part,
    store_rounded,
    widen,
    zero,
)
from normgrad.backends.cpu.vectors.formats import F64

# Blocks, or samples, that are added one by one.
_FEW = 64


@jit.inner
def paired(flat, parts, blocks, stride, columns):
    """Add blocks of float64 in pairs until few are left: how many, from the first on.

    One by one a million rows of 0.1 were 1257 roundings off. Float32 sums are added in float64.
    """
    width = lanes(flat)
    while size_of(flat) == 8 and blocks > _FEW:
        half = (blocks + 1) // 2
        for block in range(blocks - half):
            at = parts + block * stride
            for column in range(0, columns, width):
                part = min(width, columns - column)
                one = load_part(flat, at, part) + load_part(flat, at + half * stride, part)
                store_part(flat, at, one, part)
                at += width * size_of(flat)
        blocks = half
    return blocks


@jit.inner
def joined(flat, parts, blocks, stride, part):
    """Up to a vector of columns added over blocks, in float64."""
    sums = widen(zero(flat))
    for block in range(blocks):
        sums = sums + widen(load_part(flat, parts + block * stride, part))
    return sums


@jit.inner
def four_joined(flat, parts, blocks, stride):
    """Four vectors of columns added over blocks, in float64: a line alone comes late."""
    unit = lanes(flat) * size_of(flat)
    s0 = widen(zero(flat))
    s1 = widen(zero(flat))
    s2 = widen(zero(flat))
    s3 = widen(zero(flat))
    for _ in range(blocks):
        s0 = s0 + widen(load(flat, parts))
        s1 = s1 + widen(load(flat, parts + unit))
        s2 = s2 + widen(load(flat, parts + 2 * unit))
        s3 = s3 + widen(load(flat, parts + 3 * unit))
        parts += stride
    return s0, s1, s2, s3


@jit.inner
def join_columns(flat, params, workspace, sample, first, last):
    """Two rows of float64 sums over a sample's blocks, for some columns."""
    columns = params[slots.WIDTH]
    blocks = params[slots.BLOCKS]
    stride = 2 * columns * size_of(flat)
    parts = workspace + params[slots.AT_PARTS] + sample * blocks * stride
    sums = workspace + params[slots.AT_SUMS] + sample * 2 * columns * 8
    width = lanes(flat)
    for _ in range(2):
        left = paired(flat, parts + first * size_of(flat), blocks, stride, last - first)
        column = first
        while last - column >= 4 * width:
            here = parts + column * size_of(flat)
            s0, s1, s2, s3 = four_joined(flat, here, left, stride)
            store_rounded(F64, sums + column * 8, s0, width)
            store_rounded(F64, sums + (column + width) * 8, s1, width)
            store_rounded(F64, sums + (column + 2 * width) * 8, s2, width)
            store_rounded(F64, sums + (column + 3 * width) * 8, s3, width)
            column += 4 * width
        while column < last:
            part = min(width, last - column)
            here = parts + column * size_of(flat)
            store_rounded(F64, sums + column * 8, joined(flat, here, left, stride, part), part)
            column += width
        # The second row of sums.
        parts += columns * size_of(flat)
        sums += columns * 8
