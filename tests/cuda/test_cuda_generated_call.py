"""Calls written out, without a GPU: what is launched is what the general road launches."""

import itertools
import linecache
import types

import pytest
from cuda_plans import KNOWN, plan

from normgrad import verify
from normgrad.backends.cuda.plan.program import SLOTS, Fill
from normgrad.backends.cuda.run import exchange_areas, generated_call, launch
from normgrad.calls.generated_call import CallSource, Fallbacks, Given, Result
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.operators import OPERATORS
from normgrad.core.spec import ROLES, Op

REQUESTS = (
    ("batch_norm_backward", "64x256x56x56", "bfloat16"),
    ("batch_norm_backward", "64x64x112x112", "float32", "channels-last"),
    ("group_norm_backward", "4x512x128x128", "bfloat16"),
    ("group_norm_backward", "64x256x56x56", "float32"),
    ("layer_norm_backward", "16384x1024", "bfloat16"),
    ("layer_norm_backward", "4096x16384", "float32"),
    ("batch_norm_reduce_backward", "64x256x56x56", "float32"),
    ("batch_norm_elemt_backward", "64x256x56x56", "bfloat16"),
)
OPERANDS = 8  # dy, x and what else an operator may read come first


class Tensor:
    """A tensor at an address."""

    addresses = itertools.count(1 << 20, 1 << 12)

    def __init__(self, address=None):
        self.address = next(self.addresses) if address is None else address

    def data_ptr(self):
        return self.address


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


def generated(program, op, areas_of, general, stream=0, current=0, given=None):
    """The call, which operands it has, where its results belong."""
    steps = program.prepared[0, launch.Aligned.ALL, launch.keeps_words(program)]
    slots = [ROLES.index(role) for role in OPERATORS[op].gives]
    results = [Result(slot, (slot, 3), (3, 1), f"type {slot}") for slot in slots]
    asked = [(one.shape, one.strides, one.dtype) for one in results]
    if given is not None:
        results, asked = [Result(slot) for slot in slots], []

    def empty(*wanted):
        asked.remove(wanted)
        asked.append(wanted)
        return Tensor()

    site = generated_call.LaunchSite(
        0, lambda: current, lambda gpu: stream, lambda gpu, size: 1 << 30, areas_of
    )
    sizes = (program.workspace_bytes, program.words if launch.keeps_words(program) else 0)
    operands = [slot in program.slots or slot < 2 for slot in range(OPERANDS)]
    operands = [here and slot not in slots for slot, here in enumerate(operands)]
    source = CallSource(operands, results, Fallbacks(general, empty), given)
    return operands, slots, generated_call.write(source, steps, program.slots, sizes, site)


class Looks:
    """Answers for given results, and what was asked and told."""

    def __init__(self):
        self.apart = True
        self.asked, self.told = [], []

    def given(self):
        return Given(lambda here: self.asked.append(here) or self.apart, self.told.append)


def new_areas():
    return exchange_areas.ExchangeAreas(lambda count: (None, 1 << 40))


@pytest.mark.parametrize("request_", REQUESTS, ids=" ".join)
def test_a_launcher_takes_what_is_no_constant(request_, launched, monkeypatch):
    program, made, build = plan(*request_), [], launch.compile_step
    monkeypatch.setattr(launch, "compile_step", lambda *step: made.append(build(*step)) or made[-1])
    for step in program.steps:
        if isinstance(step, Fill):
            continue
        ready = launch._prepare_kernel(step, 0, True)
        types = made[-1].src.signature
        order = [launch.kernel_of(step.kernel).arg_names.index(name) for name in types]
        assert order == sorted(order)
        assert types == launch.signature_of(step)
        given = dict(step.arguments)
        assert [given[name] for name in types] == list(ready.arguments)
        assert not {name for name, value in given.items() if value is not None} - set(types)


@pytest.mark.parametrize("into", [False, True], ids=["new results", "given results"])
@pytest.mark.parametrize("request_", REQUESTS, ids=" ".join)
def test_the_same_launches(request_, into, launched, monkeypatch):
    program, op = plan(*request_), Op(request_[0])
    both, looks = [new_areas(), new_areas()], Looks()
    monkeypatch.setattr(exchange_areas, "areas_of", lambda index: both[0])
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    here, slots, call = generated(
        program, op, lambda gpu: both[1], None, given=looks.given() if into else None
    )
    both[0] = new_areas()
    for turn in range(3):
        launched.clear()
        arrays = tuple(Tensor() if one else None for one in here)
        out = [Tensor() for _ in slots] if into else None
        made = call(arrays, out)
        one, launched[:] = list(launched), []
        assert one
        bases = [None] * SLOTS[""] + [1 << 30]
        for slot, array in [*enumerate(arrays), *zip(slots, made, strict=True)]:
            if array is not None:
                bases[slot] = array.data_ptr()
        launch.run_program(program, 0, bases, 0)
        assert launched == one
        if into:
            assert list(made) == out
            assert looks.told[turn:] == [made]
            assert looks.asked[turn:] == [tuple(base for base in bases[:-1] if base is not None)]


