"""The vendor's own sample programs, compiled as they are: every number that they print is right.

They are not ours to keep: `NORMGRAD_PUBLISHED` names a folder that has them, such as `norm/` of a
copy of hicann/ops-nn. What each should print is computed here, in float64, from the numbers in it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from normgrad.aclnn.pages import PAGES

from .conftest import HERE, SRC, execute

BY_NAME = {page.name: page for page in PAGES}
# Reads beyond its vectors (8 means for 16 elements): what it prints depends on other memory.
UNDEFINED = ("aclnnBatchNormGatherStatsWithCounts",)


def programs():
    """Where each operator's programs are: of ours, one call for each operator at least."""
    folders = [os.environ.get("NORMGRAD_PUBLISHED", "")]
    folders += [str(parent / "shared" / "seeds" / "examples") for parent in HERE.parents]
    for folder in filter(None, folders):
        for path in sorted(Path(folder).rglob("*.cpp")):
            names = re.findall(r"(aclnn\w+)GetWorkspaceSize\(", path.read_text(errors="replace"))
            if names and set(names) <= set(BY_NAME):
                yield pytest.param(path, id=f"{names[0]}-{path.stem}")


def numbers_of(text):
    """Every array and number that the program names."""
    found = {}
    kinds = {"float": np.float32, "int32_t": np.int32, "int64_t": np.int64}
    for kind, name, listed in re.findall(r"vector<(\w+)> (\w+) = \{([^}]*)\}", text):
        if kind in kinds:
            found[name] = np.array(listed.split(","), float).astype(kinds[kind])
    for kind, name, size, value in re.findall(r"vector<(\w+)> (\w+)\((\d+), ([-\d.]+)\)", text):
        found[name] = np.full(int(size), float(value), kinds[kind])
    for kind, name, value in re.findall(r"\b(float|double|int64_t|bool) (\w+) = ([^;()]+);", text):
        if value in ("true", "false"):
            found[name] = value == "true"
        elif re.fullmatch(r"[-\d.e]+f?", value):
            number = float(value.rstrip("f"))
            found[name] = float(np.float32(number)) if kind == "float" else number
    return found


def tensors_of(text, found):
    """Of each tensor the address in device memory, and the float64 numbers that go there."""
    made, addresses = {}, {}
    for host, shape, address, rest in re.findall(
        r"CreateAclTensor\w*\(\s*(\w+),\s*(\w+),\s*&(\w+)([^;]*)\);", text
    ):
        if host in found:  # the numbers of 32-bit integers are read as bits, as the program says
            array = found[host].view(np.float32).astype(np.float64)
            if array.size == np.prod(found[shape]):
                addresses[address] = array.reshape(found[shape].astype(int))
        else:
            addresses[address] = np.zeros(found[shape].astype(int))
        tensor = re.search(r"&(\w+)[^&]*$", rest)
        if tensor:
            made[tensor[1]] = address
    others = re.findall(r"aclCreateTensorP\(\w+,\s*&(\w+),[^&]*&(\w+)\)", text)
    return made | {tensor: address for address, tensor in others}, addresses


def expected(text):
    """What is printed, in order."""
    found = numbers_of(text)
    made, addresses = tensors_of(text, found)
    held = dict(addresses)
    for name, listed in re.findall(
        r"= (aclnn\w+)GetWorkspaceSize\((.*?)&workspaceSize", text, re.DOTALL
    ):
        words = [word.strip() for word in listed.split(",")]
        page = BY_NAME[name]
        given, places = {}, {}
        for one, word in zip(page.parameters, words, strict=False):
            places[one.name] = made.get(word)
            given[one.name] = found.get(word) if made.get(word) is None else held.get(made[word])
        for result, value in FORMULAS[name.removeprefix("aclnn")](given).items():
            held[places[result]] = value
    copied = r"aclrtMemcpy\([^;]*?\b(\w*DeviceAddr\w*)\b[^;]*?DEVICE_TO_HOST"
    shown = rf"{copied}|PrintOutResult\(\w+, &(\w+)\)"
    order = [first or second for first, second in re.findall(shown, text)]
    return np.concatenate([np.ravel(held[address]) for address in order])


def moments(x, axes, eps):
    mean = x.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def tail(gamma):
    return tuple(range(-gamma.ndim, 0))


def rows(x, gamma, beta, eps):
    mean, rstd = moments(x, tail(gamma), eps)
    return (x - mean) * rstd * gamma + beta, mean, rstd


