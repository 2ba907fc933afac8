"""One request for each kernel, to be run under compute-sanitizer on a machine with a GPU:

compute-sanitizer --tool memcheck python3 tests/cuda/sanitized.py

Results are judged as well. Ends with 1 if a kernel of the plans was not launched.
"""

import math
import re
import sys
from pathlib import Path

import torch

import normgrad
from normgrad import verify
from normgrad.backends.cuda.run import launch
from normgrad.core.spec import Op

FOLDER = Path(launch.__file__).parents[1]
# Shapes of several blocks and rounds, as small as that allows.
REQUESTS = (
    ("batch_norm_backward", (16, 512, 32, 32), "contiguous", "bfloat16"),
    ("batch_norm_backward", (64, 64, 56, 56), "contiguous", "float16"),
    (
        "batch_norm_backward",
        (16, 64, 112, 112),
        "contiguous",
        "bfloat16",
    ),  # tiles held, several rounds
    ("batch_norm_backward", (8, 4, 512, 512), "contiguous", "float32"),  # on the whole device
    (
        "batch_norm_backward",
        (16, 3, 512, 512),
        "contiguous",
        "bfloat16",
    ),  # two teams that find seats
    (
        "batch_norm_backward",
        (4, 64, 65, 65),
        "contiguous",
        "bfloat16",
    ),  # planes that start anywhere
    ("batch_norm_backward", (2, 16, 255, 255), "contiguous", "float32"),
    ("group_norm_backward", (2, 64, 65, 65), "contiguous", "float16"),
    ("batch_norm_reduce_backward", (8, 64, 17, 17), "contiguous", "bfloat16"),
    ("batch_norm_elemt_backward", (8, 64, 31, 31), "contiguous", "bfloat16"),
    ("batch_norm_backward", (1, 64, 31, 31), "contiguous", "bfloat16"),  # one sample, as rows
    ("batch_norm_backward", (64, 512, 7, 7), "contiguous", "float32"),
    ("batch_norm_backward", (8, 32, 9, 9), "contiguous", "float64"),
    ("batch_norm_backward", (32, 256, 14, 14), "channels-last", "bfloat16"),
    ("batch_norm_backward", (64, 64, 64, 64), "channels-last", "float32"),
    ("batch_norm_backward", (256, 1024, 7, 7), "channels-last", "float32"),  # the next slab late
    (
        "batch_norm_backward",
        (64, 256, 28, 28),
        "channels-last",
        "float32",
    ),  # or fetched by the L2 cache
    ("batch_norm_backward", (131072, 128), "contiguous", "float32"),  # streams of wide rows
    ("batch_norm_backward", (4, 32, 9, 9), "channels-last", "float64"),
    ("group_norm_backward", (4, 64, 64, 64), "contiguous", "bfloat16"),
    ("group_norm_backward", (64, 64, 56, 56), "contiguous", "bfloat16"),  # by bulk copies
    ("batch_norm_backward", (8, 20, 512, 512), "contiguous", "float32"),  # the same, in 20 rounds
    ("group_norm_backward", (4, 64, 32, 32), "channels-last", "float32"),
    ("group_norm_backward", (1, 64, 512, 512), "channels-last", "float32"),  # streams, fetched
    ("group_norm_backward", (80, 64, 40, 40), "channels-last", "bfloat16"),
    (
        "group_norm_backward",
        (3, 320, 64, 64),
        "channels-last",
        "float16",
    ),  # groups in several blocks
    ("batch_norm_backward", (32, 12, 40, 40), "channels-last", "bfloat16"),  # copies of 8 bytes
    ("group_norm_backward", (2, 8, 5, 7), "contiguous", "float64"),
    ("group_norm_backward", (2, 8, 5, 7), "channels-last", "float64"),
    ("layer_norm_backward", (300, 768), "contiguous", "bfloat16"),
    (
        "layer_norm_backward",
        (1702, 640),
        "contiguous",
        "float32",
    ),  # in a ring, the last set not full
    ("layer_norm_backward", (600, 7936), "contiguous", "float32"),
    ("layer_norm_backward", (333, 1600), "contiguous", "bfloat16"),  # the last tile in part
    ("layer_norm_backward", (9004, 300), "contiguous", "bfloat16"),  # rows in parts of a warp
    ("layer_norm_backward", (9001, 32), "contiguous", "float32"),
    ("layer_norm_backward", (110000, 64), "contiguous", "float32"),  # the next rows ahead
    ("layer_norm_backward", (301, 3071), "contiguous", "bfloat16"),  # data that end anywhere
    ("layer_norm_backward", (1001, 97), "contiguous", "float32"),
    ("layer_norm_backward", (300, 8192), "contiguous", "float32"),
    ("group_norm_backward", (41, 3, 7, 7), "contiguous", "bfloat16"),
    ("layer_norm_backward", (304, 1023), "contiguous", "bfloat16"),  # sets that start anywhere
    ("group_norm_backward", (40, 64, 7, 7), "contiguous", "bfloat16"),  # slabs in a ring
    ("group_norm_backward", (200, 64, 14, 14), "contiguous", "float32"),
    ("group_norm_backward", (32, 40, 17, 17), "contiguous", "bfloat16"),
    (
        "group_norm_backward",
        (3000, 128),
        "contiguous",
        "float16",
    ),  # one pixel, several samples in a set
    ("group_norm_backward", (40, 8, 20, 20), "contiguous", "float32"),  # one channel in a group
    ("layer_norm_backward", (3, 600000), "contiguous", "float32"),  # rows in parts
    ("layer_norm_backward", (64, 16384), "contiguous", "float32"),
    ("layer_norm_backward", (70, 16384), "contiguous", "bfloat16"),
    ("layer_norm_backward", (20, 1000), "contiguous", "float64"),
    ("batch_norm_reduce_backward", (8, 64, 28, 28), "contiguous", "bfloat16"),
    ("batch_norm_reduce_backward", (8, 64, 28, 28), "channels-last", "float32"),
    ("batch_norm_elemt_backward", (8, 64, 28, 28), "contiguous", "bfloat16"),
    ("batch_norm_elemt_backward", (8, 64, 28, 28), "channels-last", "float32"),
    ("batch_norm_reduce_backward", (8, 64, 7, 7), "contiguous", "float32"),  # planes as columns
    ("batch_norm_elemt_backward", (8, 64, 7, 7), "contiguous", "bfloat16"),
    (
        "batch_norm_reduce_backward",
        (8, 20, 28, 28),
        "channels-last",
        "bfloat16",
    ),  # rows side by side
    ("batch_norm_elemt_backward", (8, 20, 28, 28), "channels-last", "bfloat16"),
    ("batch_norm_backward", (3, 100, 21, 19), "mixed", "bfloat16"),  # copies between orders
    ("group_norm_backward", (2, 72, 9, 33), "mixed", "float32"),
)


