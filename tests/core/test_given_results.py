"""Calls into given torch tensors that were seen before: each is looked at, short as it is."""

import dataclasses
import itertools
import threading
from functools import partial

import pytest
import torch

import normgrad as ng
from neutral import neutral
from normgrad import verify
from normgrad.calls import cached_calls, dispatch
from normgrad.core.spec import Op
from normgrad.verify.run import to_torch

pytest.importorskip("numba")

SHAPES = {"alone": (4, 6, 5), "threads": (8, 64, 40, 16)}
OPS = ("batch", "reduce", "elemt", "layer", "group", "group-last")


@pytest.fixture(autouse=True)
def nothing_known():
    dispatch._cached_calls.clear()
    yield
    dispatch._cached_calls.clear()


def request(op, shape, **options):
    """A call on new data as a function of ``out``, the shapes of its results, dy, x and weight."""
    dy, x = torch.randn(shape), 100 + 3 * torch.randn(shape)
    channels = shape[-1] if op in ("layer", "group-last") else shape[1]
    sizes = {"layer": shape[:-1], "group": (shape[0], 2), "group-last": (shape[0], 1)}
    mean, rstd = (torch.rand(sizes.get(op, (channels,))) + low for low in (99.5, 0.5))
    weight, *sums = (torch.randn(channels) for _ in range(3))
    shapes, options["backend"] = [shape, (channels,), (channels,)], "cpu"
    options["weight"] = weight
    if op == "batch":
        call = partial(ng.batch_norm_backward, dy, x, mean, rstd, **options)
    elif op == "reduce":
        shapes = [(channels,)] * 4
        call = partial(ng.batch_norm_reduce_backward, dy, x, mean, rstd, **options)
    elif op == "elemt":
        shapes, count = [shape], torch.tensor([x.numel() // channels], dtype=torch.int32)
        operands = (dy, x, mean, rstd, *sums, count)

        def call(out=(None,)):
            return (ng.batch_norm_elemt_backward(*operands, out=out[0], **options),)
    elif op == "layer":
        call = partial(ng.layer_norm_backward, dy, x, mean, rstd, channels, **options)
    else:
        options["channel_axis"] = 1 if op == "group" else -1
        call = partial(ng.group_norm_backward, dy, x, mean, rstd, sizes[op][1], **options)
    return call, shapes, (dy, x, weight)


def poisoned(shapes, mask=None):
    wanted = mask or [True] * len(shapes)
    return [
        torch.full(shape, torch.nan) if want else None
        for shape, want in zip(shapes, wanted, strict=True)
    ]


def same_bits(got, want):
    for one, other in zip(got[: len(want)], want, strict=True):
        assert (one is None) is (other is None)
        assert one is None or torch.equal(one, other)


def checked(call, out, want):
    """The caller's own tensors, filled, and autograd learned of it."""
    before = [one._version for one in out if one is not None]
    got = call(out=out)
    assert all(one is other for one, other in zip(got[: len(out)], out, strict=True))
    same_bits(got, want)
    assert [one._version for one in out if one is not None] == [one + 1 for one in before]


def roads():
    """Of all calls that are known, whether they are written out."""
    known = itertools.chain.from_iterable(dispatch._cached_calls.values())
    return ["written out" in one.call.__code__.co_filename for one in known]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_every_operator(op, shape):
    for kind in (list, tuple, list, tuple):
        call, shapes, _ = request(op, shape)
        want = call()
        out = kind(poisoned(shapes))
        checked(call, out, want)
        for one in out:  # the same memory once more
            one.fill_(torch.nan)
        checked(call, out, want)
    assert roads() == [True, True]  # new results, given ones


@pytest.mark.parametrize("mask", [(True, False, True), (False, True, False), (False, False, True)])
def test_some_results(mask):
    for _ in range(4):
        call, shapes, _ = request("batch", SHAPES["alone"], output_mask=mask)
        checked(call, poisoned(shapes, mask), call())
    assert roads() == [True, True]


def test_no_result():
    call, _, _ = request("batch", SHAPES["alone"], output_mask=(False, False, False))
    for _ in range(3):
        assert call(out=[None, None, None]) == (None, None, None, None)


def test_results_at_any_element():
    for shift in range(5):
        call, shapes, _ = request("layer", SHAPES["alone"])
        rooms = [torch.full((9, *shape), torch.nan).view(-1) for shape in shapes]
        out = [
            room[shift : shift + torch.Size(shape).numel()].view(shape)
            for room, shape in zip(rooms, shapes, strict=True)
        ]
        checked(call, out, call())
        for room, one in zip(rooms, out, strict=True):
            assert int(room.isnan().sum()) == room.numel() - one.numel()


def test_memory_that_is_shared_from_some_call_on():
    """Every time: what was found apart before and after does not matter."""
    call, shapes, (dy, x, weight) = request("batch", SHAPES["alone"])
    want, out = call(), poisoned(shapes)
    for _ in range(3):
        checked(call, out, want)
    vectors = torch.full((11,), 7.0)
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(ng.OverlapError, match="grad_bias must not share memory with"):
                call(out=(out[0], vectors[:6], vectors[5:]))
        assert (vectors == 7).all()
        checked(call, out, want)
    numbers = [one.clone() for one in (dy, x, weight)]
    buffer = torch.empty(x.numel() + 3)
    shifted = buffer[3:].view(shapes[0]).copy_(x)
    overs = [
        ((dy, x, weight), 1, weight.view(6)),
        ((dy, x, weight), 2, x.view(-1)[3:9]),
        ((dy, shifted, weight), 0, buffer[:-3].view(shapes[0])),
    ]
    for operands, place, over in overs:  # computed elsewhere and copied
        taken = [over if place == one else out[one] for one in range(3)]
        for _ in range(2):
            dy, x, weight = operands
            changes = {"weight": weight, "out": taken}
            same_bits(call.func(dy, x, *call.args[2:], **call.keywords | changes), want)
            for one, number in zip(operands, numbers, strict=True):
                one.copy_(number)
        checked(call, out, want)
    assert roads() == [False, True]  # new results once, given ones


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("op", ["batch", "elemt", "layer", "group", "group-last"])
@pytest.mark.parametrize("over", [0, 1], ids=["grad_out", "input"])
def test_grad_input_in_place(op, shape, over, monkeypatch):
    looks, found = [], cached_calls.results_needing_copies
    monkeypatch.setattr(
        cached_calls, "results_needing_copies", lambda *given: looks.append(given) or found(*given)
    )
    call, shapes, operands = request(op, shape)
    want, numbers = call(), operands[over].clone()
    others = poisoned(shapes[1:])
    for view in (operands[over], operands[over].detach()):
        for _ in range(5):
            checked(call, [view, *others], want)
            operands[over].copy_(numbers)
            for one in others:
                one.fill_(torch.nan)
    assert roads() == [False, True, True]
    assert len(looks) == 4  # the second and third call of either kind; the first has its own


def test_operands_over_each_other():
    shape = SHAPES["alone"]
    both = torch.rand(6, 2) + 0.5
    x = torch.randn(shape)
    call = partial(ng.batch_norm_backward, x, x, both[:, 0], both[:, 1])
    want = call(backend="cpu")
    for _ in range(3):
        checked(partial(call, backend="cpu"), poisoned([shape, (6,), (6,)]), want)
    assert roads() == [False, True]


def test_a_tensor_given_twice_is_no_two_tensors():
    case = verify.Case(id="twice", op=Op.BATCH_NORM_BACKWARD, shape=SHAPES["alone"])
    made = verify.make_problem(case, "float32")
    tensors = {role: to_torch(host, "cpu") for role, host in made.operands.items()}
    for _ in range(3):
        for dy, mean in (("x", "mean"), ("dy", "mean"), ("x", "gamma"), ("dy", "gamma")):
            given = {role: role for role in tensors} | {"dy": dy, "mean": mean}
            hosts = {role: made.operands[other] for role, other in given.items()}
            problem = dataclasses.replace(made, operands=hosts)
            operands = {role: tensors[other] for role, other in given.items()}
            got = verify.call(problem, operands, None, "cpu")
            results = {
                role: one.double().numpy()
                for role, one in zip(problem.wanted, got[:3], strict=True)
            }
            for measured in verify.judge(problem, results):
                assert measured.ok, (dy, mean, measured)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_result_that_requires_grad_from_some_call_on(guarded, monkeypatch):
    def missing(tensors):
        raise ImportError

    if not guarded:
        monkeypatch.setattr(cached_calls, "_guards", missing)
    call, shapes, _ = request("batch", SHAPES["alone"])
    want, out = call(), poisoned(shapes)
    for _ in range(3):
        checked(call, out, want)
    for one, name in zip(out, ("input", "weight", "bias"), strict=True):
        one.fill_(7.0).requires_grad_()
        for _ in range(2):
            with pytest.raises(ng.ArrayTypeError, match=f"grad_{name} must not require grad"):
                call(out=out)
        assert (one == 7).all()
        for _ in range(2):
            with torch.no_grad():
                checked(call, out, want)
        with pytest.raises(ng.ArrayTypeError, match=f"grad_{name} must not require grad"):
            call(out=out)
        one.requires_grad_(False)
        checked(call, out, want)
    assert max(len(alike) for alike in dispatch._cached_calls.values()) == 4


def test_guards_see_grad():
    """On the torch that is tested; elsewhere calls are told apart by hand."""
    assert cached_calls._guards_see_grad()


@pytest.mark.parametrize("known_first", ["plain", "inference"])
def test_results_of_inference_mode(known_first):
    """They have no version; those that do, in either mode, get a new one."""
    call, shapes, _ = request("batch", SHAPES["alone"])
    want, plain = call(), poisoned(shapes)
    with torch.inference_mode():
        inner = poisoned(shapes)
    order = [plain, inner] if known_first == "plain" else [inner, plain]
    for _ in range(3):
        for mode in (True, False):
            with torch.inference_mode(mode):
                for out in order:
                    before = plain[0]._version
                    got = call(out=out)
                    assert all(
                        one is other for one, other in zip(got[: len(out)], out, strict=True)
                    )
                    same_bits(got, want)
                    assert plain[0]._version == before + (out is plain)
            for one in plain:
                one.fill_(torch.nan)
            with torch.inference_mode():
                for one in inner:
                    one.fill_(torch.nan)


def test_autograd_learns_it_on_every_road():
    call, shapes, _ = request("batch", SHAPES["alone"])
    out = poisoned(shapes)
    for _ in range(4):
        leaf = torch.randn(shapes[0], requires_grad=True)
        product = leaf * out[0]  # keeps the old values for its own backward pass
        call(out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_as_many_results_as_there_are():
    """Not even where arrays that are not read would make up the number."""
    dy, x, weight = (torch.randn(shape) for shape in ((4, 3), (4, 3), (3,)))
    statistics = (torch.zeros(3), torch.ones(3))
    for _ in range(3):
        ng.batch_norm_backward(dy, x, *neutral(x), weight=weight)
        ng.batch_norm_backward(dy, x, *statistics, weight=weight)
    for out in ((), [], statistics, [*statistics]):
        with pytest.raises(ng.ArrayTypeError, match="out must be a tuple of 3"):
            ng.batch_norm_backward(dy, x, *neutral(x), weight=weight, out=out)


def test_threads_with_results_of_their_own():
    made = [request("batch", SHAPES["alone"]) for _ in range(3)]
    wanted = [call() for call, *_ in made]
    wrong = []

    def work(number):
        call, shapes, _ = made[number]
        outs = [poisoned(shapes) for _ in range(2)]
        for turn in range(300):
            out = outs[turn // 3 % 2]
            for one in out:
                one.fill_(torch.nan)
            got = call(out=out)
            pairs = zip(got[:3], wanted[number][:3], strict=True)
            wrong.extend(turn for one, other in pairs if not torch.equal(one, other))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
    assert True in roads()