@pytest.mark.parametrize("into", [False, True], ids=["new results", "given results"])
@pytest.mark.parametrize(
    ("place", "shift"), [({"stream": 5}, 0), ({"current": 1}, 0), ({}, 4)], ids=str
)
def test_all_else_goes_the_general_road(into, place, shift, launched, monkeypatch):
    program = plan(*REQUESTS[0])
    monkeypatch.setattr(exchange_areas, "areas_of", lambda index: new_areas())
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    launched.clear()
    taken, looks = [], Looks()

    def general(*given):
        taken.append(given)
        return "what it gives"

    here, slots, call = generated(
        program,
        Op.BATCH_NORM_BACKWARD,
        None,
        general,
        **place,
        given=looks.given() if into else None,
    )
    arrays = [Tensor() if one else None for one in here]
    out = [Tensor() for _ in slots] if into else None
    for odd in (one for one in (*arrays, *(out or ())) if one is not None):
        odd.address += shift
        assert call(tuple(arrays), out) == "what it gives"
        assert taken.pop() == (tuple(arrays), out)
        odd.address -= shift
    assert launched == looks.told == []


def test_given_results_are_looked_at_where_addresses_are_new(launched, monkeypatch):
    program, looks, areas = plan(*REQUESTS[0]), Looks(), new_areas()
    monkeypatch.setattr(exchange_areas, "areas_of", lambda index: areas)
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    here, slots, call = generated(
        program, Op.BATCH_NORM_BACKWARD, lambda gpu: areas, None, given=looks.given()
    )
    arrays = tuple(Tensor() if one else None for one in here)
    out, other = ([Tensor() for _ in slots] for _ in range(2))

    def asked(results):
        """How often, by a call that is made or not."""
        for one in (looks.asked, looks.told, launched):
            one.clear()
        made = call(arrays, results)
        assert (made is not None) is bool(launched) is (looks.apart or not looks.asked)
        assert looks.told == ([made] if made else [])
        return len(looks.asked)

    assert [asked(one) for one in (out, out, other, other, out)] == [1, 0, 1, 0, 1]
    looks.apart = False  # what is not apart is asked again, and the last that was stays
    assert [asked(one) for one in (other, other, out, other)] == [1, 1, 0, 1]


def test_a_launch_that_fails_is_forgotten(launched, monkeypatch):
    program = plan(*REQUESTS[0])
    areas = new_areas()
    monkeypatch.setattr(exchange_areas, "areas_of", lambda index: areas)
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)

    def fails(*arguments):
        raise KeyboardInterrupt

    steps = program.prepared[0, launch.Aligned.ALL, True]
    program.prepared[0, launch.Aligned.ALL, True] = [step._replace(launch=fails) for step in steps]
    given, _, call = generated(program, Op.BATCH_NORM_BACKWARD, lambda gpu: areas, None)
    with pytest.raises(KeyboardInterrupt) as caught:
        call(tuple(Tensor() if here else None for here in given), None)
    assert areas.next_area(1)[2] == 0
    (line,) = (one for one in caught.traceback if "written out" in str(one.path))
    assert "launch0(" in linecache.getline(line.frame.code.raw.co_filename, line.lineno + 1)


@pytest.mark.parametrize("into", [False, True], ids=["new results", "given results"])
def test_nothing_to_do(into, launched):
    case = next(one for one in verify.CASES if one.name == "batch_norm_elemt_backward/empty-batch")
    program, looks = program_of(spec_of(case, "float32"), KNOWN["h200"]), Looks()
    assert not program.slots
    launch.run_program(program, 0, [1 << 12] * (SLOTS[""] + 1), 0)
    given = looks.given() if into else None
    here, slots, call = generated(program, Op.BATCH_NORM_ELEMT_BACKWARD, None, None, given=given)
    for _ in range(2):
        out = [Tensor() for _ in slots] if into else None
        made = call(tuple(Tensor() if one else None for one in here), out)
        assert len(made) == len(slots)
        assert not into or list(made) == out
    assert not launched
