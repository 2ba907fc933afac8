"""What ``normgrad.torch`` says: errors, warnings, lines in the log, tables, docstrings."""

import doctest
import inspect
import logging
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import normgrad
import normgrad.torch as ours
from normgrad.core import errors
from normgrad.torch.too_small import LEAST, LEAST_RMS_NORM

pytestmark = pytest.mark.usefixtures("disabled")


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: ours.enable(True), normgrad.CallError, "by name, such as backend="),
        (lambda: ours.enable(bakend="cpu"), normgrad.CallError, "did you mean backend"),
        (lambda: ours.enable()(5), normgrad.OptionError, "function must be a plain function"),
        (lambda: ours.convert(None), TypeError, "model must be a torch.nn.Module, got None"),
        (ours.convert, normgrad.CallError, "convert needs model"),
        (lambda: ours.revert(nn.LayerNorm), TypeError, "model must be a torch.nn.Module, got <cl"),
        (lambda: ours.convert_sync_batchnorm({}), TypeError, "must be a torch.nn.Module, got {}"),
        (lambda: ours.report(True), normgrad.CallError, "by name, such as reset="),
        (lambda: ours.report(reset=1), normgrad.OptionError, "reset must be True or False, got 1"),
        (lambda: ours.report().calls("us"), normgrad.OptionError, "'normgrad' or 'torch'"),
    ],
)
def test_errors_are_ours_and_say_what_to_do(call, kind, words):
    with pytest.raises(normgrad.NormgradError, match=words) as raised:
        call()
    assert isinstance(raised.value, kind)
    assert not ours.enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", normgrad.backends.NAMES)
def test_a_backend_that_does_not_work_here_is_refused(name):
    reason = normgrad.backends.get(name).unavailable()
    if reason is None:
        ours.enable(backend=name)
        return
    with pytest.raises(normgrad.OptionError, match="must be one that works on this machine") as one:
        ours.enable(backend=name)
    assert f"({name}: {reason})" in str(one.value)
    assert not ours.enabled()


def test_the_gpu_is_asked_for_where_none_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if normgrad.backends.get("cuda").unavailable() is None:
        pytest.skip("Triton's interpreter needs no GPU")
    with pytest.raises(normgrad.OptionError, match=r"backend must be one .* \(cuda: .*got 'cuda'"):
        ours.enable(backend="cuda")


@pytest.mark.parametrize("missing", ["torch", "normgrad.torch.kernels"])
def test_import_without_torch(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import normgrad.torch"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    last = found.stderr.splitlines()[-1]
    ours_to_say = "pip install 'normgrad[torch]'" in last
    assert ours_to_say == (missing == "torch"), found.stderr


@pytest.fixture
def warned():
    """What is warned of, as if nothing had been before."""
    errors.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
    errors.warn_once.cache_clear()


def _rms_norm(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def test_a_program_whose_norms_are_not_seen_is_told_once(warned):
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        with ours.enable():
            _rms_norm(x).sum().backward()
    (one,) = warned
    assert one.category is ours.NothingTakenWarning
    assert issubclass(one.category, UserWarning)
    assert one.filename == __file__
    for words in ("took nothing", "The model must be called there", "RMSNorm", "compiled=True"):
        assert words in str(one.message)


def test_a_program_that_torch_keeps_is_told_once(warned):
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(2):
        with ours.enable():
            nn.LayerNorm(4)(x).sum().backward()
            ours.report(reset=True)
    (one,) = warned
    assert "torch kept each call of a norm" in str(one.message)
    assert "normgrad.torch.report()" in str(one.message)


def test_nobody_is_told_without_need(warned, fast_backend):
    x = torch.randn(3, 4, requires_grad=True)
    with ours.enable(backend=fast_backend):
        nn.LayerNorm(4)(x).sum().backward()
        ours.report(reset=True)
    with pytest.raises(KeyError), ours.enable():
        raise KeyError
    ours.enable()
    ours.disable()
    assert not warned


def test_enable_as_a_decorator(fast_backend):
    """Each call is a with statement; decorating alone changes nothing."""

    @ours.enable(backend=fast_backend, forward=False)
    def step(x, *, scale):
        """A step."""
        assert ours.enabled()
        nn.LayerNorm(4)(scale * x).sum().backward()
        return x.grad

    assert not ours.enabled()
    assert (step.__name__, step.__doc__) == ("step", "A step.")
    for calls in (1, 2):
        assert step(torch.randn(3, 4, requires_grad=True), scale=2.0).shape == (3, 4)
        assert not ours.enabled()
        assert ours.report().calls("normgrad") == calls


async def _later():
    pass


def _piecewise():
    yield


@pytest.mark.parametrize("function", [_later, _piecewise])
def test_a_decorated_function_whose_body_runs_later_is_refused(function):
    with pytest.raises(normgrad.OptionError, match="write a with statement inside it"):
        ours.enable()(function)
    assert not ours.enabled()


class LlamaRMSNorm(nn.Module):
    pass


class LayerNorm2d(nn.LayerNorm):
    pass


class PreNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)


def test_convert_says_what_it_changed(caplog):
    caplog.set_level(logging.INFO, "normgrad.torch")
    model = nn.Sequential(nn.LayerNorm(4), nn.BatchNorm1d(4), PreNorm())
    assert ours.convert(model) is model
    assert ours.convert(model) is model
    ours.revert(model)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "convert changed 2 LayerNorm, 1 BatchNorm1d"),
        ("INFO", "convert changed nothing"),
        ("INFO", "revert changed 2 LayerNorm, 1 BatchNorm1d"),
    ]


