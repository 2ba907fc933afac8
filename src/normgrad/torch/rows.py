"""Modules that call others in a row, and those that do nothing in between."""

import ast
from typing import Any, Final

from torch import nn

from normgrad.torch.sources import source

# timm's convolution with a norm: what its forward pass must say, and what it comes to where nothing
# stands at ``aa``.
_CONVOLUTION: Final = """
x = self.conv(x)
x = self.bn(x)
aa = getattr(self, 'aa', None)
if aa is not None:
    x = self.aa(x)
return x
"""
_known: Final[dict[type, bool]] = {}


def parts_of(module: Any) -> list[Any] | None:
    """What a module calls in a row, each with the result of the one before; else None."""
    cls: Any = type(module)
    forward = getattr(getattr(cls, "original", cls), "forward", None)
    if forward is nn.Sequential.forward:
        return list(module._modules.values())
    if cls.__name__ == "ConvNormAct":
        if cls not in _known:
            found = source(forward) if cls.__module__.startswith("timm.") and forward else None
            want = ast.dump(ast.Module(ast.parse(_CONVOLUTION).body, []))
            _known[cls] = found is not None and ast.dump(ast.Module(found.body, [])) == want
        if _known[cls] and getattr(module, "aa", None) is None:
            return [module.conv, module.bn]
    return None


# By name: the attribute that says how much of the data they drop.
_DROPS: Final = {
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "StochasticDepth"), "p"),
    "DropPath": "drop_prob",
}
_HOMES: Final = ("torch", "torchvision", "timm")


def is_idle(one: Any) -> bool:
    """Whether a module gives back what it gets: nothing is dropped in inference, nor at rate 0."""
    if one is None or type(one) is nn.Identity:
        return True
    cls = type(one)
    rate = _DROPS.get(cls.__name__)
    if rate is None or cls.__module__.partition(".")[0] not in _HOMES:
        return False
    return not one.training or getattr(one, rate, None) == 0
