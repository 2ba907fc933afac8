"""Threads, processes, caches: same bits everywhere and no way to hang or crash."""

import multiprocessing
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from cpu_digest import digest

from neutral import neutral
from normgrad import functional
from normgrad.backends.cpu.threads import pool, team
from normgrad.core.cpu_count import cores

DIGEST = str(Path(__file__).parent / "cpu_digest.py")

# Every operator and layout on small data; a kernel that leaves its memory raises IndexError.
NO_COMPILER = """
from normgrad import verify
from normgrad.backends.cpu import jit
assert not jit.ENABLED
ran = 0
for case in verify.CASES:
    for dtype in ("bfloat16", "float32"):
        if case.id in ("ragged-long", "long-row", "long-batch", "many-rows") and dtype != "float32":
            continue
        problem = verify.make_problem(case, dtype)
        measured = verify.judge(problem, verify.run_backend(problem, "cpu"))
        assert all(one.ok for one in measured), (case.name, dtype, measured)
        ran += 1
print(ran)
"""


@pytest.mark.slow(14)
def test_every_thread_count_gives_the_same_bits(python):
    counts = ("1", "2", "3", "8")
    found = {count: python(DIGEST, NORMGRAD_NUM_THREADS=count) for count in counts}
    assert len(set(found.values())) == 1, found


@pytest.mark.slow(16)
def test_without_the_compiler_every_access_is_in_bounds(python):
    assert int(python("-c", NO_COMPILER, NUMBA_DISABLE_JIT="1")) > 300


def test_the_checked_memory_sees_a_bad_access(python):
    program = """
import numpy as np
from normgrad.backends.cpu.vectors import checked
from normgrad.backends.cpu.vectors.formats import F32
data = np.zeros(16, np.float32)
start = data.ctypes.data
with checked.memory([(start, start + 64)], []):
    checked.load(F32, start)
    for call in (lambda: checked.load(F32, start + 4), lambda: checked.store(F32, start, data)):
        try:
            call()
        except IndexError as error:
            print(error)
"""
    assert python("-c", program, NUMBA_DISABLE_JIT="1").count("outside of what it was given") == 2


@pytest.mark.slow(9)
def test_a_processor_without_16_bit_instructions(python):
    arguments = ("-m", "normgrad", "check", "--backend", "cpu", "--op", "layer_norm_backward")
    printed = python(*arguments, "--dtype", "float16", NUMBA_CPU_NAME="generic")
    assert " 0 failed" in printed or " cases right" in printed, printed


def test_several_threads_call_at_once(monkeypatch):
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "3")
    want = digest()
    found = [""] * 4

    def work(index):
        found[index] = digest()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [want] * 4


def test_short_calls_share_the_helpers(monkeypatch):
    # Callers meet helpers that wake, work, are late or belong to another caller.
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "3")
    rng = np.random.default_rng(3)
    dy, x = (rng.standard_normal((1024, 256)).astype(np.float32) for _ in range(2))
    want = [
        array.tobytes()
        for array in functional.batch_norm_backward(dy, x, *neutral(x), backend="cpu")[:3]
    ]
    wrong = []

    def work():
        for _ in range(150):
            got = functional.batch_norm_backward(dy, x, *neutral(x), backend="cpu")
            if [array.tobytes() for array in got[:3]] != want:
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def _send(pipe):
    pipe.send(digest())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_processes(method, monkeypatch):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "2")
    monkeypatch.setattr(team.TEAM.turns, "left", 1000)  # torch's threads would do its work
    want = digest()  # the parent has helpers by now
    assert pool.POOL.helpers >= 1
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_send, args=(theirs,))
    child.start()
    assert ours.poll(120), "the child did not answer"
    assert ours.recv() == want
    child.join(20)
    assert child.exitcode == 0


def test_beside_torch_threads(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "2")
    want = digest()
    data = torch.randn(512, 512)
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            torch.mm(data, data)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert digest() == want
    finally:
        stop.set()
        thread.join(20)