def test_convert_names_norms_that_it_does_not_know(caplog):
    strange = (nn.RMSNorm(4), LlamaRMSNorm(), LlamaRMSNorm(), LayerNorm2d(4))
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(nn.LayerNorm(4), *strange, PreNorm(), weighted)
    ours.convert(model)
    ours.convert(nn.Linear(4, 4))
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        (
            "WARNING",
            "convert changed 2 LayerNorm, 1 RMSNorm; left alone, as it is not known what they "
            "compute: 2 LlamaRMSNorm, 1 LayerNorm2d",
        ),
        ("WARNING", "convert changed nothing"),
    ]


class Cells(HTMLParser):
    """Cells of a table in HTML, which must be well-formed."""

    def __init__(self):
        super().__init__()
        self.open, self.cells = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def test_a_report_shows_as_a_table_at_a_prompt_and_in_jupyter():
    row = ours.Row("native_layer_norm_backward", "cpu", "torch", "under <1> & more", 2)
    report = ours.Report([row])
    assert repr(report) == str(report)
    assert repr(report).splitlines()[1].split() == [*row[:3], "2", *row.reason.split()]
    table = Cells()
    table.feed(report._repr_html_())
    head = ["operator", "device", "taken by", "calls", "reason"]
    assert table.cells == [*head, *row[:3], "2", row.reason]
    assert not table.open
    empty = ours.Report()
    assert repr(empty) in empty._repr_html_()
    assert "no operator of a norm" in repr(empty)


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pytorch.md").read_text("utf-8")
SYNCHRONIZED = ("sync_batch_norm", "sync_batch_norm_backward", "sync_batch_norm_track")


def _as_written(argument):
    if not argument.has_default_value():
        return argument.name
    return f"{argument.name}={argument.default_value}"


def test_the_page_lists_every_operator_with_torchs_order():
    names = {
        name.removeprefix("normgrad::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("normgrad::")
    }
    listed = dict(re.findall(r"^\| `(\w+)` \| `(\w+, [^`]*)` \|", PAGE, re.MULTILINE))
    assert {*listed, *SYNCHRONIZED} == names
    for name, arguments in listed.items():
        schema = getattr(torch.ops.normgrad, name).default._schema
        assert arguments == ", ".join(map(_as_written, schema.arguments)), name


def test_the_page_says_what_is_too_small():
    (words,) = re.findall(r"an input of fewer than (.*?) \|", PAGE)
    sixteen = {LEAST["cpu"][one] for one in (torch.float16, torch.bfloat16)}
    numbers = [LEAST["cpu"][torch.float32], LEAST["cpu"][torch.float64], *sixteen]
    numbers += set(LEAST_RMS_NORM["cpu"].values())
    assert [int(one) for one in re.findall(r"\d{3,}", words)] == numbers
    assert len(LEAST["cpu"]) == 4
    assert not LEAST["cuda"]
    assert not LEAST_RMS_NORM["cuda"]


PUBLIC = {name: getattr(ours, name) for name in ours.__all__}
MEMBERS = {"enable.__call__": ours.enable.__call__, "Report.calls": ours.Report.calls}


def _section(text, name):
    return text.partition(f"\n{name}:\n")[2].split("\n\n")[0]


@pytest.mark.parametrize("name", [*PUBLIC, *MEMBERS])
def test_arguments_and_results_are_described(name):
    one = {**PUBLIC, **MEMBERS}[name]
    text = inspect.getdoc(one)
    assert text
    if inspect.isclass(one) and issubclass(one, Warning):
        return
    described = [
        line.split(":")[0].strip().lstrip("*")
        for line in _section(text, "Args").splitlines()
        if line.startswith("    ") and not line.startswith("     ")
    ]
    if inspect.isfunction(one) or not issubclass(one, (nn.Module, tuple)):
        parameters = inspect.signature(one).parameters
        assert described == [each for each in parameters if each != "self"]
    if inspect.isfunction(one):
        nothing = inspect.signature(one).return_annotation in (None, "None")
        assert bool(_section(text, "Returns")) is not nothing
    assert "Example:\n    >>> " in text


@pytest.mark.parametrize("name", [*PUBLIC, *MEMBERS])
def test_the_example_runs_alone(name):
    text = inspect.getdoc({**PUBLIC, **MEMBERS}[name])
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    told = []
    results = doctest.DocTestRunner().run(example, out=told.append)
    assert not results.failed, "".join(told)
