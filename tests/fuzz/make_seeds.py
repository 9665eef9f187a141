#!/usr/bin/env python3
"""Write the generated fuzzing seeds: make_seeds.py OUT_DIR makes OUT_DIR/<fuzzer>/<seed>.

Seeds that are plain text are checked in under tests/fuzz/seeds/<fuzzer>/ instead. Standard library
only.
"""
import json
import pathlib
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
        U64: "<Q", I64: "<q", F64: "<d"}
# number in GGUF: (weights, bytes) of a block
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
          20: (32, 18), 23: (256, 136), 30: (1, 2), 39: (32, 17)}


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        element, items = v
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, i) for i in items)
    return struct.pack(PACK[kind], v)


def gguf(keys, tensors, version=3, alignment=32):
    """keys: [(name, kind, value)]; tensors: [(name, type number, dims)]."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, kind, v in keys:
        out += text(name) + struct.pack("<I", kind) + value(kind, v)
    data = b""
    for name, kind, dims in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", kind, len(data))
        weights, size = BLOCKS[kind]
        n = dims[0] // weights * size
        for d in dims[1:]:
            n *= d
        data += bytes(i * 37 % 251 for i in range(n))
        data += bytes(-len(data) % alignment)
    return out + bytes(-len(out) % alignment) + data


def gguf_seeds():
    yield "empty", gguf([], [])
    yield "scalars", gguf([(f"k{kind}", kind, 1) for kind in PACK], [])
    yield "negative", gguf([("a", I8, -1), ("b", I64, -(1 << 63)), ("c", F32, -0.5)], [])
    yield "strings", gguf([("s", STRING, "text"), ("e", STRING, ""), ("u", STRING, b"\xff\xfe"),
                           ("a", ARRAY, (STRING, ["one", "", "three"]))], [])
    yield "arrays", gguf([(f"a{kind}", ARRAY, (kind, [0, 1, 1])) for kind in PACK], [])
    yield "alignment", gguf([("general.alignment", U32, 64)], [("t", 0, [3, 2]), ("u", 0, [5])],
                            alignment=64)
    yield "version2", gguf([("k", U32, 2)], [("t", 0, [4])], version=2)
    yield "split", gguf([("split.no", U16, 0), ("split.count", U16, 1),
                         ("split.tensors.count", I32, 1)], [("t", 0, [4])])
    yield "split2", gguf([("split.no", U16, 0), ("split.count", U16, 2)], [("t", 0, [4])])
    for kind, (weights, _) in BLOCKS.items():
        yield f"type{kind}", gguf([("k", U8, 1)], [("a", kind, [weights, 2]), ("b", kind, [weights])])
    yield "llama", gguf(
        [("general.architecture", STRING, "llama"), ("llama.block_count", U32, 1),
         ("llama.rope.freq_base", F32, 1e5), ("tokenizer.ggml.add_bos_token", BOOL, 0),
         ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "ab"])),
         ("tokenizer.ggml.token_type", ARRAY, (I32, [1, 1, 1])),
         ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"]))],
        [("token_embd.weight", 8, [32, 3]), ("blk.0.attn_norm.weight", 0, [32]),
         ("blk.0.attn_q.weight", 3, [32, 4])])


def safetensors(tensors, metadata=None):
    """tensors: [(name, dtype, bytes of an element, shape)]."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, size, shape in tensors:
        n = size
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(i * 37 % 251 for i in range(at))


def safetensors_seeds():
    yield "empty", safetensors([])
    yield "metadata", safetensors([("a", "F32", 4, [2, 3])], {"format": "pt"})
    yield "types", safetensors([(t, t, n, [2]) for t, n in (
        ("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8), ("I64", 8), ("I8", 1), ("BOOL", 1))])
    yield "shapes", safetensors([("scalar", "F32", 4, []), ("none", "F16", 2, [0, 5]),
                                 ("deep", "U8", 1, [1, 1, 2, 1, 1, 2, 1, 1])])


FUZZERS = {"gguf": gguf_seeds, "safetensors": safetensors_seeds}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for fuzzer, seeds in FUZZERS.items():
        folder = pathlib.Path(sys.argv[1]) / fuzzer
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
