import json
from pathlib import Path

import pytest

from normgrad import cli


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
    what = ["bench", "--op", "group_norm", *shape]
    assert cli.main([*what, *options, *who, "--json", str(path), "--csv", str(for_csv)]) == 0
    return path


@pytest.fixture
def record(record_path):
    return json.loads(Path(record_path).read_text(encoding="utf-8"))
