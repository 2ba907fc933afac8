"""Where the library finds Python, and what it says when it does not."""

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from normgrad import cli
from normgrad.capi import build, signatures

from .conftest import HERE, SRC, Library, execute, plain_environment

NO_PYTHON = 3  # once.c: every function has returned its status


def environments():
    activated = {**plain_environment(), "VIRTUAL_ENV": sys.prefix}
    activated["PATH"] = f"{sys.prefix}/bin:{activated.get('PATH', '')}"
    return {
        "activated": activated,
        "bare-path": {"PATH": "/usr/bin:/bin"},
        "empty": {},
        "bad-pythonhome": {"PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent"},
        "pythonhome-of-venv": {"PYTHONHOME": sys.prefix},
        "other-locale": {"LC_ALL": "C", "LANG": "de_DE.UTF-8"},
    }


@pytest.mark.parametrize("name", environments())
def test_starts_in_every_environment(capi, name):
    done = capi.run("once.c", environment=environments()[name])
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def refused(done, words):
    assert done.returncode == NO_PYTHON, done.stdout + done.stderr
    assert done.stdout.startswith("status 500000: ")
    assert words in done.stdout
    assert len(done.stderr.splitlines()) == 1  # said once, however many calls fail
    assert words in done.stderr


def test_interpreter_that_is_not_there(capi):
    done = capi.run("once.c", NORMGRAD_PYTHON="/nonexistent/python")
    refused(done, "there is no interpreter /nonexistent/python")


