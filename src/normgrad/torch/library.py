"""The operator library ``normgrad`` and how an operator of ours gets into torch's dispatcher."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad

from normgrad.core.errors import DeviceError
from normgrad.core.spec import TensorSpec, dense_like
from normgrad.core.validate import MAX_RANK
from normgrad.torch.tangents import push_forward, save_call

Tensor = torch.Tensor
Three = tuple[Tensor | None, Tensor | None, Tensor | None]


def open_library(namespace: str, kind: str) -> Any:
    """A ``torch.library.Library``, whose methods torch leaves untyped."""
    return torch.library.Library(namespace, kind)


LIBRARY: Final[Any] = open_library("normgrad", "DEF")
NARROW: Final = (torch.float16, torch.bfloat16)
_KERNELS: Final[dict[str, dict[str, Callable[..., Any]]]] = {}  # by operator, then by dispatch key


def keys_of(*names: str) -> int:
    """A set of dispatch keys, as a number."""
    key_set: Any = torch._C.DispatchKeySet
    sets = [key_set(torch._C._parse_dispatch_key(name)) for name in names]
    number: int = functools.reduce(operator.or_, sets).raw_repr()
    return number


def define(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    layout: torch.Tag = torch.Tag.flexible_layout,
) -> None:
    """Declare ``normgrad::name`` with one kernel for CPU and CUDA, and its shapes without data.

    ``fake`` gets every argument of the schema, ``kernel`` what the dispatcher hands it. ``layout``
    is how a compiler is to lay out the operands: as it likes, since any strides do.
    """
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag, layout))
    kernels = {"CPU": kernel, "CUDA": on_own_device(kernel)}
    for key, one in kernels.items():
        LIBRARY.impl(name, one, key)
    _KERNELS[name] = kernels
    torch.library.register_fake(f"normgrad::{name}", on_one_device(name, fake), lib=LIBRARY)


def arguments_of(name: str) -> list[Any]:
    """The arguments of ``normgrad::name`` in its schema."""
    arguments: list[Any] = getattr(torch.ops.normgrad, name).default._schema.arguments
    return arguments


def completion(name: str) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Fills in the defaults that the dispatcher leaves out of an operator's arguments."""
    defaults = tuple(argument.default_value for argument in arguments_of(name))
    return lambda args: (*args, *defaults[len(args) :])


def _below_autograd(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args)

    return call


def _transformable(
    name: str,
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., tuple[Any, ...]],
    batched: Callable[..., tuple[Any, Any]] | None,
    pure: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None,
) -> Any:
    """An operator as a function in the form that torch.func's transforms ask for."""
    op = getattr(torch.ops.normgrad, name).default
    complete = completion(name)

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        if batched is None:
            msg = f"normgrad::{name} has no rule for torch.func.vmap"
            raise NotImplementedError(msg)
        args = complete(args)
        padded = (*in_dims, *(None,) * (len(args) - len(in_dims)))
        return batched(info.batch_size, padded, *args)

    def setup_both(ctx: Any, args: tuple[Any, ...], results: Any) -> None:
        setup(ctx, args, results)
        if pure is not None:
            save_call(ctx, pure(complete(args)), results)

    rules: dict[str, Any] = {
        "forward": staticmethod(_below_autograd(op)),
        "setup_context": staticmethod(setup_both),
        "backward": staticmethod(backward),
        "vmap": staticmethod(vmap),
    }
    if pure is not None:
        rules["jvp"] = staticmethod(functools.partial(push_forward, op))
    return type(f"normgrad_{name}_transformable", (torch.autograd.Function,), rules)


