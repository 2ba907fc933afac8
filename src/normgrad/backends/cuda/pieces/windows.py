"""Planes that start anywhere, by whole vectors of 16 bytes: *windows* around them.

The vectors at the ends of a plane have elements of the planes around too, which are read and left
out. By elements 2x64x401x601 in bfloat16 takes 127 us on an H200.

Most vectors are whole, so what is done for others is behind a branch that a warp takes only if it
has one of those: PTX, as a tile has no branches.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import INTERPRETED


@triton.jit
def window(start, length, WINDOW: tl.constexpr):
    """Whole vectors around a plane: the first element of all, where the plane starts and ends."""
    low = (start % WINDOW).to(tl.int32)
    return start // WINDOW * WINDOW, low, low + length


@triton.jit
def vectors_inside(inside, high, WINDOW: tl.constexpr):
    """Which vectors have something of a plane that ends at ``high``."""
    return inside < tl.cdiv(high, WINDOW) * WINDOW


@triton.jit
def is_inside(inside, low, high):
    """Which elements are the plane's."""
    return (inside >= low) & (inside < high)


@triton.jit
def store_inside(pointers, values, mask, inside, low, high, WINDOW: tl.constexpr):
    """Store elements of vectors that lie from ``low`` to ``high`` in their window.

    Vectors that are whole are stored at once; of others, at both ends, element by element.
    """
    first = inside // WINDOW * WINDOW
    whole = (first >= low) & (first + WINDOW <= high)
    tl.store(pointers, values, mask=mask & whole)
    tl.store(pointers, values, mask=mask & ~whole & is_inside(inside, low, high))


@triton.constexpr_function
def _keeping(count, item):
    """PTX that clears elements of ``count`` of x and dy outside $low to $high, mostly none."""
    words = count * item // 4
    low, high = f"${4 * words}", f"${4 * words + count}"
    lines = ["{", ".reg .pred whole, out;"]
    lines += [f"setp.le.s32 whole, {low}, 0;", f"setp.ge.and.s32 whole, {high}, {count}, whole;"]
    lines.append("@whole bra done;")
    for element in range(count):
        lines.append(f"setp.gt.s32 out, {low}, {element};")
        lines.append(f"setp.le.or.s32 out, {high}, {element}, out;")
        word, keep = element, "0"
        if item == 2:
            word, keep = element // 2, "0x0000FFFF" if element % 2 else "0xFFFF0000"
        for place in (word, words + word):
            lines.append(f"@out and.b32 ${place}, ${place}, {keep};")
    return "\n".join([*lines, "done:", "}"])


@triton.constexpr_function
def _kept(count, item):
    words = count * item // 4
    same = [str(word) for word in range(2 * words)]  # in the registers that they came in
    return ",".join(["=&r"] * (2 * words) + same + ["r"] * (2 * count))


@triton.jit
def keep_inside(tile_x, tile_dy, low, high, VECTOR: tl.constexpr):
    """Both tiles, with zeros for elements of vectors before ``low`` and from ``high`` on.

    VECTOR neighbours have the same two numbers, which count from the first of them.
    """
    if INTERPRETED:
        place = tl.arange(0, tile_x.shape[1])[None, :] % VECTOR
        mine = (place >= low) & (place < high)
        tile_x, tile_dy = tl.where(mine, tile_x, 0.0), tl.where(mine, tile_dy, 0.0)
    else:
        ITEM: tl.constexpr = tile_x.dtype.primitive_bitwidth // 8
        tile_x, tile_dy = tl.inline_asm_elementwise(
            _keeping(VECTOR, ITEM),
            _kept(VECTOR, ITEM),
            [tile_x, tile_dy, low, high],
            dtype=(tile_x.dtype, tile_dy.dtype),
            is_pure=False,
            pack=VECTOR,
        )
    return tile_x, tile_dy


@triton.constexpr_function
def _storing(count, item):
    """PTX that stores a vector at once, or those of its elements from $low on and below $high."""
    words = count * item // 4
    outs = count // 4  # of bytes that nobody wants: there must be some
    at, first = f"${outs}", outs + count
    low, high = f"${first + words}", f"${first + words + count}"
    values = ", ".join(f"${first + word}" for word in range(words))
    lines = ["{", ".reg .pred whole, there; .reg .b16 even, odd;"]
    lines += [f"mov.b32 ${out}, 0;" for out in range(outs)]
    lines += [f"setp.le.s32 whole, {low}, 0;", f"setp.ge.and.s32 whole, {high}, {count}, whole;"]
    lines += [f"@whole st.global.v4.b32 [{at}], {{{values}}};", "@whole bra done;"]
    for element in range(count):
        value, bits = f"${first + element}", 32
        if item == 2:
            value, bits = "odd" if element % 2 else "even", 16
            if element % 2 == 0:
                lines.append(f"mov.b32 {{even, odd}}, ${first + element // 2};")
        lines.append(f"setp.le.s32 there, {low}, {element};")
        lines.append(f"setp.gt.and.s32 there, {high}, {element}, there;")
        lines.append(f"@there st.global.b{bits} [{at} + {element * item}], {value};")
    return "\n".join([*lines, "done:", "}"])


@triton.constexpr_function
def _stored(count, item):
    words = count * item // 4
    given = ["l"] * count + ["r"] * words + ["r"] * (2 * count)
    return ",".join(["=&r"] * (count // 4) + given)


@triton.jit
def store_vectors(pointers, values, low, high, VECTOR: tl.constexpr):
    """Store elements of vectors from ``low`` on and before ``high``, as in `keep_inside`.

    VECTOR neighbours have the same pointer, that of the first of them.
    """
    if INTERPRETED:
        place = tl.arange(0, values.shape[1])[None, :] % VECTOR
        tl.store(pointers + place, values, mask=(place >= low) & (place < high))
    else:
        ITEM: tl.constexpr = values.dtype.primitive_bitwidth // 8
        tl.inline_asm_elementwise(
            _storing(VECTOR, ITEM),
            _stored(VECTOR, ITEM),
            [pointers.to(tl.uint64), values, low, high],
            dtype=tl.int8,
            is_pure=False,
            pack=VECTOR,
        )
