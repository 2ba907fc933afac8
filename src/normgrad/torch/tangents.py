"""Forward-mode differentiation of our operators, from the derivatives that they have."""

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor


def save_call(ctx: Any, args: tuple[Any, ...], results: Any) -> None:
    """Keep a call for ``push_forward``."""
    results = results if isinstance(results, tuple) else (results,)
    tensors = [one for one in args if isinstance(one, Tensor)]
    constant = {id(one) for one in ctx.non_differentiable or ()}
    ctx.wanted = [one is not None and id(one) not in constant for one in results]
    ctx.save_for_forward(*tensors, *itertools.compress(results, ctx.wanted))
    ctx.constants = [None if isinstance(one, Tensor) else (one,) for one in args]


def push_forward(op: Any, ctx: Any, *tangents: Tensor | None) -> Any:
    """Tangents of an operator's results, by its derivative's own derivative.

    What backward makes of u is linear in u, so its transpose takes the tangents of the arguments to
    those of the results, with the formulas that are there already.
    """
    # Without their tangents, or the calls below would come here again.
    with forward_ad._set_fwd_grad_enabled(True):
        # By its number, which is always 0: in a graph of torch.compile torch does not count levels.
        unpacked = [forward_ad.unpack_dual(one, level=0) for one in ctx.saved_tensors]
        saved = iter([one.primal for one in unpacked])
    args = [next(saved) if one is None else one[0] for one in ctx.constants]
    results = tuple(saved)
    places = [place for place, one in enumerate(tangents) if one is not None]

    def paired_with_results(u: tuple[Tensor, ...], *some: Tensor) -> Tensor:
        full = list(args)
        for place, one in zip(places, some, strict=True):
            full[place] = one
        made = op(*full)
        made = made if isinstance(made, tuple) else (made,)
        return _inner_product(u, itertools.compress(made, ctx.wanted))

    def paired_with_tangents(u: tuple[Tensor, ...]) -> Tensor:
        each = tuple(range(1, len(places) + 1))
        pulled = torch.func.grad(paired_with_results, each)(u, *(args[one] for one in places))
        return _inner_product(pulled, (tangents[place] for place in places))

    zeros = tuple(map(torch.zeros_like, results))
    # Torch comes here with forward mode off, for outer levels too: their tangents would be lost.
    with forward_ad._set_fwd_grad_enabled(True):
        found = iter(torch.func.grad(paired_with_tangents)(zeros))
    pushed = tuple(next(found) if want else None for want in ctx.wanted)
    return pushed if len(pushed) > 1 else pushed[0]


def _inner_product(some: Iterable[Any], others: Iterable[Any]) -> Tensor:
    products = [(one * other).sum().double() for one, other in zip(some, others, strict=True)]
    return torch.stack(products).sum()
