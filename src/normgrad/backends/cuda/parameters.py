"""Group norm's parameter gradients: the last step of each of its plans."""

from normgrad.backends.cuda.layout import Layout
from normgrad.backends.cuda.program import Builder, Ref
from normgrad.backends.cuda.tiles import ceil_div, power_of_two
from normgrad.geometry import Geometry


def add_parameters(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    partials: Ref,
    splits: int,
    *,
    early: bool = False,
) -> None:
    """Group norm's parameter gradients from the partial sums of each sample and channel."""
    if builder.spec.dgamma is None and builder.spec.dbeta is None:
        return
    # Few channels for each block: 2048 partials at once, as many blocks as there can be.
    count = layout.outer * splits
    parts = min(power_of_two(count), 2048)
    size = max(1, min(power_of_two(layout.channels), 2048 // parts, 8))
    builder.launch(
        "sums.finish_parameters",
        (ceil_div(layout.channels, size),),
        {
            "partials": partials,
            "rstd": builder.vector("rstd"),
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "units": layout.channels * layout.outer,
            "splits": splits,
            "samples": layout.outer,
            "channels": layout.channels,
            "group_size": geometry.channels,
        },
        {
            "CHANNELS": size,
            "PARTS": parts,
            "TIMES": ceil_div(count, parts),
            "COMPUTE": builder.compute,
            "EARLY": early,
        },
        warps=8 if parts > 512 else 4,
        early=early,
    )