def test_missing_package(capi, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_roots", lambda: [str(SRC)])
    build.build(tmp_path / "prefix")
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    done = Library(tmp_path / "prefix", tmp_path).run("once.c", NORMGRAD_PYTHON=str(python))
    refused(done, "ModuleNotFoundError: No module named")


def test_packages_that_only_the_builder_could_see(capi, tmp_path):
    """As with PYTHONPATH at the time of the build."""
    venv.create(tmp_path / "bare", with_pip=False)
    done = capi.run("once.c", NORMGRAD_PYTHON=str(tmp_path / "bare" / "bin" / "python"))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_another_version_of_normgrad(capi, tmp_path, monkeypatch):
    monkeypatch.setattr(signatures, "digest", lambda: "of-another-tree")
    build.build(tmp_path / "prefix")
    done = Library(tmp_path / "prefix", tmp_path).run("once.c")
    refused(done, "run 'normgrad build-capi'")


def test_another_version_of_python(capi, tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_python_version", lambda: "3.99")
    build.build(tmp_path / "prefix")
    done = Library(tmp_path / "prefix", tmp_path).run("once.c")
    refused(done, "the library was built for Python 3.99")


def test_libpython_that_is_gone(capi, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "libpython", lambda: Path("/nonexistent/libpython3.so"))
    build.build(tmp_path / "prefix")
    done = Library(tmp_path / "prefix", tmp_path).run("once.c")
    refused(done, "cannot load Python")


def test_a_library_that_was_copied_alone(capi, tmp_path):
    program = tmp_path / "once"
    shutil.copy(capi.prefix / "lib64" / build.LIBRARY, tmp_path / "libascendcl.so")
    flags = [f"-I{capi.prefix}/include", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    line = ["gcc", str(HERE / "once.c"), *flags, "-lascendcl", "-lm", "-o", str(program)]
    subprocess.run(line, check=True)
    refused(execute(program), "is missing: run 'normgrad build-capi'")


def other_pythons():
    here = sysconfig.get_python_version()
    homes = [Path.home() / ".pyenv" / "versions", Path("/usr/bin"), Path("/usr/local/bin")]
    found = {}
    for minor in range(8, 16):
        name = f"python3.{minor}"
        places = [*homes[0].glob(f"3.{minor}.*/bin/{name}"), homes[1] / name, homes[2] / name]
        for place in places:
            if place.exists() and f"3.{minor}" != here:
                found[f"3.{minor}"] = place
    return found


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_a_python_of_another_version_is_told(capi, version):
    found = other_pythons().get(version)
    if found is None:
        pytest.skip(f"there is no Python {version} on this machine, or it is our own")
    script = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(l.infinirtInit())"
    library = capi.prefix / "lib" / "libinfinirt.so"
    done = execute(found, "-c", script, str(library))
    assert done.stdout == "1\n"
    assert f"this process runs Python {version}" in done.stderr


CTYPES = """
import ctypes, sys, torch
lib = ctypes.CDLL(sys.argv[1] + "/lib/libinfiniop.so")
rt = ctypes.CDLL(sys.argv[1] + "/lib/libinfinirt.so")
P, Z = ctypes.c_void_p, ctypes.c_size_t

class Handle(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int), ("device_id", ctypes.c_int)]

def ok(status):
    assert status == 0, status

ok(rt.infinirtInit())
handle, desc, size = ctypes.POINTER(Handle)(), ctypes.POINTER(Handle)(), Z()
ok(lib.infiniopCreateHandle(ctypes.byref(handle)))
assert (handle.contents.device, handle.contents.device_id) == (0, 0)
torch.manual_seed(0)
x = torch.randn(5, 3, 7) * 3 + 100
dy = torch.randn(5, 3, 7)
weight = torch.randn(3)
mean, var = x.mean((0, 2)), x.var((0, 2), unbiased=False)
out = [torch.full_like(x, float("nan")), torch.full_like(weight, float("nan")),
       torch.full_like(weight, float("nan"))]
tensors = [*out, x, dy, weight, mean, var]
descs = []
for tensor in tensors:
    made = P()
    shape = (Z * tensor.dim())(*tensor.shape)
    steps = (ctypes.c_ssize_t * tensor.dim())(*tensor.stride())
    ok(lib.infiniopCreateTensorDescriptor(ctypes.byref(made), Z(tensor.dim()), shape, steps, 13))
    descs.append(made)
ok(lib.infiniopCreateBatchNormBackwardDescriptor(handle, ctypes.byref(desc), *descs))
ok(lib.infiniopGetBatchNormBackwardWorkspaceSize(desc, ctypes.byref(size)))
scratch = torch.empty(max(size.value, 1), dtype=torch.uint8)
ok(lib.infiniopBatchNormBackward(desc, P(scratch.data_ptr()), size,
   *[P(tensor.data_ptr()) for tensor in tensors], None))
wide = x.double().requires_grad_()
w, b = weight.double().requires_grad_(), torch.zeros(3, dtype=torch.double, requires_grad=True)
torch.nn.functional.batch_norm(wide, None, None, w, b, True, 0.0, 1e-12).backward(dy.double())
for got, want in zip(out, (wide.grad, w.grad, b.grad)):
    torch.testing.assert_close(got.double(), want, rtol=2e-4, atol=2e-4)
# The same interpreter: the library's Python side is a module of this very process.
assert "normgrad.capi.bridge" in sys.modules
# A caller that holds the GIL, on purpose, does not lock up.
held = ctypes.PyDLL(sys.argv[1] + "/lib/libinfinirt.so")
assert held.infinirtDeviceSynchronize() == 0
print("right")
"""


def test_torch_tensors_by_ctypes_in_one_interpreter(capi):
    pytest.importorskip("torch")
    done = execute(Path(sys.executable), "-c", CTYPES, str(capi.prefix), PYTHONPATH=str(SRC))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


HELD = """
import ctypes, sys, threading
lib = ctypes.PyDLL(sys.argv[1] + "/lib/libinfinirt.so")
threads = [threading.Thread(target=lib.infinirtInit) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(lib.infinirtInit())
"""


def test_first_call_by_threads_that_hold_the_lock(capi):
    done = execute(Path(sys.executable), "-c", HELD, str(capi.prefix))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


ELSEWHERE = """
import ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored: make test &
os.chdir(sys.argv[1])
lib = ctypes.CDLL("lib/libinfinirt.so")
os.chdir("/")
print(lib.infinirtInit())
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # it is not our Python
"""


def test_a_program_that_moves_on_before_its_first_call(capi):
    """The library's path was relative, and leads nowhere any more."""
    done = execute(Path(sys.executable), "-c", ELSEWHERE, str(capi.prefix))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.parametrize("asked", [False, True])
def test_flags_need_a_build(asked, tmp_path):
    """In the folder that was asked for: the command that is told makes the error go away."""
    option = ["--prefix", str(tmp_path)] if asked else []
    line = [sys.executable, "-m", "normgrad", "capi-flags", *option]
    environment = {"PYTHONPATH": str(SRC)}
    if not asked:
        environment["NORMGRAD_CAPI_PREFIX"] = str(tmp_path)
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert f"run '{' '.join(['normgrad build-capi', *option])}' first" in done.stderr


def test_build_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="there is no C compiler"):
        build.build(tmp_path)
    with pytest.raises(build.BuildError, match="must have no spaces"):
        build.build(tmp_path / "a folder")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/nonexistent/cc -m64", "there is no program '/nonexistent/cc'"),
        ("cc '", "No closing quotation"),
    ],
)
def test_a_compiler_that_is_none_is_named(command, words, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", command)
    named = re.escape(repr(command))
    with pytest.raises(build.BuildError, match=f"^CC must be .*{named}.*{words}"):
        build.build(tmp_path)


@pytest.mark.parametrize("letter", [",", ":", ";", "'", '"', "\\"])
def test_a_prefix_that_would_break_flags_is_refused(letter, tmp_path, capsys):
    prefix = str(tmp_path / f"a{letter}b")
    for verb in ("build-capi", "capi-flags"):
        assert cli.main([verb, "--prefix", prefix]) == 2
        assert "the prefix must have no spaces and none of ,:;" in capsys.readouterr().err
    assert not Path(prefix).exists()


@pytest.mark.parametrize("verb", ["build-capi", "capi-flags"])
def test_a_prefix_that_is_a_file_is_refused(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "compiler", lambda: pytest.fail("something was compiled"))
    path = tmp_path / "libraries"
    path.touch()
    assert cli.main([verb, "--prefix", str(path)]) == 2
    assert "the prefix must be a directory, or none yet, got a file" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["build-capi", "capi-flags"])
