"""Where a parameter block, and a team's job, hold what.

All numbers are 64-bit integers; strides count bytes.
"""

from typing import Final

# Sizes, in the words of `Geometry`.
PHASES: Final = 0  # how many phases the table lists
OUTER: Final = 1
GROUPS: Final = 2
CHANNELS: Final = 3
INNER: Final = 4
COLUMNS: Final = 5  # groups * channels
COUNT: Final = 6  # elements that share a statistic

# What is computed.
BY_ROW: Final = 7  # a statistic belongs to (outer, group), not to a channel
SUM_DY: Final = 8  # sums of dy are needed
SUM_XMU: Final = 9  # sums of dy * (x - mean) are needed
CORRECTION: Final = 10  # one of the three below
NO_CORRECTION: Final = 0
OWN_CORRECTION: Final = 1
GIVEN_CORRECTION: Final = 2
WRITE_DX: Final = 11
STREAM_DX: Final = 12  # past the cache
FROM_VARIANCE: Final = 13
EPS: Final = 14  # the bits of a float64

# The fixed partition.
PER_TASK: Final = 15  # slabs or blocks that one task covers
SLABS: Final = 16
SEGMENTS: Final = 17  # of one slab
SPLIT_COUNT: Final = 18  # units that one slab, or strips that the rows of a sample are split into
SPLIT_ELEMENTS: Final = 19  # of a segment in one unit; columns of a strip of rows
SPLIT_SEGMENTS: Final = 20  # in one unit
BLOCK: Final = 21  # rows of a block
BLOCKS: Final = 22  # of one sample
SAMPLES: Final = 23
ROWS: Final = 24  # of one sample
EVEN_ROWS: Final = 25  # at an even distance
JOIN_COLUMNS: Final = 26  # that one joining task covers
JOIN_TASKS: Final = 27

# Offsets into the workspace.
AT_COUNT: Final = 28  # one float64: the joined count
AT_SUMS: Final = 29  # float64 sums
AT_PARTS: Final = 30  # partial sums of units or blocks
AT_COEFFICIENTS: Final = 31

# Data: place, then strides of (outer, group, channel, inner, sample).
DY: Final = 32
X: Final = 40
DX: Final = 48
BESIDE: Final = 111  # what a residual brings: its sum, or the gradient of that
DATA: Final = {
    "dy": DY,
    "residual": DY,
    "variances": DY,
    "x": X,
    "dx": DX,
    "y": DX,
    "sum": BESIDE,
    "dsum": BESIDE,
}
BY_OUTER: Final = 1
BY_GROUP: Final = 2
BY_CHANNEL: Final = 3
BY_INNER: Final = 4
BY_SAMPLE: Final = 5
DATA_CODE: Final = 6  # of means and variances of ranks: their element types

# Vectors: place, element type, stride, length.
MEAN: Final = 56
RSTD: Final = 60
GAMMA: Final = 64
SUM_DY_VECTOR: Final = 68
SUM_XMU_VECTOR: Final = 72
COUNTER: Final = 76
DGAMMA: Final = 80
DBETA: Final = 84
CODE: Final = 1
STRIDE: Final = 2
LENGTH: Final = 3

# Rows of channels last.
FOUR_ROWS: Final = 88  # are summed at a time; 2: and written
FOLDED: Final = 89  # rows of few channels that are taken as one
WIDTH: Final = 90  # columns of such a row: FOLDED * COLUMNS

# Slabs of group norm.
STREAM_ACROSS_SEGMENTS: Final = 91  # which follow each other without gaps in x, dy and dx

# The order in which memory is touched.
# Lines are asked for ahead: channels first in the write pass; channels last in the sum pass, where
# four rows are added at a time.
PREFETCH_AHEAD: Final = 92
# In the write pass (slabs, strips, samples) the data of the next task are asked for; in the sum
# pass (rows) the next four rows.
PREFETCH_NEXT_TASK: Final = 93
BACKWARDS: Final = 94  # rows are written from the last on: what was summed last may be in the cache

# Parameters' sums of a block of rows.
DGAMMA_OFFSET: Final = 95  # bytes from the sums of dbeta to those of dgamma, whole vectors

# A statistic of a single element: dy and the mean of all dy are the same number.
ALONE: Final = 96

BETA: Final = 97  # a vector as those above
RUNNING_MEAN: Final = 103
RUNNING_VAR: Final = 107
MOMENTUM: Final = 102  # the bits of a float64: the share of these data in both
WEIGHT_OFFSET: Final = 101  # the bits of a float64 that is added to gamma
NEGATIVE_SLOPE: Final = 119  # the bits of a float64: leaky ReLU's, swish's scale

# Weights of each sample.
SETS: Final = 117  # of parameters: one, or one for each sample
OWN_GROUPS: Final = 118  # groups of a sample's own parameters; 0: all samples have the same

FROM_INVSTD: Final = 120  # variances of ranks come as inverse deviations
BIASED: Final = 121  # the running variance is updated by the biased one

# The phase of a shortcut has a block of its own: tensors as a place and strides of (outer, channel,
# inner), a mask also with the distance of its bytes.
AFTER_DY: Final = 0
AFTER_X: Final = 4
AFTER_R: Final = 8
AFTER_OUT: Final = 12
AFTER_MASK: Final = 16
AFTER_MASK_STEP: Final = 20
AFTER_RUNS: Final = 21
AFTER_PER_TASK: Final = 22
AFTER_PIECE: Final = 23  # elements of a run that are taken together
AFTER_FACTORS: Final = 24  # offset into the workspace: mean, a and beta of every channel
AFTER_STREAM: Final = 25  # past the cache
AFTER_LENGTH: Final = 26  # elements of a run

# The phases: address of the task function, number of tasks, an argument.
TABLE: Final = 122
PER_PHASE: Final = 3
MAX_PHASES: Final = 24
# Descriptions of copies follow.
COPIES: Final = TABLE + MAX_PHASES * PER_PHASE
COPY_FROM: Final = 0  # place
COPY_FROM_CODE: Final = 1
COPY_TO: Final = 2
COPY_TO_CODE: Final = 3
COPY_RANK: Final = 4
COPY_RUNS: Final = 5  # the product of all sizes but the last, times the pieces of the last
COPY_RUNS_PER_TASK: Final = 6
COPY_PIECE: Final = 7  # elements of a run
COPY_AXES: Final = 8  # size, stride there, stride here for each axis
PER_COPY: Final = COPY_AXES + 3 * 8

# A team's job begins with the four arguments of `drive`, addresses and counters as offsets in bytes
# from the job until it is run. Those two follow it.
JOB_PARAMS: Final = 0
JOB_ADDRESSES: Final = 1
JOB_WORKSPACE: Final = 2
JOB_SYNC: Final = 3
JOB_CALLER: Final = 4  # the thread that leads
JOB_BEGUN: Final = 5  # when, in nanoseconds
JOB_AWAY: Final = 6  # for how long threads did not run
JOB_PARTS: Final = 7  # into how many parts tasks are split; 0: they are taken in turns
JOB_CAME: Final = 8  # how many threads have taken a part
JOB_HEAD: Final = 9  # words of all these
