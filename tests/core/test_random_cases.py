"""Cases nobody named: random operators, shapes, layouts, masks and types, on every backend."""

import judged_forward as forward
import judged_kernels as kernels
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from normgrad import verify
from normgrad.core.errors import BackendError
from normgrad.core.operators import OPERATORS, Op
from normgrad.verify.cases import LAYOUTS


@st.composite
def cases(draw):
    op = draw(st.sampled_from(list(Op)))
    axes, results = OPERATORS[op].axes, len(OPERATORS[op].gives)
    ranks = "variances" in OPERATORS[op].takes  # data of shape (ranks, channels)
    rank = 2 if ranks else draw(st.integers(OPERATORS[op].least_rank, 5))
    sizes = st.integers(1, 9) | st.sampled_from([16, 33, 64])
    shape = draw(st.lists(sizes, min_size=rank, max_size=rank))
    axis = 1 if ranks else draw(st.integers(0, rank - 1))
    groups = draw(st.sampled_from([1, 1, 2, 3, 5]))
    if axes == "groups":
        shape[axis] = groups * min(shape[axis], 12)
    while len(shape) and _size(shape) > 20_000:  # keep it quick
        largest = max(range(rank), key=lambda index: shape[index])
        shape[largest] = groups if axes == "groups" and largest == axis else 2
    layout = draw(st.sampled_from(LAYOUTS))
    if layout in ("channels-last", "mixed") and rank < 2:
        layout = "contiguous"
    training = draw(st.booleans()) or op is not Op.BATCH_NORM_BACKWARD
    return verify.Case(
        id="random",
        op=op,
        shape=tuple(shape),
        layout=layout,
        channel_axis=1 if axes == "rows" else axis,
        num_groups=groups if axes == "groups" else 1,
        normalized=draw(st.integers(1, rank)),
        training=training,
        statistic=draw(st.sampled_from(["invstd", "variance"]))
        if op in (Op.BATCH_NORM_BACKWARD, Op.BATCH_NORM_ELEMT)
        else ("variance" if op is Op.BATCH_NORM_STATS else "invstd"),  # which is what it gives
        weight=draw(st.booleans()),
        mask=draw(st.tuples(*[st.booleans()] * results)) if results > 1 else (),
        statistics_dtype=draw(st.sampled_from([None, None, "float32"])),
        own_statistics=draw(st.booleans()),
        ranks=draw(st.integers(1, 5)),
        eps=draw(st.sampled_from([1e-5, 0.5])),
        weight_offset=draw(st.sampled_from([0.0, 1.0]))
        if "weight_offset" in OPERATORS[op].settings
        else 0.0,
        bias=draw(st.booleans()),
        running=bool(OPERATORS[op].updates) and _size(shape) > shape[axis] and draw(st.booleans()),
        spread=draw(st.sampled_from([3.0, 3.0, 0.0])) if OPERATORS[op].forward else 3.0,
    )


def _size(shape):
    product = 1
    for size in shape:
        product *= size
    return product


@given(case=cases(), dtype=st.sampled_from(verify.DTYPES), seed=st.integers(0, 3))
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_within_budget(case, dtype, seed, backend):
    problem = verify.make_problem(case, dtype, seed)
    try:
        results = verify.run_backend(problem, backend)
    except BackendError:
        assume(False)
    for measured in verify.judge(problem, results):
        assert measured.ok, measured


@given(case=cases(), dtype=st.sampled_from(verify.DTYPES), seed=st.integers(0, 3))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_the_budget_can_be_met_by_plain_float32_arithmetic(case, dtype, seed):
    problem = verify.make_problem(case, dtype, seed)
    plain = forward if OPERATORS[case.op].forward else kernels
    for measured in verify.judge(problem, plain.run(problem)):
        assert measured.ok, measured
