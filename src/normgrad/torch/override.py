"""``enable()``: torch's own operators computed by us, in an unchanged program."""

import functools
import inspect
import sys
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

import torch

from normgrad import backends
from normgrad.calls.signatures import explained
from normgrad.core import options
from normgrad.core.errors import NothingTakenWarning, OptionError, warn_once
from normgrad.torch import inductor
from normgrad.torch.counting import calls_so_far
from normgrad.torch.kernels import keep_backward, register
from normgrad.torch.wishes import NORMS, NOTHING, State, Wish

P = ParamSpec("P")
R = TypeVar("R")

_SAW_NONE: Final = (
    "enable() took nothing: inside its with statement no batch, layer, group, instance or RMS norm "
    "of torch ran. The model must be called there; torch.compile needs enable(compiled=True); "
    "norms written out in Python, as RMSNorm in many models, are never seen: "
    "normgrad.torch.convert(model) takes these"
)
_LEFT_ALL: Final = (
    "enable() took nothing: torch kept each call of a norm inside its with statement; "
    "print(normgrad.torch.report()) says why (where they are too small to gain, there is nothing "
    "to do)"
)


class enable:  # noqa: N801  (used as a function, a decorator and in a with statement)
    """Override torch's operators of norms, for CPU and CUDA, until ``disable()``.

    In a ``with`` statement: until its end, which brings back what was before; where several
    overlap, in threads say, until the end of the last. An object may be used in several statements,
    and as a decorator: each call of the function is a ``with`` statement then.

    By default calls go to the fast backend of their device ("cpu" or "cuda"). What it refuses goes
    to torch's own kernel, and so does what is too small to gain; ``report()`` tells.

    Args:
        backend: "reference", "cpu" or "cuda", which then gets all calls, small ones too.
        compiled: What ``torch.compile`` makes meanwhile calls our backward passes of batch and
            group norm, with the activation behind them, and goes on doing so. Imports its compiler,
            which takes a second.
        forward: Whether forward passes are ours too, or backward passes alone.
        only: The norms to take, of "batch_norm" (instance norm is part of it), "layer_norm",
            "group_norm" and "rms_norm"; by default all.
        exclude: The norms to leave to torch.

    Raises:
        CallError: Something is given by position, or by a name that is none.
        OptionError: An option is none of these, the backend does not work on this machine, or
            ``compiled`` is given beside ``backend``, ``only`` or ``exclude``, or the latter both.

    Warns:
        NothingTakenWarning: A ``with`` statement ended in which we took no call. Once a process for
            each of two reasons: nothing was seen, or torch kept all.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.LayerNorm(8)
        >>> with normgrad.torch.enable(backend="cpu"):
        ...     model(torch.ones(2, 8)).sum().backward()
        >>> model.bias.grad
        tensor([2., 2., 2., 2., 2., 2., 2., 2.])
        >>> @normgrad.torch.enable(backend="cpu")
        ... def step(x):
        ...     model(x).sum().backward()
        >>> step(torch.ones(2, 8))
    """

    @explained
    def __init__(
        self,
        *,
        backend: str | None = None,
        compiled: bool = False,
        forward: bool = True,
        only: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> None:
        backends.chosen(backend)
        if options.flag("compiled", compiled) and backend is not None:
            rule = "must be left out where compiled=True, which takes the fast one of each device"
            raise OptionError("backend", rule, repr(backend))
        reason = None if backend is None else backends.get(backend).unavailable()
        if reason is not None:
            rule = f"must be one that works on this machine ({backend}: {reason})"
            raise OptionError("backend", rule, repr(backend))
        forward = bool(options.flag("forward", forward))
        norms = _norms(only, exclude)
        if compiled and len(norms) < len(NORMS):
            rule = "must be left out where only or exclude is given, which compiled programs ignore"
            raise OptionError("compiled", rule, repr(compiled))
        self._call = Wish(True, backend, compiled=bool(compiled), forward=forward, norms=norms)
        self._statements: list[Wish] = []  # that are running
        with State.lock:
            # The last one may be the start of a with statement to come; those before it are over.
            stay = [one for one in State.wishes if one.scoped or one is State.wishes[-1]]
            _follow([*stay, self._call])

    def __enter__(self) -> Self:
        call = self._call
        how = {"compiled": call.compiled, "forward": call.forward}
        statement = Wish(True, call.backend, **how, norms=call.norms, scoped=True)
        statement.calls_before = calls_so_far()
        with State.lock:
            # The call was the start of this statement, or of one that is over.
            _follow([*(one for one in State.wishes if one is not self._call), statement])
            self._statements.append(statement)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with State.lock:
            wishes = State.wishes
            ended = self._statements.pop() if self._statements else self._call
            if ended not in wishes:
                return
            place = wishes.index(ended)
            # What was wished inside ends here too, but for statements that are still running.
            _follow([*wishes[:place], *(one for one in wishes[place + 1 :] if one.scoped)])
        if error is None and ended.scoped and not ended.compiled:
            _say_if_nothing_was_taken(ended)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, each call of which runs in a ``with`` statement.

        Args:
            function: What to call; no generator and no coroutine, whose bodies run later.

        Returns:
            A function of the same arguments and results.

        Raises:
            OptionError: ``function`` cannot be called, or its body runs later.

        Example:
            >>> import torch, normgrad.torch
            >>> @normgrad.torch.enable(backend="cpu")
            ... def gradient(x):
            ...     return torch.autograd.grad(torch.nn.LayerNorm(2)(x)[0, 0], x)[0].shape
            >>> gradient(torch.randn(3, 2, requires_grad=True))
            torch.Size([3, 2])
        """
        with State.lock:  # the call was the start of this
            _follow([one for one in State.wishes if one is not self._call])
        late = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        if late or inspect.isasyncgenfunction(function) or not callable(function):
            rule = "must be a plain function (else write a with statement inside it)"
            raise OptionError("function", rule, options.described(function))

        @functools.wraps(function)
        def enabled_call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return enabled_call


def _norms(only: Collection[str] | None, exclude: Collection[str] | None) -> list[str]:
    """The norms to take."""
    if only is not None and exclude is not None:
        raise OptionError("exclude", "must be left out where only is given", repr(exclude))
    for name, given in (("only", only), ("exclude", exclude)):
        if given is None:
            continue
        known = not isinstance(given, str) and isinstance(given, Collection)
        if not known or not given or not set(map(str, given)) <= set(NORMS):
            rule = f"must be a list of norms, of {', '.join(map(repr, NORMS))}"
            raise OptionError(name, rule, options.described(given))
    return [one for one in NORMS if (only is None or one in only) and one not in (exclude or ())]


def _say_if_nothing_was_taken(statement: Wish) -> None:
    calls = calls_so_far() - statement.calls_before
    if not calls["normgrad"]:
        warn_once(_LEFT_ALL if calls["torch"] else _SAW_NONE, NothingTakenWarning)


def disable() -> None:
    """Give torch its own operators back; ``with`` statements that run are not ended.

    Example:
        >>> import normgrad.torch
        >>> _ = normgrad.torch.enable()
        >>> normgrad.torch.disable()
        >>> normgrad.torch.enabled()
        False
    """
    with State.lock:
        running = [one for one in State.wishes if one.scoped]
        _follow([*running, NOTHING] if running else [])


def enabled() -> bool:
    """Whether torch's operators of norms are ours now.

    Returns:
        True after ``enable()`` and in its ``with`` statements.

    Example:
        >>> import normgrad.torch
        >>> _ = normgrad.torch.enable()
        >>> normgrad.torch.enabled()
        True
        >>> normgrad.torch.disable()
    """
    return State.now.on


def _follow(wishes: list[Wish]) -> None:
    """Take these for all that is wished."""
    now = wishes[-1] if wishes else NOTHING
    (inductor.take_over if now.compiled else inductor.give_back)()
    if now.on and State.library is None:
        State.library = register()
    State.now = now
    State.wishes[:] = wishes
    # Torch frees what is taken away, also while a thread is about to call it. Where there may be
    # one, our kernels stay and call torch's: 9 us for a small layer norm, torch by itself 5.
    if not now.on and State.library is not None and _alone():
        keep_backward()
        State.library._destroy()
        State.library = None


def _alone() -> bool:
    """Whether no other thread can be in a backward pass: none runs Python, nor works for us."""
    return len(sys._current_frames()) == 1 and torch._C._current_graph_task_id() == -1
