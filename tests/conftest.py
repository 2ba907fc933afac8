"""What every test may use."""

import pytest

from normgrad import backends
from normgrad.calls import dispatch
from normgrad.core import plan

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU, torch and pytest alone runs the tests in tests/cuda
    pass
else:
    # The same examples on every run and every machine; a slow machine is no failure.
    settings.register_profile("normgrad", derandomize=True, deadline=None, database=None)
    settings.load_profile("normgrad")


def pytest_report_header():
    reason = backends.get("cuda").unavailable()
    return reason and f"tests that need a GPU are left out: {reason}"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    """No tests of a GPU where there is none; the longest begin first, or one core waits at the end.

    The number behind `slow` is how many seconds of a processor a test takes.
    """
    on_gpu = [item for item in items if item.get_closest_marker("cuda")]
    if on_gpu and backends.get("cuda").unavailable():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
    items.sort(key=_seconds, reverse=True)


def _seconds(item):
    marker = item.get_closest_marker("slow")
    return marker.args[0] if marker else 0


def _forget_plans() -> None:
    dispatch._cached_calls.clear()
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
