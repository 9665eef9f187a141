#!/usr/bin/env python3
"""Compare the sentence encoder with an independent one on 200 texts in English and Chinese.

usage: compare_encoder.py HELPER_BINARY FOLDER [ISA]
HELPER_BINARY is the build of tests/models/encode_dump.c, FOLDER a model of the MiniLM family. The
reference is sentence-transformers where that is installed, else a float64 BERT in NumPy below, with
ids from the `tokenizers` package. A text passes when the cosine is at least 0.9999 and the number of
tokens is equal. Ends with "N passed, N failed".
"""
import json
import math
import os
import random
import struct
import subprocess
import sys

import numpy as np

LEAST = 0.9999
SEED = 20

ENGLISH = ("the bank transfers money to another account before noon market orders were cancelled "
           "because latency exceeded a millisecond however weather in Paris is mild today please "
           "explain how transformers compute attention over long documents children played "
           "football near river while teacher wrote unbelievable misunderstandings "
           "internationalization café naïve résumé coöperate don't we'll it's U.S.A. e-mail "
           "3.14159 1,000,000 2024-05-17 C++ #hashtag @user https://example.org/a?b=c").split()
CHINESE = ("今天天气很好我们去公园散步银行转账需要多长时间模型推理的延迟非常重要请解释注意力机制"
           "如何计算数据库连接失败怎么办北京上海广州深圳股票市场开盘价格上涨机器学习深度神经网络"
           "病史既往上次检查结果正常语言是人类最重要的交际工具")
ODD = ["", " ", "🙂🙃🎉", "Ünïcödé ÀÉÎÕÜ ß ŒÆ", "ＦＵＬＬ　ｗｉｄｔｈ", "한국어 텍스트", "日本語のテキスト、カタカナ", "مرحبا بالعالم",
       "a" * 150, "tab\tand\nnewline\r\nand\x00control\x7f", "x" + "\u0301" * 5 + "y", "“quotes” — dashes… ‘s’",
       "1234567890" * 8, "C:\\path\\file.txt", "{\"json\": [1, 2, 3]}", "€100 £5 ¥300 §1 ©"]


def texts():
    rng = random.Random(SEED)
    out = list(ODD)
    while len(out) < 200:
        kind, n = rng.randrange(3), rng.choice([1, 3, 8, 15, 30, 60])
        if len(out) % 40 == 0:
            n = 300  # longer than the model reads
        if kind == 0:
            s = " ".join(rng.choice(ENGLISH) for _ in range(n))
            s = s[:1].upper() + s[1:] + rng.choice([".", "?", "!", ""])
        elif kind == 1:
            at = [rng.randrange(len(CHINESE)) for _ in range(n)]
            s = "".join(CHINESE[i:i + 2] for i in at) + rng.choice(["。", "？", "！", ""])
        else:
            s = "，".join(rng.choice([rng.choice(ENGLISH), CHINESE[i:i + 4]])
                         for i in (rng.randrange(len(CHINESE) - 4) for _ in range(n)))
        out.append(s)
    return out


def read_safetensors(path):
    """Read here rather than by the package of that name, so that only NumPy is needed."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    out = {}
    for name, t in header.items():
        if name == "__metadata__" or t["dtype"] not in ("F32", "F16"):
            continue
        a, b = t["data_offsets"]
        kind = np.float32 if t["dtype"] == "F32" else np.float16
        out[name] = np.frombuffer(raw[8 + n + a:8 + n + b], dtype=kind).reshape(t["shape"]).astype(np.float64)
    return out


class Reference:
    """A BERT with mean pooling, float64."""

    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.c = json.load(open(os.path.join(folder, "config.json")))
        self.most = json.load(open(os.path.join(folder, "sentence_bert_config.json")))["max_seq_length"]
        self.w = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.t.no_padding()
        self.t.enable_truncation(self.most)
        self.erf = np.vectorize(math.erf, otypes=[np.float64])

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["layer_norm_eps"])
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def encode(self, text):
        ids = self.t.encode(text).ids
        w, heads = self.w, self.c["num_attention_heads"]
        x = (w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:len(ids)] +
             w["embeddings.token_type_embeddings.weight"][0])
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.c["num_hidden_layers"]):
            p = f"encoder.layer.{i}."
            q, k, v = (self.linear(x, p + f"attention.self.{n}").reshape(len(ids), heads, -1).transpose(1, 0, 2)
                       for n in ("query", "key", "value"))
            s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
            s = np.exp(s - s.max(-1, keepdims=True))
            s /= s.sum(-1, keepdims=True)
            y = (s @ v).transpose(1, 0, 2).reshape(len(ids), -1)
            x = self.norm(x + self.linear(y, p + "attention.output.dense"), p + "attention.output.LayerNorm")
            y = self.linear(x, p + "intermediate.dense")
            y = y / 2 * (1 + self.erf(y / math.sqrt(2)))
            x = self.norm(x + self.linear(y, p + "output.dense"), p + "output.LayerNorm")
        v = x.mean(0)
        return len(ids), v / np.sqrt((v * v).sum())


class SentenceTransformers:
    def __init__(self, folder):
        from sentence_transformers import SentenceTransformer
        self.m = SentenceTransformer(folder, device="cpu")

    def encode(self, text):
        n = int(self.m.tokenize([text])["attention_mask"].sum())
        return n, self.m.encode([text])[0].astype(np.float64)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    helper, folder, *isa = sys.argv[1:]
    reference = None
    for kind in (SentenceTransformers, Reference):
        try:
            reference = kind(folder)
            break
        except ImportError as e:
            print(f"skip: {kind.__name__}: {e}")
    if reference is None:
        print("0 passed, 0 failed")
        return 0
    all_texts = texts()
    raw = [t.encode() for t in all_texts]
    run = subprocess.run([helper, folder, *isa], input=b"".join(struct.pack("<I", len(b)) + b for b in raw),
                         capture_output=True)
    if run.returncode != 0:
        print(run.stderr.decode())
        print("0 passed, 1 failed")
        return 1
    got = np.frombuffer(run.stdout, dtype=np.uint32).reshape(len(raw), -1)
    passed = failed = 0
    least, furthest = 2.0, 0.0
    for text, row in zip(all_texts, got):
        n, want = reference.encode(text)
        have = row[1:].view(np.float32).astype(np.float64)
        cosine = float(have @ want / np.sqrt((have @ have) * (want @ want)))
        least, furthest = min(least, cosine), max(furthest, float(np.abs(have - want).max()))
        ok = cosine >= LEAST and n == row[0]
        passed, failed = passed + ok, failed + (not ok)
        if not ok:
            print(f"FAIL {text[:60]!r}: cosine {cosine:.7f}, {row[0]} tokens, reference {n}")
    print(f"{type(reference).__name__}: least cosine {least:.9f}, greatest difference {furthest:.2e}")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
