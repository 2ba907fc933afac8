"""Calls written out, without a GPU: what is launched is what the general road launches."""

import itertools
import random
import types

import pytest
from cuda_plans import KNOWN, plan

from normgrad.backends.cuda import launch, mail, written
from normgrad.backends.cuda.program import SLOTS
from normgrad.spec import RESULTS, ROLES, Op
from normgrad.written import Source

REQUESTS = (
    ("batch_norm", "64x256x56x56", "bfloat16"),
    ("batch_norm", "64x64x112x112", "float32", "channels-last"),
    ("group_norm", "4x512x128x128", "bfloat16"),
    ("group_norm", "64x256x56x56", "float32"),
    ("layer_norm", "16384x1024", "bfloat16"),
    ("layer_norm", "4096x16384", "float32"),
    ("batch_norm_reduce", "64x256x56x56", "float32"),
    ("batch_norm_elemt", "64x256x56x56", "bfloat16"),
)
OPERANDS = 8  # dy, x and what else an operator may read come first


class Tensor:
    """A tensor at an address."""

    addresses = itertools.count(1 << 20, 1 << 12)

    def __init__(self, address=None):
        self.address = next(self.addresses) if address is None else address

    def data_ptr(self):
        return self.address

    def new_empty_strided(self, shape, strides, dtype=None):
        return Tensor()


@pytest.fixture
def launched(monkeypatch):
    """What would have been launched, with a compiler that makes nothing."""
    calls = []

    def launcher(*arguments):
        calls.append(arguments)

    def compiled(step, capability, aligned):
        run = types.SimpleNamespace(
            launch=lambda *arguments: launcher(step.kernel, *arguments),
            launch_cooperative_grid=step.cooperative,
            launch_pdl=step.early,
            global_scratch_size=0,
            profile_scratch_size=0,
        )
        return types.SimpleNamespace(run=run, function=f"{step.kernel}!", packed_metadata=(7,))

    monkeypatch.setattr(launch, "compile_step", compiled)
    monkeypatch.setattr(launch, "device_of", lambda index: KNOWN["h200"])
    return calls


def written_call(program, op, posts, general, stream=0, current=0):
    steps = program.prepared[0, True, launch.has_mail(program)]
    slots = [ROLES.index(role) for role in RESULTS[op]]
    shapes = itertools.cycle([(2, 3), (2, 3), None])
    types = itertools.cycle([None, "a type", None])
    results = [(slot, 1, next(shapes), (3, 1), next(types)) for slot in slots]
    site = written.Site(
        0,
        lambda: current,
        lambda gpu: stream,
        lambda like: Tensor(),
        lambda gpu, size: 1 << 30,
        posts,
        general,
    )
    sizes = (program.workspace_bytes, program.words if launch.has_mail(program) else 0)
    given = [slot in program.slots or slot < 2 for slot in range(OPERANDS)]
    source = Source(given, results)
    return given, slots, written.write(source, steps, program.slots, sizes, site)


def new_mail():
    return mail.Mail(lambda count: (None, 1 << 40))


@pytest.mark.parametrize("request_", REQUESTS, ids=" ".join)
def test_the_same_launches(request_, launched, monkeypatch):
    program, op = plan(*request_), Op(request_[0])
    posts = [new_mail(), new_mail()]
    monkeypatch.setattr(mail, "mail_of", lambda index: posts[0])
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    given, slots, call = written_call(program, op, lambda gpu: posts[1], None)
    posts[0] = new_mail()
    for _ in range(3):
        launched.clear()
        arrays = tuple(Tensor() if here else None for here in given)
        made = call(arrays, None)
        one, launched[:] = list(launched), []
        bases = [None] * SLOTS[""] + [1 << 30]
        for slot, array in [*enumerate(arrays), *zip(slots, made, strict=True)]:
            bases[slot] = array and array.data_ptr()
        launch.run_program(program, 0, bases, 0)
        assert launched == one


def test_all_else_goes_the_general_road(launched, monkeypatch):
    program = plan(*REQUESTS[0])
    monkeypatch.setattr(mail, "mail_of", lambda index: new_mail())
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    launched.clear()
    taken = []
    for place, shift in (({"stream": 5}, 0), ({"current": 1}, 0), ({}, 4)):
        made = written_call(
            program, Op.BATCH_NORM, None, lambda *given: taken.append(given), **place
        )
        given, slots, call = made
        odd = random.Random(shift).choice([slot for slot, here in enumerate(given) if here])
        arrays = [Tensor() if here else None for here in given]
        arrays[odd].address += shift
        results = call(tuple(arrays), None)
        addresses, like = taken.pop()
        assert like is arrays[1]
        for slot, array in [*enumerate(arrays), *zip(slots, results, strict=True)]:
            assert addresses[slot] == (array and array.data_ptr())
    assert launched == []


def test_a_launch_that_fails_is_forgotten(launched, monkeypatch):
    program = plan(*REQUESTS[0])
    post = new_mail()
    monkeypatch.setattr(mail, "mail_of", lambda index: post)
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)

    def fails(*arguments):
        raise KeyboardInterrupt

    steps = program.prepared[0, True, True]
    program.prepared[0, True, True] = [step._replace(launch=fails) for step in steps]
    given, _, call = written_call(program, Op.BATCH_NORM, lambda gpu: post, None)
    with pytest.raises(KeyboardInterrupt):
        call(tuple(Tensor() if here else None for here in given), None)
    assert post.take(1)[2] == 0
