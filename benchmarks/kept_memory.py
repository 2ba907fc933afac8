"""What one forward pass of models that users know keeps for the backward pass: eager and fused.

    PYTHONPATH=src python3 benchmarks/kept_memory.py resnet50 sd_vae

Counted are distinct storages that autograd saves, without parameters and buffers; on the CPU, in
bfloat16 autocast, language models in bfloat16 (``known_models.py`` says what to install).
"""

import argparse
import copy
import sys
from pathlib import Path

import torch

import normgrad.torch
from normgrad.torch.nodes import Small

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import known_models
from example_models import Example

_IN_ONE_TYPE = ("llama", "gpt2")


def kept(example: Example, model: torch.nn.Module, *, autocast: bool) -> int:
    """Bytes."""
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return saved

    torch.manual_seed(0)
    x, target = example.data()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        example.loss(model(x), target).backward()
    return sum(seen.values())


def main() -> None:
    """A line of a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=known_models.NAMES, default=[])
    Small.taken = True  # as on a GPU, where nothing is too small
    for name in parser.parse_args().models or known_models.NAMES:
        example = known_models.make(name, "cpu")
        autocast = name not in _IN_ONE_TYPE
        eager = example.model if autocast else example.model.bfloat16()
        fused = copy.deepcopy(eager)
        normgrad.torch.fuse(fused)
        before, after = (kept(example, one, autocast=autocast) / 1e6 for one in (eager, fused))
        shape = "x".join(map(str, example.shape))
        kind = "bf16 autocast" if autocast else "bfloat16"
        print(f"| {name} {shape} | {kind} | {before:.1f} | {after:.1f} ({after / before:.2f}x) |")


if __name__ == "__main__":
    main()
