"""Where the tiles of columns lie in memory and on chip, how they are asked for, and dx written."""

import triton
import triton.language as tl

from normgrad.backends.cuda.activations import output, through
from normgrad.backends.cuda.pieces.common import load_or, load_rstd, sum_pairs, widen
from normgrad.backends.cuda.pieces.gluon import gl, jit
from normgrad.backends.cuda.pieces.mask_bits import bytes_of, packed
from normgrad.backends.cuda.pieces.moments import add_elements
from normgrad.backends.cuda.pieces.own_copies import ask_own, commit, fetch_both, fetch_one


@jit
def strip_of(slab, part, ALIGN: tl.constexpr):
    """A block's part of a slab: first element, columns, rows; its image, first channel, tiles.

    Once for all tiles where registers allow it: two divisions are 41 of the 134 instructions that
    writing a tile takes in bfloat16.
    """
    slabs, split, width, channels, start, first, limit, apart, outer_step, row_step = part
    image = slab // split
    left = (slab % split) * width * ALIGN + start
    origin = (image.to(tl.int64) * outer_step + first.to(tl.int64) * row_step) * ALIGN + left
    columns = gl.minimum(width - start // ALIGN, channels - left // ALIGN) * ALIGN
    return origin, columns, gl.where(slab < slabs, limit, 0), image, left, apart


@jit
def either(which, one, other):
    """The first strip where ``which`` is true, else the other."""
    origin = gl.where(which, one[0], other[0])
    columns = gl.where(which, one[1], other[1])
    limit = gl.where(which, one[2], other[2])
    return origin, columns, limit, one[3], one[4], one[5]


@jit
def tile_at(strip, number, row_step, local, cols, ROWS: tl.constexpr, ALIGN: tl.constexpr):
    """The elements of a tile: where the first is, where the others are from there, which exist."""
    origin, columns, limit, _, _, apart = strip
    origin += (row_step * ALIGN).to(tl.int64) * (number * apart)
    at = local[:, None] * row_step * ALIGN + cols[None, :]
    ok = number * apart + local < limit
    return origin, at, ok[:, None] & (cols < columns)[None, :]


@jit
def copy_tile(
    data,
    slot,
    strip,
    number,
    row_step,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    TOGETHER: tl.constexpr = False,
):
    """Ask for a tile, all warps TOGETHER or each for itself, as one group."""
    if TOGETHER:
        tl.debug_barrier()
    ask_tile(data, slot, strip, number, row_step, ROWS, COLS, ALIGN)
    commit(data[2])


@jit
def ask_tile(
    data,
    slot,
    strip,
    number,
    row_step,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """The same in the group to come."""
    x, dy, _, local, cols, _, _ = data
    origin, at, mask = tile_at(strip, number, row_step, local, cols, ROWS, ALIGN)
    from_x = x + origin + at
    from_dy = None if dy is None else dy + origin + at
    ask_own(data, slot, from_x, from_dy, mask, ROWS * COLS, ALIGN)


@jit
def bits_of(bits, first, row_bytes, tile: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A mask's bytes from a block's first row on, those of a row; rows and bytes of a tile."""
    local = gl.arange(0, ROWS, gl.SliceLayout(1, bytes_of(tile)))
    places = gl.arange(0, COLS // 8, gl.SliceLayout(0, bytes_of(tile)))
    return bits + first.to(tl.int64) * row_bytes, row_bytes, local, places


@jit
def _bytes_at(mask, strip, number):
    """The bytes of a tile, and which there are."""
    start, row_bytes, local, places = mask
    _, columns, limit, _, left, apart = strip
    row = number * apart
    start += left // 8 + row.to(tl.int64) * row_bytes
    there = (row + local < limit)[:, None] & (places * 8 < columns)[None, :]
    return start + (local[:, None] * row_bytes + places[None, :]), there


@jit
def fetch_bits(
    bits, first, row_bytes, strip, thread, TILES: tl.constexpr, ROWS: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """Have the L2 cache fetch the bytes of all tiles: a thread asks for those of a row."""
    _, _, limit, _, left, apart = strip
    for start in tl.range(0, TILES * ROWS, THREADS):
        line = start + thread
        row = line // ROWS * apart + line % ROWS
        there = (line < TILES * ROWS) & (row < limit)
        fetch_one(bits + (left // 8 + (first + row).to(tl.int64) * row_bytes), there)


@jit
def load_bits(mask, strip, number):
    """The bytes of a tile."""
    at, there = _bytes_at(mask, strip, number)
    return tl.load(at, mask=there, other=0)


@jit
def store_bits(mask, result, strip, number, there, tile: tl.constexpr, COLS: tl.constexpr):
    """Set the bits of what is not 0."""
    byte = packed(result, there, tile, result.shape[0], COLS)
    at, ok = _bytes_at(mask, strip, number)
    gl.store(at, byte, mask=ok)


@jit
def fetch_tiles(
    x,
    dy,
    strip,
    thread,
    row_step,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGN: tl.constexpr,
    THREADS: tl.constexpr,
):
    """Have the L2 cache fetch the first tiles of a strip: a thread asks for lines of 128 bytes."""
    origin, columns, limit, _, _, apart = strip
    LINE: tl.constexpr = 1024 // x.dtype.element_ty.primitive_bitwidth  # elements
    LINES: tl.constexpr = max(1, COLS // LINE)  # of a row
    for first in tl.range(0, TILES * ROWS * LINES, THREADS):
        line = first + thread
        row = line // (ROWS * LINES) * apart + line // LINES % ROWS
        col = line % LINES * LINE
        at = origin + row.to(tl.int64) * (row_step * ALIGN) + col
        there = (line < TILES * ROWS * LINES) & (row < limit) & (col < columns)
        fetch_both(x + at, dy + at, there)


@jit
def add_tile(sum_d, sum_dt, values, centre, before, FORMULA: tl.constexpr):
    """The two sums with one tile more; ``before`` is what `before_activation` makes of it."""
    # Masked elements of dy are 0, so their x does not matter.
    term_d, term_dt = _terms_of(values, centre, before, FORMULA)
    return sum_d + term_d, sum_dt + term_dt


@jit
def _terms_of(values, centre, before, FORMULA: tl.constexpr):
    """What the two sums add up."""
    d, t = widen(values[0]), FORMULA.centred(widen(values[1]), centre)
    if FORMULA.acts:
        d = through(FORMULA, d, t, before[0], before[1])
    return FORMULA.terms(d, t)


@jit
def add_moments(found, values, strip, number, local, FORMULA: tl.constexpr):
    """What places have met, with one tile of x more."""
    there = (number * strip[5] + local < strip[2])[:, None]
    return add_elements(FORMULA, found, widen(values[1]), there)


@jit
def base_of(x, strip, outer_step, cols, GROUP_SIZE: tl.constexpr, ALIGN: tl.constexpr):
    """The base of each column's mean: the first element of its statistic."""
    _, columns, _, image, left, _ = strip
    column = (left + cols) // GROUP_SIZE * GROUP_SIZE
    at = image.to(tl.int64) * outer_step * ALIGN + column
    return tl.load(x + at, mask=cols < columns, other=0.0).to(tl.float32)


@jit
def no_sums(tile: tl.constexpr, ONCE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The two sums before the first tile, as `add_rows` makes them."""
    none = gl.reshape(gl.zeros([ROWS, COLS], tl.float32, tile), [ROWS // ONCE, ONCE, COLS])
    return sum_pairs(none, none, 0)


@jit
def add_rows(
    sum_d,
    sum_dt,
    values,
    centre,
    before,
    FORMULA: tl.constexpr,
    ONCE: tl.constexpr,  # rows that have one element in each thread
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """The same with the rows of a thread added up first: sums of one row, half the registers."""
    term_d, term_dt = _terms_of(values, centre, before, FORMULA)
    rows_d, rows_dt = sum_pairs(
        gl.reshape(term_d, [ROWS // ONCE, ONCE, COLS]),
        gl.reshape(term_dt, [ROWS // ONCE, ONCE, COLS]),
        0,
    )
    return sum_d + rows_d, sum_dt + rows_dt


@triton.jit
def _first(one, other):
    return one


@jit
def alike(row, by_col: tl.constexpr, EACH: tl.constexpr, COLS: tl.constexpr):
    """A row in which EACH neighbours are equal; the compiler then knows: one register for all."""
    apart = gl.reshape(row, [COLS // EACH, EACH])
    one = tl.reduce(apart, 1, _first)
    same, _ = gl.broadcast(gl.expand_dims(one, 1), apart)
    return gl.convert_layout(gl.reshape(same, [COLS]), by_col)[None, :]


@jit
def write_tile(
    dx, values, factors, strip, number, row_step, local, cols, FORMULA: tl.constexpr,
    ROWS: tl.constexpr, ALIGN: tl.constexpr, beside=None, mask_of=None, dshortcut=None,
    tile: tl.constexpr = None,
):  # fmt: skip
    """Dx of one tile, and what goes ``beside`` it to dshortcut; y, of what lies beside x."""
    dy_factor, centre, x_factor, constant, before = factors
    if dshortcut is not None:
        origin, at, mask = tile_at(strip, number, row_step, local, cols, ROWS, ALIGN)
        gl.store(dshortcut + origin + at, beside, mask=mask)
    if FORMULA.forward:
        t = FORMULA.centred(values[1], x_factor)
        if beside is None:
            result = output(FORMULA, t, dy_factor, constant)
        else:
            result = output(FORMULA, t, dy_factor, constant, widen(beside))
    else:
        d, t = values[0], FORMULA.centred(values[1], centre)
        if FORMULA.acts:
            d = through(FORMULA, d, t, before[0], before[1])
        result = FORMULA.element(d, t, dy_factor, x_factor, constant)
    origin, at, mask = tile_at(strip, number, row_step, local, cols, ROWS, ALIGN)
    result = result.to(dx.dtype.element_ty)
    gl.store(dx + origin + at, result, mask=mask)
    if mask_of is not None:
        store_bits(mask_of, result, strip, number, mask, tile, cols.shape[0])


@jit
def centre_of(mean, strip, channels, cols, GROUP: tl.constexpr, GROUP_SIZE: tl.constexpr):
    """The mean of each column."""
    _, columns, _, image, left, _ = strip
    statistic = left + cols
    if GROUP:
        statistic = image * (channels // GROUP_SIZE) + statistic // GROUP_SIZE
    return load_or(mean, statistic, cols < columns, 0.0, tl.float32)[None, :]


@jit
def before_of(
    vectors,  # rstd, gamma, beta
    strip,
    channels,
    cols,
    eps,
    VARIANCE: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """What an activation's argument is made of, for each column: gamma over the deviation, beta."""
    _, columns, _, image, left, _ = strip
    rstd, gamma, beta = vectors
    channel = left + cols
    statistic = channel
    if GROUP:
        statistic = image * (channels // GROUP_SIZE) + channel // GROUP_SIZE
    ok = cols < columns
    dy_factor = load_rstd(rstd, statistic, ok, eps, VARIANCE, tl.float32)
    dy_factor *= load_or(gamma, channel, ok, 1.0, tl.float32)
    return dy_factor[None, :], load_or(beta, channel, ok, 0.0, tl.float32)[None, :]


@jit
def of_image(parameter, image, channels, ALIGN: tl.constexpr):
    """Where an image's own parameters start."""
    if parameter is not None:
        parameter += image.to(tl.int64) * channels * ALIGN
    return parameter
