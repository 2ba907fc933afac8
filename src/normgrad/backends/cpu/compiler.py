"""Numba's compiler as kernels use it: fewer passes, and LLVM's once for all parts of a kernel.

Numba optimizes what it compiles on its own, and emits machine code of it, then again inside of
whatever calls it. A part of ours is called by kernels alone.
"""

from typing import Any

from numba.core import compiler, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager
from numba.core.runtime.nrt import rtsys

_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    untyped_passes.DeadBranchPrune,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _Library(JITCodeLibrary):
    """Instructions of a function, and of all that it calls."""

    def add_linking_library(self, library: Any) -> None:
        """Also what that one needs; nothing of Numba's counting of references."""
        if library is not rtsys.library:
            for one in (*getattr(library, "_linking_libraries", ()), library):
                if one not in self._linking_libraries:
                    super().add_linking_library(one)


class _Part(_Library):
    """Instructions that a kernel optimizes."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """They stay as they are."""
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """What Numba tells of Python's objects; a part has none."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Nothing to tell."""


class _Kernel(_Library):
    """Machine code with a C address."""

    def finalize(self) -> None:
        """Callers first: LLVM takes what somebody calls."""
        self._linking_libraries.reverse()
        super().finalize()

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        with self._recorded_timings.record("Module passes", builder):
            passes.run(self._final_module, builder)


class PartCompiler(compiler.CompilerBase):
    """For what kernels call."""

    _library: type[_Library] = _Part

    def compile_extra(self, func: Any) -> Any:
        """With a library of ours."""
        library = self._library(self.state.targetctx.codegen(), func.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(func)

    def define_pipelines(self) -> list[PassManager]:
        """One."""
        passes = PassManager("normgrad")
        for one in _PASSES:
            passes.add_pass(one)
        passes.finalize()
        self.state.type_annotation = None
        return [passes]


class KernelCompiler(PartCompiler):
    """For a task."""

    _library = _Kernel
