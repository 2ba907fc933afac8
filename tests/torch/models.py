"""Small models of the three families that live on normalization."""

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions with batch norm, and a way around."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def resnet():
    """Batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8),
        nn.AvgPool2d(2),
        Residual(8),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    ), torch.Size((8, 3, 8, 8))


class UnetBlock(nn.Module):
    """Group norm before each convolution, and instance norm on the way up."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.up = nn.Sequential(
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.InstanceNorm2d(16, affine=True),
        )
        self.leave = nn.Linear(32 * 64, 10)

    def forward(self, x):
        x = self.enter(x)
        return self.leave(torch.cat((x, self.up(self.down(x))), 1).flatten(1))


def unet():
    """Group norm and instance norm."""
    return UnetBlock(), torch.Size((8, 3, 8, 8))


class Transformer(nn.Module):
    """One block with layer norm in front of its two halves."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.LayerNorm(32) for _ in range(3))
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.think = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        x = x + self.think(self.second(x))
        return self.head(self.last(x).mean(1))


def transformer():
    """Layer norm."""
    return Transformer(), torch.Size((8, 12, 32))


MODELS = {"resnet": resnet, "unet": unet, "transformer": transformer}


def train(model, shape, steps, *, channels_last=False):
    """Losses of plain gradient descent on fixed random data."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    if channels_last:
        model.to(memory_format=torch.channels_last)
    for _ in range(steps):
        x = torch.randn(shape, generator=generator)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, 10, shape[:1], generator=generator)
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
