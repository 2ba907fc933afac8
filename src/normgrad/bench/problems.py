"""Numbers for a row, made where they are needed: torch tensors on the CPU or the GPU."""

import math
import zlib
from dataclasses import dataclass

import torch

from normgrad.arrays.torch_tensors import TYPES, TorchKind
from normgrad.bench.suites import Workload
from normgrad.core.dtypes import compute_dtype
from normgrad.core.geometry import Geometry, geometry_of
from normgrad.core.operators import DATA, OPERATORS
from normgrad.core.spec import Spec
from normgrad.core.validate import mask_shape
from normgrad.verify.cases import Case, Layout
from normgrad.verify.problem import Problem, centre_of, request, wanted_dtypes

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProblem:
    """A row with numbers. Statistics and gamma hold values that the data's type has exactly.

    A contender that wants them in another type gets the same numbers, so one truth serves all.
    """

    workload: Workload
    operands: dict[str, Tensor]
    result_dtypes: dict[str, str]
    device: str

    @property
    def spec(self) -> Spec:
        """The request, with contiguous results."""
        kind = TorchKind()
        tensors = {role: kind.view(array, role).tensor for role, array in self.operands.items()}
        return request(self.workload.case, tensors, self.result_dtypes)

    @property
    def geometry(self) -> Geometry:
        """Canonical sizes."""
        return geometry_of(self.spec)

    @property
    def host_problem(self) -> Problem:
        """The case as ``verify.call`` wants it; it has no numbers."""
        return Problem(self.workload.case, self.workload.dtype, {})

    @property
    def canonical(self) -> dict[str, Tensor]:
        """The operands as they meet in the formula; views, no copies."""
        geometry = self.geometry
        return {
            role: array if role in ("counter", "mask") else array.reshape(geometry.shape_of(role))
            for role, array in self.operands.items()
        }

    def poisoned(self) -> tuple[Tensor | None, ...]:
        """Results to be written, full of NaN; data lie as x does."""
        spec = self.spec
        made: list[Tensor | None] = []
        for role in self.workload.case.results:
            tensor = spec.tensor(role) if role in self.result_dtypes else None
            if tensor is None:
                made.append(None)
            elif role in DATA:
                made.append(torch.full_like(self.operands["x"], math.nan))
            else:
                dtype = TYPES[tensor.dtype]
                blank = 0xA5 if role == "mask" else math.nan
                made.append(torch.full(tensor.shape, blank, dtype=dtype, device=self.device))
        return tuple(made)


def parameter_dtype(workload: Workload, device: str) -> str:
    """The type of gamma, as the users of each operator have it.

    Under autocast a batch norm keeps float32 parameters, and torch's 16-bit CPU kernels want
    them so. On the GPU torch takes the gamma of the other norms in the data's type alone.
    """
    of_data = device != "cpu" and OPERATORS[workload.case.op].axes != "channels"
    return workload.dtype if of_data else compute_dtype((workload.dtype,))


def make(workload: Workload, device: str, seed: int = 0) -> DeviceProblem:
    """Off-centre x, dy independent of it, statistics of x itself in float32 or wider."""
    case = workload.case
    generator = torch.Generator(device=device)
    generator.manual_seed(seed * 2**32 + zlib.crc32(workload.name.encode()))
    data = TYPES[workload.dtype]

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    centre = centre_of(case, workload.dtype)
    x = _lay_out(normal(case.shape).mul_(3.0).add_(centre).to(data), case.layout)
    operator = OPERATORS[case.op]
    operands = {"x": x}
    if not operator.forward:
        dy = _lay_out(normal(case.shape).add_(0.25).to(data), case.layout)
        operands = {"dy": dy, "x": x}
    wide = compute_dtype((workload.dtype,))
    mean, rstd = _statistics(case, x)
    shape: tuple[int, ...] = tuple(mean.shape)
    if operator.axes == "rows":  # as torch saves them: the rows' shape, then ones
        leading = len(case.shape) - case.normalized
        shape = case.shape[:leading] + (1,) * case.normalized
    for role, values in (("mean", mean), ("rstd", rstd)):
        if role in operator.statistics:
            operands[role] = values.to(data).to(TYPES[wide]).reshape(shape)
    parameters: tuple[int, ...] = (case.shape[min(1, len(case.shape) - 1)],)
    if operator.axes == "rows":
        parameters = case.normalized_shape
    vector = TYPES[parameter_dtype(workload, device)]
    if case.each_sample:
        ones = (1,) * (len(case.shape) - case.normalized - 1) if operator.axes == "rows" else ()
        parameters = (case.shape[0], *ones, *parameters)
    for role in ("gamma", "beta"):
        if role in operator.takes and (role == "gamma" or operator.forward or case.activation):
            values = normal(parameters).mul_(0.5).add_(float(role == "gamma"))
            operands[role] = values.to(data).to(vector)
    for role, there in (
        ("residual", case.residual),
        ("dsum", case.residual),
        ("shortcut", case.shortcut == "values" or (operator.forward and case.shortcut == "mask")),
    ):
        if there and role in operator.takes:
            operands[role] = _lay_out(normal(case.shape).to(data), case.layout)
    if case.shortcut == "mask" and not operator.forward:  # of a forward pass on other data
        kind = TorchKind()
        tensors = {role: kind.view(one, role).tensor for role, one in operands.items()}
        size = mask_shape(request(case, tensors, {}))
        operands["mask"] = torch.randint(
            0, 256, size, generator=generator, device=device, dtype=torch.uint8
        )
    if "sum_dy" in operator.takes:
        count = x.numel() // case.shape[1]
        operands["sum_dy"] = normal(parameters).mul_(count)
        operands["sum_dy_xmu"] = normal(parameters).mul_(count)
        operands["counter"] = torch.tensor([count, count], dtype=torch.int32, device=device)
    types = wanted_dtypes(case, workload.dtype, parameter_dtype(workload, device))
    return DeviceProblem(workload, operands, types, device)


def _by_statistic(case: Case, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Data whose listed axes share one statistic."""
    axes = OPERATORS[case.op].axes
    if axes == "rows":
        leading = math.prod(case.shape[: len(case.shape) - case.normalized])
        return x.reshape(leading, -1), (1,)
    if axes == "groups":
        depth = case.shape[1] // case.num_groups
        shape = (case.shape[0], case.num_groups, depth, math.prod(case.shape[2:]))
        return x.reshape(shape), (2, 3)
    return x, tuple(axis for axis in range(x.ndim) if axis != 1)


def _statistics(case: Case, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps); torch adds in float32 or wider whatever the type."""
    data, axes = _by_statistic(case, x)
    variance, mean = torch.var_mean(data, axes, correction=0)
    if not OPERATORS[case.op].centred:
        variance = data.float().square().mean(axes)
    return mean, (variance.to(torch.float64) + case.eps).rsqrt()


def _lay_out(dense: Tensor, layout: Layout) -> Tensor:
    if layout == "contiguous":
        return dense
    order = (0, *range(2, dense.ndim), 1)
    back = (0, dense.ndim - 1, *range(1, dense.ndim - 1))
    return dense.permute(order).contiguous().permute(back)
