"""A vendor's C library through its C interface: numbers and statuses by the same contract."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from normgrad.core.errors import NormgradError, OptionError
from normgrad.verify.clib.job import Job
from normgrad.verify.foreign import Outcome


class Tester(Protocol):
    """An opened library."""

    def run(self, job: Job, seed: int) -> Outcome:
        """One job."""
        ...


def jobs(path: Path, ops: Sequence[str] | None, dtypes: Sequence[str] | None) -> list[Job]:
    """Everything that a library is asked, without loading it."""
    if _kind(path) == "infiniop":
        from normgrad.verify.clib import infiniop

        listed = infiniop.jobs(path.name)
    else:
        from normgrad.verify.clib import aclnn

        listed = aclnn.jobs(path.name)
    return [
        job
        for job in listed
        if (ops is None or job.blank.op in ops)
        and (dtypes is None or {job.blank.dtype, job.dtype} & set(dtypes))
    ]


def blanks(path: Path, ops: Sequence[str] | None, dtypes: Sequence[str] | None) -> list[Outcome]:
    """What to report of each job until it has run."""
    found = [job.blank for job in jobs(path, ops, dtypes)]
    if not found:
        raise OptionError("the options", "must leave at least one case for the library", "none")
    return found


def worker(
    path: Path, ops: Sequence[str] | None, dtypes: Sequence[str] | None, seed: int
) -> Callable[[int], Outcome]:
    """Load the library, in the process that may crash."""
    listed = jobs(path, ops, dtypes)
    try:
        tester = _opened(path)
    except (OSError, AttributeError, RuntimeError) as error:  # no library, no symbol, no success
        rule = "must be a library that loads, and whose runtime starts"
        raise OptionError("--lib", rule, error) from error
    return lambda index: tester.run(listed[index], seed)


def _opened(path: Path) -> Tester:
    if _kind(path) == "infiniop":
        from normgrad.verify.clib import infiniop

        return infiniop.Infiniop(path)
    from normgrad.verify.clib import aclnn

    return aclnn.Aclnn(path)


def _kind(path: Path) -> str:
    """Which interface is meant, by the file's name or else by the symbols in it.

    One file may hold both: ours do.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NormgradError(f"--lib: there is no file {path}") from None
    except OSError as error:
        raise OptionError("--lib", "must be a shared library that can be read", error) from error
    has = {
        "infiniop": b"infiniopCreateBatchNormBackwardDescriptor" in content,
        "aclnn": b"aclnnLayerNormBackward" in content or b"aclnnBatchNormBackward" in content,
    }
    if path.name.startswith("libopapi") and has["aclnn"]:
        return "aclnn"
    for name, found in has.items():
        if found:
            return name
    rule = "must export infiniopBatchNormBackward or aclnn's backward operators"
    raise OptionError("--lib", rule, path)
