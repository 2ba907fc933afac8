"""Requests on a GPU for tests: data, calls, and results that can be compared to the bit."""

import dataclasses
import threading

import pytest

from normgrad.bench.suites import rows
from normgrad.core.spec import Op

torch = pytest.importorskip("torch")
from normgrad.backends.cuda.run.launch import interpreting  # noqa: E402
from normgrad.bench import contender, problems  # noqa: E402
from normgrad.verify.run import call  # noqa: E402

GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU here"),
    pytest.mark.skipif(interpreting(), reason="kernels run in Triton's interpreter"),
]
# At least one for each strategy, of sizes that take 10 to 250 us each on an H200.
REQUESTS = {
    "resident batch norm": ("batch_norm_backward", "64x256x56x56", "bfloat16"),
    "resident batch norm, float32": ("batch_norm_backward", "32x256x56x56", "float32"),
    "resident batch norm, whole device": ("batch_norm_backward", "2x16x128x128x128", "float32"),
    "resident batch norm, two teams": ("batch_norm_backward", "16x4x512x512", "bfloat16"),
    "resident batch norm, small images": ("batch_norm_backward", "256x1024x7x7", "bfloat16"),
    "resident batch norm, bulk copies": ("batch_norm_backward", "2x20x128x128x128", "float32"),
    "resident batch norm, windows": ("batch_norm_backward", "4x64x255x255", "bfloat16"),
    "resident batch norm, windows, one block": ("batch_norm_backward", "2x512x33x33", "float32"),
    "resident group norm, windows": ("group_norm_backward", "2x256x129x129", "bfloat16"),
    "resident one sample in a ring": ("batch_norm_backward", "1x512x31x31", "bfloat16"),
    "resident group norm": ("group_norm_backward", "8x320x64x64", "float32"),
    "resident group norm, bulk copies": ("group_norm_backward", "8x320x64x64", "bfloat16"),
    "resident group norm, bulk copies, one block": (
        "group_norm_backward",
        "16x256x56x56",
        "bfloat16",
    ),
    "two passes, planes": ("batch_norm_backward", "16x64x28x28", "float64"),
    "two passes, columns": ("batch_norm_backward", "16x64x28x28", "float64", "channels-last"),
    "two passes, folded columns": (
        "batch_norm_backward",
        "64x100x56x56",
        "bfloat16",
        "channels-last",
    ),
    "resident columns": ("batch_norm_backward", "64x512x14x14", "bfloat16", "channels-last"),
    "resident columns, whole device": (
        "batch_norm_backward",
        "64x256x56x56",
        "bfloat16",
        "channels-last",
    ),
    "resident columns, streamed": (
        "batch_norm_backward",
        "64x64x112x112",
        "bfloat16",
        "channels-last",
    ),
    "resident columns, groups": ("group_norm_backward", "8x320x64x64", "bfloat16", "channels-last"),
    "resident rows in a ring": ("layer_norm_backward", "4096x4096", "bfloat16"),
    "resident rows in a ring, four blocks": ("layer_norm_backward", "16383x640", "float32"),
    "resident rows in a ring, cut": ("layer_norm_backward", "8191x1600", "bfloat16"),
    "resident rows in a ring, in warps": ("layer_norm_backward", "40004x300", "bfloat16"),
    "resident rows in a ring, in warps, float32": ("layer_norm_backward", "100001x48", "float32"),
    "resident rows in a ring, from anywhere": ("layer_norm_backward", "4096x2043", "bfloat16"),
    "resident slabs in a ring": ("group_norm_backward", "64x512x7x7", "bfloat16"),
    "resident slabs in a ring, long": ("group_norm_backward", "64x1024x14x14", "float32"),
    "resident slabs in a ring, from anywhere": ("group_norm_backward", "64x320x17x17", "bfloat16"),
    "resident slabs in a ring, one pixel": ("group_norm_backward", "5000x512", "float32"),
    "resident slabs in a ring, one channel": ("group_norm_backward", "64x32x31x31", "bfloat16"),
    "resident rows in a ring, to anywhere": ("layer_norm_backward", "4095x4093", "bfloat16"),
    "whole rows": ("layer_norm_backward", "2048x8192", "float32"),
    "whole rows ahead": ("layer_norm_backward", "120000x64", "float32"),
    "resident rows": ("layer_norm_backward", "512x16384", "bfloat16"),
    "resident rows, two warps": ("layer_norm_backward", "128x65536", "bfloat16"),
    "resident rows, large teams": ("layer_norm_backward", "16x100000", "float32"),
    "long rows": ("layer_norm_backward", "512x1024", "float64"),
    "long rows, few": ("layer_norm_backward", "7x700000", "bfloat16"),
    "sums": ("batch_norm_reduce_backward", "32x256x56x56", "bfloat16"),
    "sums, tiny planes": ("batch_norm_reduce_backward", "64x512x7x7", "float32"),
    "two passes, windows": ("batch_norm_backward", "300x8x129x129", "bfloat16"),
    "sums, windows": ("batch_norm_reduce_backward", "32x256x17x17", "bfloat16"),
    "elements, uneven planes": ("batch_norm_elemt_backward", "64x192x31x31", "bfloat16"),
    "elements, uneven planes of one sample": (
        "batch_norm_elemt_backward",
        "1x192x311x31",
        "bfloat16",
    ),
    "elements, folded": ("batch_norm_elemt_backward", "64x96x56x56", "bfloat16", "channels-last"),
    "elements": ("batch_norm_elemt_backward", "32x256x56x56", "bfloat16"),
}
each_request = pytest.mark.parametrize("request_", list(REQUESTS.values()), ids=list(REQUESTS))
WAITING = {name: request for name, request in REQUESTS.items() if "resident" in name}
each_waiting = pytest.mark.parametrize("request_", list(WAITING.values()), ids=list(WAITING))


def make(op, shape, dtype="bfloat16", layout="contiguous", seed=0, **options):
    """A problem with numbers on the GPU."""
    (workload,) = rows(Op(op), shape, (dtype,), (layout,), **options)
    return problems.make(workload, "cuda:0", seed)


def run(problem, out=None):
    """The wanted results by role, in new tensors or in ``out``."""
    arrays = call(problem.host_problem, problem.operands, out, "cuda")
    return contender.by_role(problem, arrays)


def replaced(problem, **operands):
    """The same problem on other tensors."""
    return dataclasses.replace(problem, operands={**problem.operands, **operands})


def copied(results):
    return {role: tensor.clone() for role, tensor in results.items()}


def poison(results):
    for tensor in results.values():
        tensor.fill_(float("nan"))


def differences(results, wanted):
    """How many elements differ in their bits: a number on the GPU, without waiting for it."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    counts = []
    for role, want in wanted.items():
        kind = kinds[want.element_size()]
        counts.append((results[role].view(kind) != want.view(kind)).sum())
    return torch.stack(counts).sum()


def sleep(seconds=0.1):
    """Keep the current stream busy: one block, about this long at 2 GHz."""
    torch.cuda._sleep(int(seconds * 2e9))


def in_two_threads(work):
    """What ``work(0)`` and ``work(1)`` return, both begun at once."""
    found = {}
    start = threading.Barrier(2)

    def run_one(place):
        start.wait(30)
        found[place] = work(place)

    threads = [threading.Thread(target=run_one, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found
