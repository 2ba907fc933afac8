"""Small cases without the compiler, where every access is checked, in plans of a certain kind.

For a process of its own: sizes of the plans are changed so that small data are cut at all.
"""

from normgrad import verify
from normgrad.backends.cpu.plan import tuned
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op


def check(changed, phase, cases, *, first=True):
    """Judge cases in all types, with some sizes changed; their plans have a phase, as the first."""
    for name, size in changed.items():
        assert hasattr(tuned, name), name
        setattr(tuned, name, size)
    for op, options in cases:
        for dtype in ("float32", "bfloat16", "float64"):
            problem = verify.make_problem(verify.Case(id="cut", op=Op(op), **options), dtype, 0)
            for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
                assert measured.ok, (options, dtype, measured)
            phases = make_plan(problem.spec, "cpu").config.phases
            places = phases[:1] if first else phases
            assert any(one.startswith(phase) for one in places), (options, phases)
    print("done")
