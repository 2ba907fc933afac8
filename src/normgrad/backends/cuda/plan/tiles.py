"""Tile shapes and team sizes: pure arithmetic on sizes, types and device properties."""

import math
from dataclasses import dataclass, replace

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.tuned import passes as tuned

THREADS = 32  # of a warp
DRIVER_BYTES = 1024  # of shared memory, that each block has without asking
# Numbers from here on take 64 bits: a loop, or who asks for data ahead, adds a step to them.
WIDE = (1 << 31) - (1 << 24)


@dataclass(frozen=True, slots=True)
class Block:
    """A block that keeps tiles of x and dy in shared memory."""

    warps: int
    chunk_bytes: int  # of a tile of x
    chunks: int  # tiles that there is room for in shared memory
    registers: int  # of a thread, at most
    held: int = 0  # tiles more in registers, for a while
    most: int = 0  # tiles of a block's share, at most; 0: as many as there is room for
    ahead: bool = False  # loads statistics a round ahead
    beside: int = 0  # tiles of a shortcut in shared memory: not fewer than are held

    @property
    def capacity(self) -> int:
        """Tiles of a block's share, at most."""
        return self.most or self.chunks + self.held

    def holding(self, held: int) -> "Block":
        """The same with other tiles in registers, and no more of a share than that leaves room."""
        most = min(self.most, self.chunks + held) if held < self.held else self.most
        return replace(self, held=held, most=most)

    def of_one_tensor(self, times: int) -> "Block":
        """The same with more tiles of x and none of dy."""
        return replace(self, chunks=times * self.chunks, most=times * self.most)


def power_of_two(value: int) -> int:
    """The power of two at or above."""
    return 1 << max(value - 1, 0).bit_length()


def ceil_div(value: int, by: int) -> int:
    """Rounded up."""
    return -(-value // by)


def magic(divisor: int) -> int:
    """What `quotient` divides by ``divisor`` with: exact for numbers below 2**32 / divisor.

    32 bits, as a signed number; 0 stands for a divisor of 1.
    """
    made = (1 << 32) // divisor + 1 if divisor > 1 else 0
    return made - (1 << 32) if made >= 1 << 31 else made


def alignment(itemsize: int, *steps: int) -> int:
    """The largest number of elements, up to 16 bytes' worth, that divides every step."""
    return math.gcd(16 // itemsize, *steps)


def cut(run: int, most: int) -> int:
    """The columns of a row: a power of two that cuts ``run`` with little waste, large if equal."""
    best, best_waste = 64, math.inf  # at least as many columns
    cols = best
    while cols <= most:
        waste = ceil_div(run, cols) * cols / run
        if waste <= best_waste * tuned.CUT_WASTE:
            best, best_waste = cols, waste
        cols *= 2
        if cols >= 2 * power_of_two(run):
            break
    return best


@dataclass(frozen=True, slots=True)
class Team:
    """How blocks share slabs: ``teams`` teams of ``team`` blocks, ``share`` rows a block."""

    team: int
    teams: int
    share: int
    rounds: int


def blocks_per_multiprocessor(device: Device, warps: int, registers: int, shared: int) -> int:
    """How many blocks run at once, from what is surely enough for one."""
    by_registers = device.registers // (warps * THREADS * registers)
    by_shared = device.shared_bytes // (shared + DRIVER_BYTES)
    return min(by_registers, by_shared, device.threads // (warps * THREADS), 16)


def typical_batch(sample_bytes: int) -> int:
    """Samples that group norm is cut for, however many there are.

    A sample's gradient must not depend on those around it, so neither may the parts that its sums
    are made of.
    """
    return power_of_two(ceil_div(tuned.TYPICAL_BYTES, sample_bytes))


def rounds_of_teams(slabs: int, most: int) -> tuple[int, int]:
    """Teams for so many slabs, ``most`` of them at once, and rounds: few ones, all teams busy."""
    rounds = ceil_div(slabs, min(slabs, most))
    return ceil_div(slabs, rounds), rounds


def cut_into_teams(
    rows: int,
    most_rows: int,
    least_rows: int,
    slabs: int,
    resident: int,
    *,
    batch_independent: bool = False,
) -> Team | None:
    """Teams for slabs of ``rows`` rows; None where a slab does not fit on the device.

    A block takes up to ``most_rows``. Teams are as large as there are blocks for, so that all take
    part, unless a block would have less than ``least_rows``. A ``batch_independent`` cut, group
    norm's, has teams of the size that they have in an infinite batch.
    """
    team = ceil_div(rows, most_rows)
    if team > resident:
        return None
    at_once = resident // team
    teams, rounds = rounds_of_teams(at_once if batch_independent else slabs, at_once)
    team = max(team, min(resident // teams, ceil_div(rows, least_rows)))
    share = ceil_div(rows, team)
    team = ceil_div(rows, share)
    if batch_independent:
        teams, rounds = rounds_of_teams(slabs, resident // team)
    return Team(team, teams, share, rounds)
