"""A call on plain tensors written out, as Python source made for one request.

The general road goes through tables of roles, results and arguments; this says what is in them,
for data at multiples of 16 bytes and the default stream. All else it leaves to the general road.
Where a call is as short as these, tables cost more than launches.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normgrad.backends.cuda.program import SLOTS, Ref

# A tensor to be made by an operand, arrays[source].new_empty_strided(shape, strides, dtype): its
# slot, source, shape (None: it is just like the operand), strides, and its dtype if not the same.
Result = tuple[int, int, tuple[int, ...] | None, tuple[int, ...], Any]


class Site(NamedTuple):
    """Where a call runs, and what stays there from call to call."""

    gpu: int
    current: Callable[[], int]  # GPU
    stream: Callable[[int], int]
    empty_like: Callable[[Any], Any]
    scratch: Callable[[int, int], int]  # of a GPU, so many bytes
    post: Callable[[int], Any]  # words between blocks


def write(
    launches: Sequence[Any],  # of launch.Ready
    touched: Sequence[int],  # slots whose addresses count
    sizes: tuple[int, int],  # bytes of scratch memory, words
    operands: Sequence[bool],
    results: Sequence[Result | None],
    site: Site,
    general: Callable[[list[int | None], Any], None],
) -> Callable[..., tuple[Any, ...]]:
    """A function of (operands, None) that makes the results and returns them."""
    nbytes, words = sizes
    names: dict[str, Any] = {**site._asdict(), "general": general}
    lines = [f"{', '.join(f'a{slot}' for slot in range(len(operands)))}, = arrays"]
    lines += [f"p{slot} = a{slot}.data_ptr()" for slot, given in enumerate(operands) if given]
    known = {slot for slot, given in enumerate(operands) if given}
    for slot, source, shape, strides, dtype in filter(None, results):
        known.add(slot)
        names |= {f"shape{slot}": shape, f"strides{slot}": strides, f"dtype{slot}": dtype}
        kind = "" if dtype is None else f", dtype=dtype{slot}"
        made = f"a{source}.new_empty_strided(shape{slot}, strides{slot}{kind})"
        lines.append(f"r{slot} = {made if shape is not None else f'empty_like(a{source})'}")
        lines.append(f"p{slot} = r{slot}.data_ptr()")
    addresses = [f"p{slot}" if slot in known else "None" for slot in range(SLOTS[""])]
    bits = " | ".join(f"p{slot}" for slot in touched if slot in known)
    answer = ", ".join("None" if one is None else f"r{one[0]}" for one in results)
    lines += [
        f"if stream(gpu) or current() != gpu or ({bits}) & 15:",
        f"    general([{', '.join(addresses)}], a1)",
        f"    return ({answer},)",
    ]
    if nbytes:
        lines.append(f"w = scratch(gpu, {nbytes})")
    calls = [_call(number, step, names) for number, step in enumerate(launches)]
    if words:
        lines += ["mail = post(gpu)", "try:", f"    words, stale, left = mail.take({words})"]
        lines += [f"    {line}" for line in calls]
        lines += ["except BaseException:", "    mail.forget()", "    raise"]
    else:
        lines += calls
    lines.append(f"return ({answer},)")
    text = "\n    ".join(["def call(arrays, out):", *lines])
    exec(compile(text, "<normgrad: a call written out>", "exec"), names)
    call: Callable[..., tuple[Any, ...]] = names["call"]
    return call


def _call(number: int, step: Any, names: dict[str, Any]) -> str:
    """The launch of a step."""
    names[f"launch{number}"] = step.launch
    given = [_literal(value, names) for value in (*step.fixed, *step.arguments)]
    grid = ", ".join(map(str, step.grid))
    return f"launch{number}({grid}, 0, {', '.join(given)})"


_PLACES = {"": "w", "mail": "words", "stale": "stale", "stale_words": "left"}


def _literal(value: Any, names: dict[str, Any]) -> str:
    if isinstance(value, Ref):
        place = _PLACES.get(value.role) or f"p{SLOTS[value.role]}"
        return f"{place} + {value.offset}" if value.offset else place
    if value is None or type(value) in (bool, int):
        return repr(value)
    name = f"constant{len(names)}"
    names[name] = value
    return name
