r"""Models that users know, for ``train_step.py``: from torchvision, timm, diffusers, transformers.

They are not ours and not in this repository. With ``--no-deps``, so that torch stays what it is:

    pip install --no-deps torchvision timm diffusers transformers pillow safetensors tokenizers \
        huggingface_hub regex tqdm pyyaml packaging requests httpx importlib_metadata

What an import misses besides, it names. Weights are random; no file is fetched.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from example_models import Example
from torch import nn

Tensor = torch.Tensor
# Schemas that a torchvision built for another torch cannot load and yet describes when imported.
_SCHEMAS: Final = ("nms", "qnms")
_BOXES: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_stubs: Final[list[torch.library.Library]] = []


class Denoiser(nn.Module):
    """A U-Net of diffusers at a fixed time, beside fixed words."""

    def __init__(self, unet: nn.Module, samples: int, words: tuple[int, int]) -> None:
        super().__init__()
        self.unet = unet
        self.register_buffer("time", torch.arange(samples) * 100)
        self.register_buffer("words", torch.randn(samples, *words))

    def forward(self, x: Tensor) -> Tensor:
        """The noise."""
        noise: Tensor = self.unet(x, self.time, self.words).sample
        return noise


class Member(nn.Module):
    """A model of which one member of its answer is wanted."""

    def __init__(self, model: nn.Module, member: str) -> None:
        super().__init__()
        self.model, self.member = model, member

    def forward(self, x: Tensor) -> Tensor:
        """That member."""
        wanted: Tensor = getattr(self.model(x), self.member)
        return wanted


def _torchvision() -> Any:
    """Torchvision; its models need none of its own kernels."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in [one for one in sys.modules if one.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        _stubs.append(library)
        for name in _SCHEMAS:
            library.define(name + _BOXES)
        return importlib.import_module("torchvision")


def _resnet50(size: str) -> Example:
    shape = {"tiny": (4, 3, 32, 32), "cpu": (8, 3, 96, 96), "cuda": (128, 3, 224, 224)}[size]
    return Example(_torchvision().models.resnet50(num_classes=10), shape)


def _of_timm(name: str) -> Callable[[str], Example]:
    def make(size: str) -> Example:
        batch = 64 if name == "convnext_tiny" else 128
        shape = {"tiny": (4, 3, 32, 32), "cpu": (8, 3, 96, 96), "cuda": (batch, 3, 224, 224)}[size]
        timm = importlib.import_module("timm")
        # Paths dropped at random would be others on each side.
        return Example(timm.create_model(name, num_classes=10, drop_path_rate=0.0), shape)

    return make


def _sd_unet(size: str) -> Example:
    """Of Stable Diffusion 1.5; else a small one of its kind."""
    diffusers = importlib.import_module("diffusers")
    settings: dict[str, Any]
    if size == "cuda":
        settings = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
        shape, words = (4, 4, 64, 64), (77, 768)
    else:
        widths, groups, side = ((16, 32), 4, 8) if size == "tiny" else ((64, 128), 16, 32)
        settings = {
            "sample_size": side,
            "block_out_channels": widths,
            "layers_per_block": 1,
            "norm_num_groups": groups,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        }
        shape, words = (2, 4, side, side), (5, 32)
    unet = diffusers.UNet2DConditionModel(**settings)
    return Example(Denoiser(unet, shape[0], words), shape, "values")


def _sd_vae(size: str) -> Example:
    """AutoencoderKL as in Stable Diffusion; else a small one."""
    diffusers = importlib.import_module("diffusers")
    widths, groups, shape = {
        "tiny": ((16, 32), 4, (2, 3, 16, 16)),
        "cpu": ((32, 64), 8, (2, 3, 64, 64)),
        "cuda": ((128, 256, 512, 512), 32, (2, 3, 256, 256)),
    }[size]
    model = diffusers.AutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        layers_per_block=2 if size == "cuda" else 1,
        norm_num_groups=groups,
    )
    return Example(Member(model, "sample"), shape, "values")


def _of_transformers(name: str) -> Callable[[str], Example]:
    """Language models of random weights; without dropout, which would differ between sides."""

    def make(size: str) -> Example:
        transformers = importlib.import_module("transformers")
        width, layers, vocabulary, shape = {
            "tiny": (32, 2, 64, (2, 12)),
            "cpu": (256, 4, 1000, (8, 128)),
            "cuda": (1024, 12, 32000, (8, 1024)),
        }[size]
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=vocabulary,
                n_embd=width,
                n_layer=layers,
                n_head=width // 16 if size == "tiny" else width // 64,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
            )
            model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                intermediate_size=2 * width,
                num_hidden_layers=layers,
                num_attention_heads=width // 16 if size == "tiny" else width // 64,
                use_cache=False,
            )
            model = transformers.LlamaForCausalLM(config)
        return Example(Member(model, "logits"), shape, "tokens", vocabulary)

    return make


_MAKERS: Final[dict[str, Callable[[str], Example]]] = {
    "resnet50": _resnet50,
    "efficientnet_b0": _of_timm("efficientnet_b0"),
    "convnext_tiny": _of_timm("convnext_tiny"),
    "sd_unet": _sd_unet,
    "sd_vae": _sd_vae,
    "llama": _of_transformers("llama"),
    "gpt2": _of_transformers("gpt2"),
}
NAMES: Final = tuple(_MAKERS)


def make(name: str, size: str = "tiny") -> Example:
    """A model by name; sizes are tiny (tests), cpu and cuda (benchmarks)."""
    with contextlib.suppress(ImportError):
        _torchvision()  # timm and transformers import it where it is there
    return _MAKERS[name](size)
