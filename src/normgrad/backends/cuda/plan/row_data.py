"""Data of layer norm as the row kernels take it: memory and the step between rows, by role.

What is added to x before the norm, or to dx after its gradient, is `residual` to kernels, and
`total` the sum of x and that.
"""

from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.tiles import alignment
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry, reshaped_strides

RowData = dict[str, tuple[Ref, int] | None]


def rows_of(builder: Builder, geometry: Geometry) -> RowData:
    """Rows of contiguous elements, with copies where data lie otherwise."""
    written = "y" if builder.spec.operator.forward else "dx"
    added = "residual" if builder.spec.operator.forward else "dsum"
    roles = {"dy": "dy", "x": "x", "dx": written, "residual": added, "total": "sum"}
    return {name: _rows(builder, role, geometry) for name, role in roles.items()}


def is_plain(geometry: Geometry, data: RowData) -> bool:
    """Whether there is nothing besides, which some schedules do not take."""
    return data["residual"] is None and geometry.samples == 1


def _rows(builder: Builder, role: str, geometry: Geometry) -> tuple[Ref, int] | None:
    tensor = builder.spec.tensor(role)
    if tensor is None:
        return None
    rows, cols = geometry.outer, geometry.channels
    steps = reshaped_strides(tensor, (rows, cols))
    if steps is not None and steps[0] >= 0 and (cols == 1 or steps[1] == 1):
        return Ref(role, 0, tensor.dtype), steps[0] if rows > 1 else cols  # one row is packed
    written = role in builder.spec.results
    if steps == (0, 0) and not written:  # one row serves all
        return builder.pack_view(role, (cols,), (0,)), 0
    return (builder.staging_result(role) if written else builder.pack(role)), cols


def row_sizes(geometry: Geometry, data: RowData) -> tuple[int, int]:
    """Elements that every row starts at a multiple of; the bytes of the widest element."""
    present = [one for one in data.values() if one is not None]
    itemsize = max(ITEMSIZE[ref.dtype] for ref, _ in present)
    return alignment(itemsize, geometry.channels, *(step for _, step in present)), itemsize


def row_operands(data: RowData, align: int) -> dict[str, Argument]:
    """Data and their steps, as kernels of rows take them."""
    arguments: dict[str, Argument] = {}
    for role in ("dy", "x", "dx"):
        ref, step = data[role] or (None, 0)
        arguments |= {role: ref, f"{role}_row": step // align}
    return arguments


def row_besides(data: RowData, align: int, *roles: str) -> dict[str, Argument]:
    """What there is besides."""
    arguments: dict[str, Argument] = {}
    for role in roles:
        ref, step = data[role] or (None, None)
        arguments |= {role: ref, f"{role}_row": None if step is None else step // align}
    return arguments


def row_arguments(builder: Builder, data: RowData, align: int) -> dict[str, Argument]:
    """The same with gamma and results."""
    return {
        "gamma": builder.vector("gamma"),
        "dgamma": builder.result("dgamma"),
        "dbeta": builder.result("dbeta"),
        **row_operands(data, align),
    }
