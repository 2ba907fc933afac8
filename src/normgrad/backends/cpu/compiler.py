"""Numba's compiler as kernels use it: the steps that they need, and LLVM once for a kernel.

Numba optimizes all that it compiles on its own, and emits machine code of it, then again inside of
whatever calls it. Our parts are called by kernels alone: those take them, simplified.
"""

import functools
import operator
from types import ModuleType
from typing import Any

from numba.core import analysis, compiler, ir, ir_utils, ssa, typed_passes, typing
from numba.core import types as _types
from numba.core import untyped_passes as untyped
from numba.core.codegen import JITCodeLibrary
from numba.core.runtime.nrt import rtsys
from numba.core.typing.templates import ConcreteTemplate
from numba.extending import models, register_model

types: Any = _types  # names that mypy does not see


class _Library(JITCodeLibrary):
    """Instructions of a function, and of all that it calls."""

    def add_linking_library(self, library: Any) -> None:
        """Also what that one needs; nothing of Numba's counting of references."""
        if library is not rtsys.library:
            for one in (*getattr(library, "_linking_libraries", ()), library):
                if one not in self._linking_libraries:
                    super().add_linking_library(one)


class _Part(_Library):
    """Instructions, simplified alone, that a kernel takes and optimizes."""

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


class _Operator(types.Function):
    """An operator of Python, which is looked up once for each pair of types: Numba takes 0.3 ms."""

    def __init__(self, function: Any) -> None:
        super().__init__(function.templates)
        self._found: dict[Any, Any] = {}

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature for some types; a constant is a number as others."""
        plain = tuple(types.unliteral(one) for one in args)
        if all(isinstance(one, types.Number) for one in plain):
            args = plain
        if args not in self._found:
            found = self._of_numbers(context, args) if args is plain else None
            self._found[args] = found or super().get_call_type(context, args, kws)
        return self._found[args]

    def _of_numbers(self, context: Any, args: Any) -> Any:
        for one in self.templates:
            if issubclass(one, ConcreteTemplate):
                template = one(context)
                found = template.apply(args, {})
                if found is not None:
                    self._impl_keys[found.args] = template.get_impl_key(found)
                    return found
        return None


register_model(_Operator)(models.OpaqueModel)

# Types of functions of Python: operators that were met, and those that kernels have in the place of
# what Numba would compile.
OWN: dict[Any, Any] = {}


class _Typing(typing.Context):
    """Numba's own, with those operators and functions."""

    def __init__(self, context: Any) -> None:
        self.__dict__ = context.__dict__  # all that it knows, and learns

    def resolve_value_type(self, val: Any) -> Any:
        """The type of a value."""
        is_operator = getattr(val, "__module__", None) == "_operator"
        if not (is_operator or val is bool or val is min):
            return super().resolve_value_type(val)
        if val not in OWN:
            OWN[val] = _Operator(super().resolve_value_type(val))
        return OWN[val]

    def resolve_static_getitem(self, value: Any, index: Any) -> Any:
        """Nothing for pointers, which take any index."""
        if isinstance(value, types.CPointer):
            return None
        return super().resolve_static_getitem(value, index)


_typing = functools.cache(_Typing)


class _Steps:
    """From Python to LLVM's instructions, without what concerns Python's objects and arrays."""

    pipeline_name = "normgrad"
    exec_times: dict[str, float] = {}  # noqa: RUF012 (Numba asks for it)

    def run(self, state: Any) -> None:
        """Of one function."""
        untyped.TranslateByteCode().run_pass(state)
        untyped.FixupArgs().run_pass(state)
        function = state.func_ir
        function.generator_info = None
        _fold_constants(function)
        analysis.rewrite_semantic_constants(function, state.args)
        analysis.dead_branch_prune(function, state.args)
        state.func_ir = function = ssa.reconstruct_ssa(function)
        function._definitions = ir_utils.build_definitions(function.blocks)
        analysis.dead_branch_prune(function, state.args)
        typed_passes.NopythonTypeInference().run_pass(state)
        state.func_ir = typed_passes.PreLowerStripPhis()._strip_phi_nodes(function)
        state.type_annotation = None
        typed_passes.NativeLowering().run_pass(state)
        typed_passes.NoPythonBackend().run_pass(state)


def _fold_constants(function: Any) -> None:
    """Make numbers that modules name, and their sums, numbers.

    A kernel is full of slots of its parameter block; Numba would type and write each step to one.
    """
    for block in function.blocks.values():
        known: dict[str, Any] = {}
        spent: set[str] = set()
        for one in block.body:
            if isinstance(one, ir.Assign) and one.target.name.startswith("$"):
                _fold(one, known, spent)
                if one.target.name in known:
                    function._definitions[one.target.name] = [one.value]
        block.body = [
            one
            for one in block.body
            if not (isinstance(one, ir.Assign) and one.target.name in spent)
        ]


def _fold(one: Any, known: dict[str, Any], spent: set[str]) -> None:
    """An instruction: what it gives if that is known, and what is needed no more then."""
    value = one.value
    if isinstance(value, ir.Global | ir.Const):
        if isinstance(value.value, ModuleType) or type(value.value) is int:
            known[one.target.name] = value.value
        return
    if not isinstance(value, ir.Expr):
        return
    operands: list[Any] = []
    if value.op == "getattr":
        operands = [value.value]
    elif value.op == "binop" and value.fn is operator.add:
        operands = [value.lhs, value.rhs]
    elif value.op == "getitem" and type(known.get(value.index.name)) is int:  # of a tuple
        index = known[value.index.name]
        one.value = ir.Expr.static_getitem(value.value, index, value.index, value.loc)
    if not operands or any(each.name not in known for each in operands):
        return
    numbers = [known[each.name] for each in operands]
    found = sum(numbers) if len(numbers) == 2 else getattr(numbers[0], value.attr)
    if type(found) is int:
        spent.update(each.name for each in operands)
        one.value = ir.Const(found, one.loc, use_literal_type=False)
        known[one.target.name] = found


class PartCompiler(compiler.CompilerBase):
    """For what kernels call."""

    _library: type[_Library] = _Part

    def compile_extra(self, func: Any) -> Any:
        """With a library of ours."""
        state = self.state
        state.library = self._library(state.targetctx.codegen(), func.__qualname__)
        state.library.enable_object_caching()
        state.typingctx = state.targetctx.typing_context = _typing(state.typingctx)
        return super().compile_extra(func)

    def define_pipelines(self) -> list[_Steps]:
        """One."""
        return [_Steps()]


class KernelCompiler(PartCompiler):
    """For a task."""

    _library = _Kernel