def row_gradient(dy, x, mean, rstd, gamma):
    xhat, g, axes = (x - mean) * rstd, dy * gamma, tail(gamma)
    means = [part.mean(axes, keepdims=True) for part in (g, g * xhat)]
    dx = rstd * (g - means[0] - xhat * means[1])
    lead = tuple(range(x.ndim - gamma.ndim))
    return dx, (dy * xhat).sum(lead), dy.sum(lead)


def channels(vector, x):
    return np.reshape(vector, (-1, *[1] * (x.ndim - 2)))


def silu(z, scale=1.0):
    return z / (1 + np.exp(-scale * z))


def silu_slope(z, scale=1.0):
    share = 1 / (1 + np.exp(-scale * z))
    return share + scale * z * share * (1 - share)


def groups(x, group, gamma, beta, eps):
    shape = (x.shape[0], int(group), -1)
    mean, rstd = moments(x.reshape(shape), (2,), eps)
    xhat = ((x.reshape(shape) - mean) * rstd).reshape(x.shape)
    return xhat * channels(gamma, x) + channels(beta, x), mean, rstd


def group_gradient(dy, x, mean, rstd, gamma, group):
    shape = (x.shape[0], int(group), -1)
    split = [part.reshape(shape) for part in (dy * channels(gamma, x), x)]
    mean, rstd = (one.reshape(x.shape[0], int(group), 1) for one in (mean, rstd))
    xhat = (split[1] - mean) * rstd
    means = [part.mean(2, keepdims=True) for part in (split[0], split[0] * xhat)]
    dx = rstd * (split[0] - means[0] - xhat * means[1])
    others = (0, *range(2, x.ndim))
    return dx, (dy * xhat.reshape(x.shape)).sum(others), dy.sum(others)


def rms(x, gamma, eps):
    rstd = 1 / np.sqrt((x * x).mean(tail(gamma), keepdims=True) + eps)
    return x * rstd * gamma, rstd


def batch(a):
    x = a["input"]
    mean, rstd = moments(x, (0, *range(2, x.ndim)), a["eps"])
    y = (x - mean) * rstd * channels(a["weight"], x) + channels(a["bias"], x)
    return {"output": y, "saveMean": mean, "saveInvstd": rstd}


def batch_gradient(a):
    x, dy, axes = a["input"], a["gradOut"], (0, *range(2, a["input"].ndim))
    mean, rstd, weight = (channels(a[one], x) for one in ("saveMean", "saveInvstd", "weight"))
    xhat = (x - mean) * rstd
    means = [part.mean(axes, keepdims=True) for part in (dy, dy * xhat)]
    dx = weight * rstd * (dy - means[0] - xhat * means[1])
    return {"gradInput": dx, "gradWeight": (dy * xhat).sum(axes), "gradBias": dy.sum(axes)}


def elemt(a):
    x = a["input"]
    return {"output": (x - channels(a["mean"], x)) * channels(a["invstd"], x)}


def elemt_gradient(a):
    x, dy, count = a["input"], a["gradOut"], a["counter"].sum()
    names = ("mean", "invstd", "weight", "sumDy", "sumDyXmu")
    mean, rstd, weight, sum_dy, sum_xmu = (channels(a[one], x) for one in names)
    dx = (dy - sum_dy / count - (x - mean) * rstd**2 * sum_xmu / count) * rstd * weight
    return {"gradInput": dx}


def reduce(a):
    x, dy, axes = a["input"], a["gradOut"], (0, *range(2, a["input"].ndim))
    sums = dy.sum(axes), (dy * (x - channels(a["mean"], x))).sum(axes)
    more = {"gradWeight": sums[1] * a["invstd"], "gradBias": sums[0]}
    return {"sumDy": sums[0], "sumDyXmu": sums[1]} | more


def named(names, values):
    return dict(zip(names.split(), values, strict=True))


def add_layer(a):
    bias = 0.0 if a["biasOptional"] is None else a["biasOptional"]
    total = a["x1"] + a["x2"] + bias
    made = rows(total, a["gamma"], a["beta"], a["epsilon"])
    return named("yOut meanOut rstdOut xOut", (*made, total))


def add_rms(a, first, second, results):
    total = a[first] + a[second]
    return named(results, (*rms(total, a["gamma"], a["epsilon"]), total))


def deep_gradient(a):
    x, dy = a["alpha"] * a["x"] + a["gx"], a["dy"]
    dgx, dgamma, dbeta = row_gradient(dy, x, a["mean"], a["rstd"], a["gamma"])
    return named("dxOut dgxOut dbetaOut dgammaOut", (a["alpha"] * dgx, dgx, dbeta, dgamma))


def add_layer_gradient(a):
    made = row_gradient(a["dy"], a["x1"] + a["x2"], a["mean"], a["rstd"], a["gamma"])
    return named("dxOut dgammaOut dbetaOut", (made[0] + a["dsumOptional"], *made[1:]))


