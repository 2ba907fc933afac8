import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from normgrad import cli


@pytest.fixture(scope="session", autouse=True)
def small_copies():
    """Copies of a few KB: the limit of a run decides nothing here, and takes 2 s of each.

    `test_plain_text_in_a_pipe` measures in a process of its own, with copies of the true size.
    """
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch") is not None:
            from normgrad.bench import timing

            patch.setitem(timing._COPY_BYTES, "cpu", 1 << 12)
            patch.setattr(timing, "_NEAR_BYTES", 1 << 12)
        yield


@pytest.fixture(autouse=True)
def without_torch_beside(monkeypatch, request):
    """Torch is not run beside what fails, which takes seconds; one test asks for it."""
    if "with_torch_beside" not in request.fixturenames:
        from normgrad.cli import check_foreign

        monkeypatch.setattr(check_foreign, "beside_torch", lambda outcomes, asked, seed: outcomes)


@pytest.fixture
def with_torch_beside():
    pytest.importorskip("torch")


@pytest.fixture(scope="session")
def record_path(tmp_path_factory):
    """One small run of the reference backend beside torch, for all tests that read one."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("bench") / "run.json"
    for_csv = path.with_suffix(".csv")
    shape = ["--shape", "8x64x6x6", "--groups", "32"]
    options = ["--dtype", "float32", "--dtype", "bfloat16", "--layout", "contiguous"]
    options += ["--layout", "channels-last", "--repeats", "3", "--run-seconds", "0.05"]
    who = ["--backend", "reference", "--peers", "torch,jax,liger"]
    what = ["bench", "--op", "group_norm_backward", *shape]
    assert cli.main([*what, *options, *who, "--json", str(path), "--csv", str(for_csv)]) == 0
    return path


@pytest.fixture
def record(record_path):
    return json.loads(Path(record_path).read_text(encoding="utf-8"))
