"""Random requests planned for GPUs too small for them, in Triton's interpreter: teams and loops.

Run by test_cuda_interpreter.py in a process of its own; prints how many there were of each plan.
"""

import dataclasses
import random
import sys

from host_areas import HostAreas

from normgrad import verify
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.plan import plane_blocks, planes
from normgrad.backends.cuda.plan.tiles import Block
from normgrad.core.plan import _make_plan, make_plan
from normgrad.core.spec import Op

ODD = ((23, 23), (37, 31))  # planes that start anywhere


BACKWARD = Op.BATCH_NORM_BACKWARD, Op.GROUP_NORM_BACKWARD
FORWARD = Op.BATCH_NORM, Op.GROUP_NORM


def random_case(pick, ops, *, odd):
    """A case whose data are aligned, or in windows, and evenly laid out: what stays on chip."""
    op = pick.choice(ops)
    groups = pick.choice((1, 2, 3, 4)) if op is ops[1] else 1
    channels = groups * pick.choice((1, 2, 3, 4, 8, 10))
    inner = pick.choice(((16, 16), (7, 8), (7, 7), (12, 12), (40,), (14, 24), (28, 28), (36, 10)))
    samples = pick.randint(1, 7)
    if odd:  # 16 bytes divide the data
        samples, inner = 4 * pick.randint(1, 2), pick.choice(ODD)
    return verify.Case(
        id="random",
        op=op,
        shape=(samples, channels, *inner),
        layout="contiguous",
        num_groups=groups,
        training=True,
        statistic=pick.choice(("invstd", "variance")) if op is BACKWARD[0] else "invstd",
        running=op is FORWARD[0] and pick.random() < 0.5,
        centre=pick.choice((0.0, 100.0, 3e4)) if op in FORWARD else 100.0,
        weight=pick.random() < 0.6,
        mask=pick.choice(((), (True, False, True), (True, False, False))),
        own_statistics=pick.random() < 0.5,
    )


def small_blocks(pick):
    """Blocks so small that these data have many tiles, some of them in registers."""
    chunks, held = pick.randint(2, 4), pick.randint(1, 3)
    block = Block(pick.choice((1, 2)), 512, chunks, 64, held, pick.choice((0, 0, chunks)))
    flat = dataclasses.replace(block, chunk_bytes=1024)  # a plane of 4 channels fits in a line
    return lambda *_: ((block, 1 << 30),), lambda *_: ((flat, 1), (flat, 1 << 30))


def main(count, ops):
    pick, coin = random.Random(11), random.Random(12)
    areas = HostAreas()
    plans = {}
    blocks = plane_blocks._blocks, plane_blocks._flat_blocks
    held = larger = 0  # tiles in registers; slabs that do not fit in shared memory alone
    late = set()  # tiles of the next slab that are asked for when sums are published
    windows = set()  # operators in windows, with tiles in registers
    bulk = set()  # kinds of tiles that come by bulk copies
    for turn in range(count + count // 3):
        small = pick.random() < 0.7
        tiny = {
            "multiprocessors": pick.randint(2, 6),
            "shared_bytes": pick.choice((7, 9) if small else (64, 100, 228)) << 10,
        }
        backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, **tiny)
        made = small_blocks(pick) if small else blocks
        plane_blocks._blocks, plane_blocks._flat_blocks = made
        by_bulk = pick.random() < 0.6
        planes._bulk_pays = lambda *_, answer=by_bulk: answer
        late_now = coin.random() < 0.5
        planes._requests_after_publish = lambda *_, answer=late_now, **__: answer
        _make_plan.cache_clear()
        # Words that stay from call to call, as on a GPU's default stream, or the call's own.
        backend.BACKEND.interpreted_areas = areas if turn % 2 else None
        case = random_case(pick, ops, odd=turn >= count)
        problem = verify.make_problem(case, "float32", pick.randint(0, 9))
        for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
            assert measured.ok, (case, tiny, measured)
        program = make_plan(problem.spec, "cuda").config
        plans[program.strategy] = plans.get(program.strategy, 0) + 1
        sizes = [dict(getattr(step, "constants", ())) for step in program.steps]
        for one in sizes:
            if one.get("WINDOW") and one.get("REGISTER_TILES"):
                windows.add(case.op)
            if one.get("REQUEST_AFTER_PUBLISH") and one.get("REGISTER_TILES"):
                late.add((case.op, one["BULK"], one["CHUNKS"] > one["DEPTH"]))
            if one.get("BULK"):
                full = one["FULL_TILES"] >= one["CHUNKS"]
                bulk |= {
                    ("spans", min(one["SPANS"], 3)),
                    ("even", one["ROWS_FILL_TILE"]),
                    ("full", full),
                }
                bulk |= {("exact", one["EQUAL_ROWS"]), ("more", one["CHUNKS"] > one["DEPTH"])}
        held += any(one.get("REGISTER_TILES") for one in sizes)
        larger += any(one.get("REGISTER_TILES") and one["CHUNKS"] > one["DEPTH"] for one in sizes)
    assert held > count // 5, f"{held} plans with tiles in registers"
    assert larger > count // 20, f"{larger} slabs too large for shared memory"
    if ops == BACKWARD:
        assert len(bulk) == 12, f"only these kinds of tiles by bulk copies: {sorted(bulk)}"
        assert len(windows) == 2, f"only these in windows: {windows}"
        assert len(late) >= 6, f"only these late: {late}"
    assert areas.taken > count // 10, f"{areas.taken} plans with words that stay"
    print(plans.get("resident planes", 0), "of", count)


if __name__ == "__main__":
    main(int(sys.argv[1]), FORWARD if "forward" in sys.argv else BACKWARD)
