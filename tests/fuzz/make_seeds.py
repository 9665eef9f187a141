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
        data += struct.pack("<f", 1.5) * (n // 4) if name.startswith("rope_") else bytes(i * 37 % 251 for i in range(n))
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


def model(arch, keys=(), tensors=(), skip=(), tokenizer="gpt2"):
    """A whole model of one layer: two heads of 8, width and feed-forward 16, as few tokens as do."""
    if tokenizer == "llama":
        words, types = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "b", "ab"], [2, 3, 3, 6, 1, 1, 1, 1]
    else:
        words, types = ["a", "b", "ab", "\u0120", "1", "\u010a", "<|end|>", "<0xZZ>"], [1, 1, 1, 1, 1, 1, 3, 1]
    n = len(words)
    yes = [("general.architecture", STRING, arch), (arch + ".block_count", U32, 1),
           (arch + ".context_length", U32, 128), (arch + ".embedding_length", U32, 16),
           (arch + ".feed_forward_length", U32, 16), (arch + ".attention.head_count", U32, 2),
           (arch + ".attention.layer_norm_rms_epsilon", F32, 1e-5),
           ("tokenizer.ggml.model", STRING, tokenizer), ("tokenizer.ggml.pre", STRING, "gpt-2"),
           ("tokenizer.ggml.tokens", ARRAY, (STRING, words)),
           ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
           ("tokenizer.ggml.scores", ARRAY, (F32, [-float(i) for i in range(n)])),
           ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"])), ("tokenizer.ggml.bos_token_id", U32, 1),
           ("tokenizer.chat_template", STRING,
            "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}")]
    b = "blk.0."
    all_tensors = [("token_embd.weight", 0, [16, n]), ("output_norm.weight", 0, [16]),
                   (b + "attn_norm.weight", 0, [16]), (b + "ffn_norm.weight", 0, [16])]
    all_tensors += [(b + w + ".weight", 1, [16, 16]) for w in (
        "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    return gguf(yes + [(arch + k, kind, v) for k, kind, v in keys],
                [t for t in all_tensors if t[0] not in skip] + list(tensors))


def model_seeds():
    b = "blk.0."
    post = [(b + "post_attention_norm.weight", 0, [16]), (b + "post_ffw_norm.weight", 0, [16])]
    heads = [(b + "attn_q_norm.weight", 0, [8]), (b + "attn_k_norm.weight", 0, [8])]
    yield "llama", model("llama", tokenizer="llama")
    yield "llama_yarn", model("llama", [(".rope.scaling.type", STRING, "yarn"), (".rope.scaling.factor", F32, 4.0),
                                        (".rope.scaling.original_context_length", U32, 32)],
                              [("rope_freqs.weight", 0, [4])])
    yield "heads", model("llama", [(".attention.head_count_kv", ARRAY, (I32, [1]))])
    yield "mixtral", model("llama", [(".expert_count", U32, 2), (".expert_used_count", U32, 1)],
                           [(b + "ffn_gate_inp.weight", 0, [16, 2])] +
                           [(b + w + "_exps.weight", 0, [16, 16, 2]) for w in ("ffn_gate", "ffn_up", "ffn_down")],
                           skip=[b + w + ".weight" for w in ("ffn_gate", "ffn_up", "ffn_down")])
    yield "gemma3", model("gemma3", [(".attention.sliding_window", U32, 16),
                                     (".attention.sliding_window_pattern", ARRAY, (BOOL, [1]))], post + heads)
    yield "gemma2", model("gemma2", [(".attention.sliding_window", U32, 16)], post)
    yield "qwen3", model("qwen3", (), heads)
    yield "phi3", model("phi3", [(".rope.scaling.original_context_length", U32, 64)],
                        [(b + "attn_qkv.weight", 0, [16, 48]), ("rope_factors_long.weight", 0, [4]),
                         ("rope_factors_short.weight", 0, [4])],
                        skip=[b + "attn_" + w + ".weight" for w in "qkv"])
    yield "granite", model("granite", [(".logit_scale", F32, 8.0), (".rope.scaling.finetuned", BOOL, 0)])


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


def pack(rows, version=1):
    """rows: [(text, arch, SM count, compiler, cubin, ptx)]. Checksums and digests are XXH3, which the
    fuzzer fills in (its first byte says so)."""
    aligned = lambda n: -(-n // 64) * 64
    at, table, body = aligned(64 + 96 * len(rows)), b"", b""
    for words, arch, sms, compiler, cubin, ptx in rows:
        offsets = []
        for part in (words, compiler, cubin, ptx):
            offsets.append(at)
            body += part + bytes(-len(part) % 64)
            at = aligned(at + len(part))
        table += struct.pack("<QQII4Q4I3Q", 0, 0, arch, sms, *offsets, len(words), len(compiler), len(cubin),
                             len(ptx), 0, 0, 0)
    table += bytes(aligned(64 + len(table)) - 64 - len(table))
    return b"LACP" + struct.pack("<III", version, len(rows), 0) + bytes(48) + table + body


def pack_seeds():
    def row(i, arch, sms):
        words = f"kernel lac_{i}\nbuild 0.1.0\nsource 00\nspec a=1\noptions -x\narch {arch}\nsms {sms}\n"
        return (words.encode(), arch, sms, b"nvrtc 13.0", b"\x7fELF" + bytes(60 + i), b"ptx%d\0" % i)
    for flag in (b"\0", b"\1", b"\3"):
        yield f"empty{flag[0]}", flag + pack([])
        yield f"one{flag[0]}", flag + pack([row(0, 90, 132)])
        yield f"three{flag[0]}", flag + pack([row(1, 80, 108), row(2, 90, 132), row(3, 120, 170)])
    yield "version", b"\3" + pack([row(0, 90, 132)], version=2)


def sidecar(sections, model=(1, 2)):
    """sections: [(kind, key, bytes)]. The fuzzer makes the checksums fit."""
    head = 64 + 80 * len(sections)
    table, body = b"", b""
    for kind, key, data in sections:
        body += bytes(-(head + len(body)) % 64)
        table += struct.pack("<II40sQQ16x", kind, 1, key.encode(), head + len(body), len(data))
        body += data
    return (b"LACSIDE1" + struct.pack("<IIQQQ24x", 1, len(sections), *model, head + len(body)) +
            table + body)


def block(inputs):
    """A learned block of the shape that the fuzzer has: width 8, every tensor F32."""
    shapes = [(8 if inputs == 2 else 0, 16), (1, 8), (8, 8), (4, 8), (4, 8), (8, 8), (1, 8),
              (8, 8), (8, 8), (8, 8), (1, 8)]
    out = struct.pack("<10If20x", 0x4b434c42, 1, inputs, 1, 1, 8, 8, 2, 1, 4, 0.5)
    at = 448
    for rows, columns in shapes:
        size = 4 * rows * columns
        out += struct.pack("<IIIIQQ", 0, rows, columns, 0, at, size)
        at += (size + 63) // 64 * 64
    return out + bytes(at - len(out))


def sidecar_seeds():
    ngram = struct.pack("<IIIIQ6f16x", 0x4d52474e, 1, 2, 6, 5, *[0.5] * 6) + bytes(range(128))
    shortlist = struct.pack("<IIIIf44x", 0x54524853, 1, 3, 1000, 0.5) + struct.pack("<III", 1, 5, 9)
    yield "empty", sidecar([])
    yield "shortlist", sidecar([(1, "bank", shortlist)])
    yield "ngram", sidecar([(2, "bank", ngram)])
    yield "many", sidecar([(1, "a", shortlist), (1, "bank", b""), (2, "bank", ngram),
                           (3, "bank", block(2)), (4, "bank", block(1)), (12, "bank", b"{}"), (99, "later", b"x" * 70)])


FUZZERS = {"pack": pack_seeds, "gguf": gguf_seeds, "model": model_seeds, "safetensors": safetensors_seeds, "sidecar": sidecar_seeds}


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
