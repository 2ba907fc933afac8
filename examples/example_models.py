"""Small models of the three families that live on normalization, in any size."""

from dataclasses import dataclass

import torch
from torch import nn

Tensor = torch.Tensor


class Residual(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, channels: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.activation = activation()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            activation(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Sum of both ways."""
        result: Tensor = self.activation(x + self.body(x))
        return result


class ResNet(nn.Sequential):
    """Three stages of residual blocks with batch norm; each halves the image."""

    def __init__(self, width: int, activation: type[nn.Module] = nn.ReLU) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), activation()]
        for stage in range(3):
            channels = width << stage
            layers.append(Residual(channels, activation))
            if stage < 2:
                layers.append(nn.Conv2d(channels, 2 * channels, 3, 2, 1, bias=False))
                layers += [nn.BatchNorm2d(2 * channels), activation()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
        super().__init__(*layers)


class UNetBlock(nn.Module):
    """A step down and up again with group norm, as in diffusion models."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Sequential(
            nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, width, 3, 2, 1)
        )
        self.up = nn.Sequential(
            nn.GroupNorm(groups, width),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(groups, width),
        )
        self.leave = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Both resolutions, side by side."""
        x = self.enter(x)
        result: Tensor = self.leave(torch.cat((x, self.up(self.down(x))), 1))
        return result


class Transformer(nn.Module):
    """Blocks of attention and a small network, layer norm in front of each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores from the mean over the sequence."""
        y = self.first(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        x = x + self.think(self.second(x))
        scores: Tensor = self.head(self.last(x).mean(1))
        return scores


@dataclass(frozen=True)
class Example:
    """A model, the shape of its input and what it tells of it."""

    model: nn.Module
    shape: tuple[int, ...]
    tells: str = "classes"  # or "values", as many as it gets, or the next one of its "tokens"
    classes: int = 10

    @property
    def images(self) -> bool:
        """Whether channels-last means anything."""
        return len(self.shape) == 4

    def data(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Random input, and what the model shall tell."""
        if self.tells == "tokens":
            tokens = torch.randint(0, self.classes, self.shape, device=device)
            return tokens, tokens.roll(-1, 1)
        x = torch.randn(self.shape, device=device)
        if self.tells == "values":
            return x, torch.randn(self.shape, device=device)
        return x, torch.randint(0, self.classes, self.shape[:1], device=device)

    def loss(self, told: Tensor, target: Tensor) -> Tensor:
        """How far off it was."""
        wide = told if told.dtype is torch.float64 else told.float()
        if self.tells == "values":
            return nn.functional.mse_loss(wide, target.to(wide.dtype))
        return nn.functional.cross_entropy(wide.flatten(0, -2), target.flatten())


def make(name: str, size: str = "tiny") -> Example:
    """A model by name; sizes are tiny (tests), cpu and cuda (benchmarks)."""
    shape: tuple[int, ...]
    if name == "resnet":
        width, shape = {
            "tiny": (8, (8, 3, 8, 8)),
            "cpu": (32, (16, 3, 32, 32)),
            "cuda": (64, (128, 3, 56, 56)),
        }[size]
        # Rounding cannot flip a smooth activation: tests compare losses after many steps.
        return Example(ResNet(width, nn.SiLU if size == "tiny" else nn.ReLU), shape)
    if name == "unet":
        width, groups, shape = {
            "tiny": (16, 4, (8, 3, 8, 8)),
            "cpu": (64, 16, (4, 3, 32, 32)),
            "cuda": (320, 32, (8, 3, 64, 64)),
        }[size]
        return Example(UNetBlock(width, groups), shape)
    width, heads, shape = {
        "tiny": (32, 4, (8, 12, 32)),
        "cpu": (256, 4, (8, 128, 256)),
        "cuda": (1024, 16, (16, 1024, 1024)),
    }[size]
    return Example(Transformer(width, heads), shape)


NAMES = ("resnet", "unet", "transformer")

if __name__ == "__main__":
    raise SystemExit(
        "models for train_cifar_like.py and benchmarks/train_step.py: start one of them"
    )
