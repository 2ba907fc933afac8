"""Every operator's row, in the order of the docs."""

from typing import Final

from normgrad.infiniop import batch_norm, layer_norm, rms_norm
from normgrad.infiniop.table import Operator

OPERATORS: Final[tuple[Operator, ...]] = (
    batch_norm.BATCH_NORM,
    batch_norm.BATCH_NORM_BACKWARD,
    layer_norm.LAYER_NORM,
    rms_norm.RMS_NORM,
    rms_norm.ADD_RMS_NORM,
)
