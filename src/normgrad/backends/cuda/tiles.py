"""Tile shapes and team sizes: pure arithmetic on sizes, types and device properties."""

import math
from dataclasses import dataclass

from normgrad.backends.cuda.device import Device

THREADS = 32
# A thread of a resident block holds 64 registers' worth of x and dy and may use 128 in all, so
# that 16 warps fill a multiprocessor with 128 KB of data: 4 blocks of 4 warps for 16-bit data, 2
# of 8 for 32-bit data (each measured best on an H200).
RESIDENT_REGISTERS = 128
RESIDENT_WARPS = {2: 4, 4: 8}
WARP_BYTES = 8 << 10


def power_of_two(value: int) -> int:
    """The power of two at or above."""
    return 1 << max(value - 1, 0).bit_length()


def ceil_div(value: int, by: int) -> int:
    """Rounded up."""
    return -(-value // by)


def alignment(itemsize: int, *steps: int) -> int:
    """The largest number of elements, up to 16 bytes' worth, that divides every step."""
    return math.gcd(16 // itemsize, *steps)


def cut(run: int, most: int, least: int = 64) -> int:
    """The columns of a row: a power of two that cuts ``run`` with little waste, large if equal."""
    best, best_waste = least, math.inf
    cols = least
    while cols <= most:
        waste = ceil_div(run, cols) * cols / run
        if waste <= best_waste * 1.02:
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
    by_shared = device.shared_bytes // (shared + 1024)
    return min(by_registers, by_shared, 2048 // (warps * THREADS), 32)


def share_out(rows: int, tile_rows: int, slabs: int, resident: int) -> Team | None:
    """Teams for slabs of ``rows`` rows; None where a slab does not fit on the device."""
    team = ceil_div(rows, tile_rows)
    if team > resident:
        return None
    teams = min(slabs, resident // team)
    rounds = ceil_div(slabs, teams)
    teams = ceil_div(slabs, rounds)
    # In a single round all blocks that can run take part, with a quarter of a tile at the least:
    # below that, waiting for partners costs more than it saves.
    if rounds == 1:
        team = min(resident // teams, ceil_div(rows, max(1, tile_rows // 4)))
    share = ceil_div(rows, team)
    return Team(ceil_div(rows, share), teams, share, rounds)
