#!/usr/bin/env python3
"""Compare tensor_dequantise with the gguf package, bit for bit, on every block format.

usage: compare_dequantise.py HELPER_BINARY [MODEL.gguf]
HELPER_BINARY is the build of tests/core/dequantise_dump.c. With a model, one tensor of each type in
it is compared too. Ends with "N passed, N failed".
"""
import subprocess
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

TYPES = ("F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS "
         "MXFP4").split()
BLOCKS = 4000


def adversarial(block_bytes):
    """Blocks of one repeated byte, and of two alternating ones: zeros, denormal and greatest scales."""
    same = np.repeat(np.arange(256, dtype=np.uint8)[:, None], block_bytes, axis=1)
    mixed = same.copy()
    mixed[:, ::2] = 255 - mixed[:, ::2]
    return np.concatenate([same, mixed])


def compare(helper, name, blocks):
    """Number of differing weights and of weights compared; blocks that hold a NaN are left out."""
    kind = GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        want = np.ascontiguousarray(dequantize(blocks, kind)).reshape(len(blocks), -1)
    keep = ~np.isnan(want).any(axis=1)
    blocks, want = np.ascontiguousarray(blocks[keep]), np.ascontiguousarray(want[keep])
    run = subprocess.run([helper, name], input=blocks.tobytes(), capture_output=True, check=True)
    got = np.frombuffer(run.stdout, dtype=np.uint32)
    if got.size != want.size:
        return want.size, want.size
    return int((got != want.reshape(-1).view(np.uint32)).sum()), want.size


def tensors_of(path):
    """One tensor of each type, as rows of blocks, at most 4 MiB of it."""
    seen = {}
    for t in GGUFReader(path).tensors:
        if t.tensor_type.name in TYPES and t.tensor_type.name not in seen:
            size = GGML_QUANT_SIZES[t.tensor_type][1]
            flat = np.frombuffer(np.ascontiguousarray(t.data).tobytes(), dtype=np.uint8)
            seen[t.tensor_type.name] = (t.name, flat.reshape(-1, size)[: (4 << 20) // size])
    return seen


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    helper = sys.argv[1]
    rng = np.random.default_rng(7)
    passed = failed = 0
    cases = []
    for name in TYPES:
        if name not in GGMLQuantizationType.__members__:
            print(f"skip: the installed gguf package does not know {name}")
            continue
        size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
        cases.append((name, "random blocks", rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)))
        cases.append((name, "adversarial blocks", adversarial(size)))
    if len(sys.argv) == 3:
        cases += [(name, tensor, blocks) for name, (tensor, blocks) in tensors_of(sys.argv[2]).items()]
    for name, what, blocks in cases:
        wrong, total = compare(helper, name, blocks)
        ok = wrong == 0 and total > 0
        passed, failed = passed + ok, failed + (not ok)
        if not ok:
            print(f"FAIL {name}, {what}: {wrong} of {total} weights differ")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
