"""`normgrad plan`: what it prints, what it refuses, what it loads."""

import subprocess
import sys

import pytest

from normgrad import cli


def test_plan_prints(capsys):
    words = ["plan", "--op", "batch_norm_backward", "--shape", "64x256x56x56", "--device", "a100"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out.splitlines()
    what = "batch_norm_backward 64x256x56x56 bfloat16 contiguous"
    assert out[0] == f"{what} on NVIDIA A100"
    assert out[1].startswith("resident")
    assert out[2].startswith("1. fill ")  # an A100 has no early launches
    assert out[3].startswith("2. planes.plane_slabs: ")
    assert "all blocks run at once" in "".join(out[4:])
    assert "TILE=" not in "".join(out)
    assert cli.main([*words, "-v"]) == 0
    assert "TILE=" in capsys.readouterr().out


def test_plan_takes_every_option(capsys):
    shape = ["--shape", "8x64x16x16", "--layout", "channels-last", "--dtype", "float16"]
    assert (
        cli.main(["plan", "--op", "group_norm_backward", *shape, "--groups", "8", "--mask", "011"])
        == 0
    )
    assert "G8 float16 channels-last mask 011" in capsys.readouterr().out
    assert (
        cli.main(["plan", "--op", "batch_norm_backward", *shape, "--inference", "--mask", "100"])
        == 0
    )
    assert "apply.column_apply" in capsys.readouterr().out
    words = ["plan", "--op", "layer_norm_backward", "--shape", "8x64x16", "--normalized", "2"]
    assert cli.main([*words, "--statistics-dtype", "float64", "--device", "t4", "-v"]) == 0
    assert "COMPUTE=float64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--op batch_norm_backward --shape 64", "--shape must have 2 to 8 axes"),
        (
            "--op batch_norm_backward --shape 4x5,6x7",
            "--shape must be sizes of one shape joined by x",
        ),
        ("--op batch_norm_backward --shape 4xx", "--shape must be sizes of one shape joined by x"),
        (
            "--op group_norm_backward --shape 2x30x4",
            "--groups must divide the number of channels, 30",
        ),
        ("--op group_norm_backward --shape 2x30x4 --groups 0", "--groups must be positive"),
        (
            "--op layer_norm_backward --shape 4x5 --layout channels-last",
            "--layout must be contiguous",
        ),
        (
            "--op layer_norm_backward --shape 4x5 --normalized 3",
            "--normalized must be from 1 to 2 axes",
        ),
        (
            "--op layer_norm_backward --shape 4x5 --inference",
            "--inference must be left out with --op",
        ),
        ("--op layer_norm_backward --shape 4x5 --mask 11", "--mask must have a bit for each of dx"),
        (
            "--op layer_norm_backward --shape 4x5 --mask 000",
            "--mask must be bits with at least one 1",
        ),
        (
            "--op layer_norm_backward --shape 2599017241x1",
            "to 2147483647 statistics, there are 2599017241",
        ),
        (
            "--op layer_norm_backward --shape 1x2147483648",
            "to 2130706431 parameters, there are 2147483648",
        ),
        (
            "--op group_norm_backward --shape 67108864x32",
            "to 2147483647 statistics, there are 2147483648",
        ),
        (
            "--op batch_norm_backward --shape 2x2147483648",
            "to 2147483647 statistics, there are 2147483648",
        ),
        (
            "--op layer_norm_backward --shape 144115188075855872x1",
            "--shape must have and span less than 2**57",
        ),
    ],
)
def test_plan_says_what_is_wrong(words, message, capsys):
    assert cli.main(["plan", *words.split(), "--device", "h200"]) == 2
    assert message in capsys.readouterr().err


def test_planning_loads_neither_torch_nor_triton():
    code = """
import sys
from normgrad import cli
assert cli.main("plan --op batch_norm_backward --shape 64x256x56x56 --device h200".split()) == 0
assert not {"torch", "triton", "numba"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
