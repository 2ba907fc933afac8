"""Programs of ours: numbers, statuses, threads, memory."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trained
from normgrad.capi import build, packages
from normgrad.capi.signatures import SOURCES, headers

from .conftest import HERE, SRC, execute
from .misuse import program

ROOT = HERE.parents[1]
WORKED = {
    "batch_norm.cpp": {
        "grad_input": [-1.5, -4, -6.5, -9, -127.5, -158, -188.5, -219],
        "grad_weight": [14, 126],
        "grad_bias": [6, 22],
    },
    "batch_norm_elemt.c": {
        "grad_input": ([9.2] * 4 + [5 / 3] * 4 + [192.5 + 1 / 30] * 4) * 2,
    },
    "layer_norm.c": {
        "grad_input": [-2, -94, -877.5, -1747.5],
        "for twice the gradient": [-4, -188, -1755, -3495],
        "grad_weight": [40, 124],
        "grad_bias": [12, 16],
    },
    "group_norm.cpp": {
        "grad_input": [0.268328157, -1.699411663, 2.593838854, -1.162755348],
        "grad_gamma": [-1.341640786, 2.236067977],
        "grad_beta": [1, 3],
    },
    "infiniop_batch_norm.c": {
        "grad_input": [-1.5, -4, -6.5, -9, -127.5, -158, -188.5, -219],
        "grad_weight": [14, 126],
        "grad_bias": [6, 22],
    },
}


@pytest.mark.parametrize("source", WORKED)
def test_examples_print_the_worked_numbers(capi, source):
    done = execute(capi.compile(ROOT / "examples" / "c" / source))
    assert done.returncode == 0, done.stderr
    printed = dict(line.split(": ") for line in done.stdout.splitlines())
    assert printed.keys() == WORKED[source].keys()
    for name, want in WORKED[source].items():
        assert [float(word) for word in printed[name].split()] == pytest.approx(want, rel=1e-6)


STEPS = {
    "training_step.cpp": {},
    # No eps: the gradient adds none.
    "infiniop_training_step.c": {"norms": ("batch_norm",), "eps": 1e-12},
}


@pytest.mark.parametrize("source", STEPS)
def test_training_steps_are_pytorchs(capi, source):
    pytest.importorskip("torch", reason="there is no torch to compare with")
    done = execute(capi.compile(ROOT / "examples" / "c" / source))
    assert done.returncode == 0, done.stderr
    trained.compare(done.stdout, trained.expected(**STEPS[source]))


@pytest.mark.cuda
@pytest.mark.parametrize("source", STEPS)
def test_training_steps_on_a_gpu(capi, source):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    program = capi.compile(ROOT / "examples" / "c" / source)
    done = execute(program, "gpu", NORMGRAD_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    trained.compare(done.stdout, trained.expected(**STEPS[source]))


@pytest.mark.cuda
@pytest.mark.parametrize("source", [name for name in WORKED if not name.startswith("infiniop")])
def test_examples_on_a_gpu(capi, source):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    done = execute(capi.compile(ROOT / "examples" / "c" / source), NORMGRAD_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    printed = dict(line.split(": ") for line in done.stdout.splitlines())
    for name, want in WORKED[source].items():
        assert [float(word) for word in printed[name].split()] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("part", ["runtime", "tensors", "stages"])
def test_every_status_can_be_reached(capi, part):
    done = capi.run("statuses.c", part)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize("source", ["scalars.c", "events.c", "addresses.c", "several.c"])
def test_what_programs_use_besides(capi, source):
    done = capi.run(source)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.parametrize(
    ("variables", "device", "plan"),
    [
        ({"NORMGRAD_PRODUCT": "atlas-200i-500-a2"}, 0, 561003),
        ({"NORMGRAD_PRODUCT": "atlas-inference"}, 0, 0),
        ({"NORMGRAD_PRODUCT": "a-toaster"}, 0, 561000),
        ({"NORMGRAD_DEVICE": "a-toaster"}, 500000, 561003),
    ],
)
def test_settings_of_the_environment(capi, variables, device, plan):
    done = capi.run("statuses.c", "settings", str(device), str(plan), **variables)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_infiniop_results_and_statuses(capi):
    done = capi.run("infini.c")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_infiniop_without_its_compiled_road(capi):
    """The same program where stage 2 goes through Python and its memory checks."""
    done = capi.run("infini.c", NORMGRAD_CHECKED="1")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


@pytest.mark.slow(23)
def test_random_calls_through_python_and_through_c(capi):
    path = f"{SRC}{os.pathsep}{HERE.parent / 'interfaces'}"
    library = str(capi.prefix / "lib64" / "libopapi_nn.so")
    done = execute(Path(sys.executable), str(HERE / "alike.py"), library, "4000", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stdout + done.stderr


def test_eight_threads_race_and_run_without_the_lock(capi):
    done = capi.run("threads.c")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_a_hundred_thousand_rounds_do_not_grow(capi):
    done = capi.run("rounds.c", "100000", "0", NORMGRAD_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    times = [float(text) for text in re.findall(r"stage \d ([\d.]+) us", done.stdout)]
    # The best of 100 000 rounds, so that other work on the machine does not count.
    assert times[0] < 50
    assert times[1] < 2  # all of it, the kernel too: four elements


def test_rounds_with_new_tensors_do_not_grow(capi):
    done = capi.run("rounds.c", "10000", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_helping_threads_change_no_bit(capi):
    runs = [capi.run("large.c", NORMGRAD_NUM_THREADS=count) for count in ("1", "2", "5")]
    assert [done.returncode for done in runs] == [0, 0, 0], runs[-1].stderr
    assert len({done.stdout for done in runs}) == 1


@pytest.mark.slow(9)
@pytest.mark.parametrize(
    "arguments",
    [
        ("statuses.c", "runtime"),
        ("statuses.c", "tensors"),
        ("statuses.c", "stages"),
        ("scalars.c",),
        ("events.c",),
        ("addresses.c",),
        ("several.c",),
        ("infini.c",),
        ("threads.c",),
        ("large.c",),
    ],
    ids=" ".join,
)
def test_under_address_sanitizer(capi_asan, arguments):
    options = "detect_leaks=0:allocator_may_return_null=1:halt_on_error=1"
    stop = "halt_on_error=1:print_stacktrace=1"
    variables = {"ASAN_OPTIONS": options, "UBSAN_OPTIONS": stop, "NORMGRAD_NUM_THREADS": "4"}
    done = capi_asan.run(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    assert "runtime error" not in done.stderr


@pytest.mark.slow(9)
@pytest.mark.parametrize("checked", ["0", "1"])
def test_misuse_of_every_operator_under_address_sanitizer(capi_asan, checked, tmp_path):
    source = tmp_path / f"misuse{checked}.c"
    operators = [place for place in headers() if place.startswith(("aclnnop/", "infiniop.h"))]
    source.write_text(program(operators), encoding="utf-8")
    options = "detect_leaks=0:allocator_may_return_null=1:halt_on_error=1"
    variables = {"ASAN_OPTIONS": options, "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = execute(capi_asan.compile(source), NORMGRAD_CHECKED=checked, **variables)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stdout + done.stderr
    assert "runtime error" not in done.stderr


def test_handles_and_helpers_under_thread_sanitizer(capi, tmp_path):
    """The parts without Python, linked alone: Python itself would drown the report."""
    program = tmp_path / "race"
    parts = [str(SOURCES / name) for name in ("registry.c", "pool.c", "exit.c")]
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=thread", f"-I{SOURCES}", "-pthread"]
    line = ["gcc", *flags, str(HERE / "race.c"), *parts, "-o", str(program)]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    if built.returncode and "tsan" in built.stderr:
        pytest.skip(f"no ThreadSanitizer: {built.stderr}")
    assert built.returncode == 0, built.stderr
    done = execute(program)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot live with this kernel's address layout")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_a_slot_with_a_new_owner_is_left_alone(capi, tmp_path):
    program = tmp_path / "reused"
    flags = ("-std=c11", "-Wall", "-Wextra", "-pthread", f"-I{SOURCES}")
    subprocess.run(["gcc", *flags, str(HERE / "reused.c"), "-o", str(program)], check=True)
    done = execute(program)
    assert done.returncode == 0, done.stdout


def test_forks_beside_busy_threads(capi, tmp_path):
    program = tmp_path / "forks"
    parts = [str(SOURCES / name) for name in ("registry.c", "pool.c", "exit.c")]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", f"-I{SOURCES}", "-pthread"]
    line = ["gcc", *flags, str(HERE / "forks.c"), *parts, "-o", str(program)]
    subprocess.run(line, check=True)
    done = execute(program)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_a_fork_during_the_first_call(capi):
    done = capi.run("early.c")
    assert (done.returncode, done.stdout) == (0, "child 0, parent 0\n"), done.stderr


def test_a_cancelled_thread_leaves_no_lock_held(capi):
    done = capi.run("cancelled.c")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_handlers_of_exit_run_what_was_planned(capi):
    done = capi.run("ending.c")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_an_interrupt_ends_the_program_as_before(capi):
    done = capi.run("guest.c", "ends")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    done = capi.run("guest.c", "ignores")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_traps_and_rounding_are_the_programs_own(capi):
    done = capi.run("guest.c", "arithmetic")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_leaks_are_the_programs_own(capi, tmp_path):
    """Under LeakSanitizer, which would find all that Python keeps."""
    program = tmp_path / "leaks"
    flags = (*packages.compile_flags(capi.prefix), *packages.link_flags(capi.prefix), "-lm")
    line = ["gcc", "-fsanitize=address", str(HERE / "guest.c"), *flags, "-o", str(program)]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    if built.returncode and "asan" in built.stderr:
        pytest.skip(f"no AddressSanitizer: {built.stderr}")
    assert built.returncode == 0, built.stderr
    done = execute(program, "leaks")
    if "LeakSanitizer has encountered a fatal error" in done.stderr:
        pytest.skip("LeakSanitizer cannot stop the program here")
    assert done.stdout == "right\n"
    assert "40 byte(s) leaked in 1 allocation(s)" in done.stderr


MISTAKES = {
    "double-free": ("aclrtFree: devPtr", "which aclrtFree has already freed"),
    "inner-pointer": ("aclrtFree: devPtr", "4 bytes inside allocation 1 of aclrtMalloc (16 bytes"),
    "past-the-end": ("aclrtMemcpy: dst", "by 4 bytes at its end"),
    "freed-source": ("aclrtMemcpy: src", "which aclrtFree has freed"),
    "view-outside": ("GetWorkspaceSize: gradInputOut", "leave allocation 1 of aclrtMalloc"),
    "foreign": ("GetWorkspaceSize: gradInputOut", "belongs to no device allocation"),
    "freed-between": ("aclnnLayerNormBackward: gradInputOut", "which aclrtFree has freed"),
    "freed-workspace": ("aclnnLayerNormBackward: workspace", "which aclrtFree has freed"),
    "destroyed-tensor": ("aclnnLayerNormBackward: gradInputOut", "got a destroyed aclTensor"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_checked_mode_names_function_argument_and_allocation(capi, mistake):
    done = capi.run("checked.c", mistake, NORMGRAD_CHECKED="1")
    where, why = MISTAKES[mistake]
    assert done.returncode != 0
    assert where in done.stderr
    assert why in done.stderr


def test_checked_mode_lets_a_right_program_pass(capi):
    done = capi.run("checked.c", "none", NORMGRAD_CHECKED="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_pkg_config_and_cmake(capi, tmp_path):
    pkg_config, cmake = shutil.which("pkg-config"), shutil.which("cmake")
    if not pkg_config or not cmake:
        pytest.skip("there is no pkg-config or no cmake")
    where = f"PKG_CONFIG_PATH={capi.prefix}/lib/pkgconfig"
    source = HERE / "once.c"
    line = f"{where} pkg-config --cflags --libs normgrad-aclnn"
    flags = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
    program = tmp_path / "by-pkg-config"
    subprocess.run(["gcc", str(source), *flags.split(), "-lm", "-o", str(program)], check=True)
    assert execute(program).stdout == "right\n"
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(once C)\n"
        "find_package(normgrad-capi 0.1 REQUIRED)\n"
        f"add_executable(once {source})\n"
        "target_link_libraries(once normgrad::aclnn normgrad::infiniop m)\n"
    )
    options = [f"-DCMAKE_PREFIX_PATH={capi.prefix}", "-S", str(tmp_path), "-B", str(tmp_path / "b")]
    subprocess.run([cmake, *options], check=True, capture_output=True)
    subprocess.run([cmake, "--build", str(tmp_path / "b")], check=True, capture_output=True)
    assert execute(tmp_path / "b" / "once").stdout == "right\n"


def test_the_folder_may_be_moved_as_a_whole(capi, tmp_path):
    moved = shutil.copytree(capi.prefix, tmp_path / "moved", symlinks=True)
    texts = [path.read_text() for path in moved.glob("lib/*/**/*") if path.is_file()]
    assert len(texts) == 5
    assert not [text for text in texts if str(capi.prefix) in text]
    if not shutil.which("pkg-config"):
        pytest.skip("there is no pkg-config")
    line = f"PKG_CONFIG_PATH={moved}/lib/pkgconfig pkg-config --cflags --libs normgrad-aclnn"
    flags = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
    program = tmp_path / "once"
    line = ["gcc", str(HERE / "once.c"), *flags.split(), "-lm", "-o", str(program)]
    subprocess.run(line, check=True)
    assert execute(program).stdout == "right\n"
    loaded = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert str(moved) in loaded


def test_one_library_under_every_name(capi):
    real = {
        (capi.prefix / folder / name).resolve()
        for folder, names in build.LINKS.items()
        for name in names
    }
    assert real == {(capi.prefix / "lib64" / build.LIBRARY).resolve()}
    paths = [capi.prefix / "lib64" / "libopapi.so", capi.prefix / "lib" / "libinfiniop.so"]
    paths.append(capi.prefix / "lib" / "libinfinirt.so")
    program = capi.folder / "both"
    line = ["gcc", str(HERE / "both.c"), f"-I{capi.prefix}/include", "-ldl", "-o", str(program)]
    subprocess.run(line, check=True)
    done = execute(program, *map(str, paths))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