def rms_gradient(a):
    x, gamma = a["x"], a["gamma"]
    rstd = a["rstd"].reshape(x.shape[: x.ndim - gamma.ndim] + (1,) * gamma.ndim)
    xhat, g = x * rstd, a["dy"] * gamma
    dx = rstd * (g - xhat * (g * xhat).mean(tail(gamma), keepdims=True))
    return {"dxOut": dx, "dgammaOut": (a["dy"] * xhat).sum(tuple(range(x.ndim - gamma.ndim)))}


def swish_gradient(a):
    x, mean, rstd = a["x"], a["mean"], a["rstd"]
    shape = (x.shape[0], int(a["numGroups"]), -1)
    xhat = (x.reshape(shape) - mean[:, :, None]) * rstd[:, :, None]
    z = xhat.reshape(x.shape) * channels(a["gamma"], x) + channels(a["beta"], x)
    dz = a["dy"] * silu_slope(z, a["swishScale"])
    made = group_gradient(dz, x, mean, rstd, a["gamma"], a["numGroups"])
    return named("dxOut dgammaOut dbetaOut", made)


def layer(a):
    made = rows(a["input"], a["weightOptional"], a["biasOptional"], a["eps"])
    return named("out meanOutOptional rstdOutOptional", made)


def layer_gradient(a):
    given = (a[one] for one in ("gradOut", "input", "mean", "rstd", "weightOptional"))
    return named("gradInputOut gradWeightOut gradBiasOut", row_gradient(*given))


def group(a, activation=None):
    y, mean, rstd = groups(a["self"], a["group"], a["gamma"], a["beta"], a["eps"])
    return named("out meanOut rstdOut", (activation(y) if activation else y, mean, rstd))


def group_backward(a):
    given = (a[one] for one in ("gradOut", "input", "mean", "rstd", "gamma", "group"))
    return named("gradInput gradGammaOut gradBetaOut", group_gradient(*given))


def swish(a):
    y, mean, rstd = groups(a["x"], a["numGroups"], a["gamma"], a["beta"], a["eps"])
    return named("yOut meanOut rstdOut", (silu(y, a["swishScale"]), mean, rstd))


def deep(a):
    made = rows(a["alpha"] * a["x"] + a["gx"], a["gamma"], a["beta"], a["epsilon"])
    return named("yOut meanOut rstdOut", made)


FORMULAS = {
    "BatchNorm": batch,
    "BatchNormBackward": batch_gradient,
    "BatchNormElemt": elemt,
    "BatchNormElemtBackward": elemt_gradient,
    "BatchNormReduceBackward": reduce,
    "LayerNorm": layer,
    "LayerNormWithImplMode": layer,
    "LayerNormBackward": layer_gradient,
    "GroupNorm": group,
    "GroupNormBackward": group_backward,
    "GroupNormSilu": lambda a: group(a, silu),
    "GroupNormSiluV2": lambda a: group(a, silu),
    "GroupNormSwish": swish,
    "GroupNormSwishGrad": swish_gradient,
    "RmsNorm": lambda a: named("yOut rstdOut", rms(a["x"], a["gamma"], a["epsilon"])),
    "GemmaRmsNorm": lambda a: named("yOut rstdOut", rms(a["x"], 1 + a["gamma"], a["epsilon"])),
    "RmsNormGrad": rms_gradient,
    "AddRmsNorm": lambda a: add_rms(a, "x1", "x2", "yOut rstdOut xOut"),
    "InplaceAddRmsNorm": lambda a: add_rms(a, "x1Ref", "x2Ref", "x1Ref rstdOut x2Ref"),
    "AddLayerNorm": add_layer,
    "AddLayerNormGrad": add_layer_gradient,
    "DeepNorm": deep,
    "DeepNormGrad": deep_gradient,
}


@pytest.mark.parametrize("source", list(programs()))
def test_every_printed_number(capi, source, tmp_path):
    text = source.read_text(errors="replace")
    program = tmp_path / source.stem
    flags = subprocess.run(
        [sys.executable, "-m", "normgrad", "capi-flags", "--prefix", str(capi.prefix)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SRC)},
    ).stdout.split()
    line = ["g++", "-std=c++11", str(source), *flags, "-o", str(program)]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = execute(program)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [float(word) for word in re.findall(r"is: (\S+)", done.stdout)]
    assert printed
    if not any(f"{name}GetWorkspaceSize(" in text for name in UNDEFINED):
        np.testing.assert_allclose(printed, expected(text), rtol=2e-6, atol=1e-5)
