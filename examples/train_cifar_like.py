"""Train a small ResNet on synthetic images of CIFAR's size, with normgrad's backward pass.

    python examples/train_cifar_like.py --steps 200 --channels-last
    python examples/train_cifar_like.py --plain        # torch's own backward, to compare

The images are noise with a pattern of their class in them, so that there is something to learn and
nothing to download.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

import torch
from example_models import ResNet

import normgrad.torch

CLASSES = 10


def batches(
    count: int, size: int, device: str, channels_last: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random images, 3x32x32, with a faint pattern of their class, and the classes."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=generator)
    for _ in range(count):
        labels = torch.randint(0, CLASSES, (size,), generator=generator)
        images = torch.randn(size, 3, 32, 32, generator=generator) + 0.25 * patterns[labels]
        images = images.to(device)
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        yield images, labels.to(device)


class Progress:
    """A bar by rich on a terminal where it is installed, else a line now and then."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.bar = None
        if not sys.stdout.isatty():  # in a pipe the bar would say nothing before the end
            return
        with contextlib.suppress(ImportError):
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self.bar = Bar(*columns)
            self.task = self.bar.add_task("training", total=total)

    def __enter__(self) -> "Progress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def step(self, words: str) -> None:
        """One more step is done."""
        self.done += 1
        if self.bar:
            self.bar.update(self.task, advance=1, description=words)
        elif self.done % 20 == 0 or self.done == self.total:
            print(f"{self.done}/{self.total} {words}", flush=True)


def train(args: argparse.Namespace) -> float:
    """Train; the share of right answers over the last tenth of the steps."""
    torch.manual_seed(0)
    model = ResNet(args.width).to(args.device)
    if args.channels_last:
        # torch's types lack what its documentation has.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    right: list[float] = []
    with Progress(args.steps) as progress:
        for images, labels in batches(args.steps, args.batch, args.device, args.channels_last):
            with torch.autocast(args.device, torch.bfloat16, enabled=args.autocast):
                scores = model(images)
            loss = torch.nn.functional.cross_entropy(scores.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right.append((scores.argmax(1) == labels).float().mean().item())
            progress.step(f"loss {loss.item():.3f}")
    tail = right[-max(1, len(right) // 10) :]
    return sum(tail) / len(tail)


def at_least_one(text: str) -> int:
    """A number of steps, samples or channels."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=at_least_one, default=100)
    parser.add_argument("--batch", type=at_least_one, default=64)
    parser.add_argument("--width", type=at_least_one, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--autocast", action="store_true", help="bfloat16 where it is safe")
    parser.add_argument("--plain", action="store_true", help="torch's own backward pass")
    args = parser.parse_args()
    if not args.plain:
        normgrad.torch.enable()
    begin = time.perf_counter()
    accuracy = train(args)
    taken = time.perf_counter() - begin
    print(f"{1e3 * taken / args.steps:.1f} ms per step, {accuracy:.0%} right (chance: 10%)")
    if not args.plain:
        print(normgrad.torch.report())


if __name__ == "__main__":
    main()
