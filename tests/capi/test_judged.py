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


# A library that Python has loaded runs in that very interpreter, whose rules can be watched.
WATCHED = """
import sys
from pathlib import Path
from normgrad.device.failures import StatusError
from normgrad.infiniop.operators import OPERATORS
from normgrad.verify import clib

left = set()


def watched(place, rule):
    left.add(place)

    def watch(given):
        try:
            rule(given)
        except StatusError:
            left.discard(place)
            raise

    return watch


for one in OPERATORS:
    for field in ("rules", "stride_rules"):
        listed = enumerate(getattr(one, field))
        made = tuple(watched((one.name, field, at), rule) for at, rule in listed)
        object.__setattr__(one, field, made)
path = Path(sys.argv[1])
ask = clib.worker(path, None, None, 0)
for at, job in enumerate(clib.jobs(path, None, None)):
    if job.case is None:
        ask(at)
print(sorted(left))
"""


def test_every_rule_of_infiniop_is_broken_by_a_case(capi):
    path = str(capi.prefix / "lib" / "libinfiniop.so")
    done = execute(sys.executable, "-c", WATCHED, path, PYTHONPATH=str(SRC))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stdout + done.stderr
