"""The first of two passes: partial sums of dy and dy * (x - mean) for each unit.

A unit is what one parameter's sum is made of: a channel (batch norm) or a channel of one image
(group norm). K programs share a unit; partial k of unit u lies at u * K + k, first all sums of dy,
then all of dy * (x - mean).
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import through
from normgrad.backends.cuda.pieces.common import (
    channel_of,
    divide_by_magic,
    load_or,
    load_rstd,
    sum_pairs,
    widen,
)
from normgrad.backends.cuda.pieces.moments import (
    add_elements,
    merged,
    parts_of,
    store_part,
)
from normgrad.backends.cuda.pieces.windows import is_inside, vectors_inside, window


@triton.jit
def plane_sums(
    dy,
    x,  # None where sums of dy are all that is wanted
    mean,
    rstd,  # what an activation needs: None without one
    gamma,
    beta,
    partials,
    units,
    splits,
    planes,  # planes of a unit
    pieces,
    run,  # elements of a plane
    channels,
    group_size,  # channels that share a statistic (group norm)
    dy_plane,
    dy_outer,
    dy_channel,
    x_plane,
    x_outer,
    x_channel,
    magic,  # to divide by ``pieces``, or None
    eps,
    VARIANCE: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
    GROUP: tl.constexpr,
    WIDE: tl.constexpr,
    FULL_PIECES: tl.constexpr,  # all pieces are full
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    WINDOW: tl.constexpr,  # planes start anywhere in vectors of so many elements; else 0
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Channels first; strides and ``run`` come divided by ALIGN."""
    unit = tl.program_id(0) // splits
    part = tl.program_id(0) % splits
    outer = (unit // channels).to(tl.int64)
    channel = (unit % channels).to(tl.int64)
    statistic = unit
    if GROUP:
        statistic = (outer * (channels // group_size) + channel // group_size).to(tl.int32)
    mu = load_or(mean, statistic, None, 0.0, COMPUTE)
    if FORMULA.acts and not FORMULA.forward:
        parameter = unit if EACH else channel
        bias = load_or(beta, parameter, None, 0.0, COMPUTE)
        dy_factor = load_rstd(rstd, statistic, None, eps, VARIANCE, COMPUTE)
        dy_factor *= load_or(gamma, parameter, None, 1.0, COMPUTE)
    cols = tl.arange(0, COLS)
    rows = planes * pieces
    length = run * ALIGN
    if WIDE:
        length = run.to(tl.int64) * ALIGN
    sum_d = tl.zeros([ROWS, COLS], COMPUTE)
    sum_dt = tl.zeros([ROWS, COLS], COMPUTE)
    if FORMULA.forward:
        count = sum_d
        if FULL_PIECES:  # all columns have as many
            count = tl.zeros([ROWS, 1], COMPUTE)
        found = (count, sum_d, sum_d, sum_d)
    for first in tl.range(part * ROWS, rows, splits * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        if magic is None:
            plane = (row // pieces).to(tl.int64)[:, None]
            inside = ((row % pieces).to(length.dtype) * COLS)[:, None] + cols[None, :]
        else:
            which = divide_by_magic(row, magic)
            plane = which.to(tl.int64)[:, None]
            inside = ((row - which * pieces).to(length.dtype) * COLS)[:, None] + cols[None, :]
        mask = (row < rows)[:, None]
        dy_at = (plane * dy_plane + outer * dy_outer + channel * dy_channel) * ALIGN
        x_at = (plane * x_plane + outer * x_outer + channel * x_channel) * ALIGN
        mine = mask
        if WINDOW:  # x and dy lie alike
            dy_at, low, high = window(dy_at, length, WINDOW)
            x_at = dy_at
            mine = is_inside(inside, low, high)
            mask = mask & vectors_inside(inside, high, WINDOW)
        elif not FULL_PIECES:
            mask = mask & (inside < length)
        if FORMULA.forward:
            wide_x = widen(tl.load(x + (x_at + inside), mask=mask, other=0.0), COMPUTE)
            found = add_elements(FORMULA, found, wide_x, mask & mine)
        else:
            wide = widen(tl.load(dy + (dy_at + inside), mask=mask, other=0.0), COMPUTE)
            product = wide
            if x is not None:
                wide_x = widen(tl.load(x + (x_at + inside), mask=mask, other=0.0), COMPUTE)
                t = FORMULA.centred(wide_x, mu)
                if FORMULA.acts:
                    wide = through(FORMULA, wide, t, dy_factor, bias)
                wide, product = FORMULA.terms(wide, t)
            if WINDOW:
                wide = tl.where(mine, wide, 0.0)
                product = tl.where(mine, product, 0.0)
            sum_d += wide
            sum_dt += product
    if FORMULA.forward:
        first_channel = channel
        if GROUP:
            first_channel = channel // group_size * group_size
        base = tl.load(x + (outer * x_outer + first_channel * x_channel) * ALIGN).to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base), None)
        second = units.to(tl.int64) * splits
        store_part(partials, unit * splits + part, whole, base, second, None)
    else:
        total_d, total_dt = sum_pairs(sum_d, sum_dt, None)
        tl.store(partials + unit * splits + part, total_d)
        tl.store(partials + (units.to(tl.int64) + unit) * splits + part, total_dt)


@triton.jit
def unit_sums(
    dy,
    x,
    mean,
    rstd,
    gamma,
    beta,
    partials,
    units,
    run,
    channels,
    group_size,
    dy_outer,
    dy_channel,
    x_outer,
    x_channel,
    EACH: tl.constexpr,  # each sample has weights of its own
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Group norm, channels first: units that are a row of a tile each."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    unit = program * ROWS + tl.arange(0, ROWS)
    ok = unit < units
    cols = tl.arange(0, COLS)
    outer = (unit // channels).to(tl.int64)
    channel = (unit % channels).to(tl.int64)
    mask = ok[:, None] & (cols < run * ALIGN)[None, :]
    if FORMULA.forward:
        x_at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN + cols[None, :]
        wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
        none = tl.zeros([ROWS, COLS], COMPUTE)
        found = add_elements(FORMULA, (none, none, none, none), wide_x, mask)
        first_channel = channel // group_size * group_size
        base = tl.load(
            x + (outer * x_outer + first_channel * x_channel) * ALIGN, mask=ok, other=0.0
        )
        base = base.to(COMPUTE)
        whole = merged(FORMULA, parts_of(FORMULA, found, base[:, None]), 1)
        store_part(partials, unit, whole, base, units.to(tl.int64), ok)
    else:
        dy_at = (outer * dy_outer + channel * dy_channel)[:, None] * ALIGN + cols[None, :]
        term_d = widen(tl.load(dy + dy_at, mask=mask, other=0.0), COMPUTE)
        term_dt = term_d
        if x is not None:
            mu = load_or(mean, unit // group_size, ok, 0.0, COMPUTE)[:, None]
            x_at = (outer * x_outer + channel * x_channel)[:, None] * ALIGN + cols[None, :]
            wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
            t = FORMULA.centred(wide_x, mu)
            if FORMULA.acts:
                dy_factor = load_or(rstd, unit // group_size, ok, 1.0, COMPUTE)[:, None]
                parameter = unit if EACH else channel
                dy_factor *= load_or(gamma, parameter, ok, 1.0, COMPUTE)[:, None]
                bias = load_or(beta, parameter, ok, 0.0, COMPUTE)[:, None]
                term_d = through(FORMULA, term_d, t, dy_factor, bias)
            term_d, term_dt = FORMULA.terms(term_d, t)
        total_d, total_dt = sum_pairs(term_d, term_dt, 1)
        tl.store(partials + unit, total_d, mask=ok)
        tl.store(partials + (units.to(tl.int64) + unit), total_dt, mask=ok)


@triton.jit
def column_sums(
    dy,
    x,
    mean,
    rstd,
    gamma,
    beta,
    partials,
    units,
    splits,
    blocks,  # of columns
    rows,
    channels,  # over ALIGN, of all rows that lie side by side
    period,  # over RUN: channels of one row, if there are several
    times,  # so many
    pixels,  # columns of one channel, side by side; None for one
    group_size,
    dy_row,
    dy_outer,
    x_row,
    x_outer,
    eps,
    VARIANCE: tl.constexpr,
    EACH: tl.constexpr,  # each sample has weights of its own
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    RUN: tl.constexpr,
    FORMULA: tl.constexpr,
    COMPUTE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Channels last; strides come divided by ALIGN."""
    part = tl.program_id(0) % splits
    block = tl.program_id(0) // splits
    outer = (block // blocks).to(tl.int64)
    column = (block % blocks) * COLS + tl.arange(0, COLS)
    col_ok = column < channels * ALIGN
    channel, width = column, channels * ALIGN
    if period is not None:
        channel, width = channel_of(column, period, RUN), period * RUN
    statistic = channel
    if pixels is not None:
        statistic = channel // pixels
    parameter = statistic
    if GROUP:
        parameter = outer * width + channel if EACH else channel
        statistic = outer * (width // group_size) + channel // group_size
    mu = load_or(mean, statistic, col_ok, 0.0, COMPUTE)[None, :]
    if FORMULA.acts and not FORMULA.forward:
        dy_factor = load_rstd(rstd, statistic, col_ok, eps, VARIANCE, COMPUTE)
        dy_factor = (dy_factor * load_or(gamma, parameter, col_ok, 1.0, COMPUTE))[None, :]
        bias = load_or(beta, parameter, col_ok, 0.0, COMPUTE)[None, :]
    sum_d = tl.zeros([ROWS, COLS], COMPUTE)
    sum_dt = tl.zeros([ROWS, COLS], COMPUTE)
    if FORMULA.forward:
        found = (tl.zeros([ROWS, 1], COMPUTE), sum_d, sum_d, sum_d)  # all columns have as many
    for first in tl.range(part * ROWS, rows, splits * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & col_ok[None, :]
        far = row.to(tl.int64)[:, None]
        dy_at = (far * dy_row + outer * dy_outer) * ALIGN + column[None, :]
        x_at = (far * x_row + outer * x_outer) * ALIGN + column[None, :]
        if FORMULA.forward:
            wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
            found = add_elements(FORMULA, found, wide_x, (row < rows)[:, None])
        else:
            wide = widen(tl.load(dy + dy_at, mask=mask, other=0.0), COMPUTE)
            if x is not None:
                wide_x = widen(tl.load(x + x_at, mask=mask, other=0.0), COMPUTE)
                t = FORMULA.centred(wide_x, mu)
                if FORMULA.acts:
                    wide = through(FORMULA, wide, t, dy_factor, bias)
                wide, product = FORMULA.terms(wide, t)
                sum_dt += product
            sum_d += wide
    if not FORMULA.forward:
        total_d, total_dt = sum_pairs(sum_d, sum_dt, 0)
    unit = outer * width + channel
    place = column // width * splits + part
    if FORMULA.forward:
        first_channel = channel
        if pixels is not None:
            first_channel = channel // pixels * pixels
        if GROUP:
            first_channel = channel // group_size * group_size
        base = tl.load(x + outer * x_outer * ALIGN + first_channel, mask=col_ok, other=0.0).to(
            COMPUTE
        )
        whole = merged(FORMULA, parts_of(FORMULA, found, base[None, :]), 0)
        second = units.to(tl.int64) * splits * times
        store_part(partials, unit * splits * times + place, whole, base, second, col_ok)
    else:
        tl.store(partials + unit * splits * times + place, total_d, mask=col_ok)
        tl.store(partials + (units + unit) * splits * times + place, total_dt, mask=col_ok)
