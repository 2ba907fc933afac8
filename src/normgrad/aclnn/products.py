"""The products, and the types and formats that each takes. Pages say which products they lack."""

import functools
import os
from dataclasses import dataclass
from typing import Final

from normgrad.aclnn.constants import ACL_BF16, ACL_FLOAT, ACL_FLOAT16
from normgrad.core.spec import StatisticKind

Pairing = dict[int, tuple[int, ...]]
# Which types may stand beside data of a type.
SAME: Final[Pairing] = {
    ACL_FLOAT: (ACL_FLOAT,),
    ACL_FLOAT16: (ACL_FLOAT16,),
    ACL_BF16: (ACL_BF16,),
}
SAME_OR_FLOAT: Final[Pairing] = {
    ACL_FLOAT: (ACL_FLOAT,),
    ACL_FLOAT16: (ACL_FLOAT16, ACL_FLOAT),
    ACL_BF16: (ACL_BF16, ACL_FLOAT),
}


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: there are six
class Product:
    """One row of the support table."""

    key: str
    title: str
    soc: str
    floats: tuple[int, ...]
    channels_last: bool
    mixed: bool  # vectors may be wider than the data

    @property
    def saves_variance(self) -> bool:
        """Whether batch norm's forward pass saves the variance under the name of saveInvstd."""
        return not self.mixed

    @property
    def beside(self) -> Pairing:
        """The types that vectors may have beside data of each type."""
        return SAME_OR_FLOAT if self.mixed else SAME


_WIDE = (ACL_FLOAT, ACL_FLOAT16, ACL_BF16)
_NARROW = (ACL_FLOAT, ACL_FLOAT16)

# key, title, name of the chip, types, NHWC and NDHWC, vectors of another type
_ROWS = (
    Product("ascend950", "Ascend 950PR/950DT", "Ascend950PR", _WIDE, True, True),
    Product("atlas-a3", "Atlas A3", "Ascend910_93", _WIDE, False, False),
    Product("atlas-a2", "Atlas A2", "Ascend910B", _WIDE, False, False),
    Product("atlas-200i-500-a2", "Atlas 200I/500 A2", "Ascend310B", _NARROW, False, False),
    Product("atlas-inference", "Atlas inference", "Ascend310P", _NARROW, False, False),
    Product("atlas-training", "Atlas training", "Ascend910", _NARROW, False, False),
)
PRODUCTS: Final[dict[str, Product]] = {row.key: row for row in _ROWS}


class _Settings:
    """Process-wide: a machine has one product. What was never set is read from the environment."""

    @functools.cached_property
    def product(self) -> Product:
        """The product in force; raises for a name that the environment has wrong."""
        return _product(os.environ.get("NORMGRAD_PRODUCT") or "ascend950")

    @functools.cached_property
    def saved(self) -> StatisticKind:
        """How batch norm's ``saveInvstd`` is read."""
        return _saved(os.environ.get("NORMGRAD_SAVE_INVSTD_IS") or "invstd")


def _product(key: str) -> Product:
    try:
        return PRODUCTS[key]
    except KeyError:
        msg = f"product must be one of {', '.join(PRODUCTS)}, got {key!r}"
        raise ValueError(msg) from None


def _saved(kind: str) -> StatisticKind:
    if kind == "invstd":
        return "invstd"
    if kind == "variance":
        return "variance"
    msg = f"saveInvstd must be read as 'invstd' or 'variance', got {kind!r}"
    raise ValueError(msg)


SETTINGS: Final = _Settings()


def set_product(key: str) -> None:
    """Behave as another product, in the whole process.

    Args:
        key: Of ``PRODUCTS``; ``NORMGRAD_PRODUCT`` before the first call does the same.

    Raises:
        ValueError: There is no such product.

    Example:
        >>> aclnn.set_product("atlas-a2")
        >>> aclnn.get_product()
        'atlas-a2'
    """
    SETTINGS.product = _product(key)


def get_product() -> str:
    """The product in force.

    Returns:
        A key of ``PRODUCTS``.

    Example:
        >>> aclnn.get_product()
        'ascend950'
    """
    return SETTINGS.product.key


def set_save_invstd_is(kind: StatisticKind) -> None:
    """Say what batch norm's ``saveInvstd`` holds, in the whole process.

    Args:
        kind: ``"invstd"`` as on its page, or ``"variance"`` as some products have it.

    Raises:
        ValueError: It is neither.

    Example:
        >>> aclnn.set_save_invstd_is("variance")
        >>> aclnn.set_save_invstd_is("invstd")
    """
    SETTINGS.saved = _saved(kind)
