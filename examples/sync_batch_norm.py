"""Synchronized batch norm on any number of ranks, on CPUs (gloo) or GPUs (nccl).

    torchrun --nproc-per-node 2 examples/sync_batch_norm.py --steps 20

Each rank draws batches of its own size, rank 1 an empty one now and then. At the end every rank has
the same parameters and running statistics: the program checks that and says so.
"""

import argparse
import gc
import os
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"this example needs PyTorch: pip install 'normgrad[torch]' ({error})")
import torch.distributed as dist
from torch import nn

import normgrad.torch
from normgrad.cli import terminal


def make_model(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return normgrad.torch.convert_sync_batchnorm(model).to(device)


def samples(rank: int, step: int) -> int:
    """How many samples a rank has in a step: never the same on two ranks."""
    return 0 if rank == 1 and step % 5 == 4 else 4 + 3 * rank


def train(rank: int, device: torch.device, steps: int) -> nn.Module:
    model = make_model(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + rank)
    total = sum(samples(other, 0) for other in range(dist.get_world_size()))
    listed = list(range(steps))
    for step in terminal.progress(listed, "training") if rank == 0 else listed:
        count = samples(rank, step)
        images = torch.randn(count, 3, 16, 16, generator=generator).to(device)
        labels = torch.randint(0, 10, (count,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(wrapped(images), labels, reduction="sum")
        optimizer.zero_grad()
        # DDP averages gradients over ranks; this makes it the mean over all samples.
        (loss * dist.get_world_size() / total).backward()
        optimizer.step()
    return model


def same_everywhere(model: nn.Module) -> bool:
    """Whether every rank has the same numbers, to the last bit."""
    same = True
    for tensor in model.state_dict().values():  # to the end: other ranks wait for each broadcast
        first = tensor.clone()
        dist.broadcast(first, 0)
        same &= torch.equal(first, tensor)
    everywhere = torch.tensor(float(same), device=first.device)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
    return bool(everywhere.item())


def main() -> None:
    usage = "torchrun --nproc-per-node 2 examples/%(prog)s [--steps STEPS]"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=usage)
    parser.add_argument("--steps", type=int, default=20, help="20 by default")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"argument --steps: must be at least 1, got {args.steps}")
    if "RANK" not in os.environ:  # torchrun sets it, and where the other ranks are
        line = "torchrun --nproc-per-node 2 examples/sync_batch_norm.py"
        sys.exit(f"this program is one rank of several: start it with\n    {line}")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    model = train(rank, device, args.steps)
    same = same_everywhere(model)
    if rank == 0:
        words = "the same" if same else "NOT the same"
        print(f"{dist.get_world_size()} ranks, {args.steps} steps: {words} numbers on every rank")
    # DDP is part of cycles and holds the group until they are collected. Only then does the last
    # line end gloo's threads, and one that outlives Python makes torch abort: 5 of 11 runs did.
    del model
    gc.collect()
    dist.destroy_process_group()
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
