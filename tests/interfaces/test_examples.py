"""Examples that are started wrongly end with one sentence and its way out; each is linked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SRC = Path(normgrad.__file__).parents[1]
ALONE = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}

WRONG = {
    "sync_batch_norm-alone": (["sync_batch_norm.py"], {}, "torchrun --nproc-per-node 2 examples/"),
    "example_models": (["example_models.py"], {}, "start one of them"),
    "train_cifar_like-device": (
        ["train_cifar_like.py", "--device", "toaster"],
        {},
        "argument --device: torch cannot use 'toaster'",
    ),
    "train_cifar_like-steps": (["train_cifar_like.py", "--steps", "0"], {}, "at least 1, got '0'"),
    "train_cifar_like-word": (["train_cifar_like.py", "--steps", "x"], {}, "must be a number"),
    "train_cifar_like-option": (["train_cifar_like.py", "--bogus"], {}, "(--help lists them)"),
    "sync_batch_norm-steps": (["sync_batch_norm.py", "--steps", "0"], {}, "must be at least 1"),
    **{
        f"{name}-device": ([f"{name}.py"], {"NORMGRAD_DEVICE": "toaster"}, "must be cpu, cuda or")
        for name in (
            "aclnn_batch_norm",
            "aclnn_batch_norm_elemt",
            "aclnn_group_norm",
            "aclnn_layer_norm",
        )
    },
}


def start(arguments, **variables):
    command = [sys.executable, EXAMPLES / arguments[0], *arguments[1:]]
    environment = {**ALONE, "PYTHONPATH": str(SRC), **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("arguments", "variables", "words"), WRONG.values(), ids=WRONG)
def test_started_wrongly(arguments, variables, words):
    done = start(arguments, **variables)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr


@pytest.mark.parametrize("name", ["sync_batch_norm", "train_cifar_like"])
def test_without_torch(tmp_path, name):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    done = start([f"{name}.py"], PYTHONPATH=f"{tmp_path}{os.pathsep}{SRC}")
    sentence = "this example needs PyTorch: pip install 'normgrad[torch]' (No module named 'torch')"
    assert done.returncode == 1
    assert done.stderr.splitlines() == [sentence]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("normgrad", ["false", "no-such-program"])
def test_c_examples_without_the_libraries(tmp_path, normgrad):
    line = ["make", "-C", EXAMPLES / "c", f"NORMGRAD={normgrad}", f"OUT={tmp_path / 'out'}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (sentence,) = [row for row in done.stderr.splitlines() if "***" in row]
    assert f"run '{normgrad} build-capi' first" in sentence
    assert "error:" not in done.stderr  # no compiler was started


def test_every_example_is_linked():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for example in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("c/*.c"), *EXAMPLES.glob("c/*.cpp")]:
        place = example.relative_to(ROOT)
        assert f"/{place})" in text, f"{place} is linked nowhere"
