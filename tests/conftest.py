"""What every test may use."""

import pytest

from normgrad import backends, dispatch, plan

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU, torch and pytest alone runs the tests in tests/cuda
    pass
else:
    # The same examples on every run and every machine; a slow machine is no failure.
    settings.register_profile("normgrad", derandomize=True, deadline=None, database=None)
    settings.load_profile("normgrad")


def _forget_plans() -> None:
    dispatch._known.clear()
    dispatch._prepare.cache_clear()
    plan._make_plan.cache_clear()


@pytest.fixture
def forget_plans():
    """For tests that change what plans depend on: call it after each change."""
    _forget_plans()
    yield _forget_plans
    _forget_plans()


@pytest.fixture
def install(monkeypatch):
    """Put a backend of the test's own in the place of one of ours, for this test."""
    own = {}
    found = backends.get

    def put(backend):
        own[backend.name] = backend
        monkeypatch.setattr(backends, "get", lambda name: own.get(name) or found(name))
        _forget_plans()
        return backend

    yield put
    monkeypatch.undo()
    _forget_plans()


def backend_params(*, without=()):
    """One parameter for each backend; that of the GPU carries its marker."""
    return [
        pytest.param(name, marks=[pytest.mark.cuda] if name == "cuda" else [])
        for name in backends.NAMES
        if name not in without
    ]


def usable(name):
    reason = backends.get(name).unavailable()
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return name


@pytest.fixture(params=backend_params())
def backend(request):
    """The name of each backend that works here; the others skip with their own reason."""
    return usable(request.param)


@pytest.fixture(params=backend_params(without=("cuda",)))
def host_backend(request):
    """The same for backends that take host memory."""
    return usable(request.param)
