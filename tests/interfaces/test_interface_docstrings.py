"""Docstrings of all that is public: arguments or members, what comes back, an example that runs."""

import doctest
import inspect

import numpy as np
import pytest

import normgrad.aclnn.runtime
from normgrad import aclnn, infiniop

FUNCTIONS = {
    name: function
    for module in (normgrad, aclnn, infiniop)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__.startswith("normgrad.")
}
TUPLES = {
    name: kind
    for name, kind in vars(normgrad).items()
    if isinstance(kind, type) and issubclass(kind, tuple)
}


def section(text, name):
    """The lines below a heading, up to the next one."""
    return text.partition(f"\n{name}:\n")[2].split("\n\n")[0]


def described(text, heading):
    """The names that have a line of their own."""
    return [
        line.split(":")[0].strip()
        for line in section(text, heading).splitlines()
        if line.startswith("    ") and not line.startswith("     ")
    ]


@pytest.mark.parametrize("name", TUPLES)
def test_members_are_described(name):
    text = inspect.getdoc(TUPLES[name])
    assert described(text, "Attributes") == [*TUPLES[name]._fields]
    assert "\nExample:\n    >>> " in text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_and_results_are_described(name):
    function = FUNCTIONS[name]
    text = inspect.getdoc(function)
    signature = inspect.signature(function)
    assert described(text, "Args") == list(signature.parameters)
    returns_nothing = signature.return_annotation in (None, "None")
    assert bool(section(text, "Returns")) is not returns_nothing
    assert "\nExample:\n    >>> " in text


# An operator that the fast backend lacks is computed by another, which warns.
@pytest.mark.filterwarnings("ignore::normgrad.core.errors.FallbackWarning")
@pytest.mark.parametrize("name", [*TUPLES, *FUNCTIONS])
def test_the_example_runs_alone(monkeypatch, name):
    runtime = normgrad.aclnn.runtime
    monkeypatch.setattr(runtime, "_PROCESS", runtime._Process())
    monkeypatch.setattr(runtime, "_THREAD", runtime._Thread())
    names = {"np": np, "aclnn": aclnn, "infiniop": infiniop}
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc((FUNCTIONS | TUPLES)[name]), names, name, None, None
    )
    told = []
    results = doctest.DocTestRunner().run(example, out=told.append)
    assert results.attempted
    assert not results.failed, "".join(told)
