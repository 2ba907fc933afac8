"""What every stage 1 refuses alike: null arguments, and masks of another length."""

import pytest
from aclnn_calls import ELEMT, OPERATORS, OUTPUTS, REQUIRED, check, fine, mask

MASKED = [name for name in OPERATORS if name != ELEMT]


@pytest.mark.parametrize(
    ("operator", "name"), [(each, name) for each in OPERATORS for name in REQUIRED[each]]
)
def test_null_argument_is_161001(operator, name):
    check(operator, 161001, f"{name} must not be null", **{name: None})


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("operator", MASKED)
def test_requested_output_null_is_161001(operator, place):
    name = OUTPUTS[operator][place]
    words = f"{name} must not be null where outputMask[{place}] is true"
    check(operator, 161001, words, **{name: None})
    bits = [True, True, True]
    bits[place] = False
    fine(operator, **{name: None, "outputMask": mask(*bits)})


@pytest.mark.parametrize("bits", [(), (True,), (True, True), (True,) * 4])
@pytest.mark.parametrize("operator", MASKED)
def test_mask_length_not_3(operator, bits):
    words = f"outputMask must have 3 elements, got {len(bits)}"
    check(operator, 161002, words, outputMask=mask(*bits))