def test_an_empty_prefix_is_not_this_folder(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "build", lambda *_: pytest.fail("something was built"))
    with pytest.raises(SystemExit) as caught:
        cli.main([verb, "--prefix", ""])
    assert caught.value.code == 2
    assert "--prefix must name a directory, got ''" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["build-capi", "capi-flags"])
def test_a_user_without_a_home_is_asked_for_a_prefix(verb, tmp_path, monkeypatch, capsys):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.delenv("NORMGRAD_CAPI_PREFIX", raising=False)
    monkeypatch.setattr(build, "build", lambda *_: None)
    assert cli.main([verb]) == 2
    assert capsys.readouterr().err == (
        f"normgrad {verb}: this user has no home directory: give --prefix DIR, or set "
        "NORMGRAD_CAPI_PREFIX\n"
    )
    assert cli.main([verb, "--prefix", str(tmp_path)]) == (0 if verb == "build-capi" else 2)
    assert f"--prefix {tmp_path}" in "".join(capsys.readouterr())


def test_a_build_without_cffi_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cffi", None)  # an import of it raises
    monkeypatch.setattr(build, "compiler", lambda: ["cc"])
    monkeypatch.setattr(build, "_run", lambda command: pytest.fail("something was compiled"))
    with pytest.raises(build.BuildError, match=r"cffi is missing .*: pip install cffi"):
        build.build(tmp_path / "prefix")
    assert not (tmp_path / "prefix").exists()


def test_a_build_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def only_the_library(command):
        target = Path(command[command.index("-o") + 1])
        if target.name != build.LIBRARY:
            raise build.BuildError("the module does not compile")
        target.touch()

    pytest.importorskip("cffi")
    monkeypatch.setattr(build, "_run", only_the_library)
    monkeypatch.setattr(build, "compiler", lambda: ["cc"])
    with pytest.raises(build.BuildError, match="the module does not compile"):
        build.build(tmp_path / "prefix")
    assert not (tmp_path / "prefix").exists()


def contents(prefix):
    """What every file of a folder holds, and what every link says."""
    found = sorted(path for path in prefix.rglob("*") if path.is_symlink() or path.is_file())
    return {p: p.readlink() if p.is_symlink() else (p.read_bytes(), p.stat().st_ino) for p in found}


@pytest.mark.parametrize("obstacle", ["file for a folder", "folder for a file", "no copy"])
def test_an_install_that_fails_leaves_what_was_there(tmp_path, obstacle):
    library, module = tmp_path / build.LIBRARY, tmp_path / "module.so"
    prefix = tmp_path / "prefix"
    library.write_text("old")
    module.write_text("old")
    build._install(prefix, library, module)
    (prefix / "include" / "infiniop.h").write_text("old")
    if obstacle == "file for a folder":
        (prefix / "lib64" / "normgrad" / "module.so").unlink()
        (prefix / "lib64" / "normgrad").rmdir()
        (prefix / "lib64" / "normgrad").touch()
    elif obstacle == "folder for a file":
        (prefix / "lib" / "libinfiniop.so").unlink()
        (prefix / "lib" / "libinfiniop.so").mkdir()
    else:
        library.unlink()  # what cannot be copied
    before = contents(prefix)
    module.write_text("new")
    with pytest.raises((OSError, build.BuildError), match=r"normgrad|libinfiniop"):
        build._install(prefix, library, module)
    assert contents(prefix) == before
    assert not list(prefix.glob(".*"))