def planned_kernels() -> set[str]:
    """All kernels that a plan may name."""
    text = "".join(path.read_text() for path in (FOLDER / "plan").glob("*.py"))
    modules = "|".join(path.stem for path in (FOLDER / "schedules").glob("*.py"))
    return set(re.findall(rf'"((?:{modules})\.[a-z_]+)"', text))


def main() -> int:
    """Run all, and say what was launched."""
    launched = set()
    prepare = launch._prepare_kernel

    def noted(step: launch.Launch, *rest: object) -> object:
        launched.add(step.kernel)
        return prepare(step, *rest)

    launch._prepare_kernel = noted
    failed = 0
    for op, shape, layout, dtype in REQUESTS:
        groups = math.gcd(8, shape[1]) if op == "group_norm_backward" else 1
        case = verify.Case(id=op, op=Op(op), shape=shape, layout=layout, num_groups=groups)
        problem = verify.make_problem(case, dtype, 1)
        # The default stream, whose words stay from call to call, and one whose words are cleared.
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                results = verify.run_backend(problem, "cuda")
            for measured in verify.judge(problem, results):
                if not measured.ok:
                    failed += 1
                    print("WRONG", op, shape, layout, dtype, measured)
    # Other strides are copied first; counts of very many ranks are added up first.
    x = torch.randn(6, 8, 10, device="cuda")[:, :, ::2] + 5
    dy, line = torch.randn(6, 8, 5, device="cuda").mT.contiguous().mT, torch.rand(8, device="cuda")
    normgrad.batch_norm_backward(dy, x, line, line, weight=line)
    counts = torch.ones(2000, device="cuda", dtype=torch.int32)
    normgrad.batch_norm_elemt_backward(dy, x, line, line, line, line, counts, weight=line)
    torch.cuda.synchronize()
    missing = planned_kernels() - launched
    print(len(launched), "kernels launched,", failed, "wrong; not launched:", sorted(missing))
    return 1 if missing or failed else 0


if __name__ == "__main__":
    sys.exit(main())
