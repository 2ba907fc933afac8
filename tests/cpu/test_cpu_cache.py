"""The disk cache of kernels: what other processes do to it, or the disk, changes no kernel."""

import ctypes
import errno

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
    made = jit.compiled(jit.ATTEND_SIGNATURE, kernel(value))
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
