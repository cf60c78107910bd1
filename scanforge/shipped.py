"""What runs where nothing was tuned: numbers measured on an NVIDIA H200, sm_90 (docs/dev/lab-notes.md).

Other devices run by the same numbers until somebody measures them there. A record of `scanforge tune` stands
in for the lowering, the chunks and the tiles of one kind of call; what is kept is never tuned.
"""

from __future__ import annotations

# The device: lanes are threads, one each.
RESIDENT = 16_896  # lanes that are at work at one time: 128 on each of 132 processors
REGISTERS = 65_536  # of one processor
SHARED = 225_000  # bytes of shared memory of one processor
LINE = 128  # bytes that memory hands over at one time
FILLING = 8192  # lanes that fill the device
GROUPED = 4096  # lanes that fill it in groups
LEFT = 2  # processors that a ring of programs leaves to others, who may wait for something as well
OF_PROCESSOR = 2  # programs of a ring that are at work on one processor at one time,
AT_ONCE = (132 - LEFT) * OF_PROCESSOR  # on all the others,
OF_RING = 112_000  # and the shared memory that each may take then,
EXCHANGED = 16  # of which so many bytes a thread are for what groups tell each other

# The lowering.
RINGED = 256  # lanes from which programs of a ring share them, below GROUPED; fewer are split in time
MOST_MEMBERS = 32  # of a ring
LONG = 1024  # steps from which splitting time pays, where lanes do not fill the device
CHUNK = 64  # chunks are of multiples of it: of whole tiles, of both directions

# R of a forward ordered tile: for at most 2, at most 4, and more inputs, by whether all are 16 bits wide, and
# lanes of a program.
FORWARD_ROWS = {
    (True, 32): (64, 16, 8),
    (True, 64): (64, 16, 8),
    (True, 128): (64, 16, 8),
    (False, 32): (64, 16, 8),
    (False, 64): (32, 16, 8),
    (False, 128): (16, 16, 8),
}
MANY_STEPS, FEW_ROWS = 64, 8  # below so many steps it has few rows, so that few steps fill none
GROUP_ROWS = 16  # and at most so many in groups
MOST_LEAVES = 2  # that cost little to compose beside a step: more have no groups

# R of a backward ordered tile, and the spacing of what is kept: for so many registers a row, or fewer.
SPACING = ((4, 32), (7, 16))
MANY_REGISTERS = 8  # its R for more

# Stages of an ordered tile, by the bytes in flight over the device.
IN_FLIGHT = {False: 6_300_000, True: 8_400_000}  # by whether there are 16-bit inputs alone
MANY_IN_FLIGHT = 13_000_000  # forward, wider inputs, beyond twice the lanes that are at work

# Axes inside a program.
MOST_ENTRIES = 32  # of a held axis: more do not fit the registers of a thread
VALUES = 128  # rows times entries whose inputs a forward kernel spreads at a time
BLOCK = 4096  # entries of whole axes times lanes, in one program
OF_STEP = 256  # the same of a single step
OF_THREAD = 16  # of these in one thread, while there are threads

# What is kept of expanded states: of the bytes of inputs, outputs and gradients, by memory=.
BUDGET = {"": 0.5, "low": 0.16}

# The reference, on two cores: beyond these a step is bound by bytes, not calls.
PARALLEL_STEPS, PARALLEL_LANES = 64, 1024

# Over ranks: bytes a second of a copy; seconds until a message has arrived, and one from each rank at each;
# between the launches of two calls; that the host takes for a group of lanes, messages included.
COPIED = 4.2e12
MESSAGE = 20e-6
GATHERED = 100e-6
CALL = 10e-6
HOST = 60e-6
