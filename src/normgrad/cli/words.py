"""The words of a command line as people write them: exact names first, then what is near them."""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from normgrad import backends
from normgrad.core.dtypes import FLOATS
from normgrad.core.spec import Op

_TYPES: Final = {
    "float16": ("f16", "fp16", "half"),
    "bfloat16": ("bf16", "brainfloat"),
    "float32": ("f32", "fp32", "float", "single"),
    "float64": ("f64", "fp64", "double"),
}
LAYOUTS: Final = {
    "contiguous": ("nchw", "ncdhw", "channelsfirst", "dense"),
    "channels-last": ("nhwc", "ndhwc"),
}
_FAMILIES: Final = {
    "batch_norm": ("bn", "syncbatchnorm"),
    "layer_norm": ("ln",),
    "group_norm": ("gn", "instancenorm"),
    "rms_norm": ("rms",),
}


def plain(text: str) -> str:
    """A word without what people write differently: case, hyphens, torch's prefix, `2d`."""
    text = text.strip().lower().removeprefix("torch.").removeprefix("np.")
    return "".join(letter for letter in text if letter.isalnum())


def near(text: str, names: Iterable[str], also: Mapping[str, Sequence[str]] = {}) -> str | None:
    """The name that is meant without a doubt, or None."""
    for name in names:
        if text == name:
            return name
    word = plain(text)
    return next((name for name in names if word in (plain(name), *also.get(name, ()))), None)


def suggestion(text: str, names: Iterable[str], also: Mapping[str, Sequence[str]] = {}) -> str:
    """The end of a message: ``: did you mean check?``, or nothing."""
    meant = {plain(word): name for name in names for word in (name, *also.get(name, ()))}
    close = difflib.get_close_matches(plain(text), meant, 1)
    return f": did you mean {meant[close[0]]}?" if close else ""


def one_of(names: Sequence[str], also: Mapping[str, Sequence[str]] = {}) -> Callable[[str], str]:
    """Reads an option's value that must be one of some words."""

    def read(text: str) -> str:
        found = near(text, names, also)
        if found is None:
            end = suggestion(text, names, also)
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(names)}, got {text!r}{end}"
            )
        return found

    return read


dtype = one_of(list(FLOATS), _TYPES)
backend = one_of(backends.NAMES, backends.ALSO)
bench_backend = one_of((*backends.NAMES, "none"), backends.ALSO)
layout = one_of(list(LAYOUTS), LAYOUTS)


def dtypes(text: str) -> list[str]:
    """Data types, one or several with commas."""
    return [dtype(word) for word in text.split(",")]


def operators(text: str) -> list[Op]:
    """Operators, one or several with commas: a family, as `layernorm`, is all of its operators.

    An operator's exact name is that operator, also where a family is called the same.
    """
    return [op for word in text.split(",") for op in _operators(word)]


def operator(text: str) -> Op:
    """One operator: of a family with several the caller must choose."""
    found = operators(text)
    if len(found) > 1:
        rule = f"must be one operator, got {text!r}: choose {' or '.join(found)}"
        raise argparse.ArgumentTypeError(rule)
    return found[0]


def option_of(text: str, options: Iterable[str]) -> str:
    """The end of a message about a value that stands alone: of which option it is one, or nothing.

    What is meant without a doubt comes before what is near.
    """
    kinds = (
        ("--op", [*Op, *_FAMILIES], _FAMILIES),
        ("--dtype", list(FLOATS), _TYPES),
        ("--backend", backends.NAMES, backends.ALSO),
        ("--layout", list(LAYOUTS), LAYOUTS),
    )
    there = [kind for kind in kinds if kind[0] in options]
    for option, names, also in there:
        if near(text, names, also) is not None:
            return f": did you mean {option} {text}?"
    if "--shape" in options and re.fullmatch(r"\d+([x,]\d+)*", text):
        return f": did you mean --shape {text}?"
    found = ((option, suggestion(text, names, also)) for option, names, also in there)
    return next((end.replace("mean ", f"mean {option} ") for option, end in found if end), "")


def _operators(text: str) -> list[Op]:
    if text in list(Op):
        return [Op(text)]
    word = plain(text)
    family = near(word[:-2] if word[-2:] in ("1d", "2d", "3d") else word, _FAMILIES, _FAMILIES)
    if family is not None:
        members = [op for op in Op if op.startswith(family)]
        if members:
            return members
    found = near(text, list(Op))
    if found is None:
        end = suggestion(text, [*Op, *_FAMILIES])
        raise argparse.ArgumentTypeError(f"must be an operator, got {text!r}{end}")
    return [Op(found)]
