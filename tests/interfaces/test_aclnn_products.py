"""What `check --lib` asks of stage 1, asked of the Python functions, for every product."""

import numpy as np
import pytest

from normgrad import aclnn
from normgrad.aclnn.executor import _decide
from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.products import PRODUCTS
from normgrad.aclnn.status import StatusError
from normgrad.verify.clib import aclnn as vendors
from normgrad.verify.clib import aclnn_status


def value_of(one):
    """An argument as the Python functions take it; a false type has the shape of the right one."""
    value = one.value
    if value is None:
        return None
    if one.kind == "mask":
        return aclnn.aclCreateBoolArray(value, len(value))
    if one.kind == "sizes":
        return aclnn.aclCreateIntArray(value, len(value))
    if one.kind != "tensor":
        return value
    shape = value.tensor.shape
    kind = vendors._DTYPES[value.dtype] if one.dtype is None else one.dtype
    array = np.ones(max(value.array.size, 1) * 8, np.uint8)
    return aclnn.aclCreateTensor(
        shape, len(shape), kind, None, 0, one.form, shape, len(shape), memory(array.size)
    )


def memory(size):
    assert aclnn.aclrtSetDevice(0) == 0
    status, pointer = aclnn.aclrtMalloc(size)
    assert status == 0
    held.append(pointer)
    return pointer


held = []


@pytest.fixture(autouse=True)
def _given_back():
    yield
    while held:
        assert aclnn.aclrtFree(held.pop()) == 0


def ask(page, key):
    """Stage 1 with each thing wrong, as a product: the status that it must return."""
    product = PRODUCTS[key]
    aclnn.set_product(key)
    stage = getattr(aclnn, f"{page.name}GetWorkspaceSize")
    usual = {one.name: one for one in aclnn_status._usual(page)}
    for call, (want, change) in aclnn_status.changes(page, product).items():
        arguments = {**usual, **change(usual)}
        status, size, executor = stage(*(value_of(one) for one in arguments.values()))
        assert status == want, (call, aclnn.aclGetRecentErrMsg())
        if status:
            assert (size, executor) == (0, None)
            assert aclnn.aclGetRecentErrMsg().startswith(f"{page.name}GetWorkspaceSize: ")
        else:
            assert aclnn.aclDestroyAclOpExecutor(executor) == 0


@pytest.mark.parametrize("key", PRODUCTS)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_breaks_a_rule(page, key):
    ask(page, key)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rule_is_broken_by_a_case(page, monkeypatch):
    broken = set()

    def watched(place, rule):
        def watch(call):
            try:
                rule(call)
            except StatusError:
                broken.add(place)
                raise

        return watch

    every = page.checks
    rules = tuple(watched(*one) for one in enumerate(every))
    monkeypatch.setitem(page.__dict__, "checks", rules)
    _decide.cache_clear()
    for key in PRODUCTS:
        if key not in page.lacks:
            ask(page, key)
    _decide.cache_clear()
    # Those of numbers are ours alone: no other library is to answer for them.
    ours = {place for place, rule in enumerate(every) if rule.__qualname__.startswith("finite")}
    assert broken == set(range(len(rules))) - ours


# As the vendor's pages say it, once more by hand; the first three have everything.
LAYER = ("LayerNorm", "LayerNormWithImplMode")
HAS = {
    "atlas-200i-500-a2": {*LAYER},
    "atlas-inference": {
        *("BatchNorm", "LayerNormBackward", "GroupNorm"),
        *("GroupNormSilu", "GroupNormSiluV2", "RmsNorm", "RmsNormGrad"),
        *("AddRmsNorm", "InplaceAddRmsNorm", "AddLayerNorm", "AddLayerNormGrad"),
        *("DeepNorm", "DeepNormGrad"),
    },
    "atlas-training": {
        *LAYER,
        *("LayerNormBackward", "BatchNorm", "BatchNormBackward", "GroupNorm", "GroupNormBackward"),
        *("BatchNormStats", "BatchNormGatherStatsWithCounts", "BatchNormElemt"),
        *("BatchNormReduceBackward", "BatchNormElemtBackward"),
    },
}


@pytest.mark.parametrize("key", PRODUCTS)
def test_operators_of_a_product(key):
    every = {page.name.removeprefix("aclnn") for page in PAGES}
    has = {page.name.removeprefix("aclnn") for page in PAGES if key not in page.lacks}
    assert has == HAS.get(key, every)


def test_products_differ_in_their_rules():
    """Each has an operator that another lacks, or rules of its own for one."""
    rules = {
        key: [
            {call: want for call, (want, _) in aclnn_status.changes(page, product).items()}
            for page in PAGES
        ]
        for key, product in PRODUCTS.items()
    }
    assert rules["atlas-a2"] == rules["atlas-a3"]
    apart = [one for key, one in rules.items() if key != "atlas-a3"]
    assert all(one != other for at, one in enumerate(apart) for other in apart[:at])