@pytest.mark.parametrize("rows", [9, 3000])  # in the caller alone, with helpers or torch's threads
@pytest.mark.parametrize("teams", [0, 1000])
def test_a_caller_who_flushes_subnormals_gets_the_same_bits(rows, teams, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "2")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, 100)).astype(np.float32)
    dy = (1e-39 * rng.standard_normal(x.shape)).astype(np.float32)
    line = np.ones(rows, np.float32)

    def bits():
        monkeypatch.setattr(team.TEAM.turns, "left", teams)
        found = functional.layer_norm_backward(dy, x, line, line, 100)
        return [one.tobytes() for one in found[:3]]

    want = bits()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        assert bits() == want
        assert not (torch.tensor(1e-39) * 1).item()  # the caller's mode is as it was
    finally:
        torch.set_flush_denormal(False)


# What is compiled soonest: 2 s, other requests 4 to 9.
SMALL = """
import numpy as np
from normgrad import functional
from normgrad.backends.cpu import jit
x, ones = np.arange(4, dtype=np.float32).reshape(2, 2), np.ones(2, np.float32)
options = dict(training=False, eps=3, output_mask=(True, False, False), backend="cpu")
found = functional.batch_norm_backward(x, x, ones, variance=ones, **options)
print(found.grad_input.tolist(), jit.cache_folder())
"""
SMALL_RESULT = "[[0.0, 0.5], [1.0, 1.5]]"


def test_a_read_only_home_still_works(python, tmp_path):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / ".cache").write_text("a file where a folder should be")  # holds for root too
    settings = {"HOME": str(home), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""}
    for _ in range(2):  # cold, then from the cache
        printed = python("-c", SMALL, TMPDIR=str(temporary), **settings)
        assert printed.startswith(SMALL_RESULT)
        assert str(temporary) in printed
    (folder,) = temporary.glob("normgrad-*/normgrad-cpu-*")
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
    assert list(folder.glob("**/*.nbi"))


def test_nowhere_to_cache_still_works(python, tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    folders = {"HOME": str(nowhere), "XDG_CACHE_HOME": "", "NUMBA_CACHE_DIR": ""}
    program = f"import tempfile; tempfile.gettempdir = lambda: {str(nowhere)!r}" + SMALL
    assert python("-c", program, **folders).startswith(f"{SMALL_RESULT} None")


@pytest.mark.slow(10)
def test_a_cache_that_others_can_write_is_not_used(python, tmp_path):
    first = python("-c", SMALL, NUMBA_CACHE_DIR=str(tmp_path))
    folder = Path(first.split("]] ")[1].strip())
    assert folder.parent == tmp_path
    folder.chmod(0o777)
    second = python("-c", SMALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert str(folder) not in second


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"NORMGRAD_NUM_THREADS": "1"}, 1),
        ({"NORMGRAD_NUM_THREADS": "2"}, 2),
        ({"NORMGRAD_NUM_THREADS": "1000000"}, 4 * cores()),
        ({"NUMBA_NUM_THREADS": "1"}, 1),
        ({"NORMGRAD_NUM_THREADS": "zero"}, min(cores(), os.cpu_count())),
    ],
    ids=["ours-1", "ours-2", "ours-too-many", "numba", "not-a-number"],
)
def test_the_number_of_threads(python, settings, expected):
    program = "from normgrad.backends.cpu.threads import pool; print(pool.thread_count())"
    assert int(python("-c", program, **settings)) == expected


@pytest.mark.parametrize(("wish", "lines"), [("zero", 1), ("-1", 1), ("2.5", 1), ("2", 0), ("", 0)])
def test_a_number_of_threads_that_is_none_is_told_once(monkeypatch, capfd, wish, lines):
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", wish)
    pool._complain.cache_clear()
    assert pool.thread_count() == pool.thread_count() >= 1
    told = capfd.readouterr().err
    words = f"NORMGRAD_NUM_THREADS must be a number of threads, got '{wish}', which is ignored"
    assert told == f"normgrad: {words}\n" * lines
