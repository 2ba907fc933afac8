"""Our own libraries under `check --lib`: every rule as every product, numbers of every operator."""

import sys

import pytest

from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.products import PRODUCTS
from normgrad.infiniop.operators import OPERATORS

from .conftest import SRC, execute

SCRIPT = """
import sys
from pathlib import Path
from normgrad.verify import clib

path = Path(sys.argv[1])
ask = clib.worker(path, None, None, 0)
asked, wrong, numeric = 0, [], set()
for at, job in enumerate(clib.jobs(path, None, None)):
    # All cases with numbers take minutes: one of each operator, in float32.
    if job.case is not None and (job.operator in numeric or job.dtype != "float32"):
        continue
    if job.case is not None:
        numeric.add(job.operator)
    found = ask(at)
    asked += 1
    if found.verdict != "PASS":
        wrong.append((job.operator, found.case, found.detail))
print(asked, len(numeric), wrong)
"""
LIBRARIES = [("lib64/libopapi_nn.so", key) for key in PRODUCTS] + [("lib/libinfiniop.so", "")]


@pytest.mark.parametrize(("library", "product"), LIBRARIES)
def test_every_rule_and_numbers_of_every_operator(capi, library, product):
    more = {"NORMGRAD_PRODUCT": product} if product else {}
    path = str(capi.prefix / library)
    done = execute(sys.executable, "-c", SCRIPT, path, PYTHONPATH=str(SRC), **more)
    assert done.returncode == 0, done.stderr
    asked, operators, wrong = done.stdout.split(maxsplit=2)
    assert wrong == "[]\n"
    has = [page for page in PAGES if product not in page.lacks] if product else OPERATORS
    assert int(operators) == len(has)
    assert int(asked) > 7 * len(has)
