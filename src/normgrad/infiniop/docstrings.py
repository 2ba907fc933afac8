"""The docstrings of an operator's four functions, made of its row in the table."""

import textwrap
from collections.abc import Iterable
from typing import Final

from normgrad.infiniop.table import SHAPES, Operator

_WIDTH: Final = 90  # of their lines


def docstrings(operator: Operator, creator: str) -> tuple[str, str, str, str]:
    """Of create, workspace size, compute and destroy."""
    name = operator.name
    shapes = "\n    ...     ".join(f"{SHAPES[one.shape][1]}," for one in operator.tensors)
    values = "".join(f", {one.example}" for one in operator.numbers)
    notes = f"\n{textwrap.fill(operator.notes, _WIDTH)}\n" if operator.notes else ""
    arguments = {f"{one.name}_desc": one.about for one in operator.tensors}
    arguments |= {one.name: one.about for one in operator.numbers}
    create = f"""\
Plan {operator.title}; the tensors' descriptors may be destroyed right after.
{notes}
Args:
    handle: Of ``infiniopCreateHandle``: the device.
{_listed(arguments.items())}

Returns:
    0 and a descriptor for any number of computations; else None with 3 for null or a destroyed
    descriptor, 5 for another device, 10 for a type, 11 for a shape, 12 for a stride.

Example:
    >>> status, handle = infiniop.infiniopCreateHandle()
    >>> make, f32 = infiniop.infiniopCreateTensorDescriptor, infiniop.INFINI_DTYPE_F32
    >>> shapes = (
    ...     {shapes}
    ... )
    >>> made = [make(len(shape), shape, None, f32)[1] for shape in shapes]
    >>> status, desc = infiniop.{creator}(handle, *made{values})
    >>> int(status)
    0
    >>> status = infiniop.infiniopDestroy{name}Descriptor(desc)
"""
    size = f"""\
How much scratch memory each computation needs.

Args:
    desc: Of ``{creator}``.

Returns:
    0 and the bytes; 3 and 0 for null or a destroyed descriptor.

Example:
    >>> status, size = infiniop.infiniopGet{name}WorkspaceSize(None)
    >>> int(status), size
    (3, 0)
"""
    results = {one.name for one in operator.tensors if one.written}
    roles = {
        one.name: f"The address of the {'result' if one.name in results else 'data'}."
        for one in operator.tensors
    }
    compute = f"""\
Compute what the descriptor plans. A result of the data's shape may lie over the data.

Args:
    desc: Of ``{creator}``.
    workspace: The address of scratch memory; null where none is needed.
    workspace_size: How many bytes there are.
{_listed(roles.items())}
    stream: Of ``infinirtStreamCreate``, the address of a CUDA stream, or null.

Returns:
    0; 3 for null, a destroyed descriptor or an address that cannot be used, 13 for too small a
    workspace, 1 for a failure inside.

Example:
    >>> int(infiniop.infiniop{name}(None, None, 0, *[None] * {len(operator.tensors)}, None))
    3
"""
    end = f"""\
End a descriptor.

Args:
    desc: Of ``{creator}``; null is success.

Returns:
    0; 3 for one that was destroyed before.

Example:
    >>> int(infiniop.infiniopDestroy{name}Descriptor(None))
    0
"""
    return create, size, compute, end


def _listed(items: Iterable[tuple[str, str]]) -> str:
    return "\n".join(
        textwrap.fill(f"{name}: {about}", _WIDTH, initial_indent="    ", subsequent_indent=" " * 8)
        for name, about in items
    )