def differentiable(
    name: str,
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., tuple[Any, ...]],
    batched: Callable[..., tuple[Any, Any]] | None = None,
    pure: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
) -> None:
    """Give an operator its derivative, and its rule under ``torch.func.vmap``.

    ``pure`` gives the arguments with which a second call has the same results and writes nothing;
    forward-mode differentiation makes one. Without it that mode is an error.

    ``torch.library.register_autograd`` would not do: its function has no setup_context, which
    ``torch.func.grad`` asks for, and it takes no operator that updates buffers.
    """
    op = getattr(torch.ops.normgrad, name).default
    complete = completion(name)
    # Two functions with one meaning: torch.func's transforms ask for the first form, whose apply
    # looks at signatures for 40 us each time.
    transformable = _transformable(name, setup, backward, batched, pure)

    def roads(kernel: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
        run = _below_autograd(kernel)

        def forward_and_setup(ctx: Any, *args: Any) -> Any:
            results = run(*args)
            setup(ctx, args, results)
            return results

        members = {"forward": staticmethod(forward_and_setup), "backward": staticmethod(backward)}
        return run, type(f"normgrad_{name}", (torch.autograd.Function,), members)

    # Straight to the kernel of plain tensors: the dispatcher takes 2 to 4 us to come there. A call
    # under any mode, or of a wrapper, has more keys.
    straight = {
        keys_of(key, f"Autograd{key}"): roads(kernel) for key, kernel in _KERNELS[name].items()
    }
    redispatched = roads(op)

    def autograd(keyset: Any, *args: Any) -> Any:
        args = complete(args)
        if forward_ad._current_level >= 0:  # a tangent asks for no grad mode
            return transformable.apply(*args)
        run, function = straight.get(keyset.raw_repr(), redispatched)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return function.apply(*args)
        return run(*args)

    def transformed(*args: Any) -> Any:
        return transformable.apply(*complete(args))

    LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    # Inside torch.func's transforms the function itself is what they know how to take apart.
    LIBRARY.impl(name, transformed, "FuncTorchDynamicLayerFrontMode")


# What every call has, outside of inference mode and in it; traces, transforms and modes add theirs.
_BY_DEFAULT: Final = (keys_of("BackendSelect", "ADInplaceOrView"), keys_of("BackendSelect"))


def nobody_looks(input: Tensor) -> bool:
    """Whether a call on this will not be differentiated, traced or transformed."""
    return not (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or input.__class__ is not Tensor
        or torch._C._dispatch_tls_local_include_set().raw_repr() not in _BY_DEFAULT
    )


_PLAIN: Final = frozenset(
    (Tensor, torch.nn.Parameter, type(None), list, tuple, bool, int, float, str)
)


def shortcut(name: str) -> Callable[..., Any]:
    """The operator, for who may not be looked at: by its kernel where it would do no more.

    Past the dispatcher: a small layer norm's training step takes 95 us instead of 103.
    """
    op = getattr(torch.ops.normgrad, name).default
    complete = completion(name)
    kernels = {
        keys_of(key, f"Autocast{key}", *more): kernel
        for key, kernel in _KERNELS[name].items()
        for more in ((), ("ADInplaceOrView", f"Autograd{key}"))  # in inference mode, outside
    }
    backward = arguments_of(name)[0].name == "grad_out"

    def call(first: Tensor, second: Any, *args: Any) -> Any:
        if nobody_looks(first) and _PLAIN.issuperset(map(type, (second, *args))):
            keys = torch._C._dispatch_keys(first)
            if backward:
                keys = keys | torch._C._dispatch_keys(second)
            kernel = kernels.get(keys.raw_repr())
            # A backward pass has the types of its forward pass, which autocast has chosen.
            cast = not backward and first.is_cuda and torch.is_autocast_enabled("cuda")
            if kernel is not None and not cast:
                return kernel(*complete((first, second, *args)))
        return op(first, second, *args)

    return call


def on_one_device(operator: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Shapes without data, for all arguments, the tensors of which are on one device.

    One tensor on the meta device is enough for the dispatcher to come here, and the result would
    be memory that nobody wrote. Calls on data never pass by.
    """
    names = [argument.name for argument in arguments_of(operator)]
    complete = completion(operator)

    @functools.wraps(fake)
    def checked(*args: Any) -> Any:
        args = complete(args)
        here = [
            (name, one) for name, one in zip(names, args, strict=True) if isinstance(one, Tensor)
        ]
        first, expected = here[0][0], here[0][1].device
        for name, one in here:
            if one.device != expected:
                rule = f"must be on {first}'s device, {expected}"
                raise DeviceError(name, rule, str(one.device))
        return fake(*args)

    return checked


def on_own_device(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with its first tensor's device made the current one: launches go there."""

    @functools.wraps(kernel)
    def guarded(first: Tensor, *args: Any) -> Any:
        if first.device.index == torch.cuda.current_device():
            return kernel(first, *args)
        with torch.cuda.device(first.device):
            return kernel(first, *args)

    return guarded


def note_bias_type(ctx: Any, x: Tensor, bias: Tensor | None) -> None:
    """For ``weight_like_bias``: a bias in another type than the data's, which is a wider one."""
    ctx.bias_type = None if bias is None or bias.dtype == x.dtype else bias.dtype


def weight_like_bias(
    ctx: Any, x: Tensor, weight: Tensor | None, shape: Sequence[int]
) -> Tensor | None:
    """The weight in the type of a wide bias, ones where there is none.

    The gradients of both have the weight's type: in 16 bits the bias's would be rounded, or
    overflow.
    """
    dtype: torch.dtype | None = ctx.bias_type
    if dtype is None or (weight is not None and weight.dtype == dtype):
        return weight
    return x.new_ones(tuple(shape), dtype=dtype) if weight is None else weight.to(dtype)


def require(condition: bool | torch.SymBool, words: str) -> None:
    """Raise an error with these words if it does not hold, or will not where sizes are symbols."""
    torch._check(condition, lambda: words)


def statistics_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """What sums and statistics of data of these types are kept in: `dtypes.compute_dtype`."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def wide(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A parameter of 16-bit data in float32; one of another type as it is, for torch to judge."""
    if tensor is None or dtype not in NARROW or tensor.dtype != dtype:
        return tensor
    return tensor.float()


_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(tensor: Tensor) -> torch.memory_format:
    """How torch's batch norm lays out its results: channels-last where the tensor lies so."""
    candidate = _CHANNELS_LAST.get(tensor.dim())
    if candidate is None or tensor.is_contiguous():
        return torch.contiguous_format
    return candidate if tensor.is_contiguous(memory_format=candidate) else suggested_format(tensor)


def suggested_format(tensor: Tensor) -> torch.memory_format:
    """Channels-last or contiguous, by the strides of all axes: ``Tensor::suggest_memory_format``.

    Kernels that go by it refuse what `is_contiguous`, which does not look at the strides of axes of
    size 1, calls channels-last. Torch's own in Python imports sympy, for 0.4 s.
    """
    rank, shape, strides = tensor.dim(), tensor.shape, tensor.stride()
    if rank not in _CHANNELS_LAST or tensor.is_contiguous():
        return torch.contiguous_format
    if _is_symbolic(tensor):
        return suggest_memory_format(tensor)
    step = 1
    for axis in (1, *range(rank - 1, 1, -1), 0):
        if strides[axis] < step or (axis == 0 and step == strides[1]):
            return torch.contiguous_format
        step = strides[axis] * shape[axis]
    return _CHANNELS_LAST[rank]


def _is_symbolic(tensor: Tensor) -> bool:
    return any(isinstance(one, torch.SymInt) for one in (*tensor.shape, *tensor.stride()))


def few_axes(tensor: Tensor) -> Tensor:
    """Data with channels at axis 1, in no more axes than the core takes."""
    return tensor.flatten(2) if tensor.dim() > MAX_RANK else tensor


def described(tensor: Tensor) -> TensorSpec:
    """A tensor as the core sees it, sizes symbolic where torch's are."""
    return TensorSpec(
        tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch.")
    )


def empty_dense(tensor: Tensor) -> Tensor:
    """A new tensor laid out as the core lays out ``grad_input``."""
    if _is_symbolic(tensor):
        from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

        if has_free_unbacked_symbols(tensor):  # sizes that are data: comparing them is an error
            return torch.empty_like(tensor)
    dense = dense_like(described(tensor))
    return tensor.new_empty_strided(dense.shape, dense.strides)


def empty_gradients(
    x: Tensor, weight: Tensor | None, shape: Sequence[int], mask: Sequence[bool]
) -> Three:
    """New results of a backward operator whose parameters have this shape; None where unwanted."""
    of = x if weight is None else weight
    return (
        empty_dense(x) if mask[0] else None,
        of.new_empty(shape) if mask[1] else None,
        of.new_empty(shape) if mask[2] else None,
    )
