"""normgrad check --lib on small C libraries, right and wrong."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from normgrad import cli
from normgrad.aclnn.batch_norm import BATCH_NORM_BACKWARD
from normgrad.verify import clib, make_problem
from normgrad.verify.clib import aclnn
from normgrad.verify.clib.aclnn_call import arguments_of
from normgrad.verify.clib.job import arrays_of

HERE = Path(__file__).parent
PAGE = BATCH_NORM_BACKWARD
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
STUBS = {
    "infiniop": ("infiniop_stub.c", "libinfiniop.so"),
    "aclnn": ("aclnn_stub.c", "libopapi_nn.so"),
}


@pytest.fixture
def library(tmp_path):
    def build(kind, bug=0):
        source, name = STUBS[kind]
        target = tmp_path / name
        command = [COMPILER, "-shared", "-fPIC", "-O1", f"-DBUG={bug}", "-o", str(target)]
        subprocess.run([*command, str(HERE / source), "-lm"], check=True)
        return target

    return build


def check(path, *options):
    return cli.main(["check", "-v", "--lib", str(path), "--dtype", "float32", *options])


def test_a_right_infiniop_library_passes(library, capsys, tmp_path):
    page = tmp_path / "lib.html"
    assert check(library("infiniop"), "--html", str(page)) == 0
    out = capsys.readouterr().out
    assert " cases right, " in out.splitlines()[0]
    assert "WRONG" not in out
    assert "statuses" in out
    assert "create: running_var not contiguous" not in out  # vectors may have any stride
    assert "vectors with gaps" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (1, "batch_norm_backward/nchw float32: "),
        (2, "create: weight of type F64 -: returned 0, should be 10"),
        (3, "it wrote outside dgamma"),
        (4, "create: null input -: the process crashed: SIGSEGV"),
        (5, "different bits in 3 runs"),
        (7, "weight too short and of type F64 -: returned 11"),
        (8, "too small -: returned 13, but it wrote to grad_bias"),
    ],
)
def test_wrong_infiniop_libraries_are_caught(library, bug, words, capsys):
    assert check(library("infiniop", bug)) == 1
    assert words in capsys.readouterr().out


def test_an_aclnn_library_is_judged_operator_by_operator(library, capsys):
    """The stub has layer norm of dense data alone: that is what the report must say."""
    assert check(library("aclnn")) == 1
    out = capsys.readouterr().out
    failures = [line for line in out.splitlines() if line.startswith("FAIL ")]
    cases = {line.split("layer_norm_backward/")[1].split(" float32")[0] for line in failures}
    strides = {"sliced", "transposed", "broadcast", "mixed", "mixed-rows", "vectors-with-gaps"}
    assert cases == strides | {"rows, results with gaps", "rows, tensors at an offset"}
    assert re.search(r"group_norm_backward +statuses", out)
    assert "not supported" in out


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (1, "layer_norm_backward/rows float32: "),
        (
            2,
            "layer_norm_backward/stage 2 twice -: returned 0, should be 561103",
        ),
        (3, "layer_norm_backward/rows float32: different bits in 3 runs; "),
        (
            5,
            "layer_norm_backward/input of type INT32 -: returned 161002, "
            "but stage 1 wrote to gradInputOut",
        ),
        (6, "it wrote to dgamma, which nobody asked for; it wrote to dbeta"),
    ],
)
def test_wrong_aclnn_libraries_are_caught(library, bug, words, capsys):
    assert check(library("aclnn", bug), "--op", "layer_norm_backward") == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "bug", "words"),
    [
        ("infiniop", 6, "got infiniopCreateHandle returned 7"),
        ("aclnn", 4, "got aclInit returned 500000: no driver is loaded"),
    ],
)
def test_a_runtime_that_does_not_start_is_told_once(library, kind, bug, words, capsys):
    assert check(library(kind, bug)) == 2
    told = capsys.readouterr().err
    assert "--lib must be a library that loads, and whose runtime starts" in told
    assert words in told


def test_a_library_without_the_functions_is_refused(tmp_path, capsys):
    """It names one of them, and has none."""
    source, path = tmp_path / "empty.c", tmp_path / "libinfiniop.so"
    source.write_text(
        'const char *said = "infiniopCreateBatchNormBackwardDescriptor";', encoding="utf-8"
    )
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    assert check(path) == 2
    assert "got the library has no function infiniopCreateHandle" in capsys.readouterr().err


def test_a_library_that_does_not_load_is_refused(tmp_path, capsys):
    path = tmp_path / "libinfiniop.so"
    path.write_bytes(b"infiniopCreateBatchNormBackwardDescriptor, but no library")
    assert check(path) == 2
    assert "must be a library that loads" in capsys.readouterr().err


def test_a_library_without_float64_gets_an_eps_that_it_can_see():
    cases = [job.case for job in aclnn.jobs("somebody") if job.case is not None]
    large = [case for case in cases if case.eps > 0.1 and case.op is PAGE.op]
    assert {case.id for case in large} == {"inference-large-eps"}
    arrays = arrays_of(make_problem(large[0], "float32"))
    (eps,) = (one for one in arguments_of(PAGE, large[0], arrays) if one.name == "eps")
    assert eps.value == large[0].eps


@pytest.mark.parametrize(
    ("name", "kind"),
    [("libopapi_nn.so", "aclnn"), ("libinfiniop.so", "infiniop"), ("libany.so", "infiniop")],
)
def test_the_name_decides_where_a_file_has_both_interfaces(name, kind, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"aclnnLayerNormBackward infiniopCreateBatchNormBackwardDescriptor")
    assert clib._kind(path) == kind
