"""Numbers for a row, made where they are needed: torch tensors on the CPU or the GPU."""

import math
import zlib
from dataclasses import dataclass

import torch

from normgrad.bench.suites import Workload
from normgrad.dtypes import compute_dtype
from normgrad.geometry import Geometry, geometry_of
from normgrad.spec import RESULTS, Op, Spec
from normgrad.torch_arrays import TYPES, TorchKind
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
            role: array if role == "counter" else array.reshape(geometry.shape_of(role))
            for role, array in self.operands.items()
        }

    def poisoned(self) -> tuple[Tensor | None, ...]:
        """Results to be written, full of NaN; dx lies as x does."""
        spec = self.spec
        made: list[Tensor | None] = []
        for role in RESULTS[self.workload.case.op]:
            tensor = spec.tensor(role) if role in self.result_dtypes else None
            if tensor is None:
                made.append(None)
            elif role == "dx":
                made.append(torch.full_like(self.operands["x"], math.nan))
            else:
                dtype = TYPES[tensor.dtype]
                made.append(torch.full(tensor.shape, math.nan, dtype=dtype, device=self.device))
        return tuple(made)


def parameter_dtype(workload: Workload, device: str) -> str:
    """The type of gamma, as the users of each operator have it.

    Under autocast a batch norm keeps float32 parameters, and torch's 16-bit CPU kernels want
    them so. On the GPU torch takes layer and group norm's gamma in the data's type alone.
    """
    of_data = device != "cpu" and workload.case.op in (Op.LAYER_NORM, Op.GROUP_NORM)
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
    dy = _lay_out(normal(case.shape).add_(0.25).to(data), case.layout)
    operands = {"dy": dy, "x": x}
    wide = compute_dtype((workload.dtype,))
    mean, rstd = _statistics(case, x)
    shape: tuple[int, ...] = tuple(mean.shape)
    if case.op is Op.LAYER_NORM:  # as torch saves them: the rows' shape, then ones
        leading = len(case.shape) - case.normalized
        shape = case.shape[:leading] + (1,) * case.normalized
    operands["mean"] = mean.to(data).to(TYPES[wide]).reshape(shape)
    operands["rstd"] = rstd.to(data).to(TYPES[wide]).reshape(shape)
    parameters: tuple[int, ...] = (case.shape[min(1, len(case.shape) - 1)],)
    if case.op is Op.LAYER_NORM:
        parameters = case.normalized_shape
    gamma = normal(parameters).mul_(0.5).add_(1.0).to(data)
    operands["gamma"] = gamma.to(TYPES[parameter_dtype(workload, device)])
    if case.op is Op.BATCH_NORM_ELEMT:
        count = x.numel() // case.shape[1]
        operands["sum_dy"] = normal(parameters).mul_(count)
        operands["sum_dy_xmu"] = normal(parameters).mul_(count)
        operands["counter"] = torch.tensor([count, count], dtype=torch.int32, device=device)
    types = wanted_dtypes(case, workload.dtype, parameter_dtype(workload, device))
    return DeviceProblem(workload, operands, types, device)


def _by_statistic(case: Case, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Data whose listed axes share one statistic."""
    if case.op is Op.LAYER_NORM:
        leading = math.prod(case.shape[: len(case.shape) - case.normalized])
        return x.reshape(leading, -1), (1,)
    if case.op is Op.GROUP_NORM:
        depth = case.shape[1] // case.num_groups
        shape = (case.shape[0], case.num_groups, depth, math.prod(case.shape[2:]))
        return x.reshape(shape), (2, 3)
    return x, tuple(axis for axis in range(x.ndim) if axis != 1)


def _statistics(case: Case, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps); torch adds in float32 or wider whatever the type."""
    data, axes = _by_statistic(case, x)
    variance, mean = torch.var_mean(data, axes, correction=0)
    return mean, (variance.to(torch.float64) + case.eps).rsqrt()


def _lay_out(dense: Tensor, layout: Layout) -> Tensor:
    if layout == "contiguous":
        return dense
    order = (0, *range(2, dense.ndim), 1)
    back = (0, dense.ndim - 1, *range(1, dense.ndim - 1))
    return dense.permute(order).contiguous().permute(back)
