"""The disk cache of kernels: what other processes, users or the disk do to it changes no kernel."""

import ctypes
import errno
import os
import tempfile

import pytest
from numba.core.caching import IndexDataCacheFile

from normgrad.backends.cpu import jit

if not jit.ENABLED:
    pytest.skip("nothing is compiled", allow_module_level=True)


def kernel(value):
    def task(address):
        return value

    return task


def result(value):
    """What the kernel of a value gives, compiled or from the cache."""
    made = jit.compiled(jit.HELPER_LOOP_SIGNATURE, kernel(value))
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(made.address)(0)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_a_user_without_a_home_has_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(jit.os.path, "expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    place = jit.cache_folder.__wrapped__()
    assert place is None or place.is_absolute()
    assert not list(tmp_path.iterdir())


def test_a_folder_stays_where_it_was_when_the_program_moves_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "here")
    assert jit.cache_folder.__wrapped__().parent == tmp_path / "here"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """No home, and a temporary folder of the test's own, where anybody can make folders."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(jit.os.path, "expanduser", lambda path: "/dev/null")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return shared


def ours(shared):
    return shared / f"normgrad-{os.getuid()}"


def test_without_a_home_the_folder_is_a_private_one_in_the_temporary_folder(elsewhere):
    place = jit.cache_folder.__wrapped__()
    assert place.parent == ours(elsewhere)
    assert [path.stat().st_mode & 0o777 for path in (place, place.parent)] == [0o700] * 2
    assert jit.cache_folder.__wrapped__() == place


def test_a_link_in_the_temporary_folder_is_not_followed(elsewhere, tmp_path):
    """Whoever made it may point it to files of his own, once it was looked at."""
    (tmp_path / "mine").mkdir(mode=0o700)
    ours(elsewhere).symlink_to(tmp_path / "mine")
    assert jit.cache_folder.__wrapped__() is None
    ours(elsewhere).unlink()
    place = jit.cache_folder.__wrapped__()
    place.rmdir()
    place.symlink_to(tmp_path / "mine")
    assert jit.cache_folder.__wrapped__() is None
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_can_write_is_not_used(elsewhere, mode):
    place = jit.cache_folder.__wrapped__()
    for level in (place, place.parent):
        level.chmod(mode)
        assert jit.cache_folder.__wrapped__() is None
        level.chmod(0o700)
    elsewhere.chmod(0o777)  # without the sticky bit anybody may move our folder away
    assert jit.cache_folder.__wrapped__() is None


def test_a_folder_of_somebody_else_is_not_used(elsewhere, monkeypatch):
    assert jit.cache_folder.__wrapped__() is not None
    found = ours(elsewhere)
    monkeypatch.setattr(jit.os, "getuid", lambda: 12345)
    found.rename(ours(elsewhere))
    assert jit.cache_folder.__wrapped__() is None


def test_a_link_on_the_way_is_resolved_at_once(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", str(tmp_path / "link" / "here"))
    assert jit.cache_folder.__wrapped__().parent == tmp_path / "real" / "here"


def test_all_folders_are_private_whatever_the_mask(tmp_path, monkeypatch):
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    before = os.umask(0)
    try:
        place = jit.cache_folder.__wrapped__()
        monkeypatch.setattr(jit, "cache_folder", lambda: place)
        assert result(5) == 5
    finally:
        os.umask(before)
    (kernel,) = place.iterdir()
    made = [kernel, *list(kernel.parents)[:4]]
    assert made[-1] == tmp_path / "home"
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 5


def test_a_home_of_everybody_is_not_used(elsewhere, tmp_path, monkeypatch):
    """As earlier versions made it under a mask of 0: anybody may move our folder away."""
    caches = tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    place = jit.cache_folder.__wrapped__()
    assert place.parent.parent == caches
    for mode, used in ((0o777, False), (0o1777, True), (0o775, True), (0o700, True)):
        caches.chmod(mode)
        assert (jit.cache_folder.__wrapped__() == place) is used, oct(mode)
        if not used:
            assert jit.cache_folder.__wrapped__().parent == ours(elsewhere)


def test_a_relative_folder_in_a_removed_directory_falls_back(elsewhere, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "here")
    assert jit.cache_folder.__wrapped__().parent == ours(elsewhere)


def test_two_processes_that_save_at_once_keep_their_kernels_apart(folder, monkeypatch):
    save = IndexDataCacheFile._save_data

    def after_another(self, name, data):
        # Another process has read the index before ours was there, and is done before we are.
        with monkeypatch.context() as other:
            other.setattr(IndexDataCacheFile, "_load_index", lambda self: {})
            other.setattr(IndexDataCacheFile, "_save_data", save)
            assert result(2) == 2
        save(self, name, data)

    with monkeypatch.context() as one:
        one.setattr(IndexDataCacheFile, "_save_data", after_another)
        assert result(1) == 1
    assert [result(1), result(2)] == [1, 2]


@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_file_that_was_cut_short_is_written_anew(folder, kind, size):
    assert result(3) == 3
    (damaged,) = folder.glob(f"**/*.{kind}")
    whole = damaged.stat().st_size
    with damaged.open("r+b") as file:
        file.truncate(size)
    assert result(3) == 3
    assert result(3) == 3
    assert damaged.stat().st_size == pytest.approx(whole, rel=0.1)


def test_a_full_disk_only_means_no_cache(folder, monkeypatch):
    def full(self, name, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "_save_data", full)
    assert [result(4), result(4)] == [4, 4]
