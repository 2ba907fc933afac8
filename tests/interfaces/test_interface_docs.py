"""The examples print the worked numbers; the pages list what the code has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad
from normgrad import aclnn, infiniop

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "aclnn.md", ROOT / "docs" / "infiniop.md"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(normgrad.__file__).parents[1])}

PRINTED = {
    "aclnn_batch_norm": [
        "grad_input  -1.5 -4.0 -6.5 -9.0 -127.5 -158.0 -188.5 -219.0",
        "grad_weight 14.0 126.0",
        "grad_bias   6.0 22.0",
    ],
    "aclnn_batch_norm_elemt": ["grad_input 0.0 0.9 1.8 2.7 3.6 4.5 5.4 6.3"],
    "aclnn_layer_norm": [
        "161002 aclnnLayerNormBackwardGetWorkspaceSize: normalizedShape must be the tail of "
        "input's shape (2, 2), got (3,)",
        "grad_input  -2.0 -94.0 -877.5 -1747.5",
        "grad_weight 20.0 62.0",
        "grad_bias   6.0 8.0",
    ],
    "aclnn_group_norm": [
        "largest grad_input below 1e-5: True",
        "grad_gamma -75.89687 2.89683 155.84929",
        "grad_beta  68.0 100.0 132.0",
    ],
    "infiniop_batch_norm": [
        "grad_input  -1.5 -4.0 -6.5 -9.0 -127.5 -158.0 -188.5 -219.0",
        "grad_weight 14.0 126.0",
        "grad_bias   6.0 22.0",
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_example_prints_the_worked_numbers(name):
    path = ROOT / "examples" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED[name]


def test_the_page_lists_every_status():
    rows = dict(re.findall(r"^\| (\d+) \| (\w+) \|", PAGES[0].read_text(), re.MULTILINE))
    assert rows == {str(int(status)): status.name for status in aclnn.Status}
    assert all(getattr(aclnn, name) == int(value) for value, name in rows.items())
    text = PAGES[1].read_text().split("## Statuses\n")[1]
    for status in infiniop.infiniStatus_t:
        assert re.search(rf"\b{int(status)} [a-z]", text)
        assert getattr(infiniop, status.name) is status


def test_the_page_lists_every_product():
    rows = re.findall(r"^\| `([\w-]+)`(?: \(default\))? \|", PAGES[0].read_text(), re.MULTILINE)
    assert rows == list(aclnn.PRODUCTS)
