"""A peer of the benchmark as an implementation for ``normgrad check``."""

import dataclasses
from typing import Any

import torch

from normgrad.arrays import host_memory
from normgrad.bench import peers
from normgrad.bench.problems import DeviceProblem
from normgrad.bench.suites import Workload
from normgrad.core.errors import OptionError
from normgrad.core.operators import DATA, OPERATORS
from normgrad.verify.foreign import NotOffered
from normgrad.verify.problem import Problem
from normgrad.verify.run import Results, from_torch, to_torch


class PeerImplementation:
    """Torch tensors on the device where the peer works."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer = peers.get(name)
        devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
        reasons = {device: self.peer.unavailable(device) for device in devices}
        usable = [device for device, reason in reasons.items() if reason is None]
        if not usable:
            listed = "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
            raise OptionError("--impl", "must be something that works here", f"{name} ({listed})")
        self.device = usable[0]

    def run(self, problem: Problem) -> Results:
        """With the channels at axis 1, where every peer has them."""
        case = problem.case
        axis = case.channel_axis
        if problem.spec.updated or "variances" in problem.operands:
            raise NotOffered("it is called without running statistics")
        if OPERATORS[case.op].statistics and (case.statistic == "variance") is case.training:
            raise NotOffered("it takes 1/std in training, the variance in inference")
        operands = {role: to_torch(host, self.device) for role, host in problem.operands.items()}
        moves = axis != 1 and OPERATORS[case.op].axes != "rows"
        if moves:
            operands |= {
                role: operands[role].movedim(axis, 1) for role in OPERATORS[case.op].data_in
            }
            shape = tuple(operands["x"].shape)
            case = dataclasses.replace(case, shape=shape, channel_axis=1, layout="transposed")
        workload = Workload(case, problem.dtype)
        made = DeviceProblem(workload, operands, problem.result_dtypes, self.device)
        results = self.peer.prepare(made).results()
        for role in DATA:
            if moves and role in results:
                results[role] = results[role].reshape(case.shape).movedim(1, axis)
        return {role: _values(array) for role, array in results.items()}


def _values(array: Any) -> Any:
    dtype = str(array.dtype).removeprefix("torch.")
    return host_memory.widen(from_torch(array), dtype)
