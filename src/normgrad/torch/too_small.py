"""Calls that ``enable()`` leaves to torch: too small to gain. The limits stand here alone.

Our kernels take less time than torch's, but Python comes first, and in a model it comes from memory
each time. A call that we hand to torch takes 13 to 30 us more than one in which we have no part
(5 with warm caches), one that we take 20 to 40 more before its kernel gains anything.

Medians in us: torch's own operator, then what is added where we leave the call to torch and where
we take it, by benchmarks/too_small.py (a small network's training step and 8 MB of other data
between two calls; rows of 768, images of 64 channels). Two threads on two cores of an AMD EPYC
(Zen 5), torch 2.13.0, 2026-11-19.

    type     elements  layer norm      batch norm      channels last   group norm
    float32    262144   64  +16   +30   53  +16   +34   79  +15   +20   55  +15   +34
    float32   1048576  222  +19   +73  251  +29   -11  254  +17    +2  189  +27   +48
    float32   1572864  366  +30   +44  418  +33   -72  345  +37   +35  334  +28    -5
    float32   2097152  412  +43   +92  602  +32  -157  549  +34   +61  513  +37   -50
    float64    262144  117  +20   +12  108  +26   +26  135  +23   +15   98  +16   +29
    float64    524288  261  +25    +3  212  +29   +17  240  +18    -5  194  +16   +42
    bfloat16    65536   40  +16   +14   29  +14   +23   35  +14   +20   27  +12   +25
    bfloat16   262144  101  +16   -25   59  +15    +6   78  +15    -1   52  +13   +15
    float16     65536   37  +16   +20   28  +14   +27   35  +16   +24   45  +13   +11
    float16    262144   85  +16    -3   54  +16   +21   71  +17    +9  120  +15   -48

With one thread we gain earlier: from 524288 elements of float32 and 65536 of bfloat16 on.

RMS norm is an operator of its own, since torch takes it apart on the CPU. One thread, time of the
processor on a busy machine, the same day; both ways, and forward alone:

    type     elements  both ways            forward
    float32     16384    242   +26     -14   156   +70  +106
    float32     65536    525   -68    -196   107   +17   +50
    float32    262144   4594 -2535   -4091   233   +36   +90
    float32   1048576  13565 -7294  -12146   844   -36  -199
    bfloat16    16384    378   +68     -31   168  +136   +33
    bfloat16    65536    556   +48     -85   354   +31  -119
    bfloat16   262144   1376   -27    -784   450  +112  -110
"""

from typing import Final

import torch

# Elements of the input from which on we take a call.
LEAST: Final[dict[str, dict[torch.dtype, int]]] = {
    "cpu": {
        torch.float64: 524288,
        torch.float32: 1572864,
        torch.float16: 262144,
        torch.bfloat16: 262144,
    },
    # Not measured, so none: there the host only launches, while the GPU is still busy with what
    # came before. Whole steps that wait for the host took .97 to 1.07 of torch's time in two runs.
    "cuda": {},
}

# The same of RMS norm, both ways: a step makes both.
LEAST_RMS_NORM: Final[dict[str, dict[torch.dtype, int]]] = {
    "cpu": dict.fromkeys(LEAST["cpu"], 65536),
    "cuda": {},
}

# The same of other forward operators.
LEAST_FORWARD: Final[dict[str, dict[torch.dtype, int]]] = {
    "cpu": dict(LEAST["cpu"]),
    "cuda": {},
}
