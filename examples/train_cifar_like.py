"""Train a small ResNet on synthetic images of CIFAR's size, its batch norms by normgrad.

    python examples/train_cifar_like.py --steps 200 --channels-last
    python examples/train_cifar_like.py --plain        # torch's own batch norms, to compare

The images are noise with a pattern of their class in them, so that there is something to learn and
nothing to download.
"""

import argparse
import sys
import time
from collections.abc import Iterator

try:
    import torch
except ImportError as error:
    sys.exit(f"this example needs PyTorch: pip install 'normgrad[torch]' ({error})")
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
    """Where the training stands: one line on a terminal, a line now and then in a pipe."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.every, self.end = (1, "\r") if sys.stdout.isatty() else (20, "\n")

    def step(self, words: str) -> None:
        """One more step is done."""
        self.done += 1
        last = self.done == self.total
        if last or self.done % self.every == 0:
            print(f"{self.done}/{self.total} {words}", end="\n" if last else self.end, flush=True)


def train(args: argparse.Namespace) -> float:
    """Train; the share of right answers over the last tenth of the steps."""
    torch.manual_seed(0)
    model = ResNet(args.width).to(args.device)
    if args.channels_last:
        # torch's types lack what its documentation has.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    right: list[float] = []
    progress = Progress(args.steps)
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
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number, at least 1, got {text!r}")
    return int(text)


def usable(text: str) -> str:
    """A device that torch can put a tensor on."""
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"torch cannot use {text!r}: {reason}") from None
    return text


def main() -> None:
    usage = "%(prog)s [options] (--help lists them)"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=usage)
    parser.add_argument("--steps", type=at_least_one, default=100, help="100")
    parser.add_argument("--batch", type=at_least_one, default=64, help="64")
    parser.add_argument("--width", type=at_least_one, default=16, help="16")
    parser.add_argument(
        "--device",
        type=usable,
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cpu, cuda, ...; a GPU where there is one",
    )
    parser.add_argument("--channels-last", action="store_true", help="in memory")
    parser.add_argument("--autocast", action="store_true", help="bfloat16 where it is safe")
    parser.add_argument("--plain", action="store_true", help="torch's own batch norms")
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
