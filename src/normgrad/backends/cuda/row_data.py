"""Data of layer norm as the row kernels take it: memory and the step between rows, by role."""

from normgrad.backends.cuda.program import Argument, Builder, Ref
from normgrad.backends.cuda.tiles import alignment
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry, reshaped_strides
from normgrad.spec import DATA

RowData = dict[str, tuple[Ref, int] | None]


def rows_of(builder: Builder, geometry: Geometry) -> RowData:
    """Rows of contiguous elements, with copies where data lie otherwise."""
    return {role: _rows(builder, role, geometry) for role in DATA}


def _rows(builder: Builder, role: str, geometry: Geometry) -> tuple[Ref, int] | None:
    tensor = builder.spec.tensor(role)
    if tensor is None:
        return None
    rows, cols = geometry.outer, geometry.channels
    steps = reshaped_strides(tensor, (rows, cols))
    if steps is not None and steps[0] >= 0 and (cols == 1 or steps[1] == 1):
        return Ref(role, 0, tensor.dtype), steps[0] if rows > 1 else cols  # one row is packed
    return (builder.bounce(role) if role == "dx" else builder.pack(role)), cols


def row_sizes(geometry: Geometry, data: RowData) -> tuple[int, int]:
    """Elements that every row starts at a multiple of; the bytes of the widest element."""
    present = [one for one in data.values() if one is not None]
    itemsize = max(ITEMSIZE[ref.dtype] for ref, _ in present)
    return alignment(itemsize, geometry.channels, *(step for _, step in present)), itemsize


def row_operands(data: RowData, align: int) -> dict[str, Argument]:
    """Data and their steps, as kernels of rows take them."""
    arguments: dict[str, Argument] = {}
    for role, one in data.items():
        ref, step = one or (None, 0)
        arguments |= {role: ref, f"{role}_row": step // align}
    return arguments


def row_arguments(builder: Builder, data: RowData, align: int) -> dict[str, Argument]:
    """The same with gamma and results."""
    return {
        "gamma": builder.vector("gamma"),
        "dgamma": builder.result("dgamma"),
        "dbeta": builder.result("dbeta"),
        **row_operands(data, align),
    }
