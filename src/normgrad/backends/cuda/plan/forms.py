"""Which formula computes an operator. Its functions, of the same name, are in `formulas`."""

from typing import Final

from normgrad.backends.cuda.plan.tuned import passes as tuned
from normgrad.core.operators import NUMBERED
from normgrad.core.spec import Op, Spec

# Operators besides those that all fast backends have.
TAKEN: Final = (
    Op.RMS_NORM_BACKWARD,
    Op.BATCH_NORM,
    Op.BATCH_NORM_STATS,
    Op.BATCH_NORM_GATHER_STATS,
    Op.BATCH_NORM_ELEMT,
    Op.LAYER_NORM,
    Op.GROUP_NORM,
    Op.RMS_NORM,
)
# Forms of fused requests that kernels take.
FUSED: Final = ("activation", "residual", "shortcut", "weights of each sample")


def tiles_for_slope(spec: Spec) -> int:
    """How many tiles fewer a block holds in registers for a gradient through an activation."""
    if spec.activation is None or spec.operator.forward:
        return 0
    return tuned.FEWER_TILES_WITH_SLOPE.get(spec.activation, tuned.FEWER_TILES_WITH_OTHERS)


def formula_of(spec: Spec) -> str:
    """The formula as it stands among a launch's constants: see `formulas.formula_named`."""
    names = ("norm", "rms_norm") if spec.operator.forward else ("gradient", "gradient_of_rms")
    words = [names[not spec.operator.centred]]
    if spec.weight_offset:
        words.append(str(spec.weight_offset))
    if spec.activation is not None:
        after = f"{spec.activation}:{spec.x.dtype}"
        # Other activations have no use for the slope: they are one formula whatever it is.
        words.append(after if spec.activation not in NUMBERED else f"{after}:{spec.negative_slope}")
    if spec.biased and spec.updated:
        words.append("biased")
    return " ".join(words)
