"""Both interfaces under the judge of `check --lib`: every operator within its derived bound."""

import judged_calls
import pytest
from judged_calls import BY_NAME

from normgrad import backends
from normgrad.aclnn.executor import _decide
from normgrad.infiniop.functions import _decide as _decide_infiniop

# Operators whose arithmetic no public function has: all their cases.
WHOLE = ("DeepNorm", "Swish", "GatherStats")


def chosen():
    few = judged_calls.some(1)
    own = [job for job in judged_calls.jobs() if any(name in job.operator for name in WHOLE)]
    return [
        pytest.param(
            job,
            id=f"{job.operator}-{job.case.id}-{job.dtype}",
            marks=() if job in few else pytest.mark.slow(1),
        )
        for job in dict.fromkeys([*few, *own])
    ]


@pytest.fixture
def alone(host_backend, monkeypatch, forget_plans):
    monkeypatch.setattr(backends, "preference", lambda device: (host_backend,))
    _decide.cache_clear()
    _decide_infiniop.cache_clear()
    yield
    _decide.cache_clear()
    _decide_infiniop.cache_clear()


@pytest.mark.parametrize("job", chosen())
@pytest.mark.usefixtures("alone")
def test_within_the_derived_bound(job):
    found = judged_calls.outcome(job)
    assert found.verdict == "PASS", found


def test_every_operator_has_cases_with_numbers():
    asked = {job.operator for job in judged_calls.jobs()}
    assert asked == set(BY_NAME)
