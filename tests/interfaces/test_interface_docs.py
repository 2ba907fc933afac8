"""The examples print the worked numbers; the pages list what the code has."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad
import trained
from normgrad import aclnn, infiniop

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "reference" / name for name in ("aclnn.md", "infiniop.md")]
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


@pytest.mark.parametrize(
    ("name", "options"),
    [("aclnn", {}), ("infiniop", {"norms": ("batch_norm",), "eps": 1e-12})],
)
def test_training_steps_are_pytorchs(name, options):
    pytest.importorskip("torch", reason="there is no torch to compare with")
    path = ROOT / "examples" / f"{name}_training_step.py"
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    trained.compare(done.stdout, trained.expected(**options))


def test_the_page_lists_every_status():
    rows = dict(re.findall(r"^\| (\d+) \| (\w+) \|", PAGES[0].read_text(), re.MULTILINE))
    assert rows == {str(int(status)): status.name for status in aclnn.Status}
    assert all(getattr(aclnn, name) == int(value) for value, name in rows.items())
    text = PAGES[1].read_text().split("## Statuses\n")[1]
    for status in infiniop.infiniStatus_t:
        assert re.search(rf"\b{int(status)} [a-z]", text)
        assert getattr(infiniop, status.name) is status


def test_the_page_lists_every_product():
    text = PAGES[0].read_text().split("## Products\n")[1]
    rows = re.findall(r"^\| `([a-z][\w-]+)`(?: \(default\))? \|", text, re.MULTILINE)
    assert [row for row in rows if not row.startswith("aclnn")] == list(aclnn.PRODUCTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_operators_are_those_of_the_code(page):
    tables = runpy.run_path(str(ROOT / "docs" / "hooks" / "tables.py"))
    text = page.read_text(encoding="utf-8")
    assert "<!-- table:" in text
    assert tables["with_tables"](text) == text, "run python docs/hooks/tables.py"
