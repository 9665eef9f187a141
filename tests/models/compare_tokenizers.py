#!/usr/bin/env python3
"""Random text through `laconic tokenize` and `detokenize` and through the `tokenizers` (byte-level
BPE) and `sentencepiece` packages, built from the same GGUF vocabularies.

usage: compare_tokenizers.py LACONIC [N] [SEED]
N (default 10000) texts a vocabulary, from SEED (default: drawn and printed). Vocabularies:
$LAC_SHARED/data/vocab/*.gguf (or ../shared/...) and $LAC_MODEL. Needs gguf, tokenizers,
sentencepiece. Ends with "N passed, N failed".
"""
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# The published expressions, one Split (isolated) after the other.
SPLITS = {
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3 % r"\p{N}{1,3}"],
    "qwen2": [LLAMA3 % r"\p{N}"],
}
IGNORE_MERGES = {"llama-bpe"}
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
         r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
             r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Tried with GPT-2's vocabulary, because they are about where a text is cut.
VARIANTS = {
    "tekken": [GPT4O % ("", "", r"\p{N}")],
    "gpt-4o": [GPT4O % (SUFFIX, SUFFIX, r"\p{N}{1,3}")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O % (SUFFIX, SUFFIX, r"\p{N}{1,3}")],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+",
                       "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "qwen35": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
               r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "exaone-moe": [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
                   r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "bloom": [" ?[^(\\s|.,!?…。，、।۔،)]+"],
}


def letters_of_deepseek(repo):
    """The class of cased letters that deepseek-llm's tokenizer.json spells out, as our own test of
    the pre-tokenizer states it."""
    text = open(os.path.join(repo, "tests/models/test_tokenizer_pretokenize.c")).read()
    start = text.index("#define DEEPSEEK_LETTERS")
    lines = text[start:text.index("\n\n", start)].split("\n")[1:]
    joined = "".join(line.strip().rstrip("\\").strip().strip('"') for line in lines)
    out, i = "", 0
    joined = joined.replace("\\\\", "\\")
    while i < len(joined):
        if joined.startswith("\\x{", i):
            end = joined.index("}", i)
            out += chr(int(joined[i + 3:end], 16))
            i = end + 1
        else:
            out += joined[i]
            i += 1
    return out


def field(reader, key, default=None):
    f = reader.fields.get(key)
    return default if f is None else f.contents()


def alphabet():
    """Text to draw from: what has had the same category since Unicode 3.2 (the packages are of
    different versions: U+1885 is a letter to one and a mark to another), and what tokenizers treat
    apart."""
    assigned = [chr(c) for c in range(1, 0x30000)
                if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
                and unicodedata.category(chr(c)) == unicodedata.ucd_3_2_0.category(chr(c))]
    ascii_ = [chr(c) for c in range(1, 127)]
    words = ["the", " of", " and", "ing", "tion", " hello", "World", "don't", "I'LL", "we've", " '",
             "''", "'S", "function", "return", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "!!!",
             "...", "->", "=>", "123", "3.14", "2024", "0000", "ſ", "'ſ", "中文", "日本語", "안녕", "Привет",
             "مرحبا", "नमस्ते", "😀", "👩‍👩‍👧", "é", "É", "ß", "\u00a0", "\u3000", "\u2028", "▁", "▁▁",
             "<s>", "</s>", "<|endoftext|>", "<0x0A>", "\u0301"]
    emoji = [chr(c) for c in range(0x1F300, 0x1F650)]
    return assigned, ascii_, words, emoji


def random_text(rng, pools):
    assigned, ascii_, words, emoji = pools
    out = []
    style = rng.random()
    for _ in range(rng.randrange(0, 30)):
        r = rng.random()
        if r < 0.5 * style:
            out.append(rng.choice(assigned))
        elif r < 0.55:
            out.append(rng.choice(words))
        elif r < 0.6:
            out.append(rng.choice(emoji))
        elif r < 0.65:
            out.append(rng.choice(ascii_) * rng.randrange(1, 20))
        else:
            out.append("".join(rng.choice(ascii_) for _ in range(rng.randrange(1, 8))))
    return "".join(out)


def bpe_oracle(reader, splits, ignore_merges):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field(reader, "tokenizer.ggml.merges")]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = [m for m in merges if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), behavior="isolated") for s in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    types = field(reader, "tokenizer.ggml.token_type")
    user = [(t, i) for i, t in enumerate(tokens) if types[i] == 4]

    def encode(text):
        # User-defined tokens are always matched: leftmost, then longest.
        ids, plain, pos = [], 0, 0
        while user and pos < len(text):
            best = max((u for u in user if text.startswith(u[0], pos)), key=lambda u: len(u[0]),
                       default=None)
            if best is None:
                pos += 1
                continue
            ids += tok.encode(text[plain:pos], add_special_tokens=False).ids + [best[1]]
            pos += len(best[0])
            plain = pos
        return ids + tok.encode(text[plain:], add_special_tokens=False).ids
    # Bytes that the vocabulary has no token for are dropped, here as there.
    alphabet_ = pre_tokenizers.ByteLevel.alphabet()
    missing = {b for b in range(256) if byte_char(b) not in vocab}
    assert {byte_char(b) for b in range(256)} == set(alphabet_)

    def expect_back(text):
        kept = bytes(b for b in text.encode() if b not in missing)
        return kept.decode("utf-8", "replace")
    return encode, expect_back


def byte_char(b):
    """GPT-2's printable character for a byte."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    if b in plain:
        return chr(b)
    return chr(256 + sum(1 for x in range(b) if x not in plain))


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def proto(number, value):
    """One field of a protocol buffer: int as varint, float as fixed32, else length-delimited."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def spm_oracle(reader):
    """A sentencepiece_model.proto with the file's pieces (field numbers: sentencepiece's own
    definition)."""
    import sentencepiece
    tokens, scores = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.scores")
    types = field(reader, "tokenizer.ggml.token_type")
    model = b""
    unk = field(reader, "tokenizer.ggml.unknown_token_id", 0)
    for i, (token, score, kind) in enumerate(zip(tokens, scores, types)):
        # Tokens added after training are no pieces of the model, and there is one unknown piece.
        if kind == 4 or (kind == 2 and i != unk):
            kind = 3
        model += proto(1, proto(1, token.encode()) + proto(2, float(score)) + proto(3, int(kind)))
    trainer = (proto(3, 2) + proto(4, len(tokens)) + proto(35, 1) + proto(40, unk) + proto(41, 1)
               + proto(42, 2))
    prefix = field(reader, "tokenizer.ggml.add_space_prefix", True)
    normalizer = proto(1, b"identity") + proto(3, int(prefix)) + proto(4, 0) + proto(5, 1)
    model += proto(2, trainer) + proto(3, normalizer)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    user = [t for t, k in zip(tokens, types) if k == 4]
    # A space and U+2581 are written alike, so only one of them comes back.
    return (lambda text: None if any(u in text for u in user) else sp.encode(text),
            lambda text: text.replace("▁", " "))


def write_variant(reader, pre, path):
    import gguf
    w = gguf.GGUFWriter(path, "none")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(field(reader, "tokenizer.ggml.tokens"))
    w.add_token_types(field(reader, "tokenizer.ggml.token_type"))
    w.add_token_merges(field(reader, "tokenizer.ggml.merges"))
    finish(w)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def wordpiece(path, texts, cased):
    """Writes a vocabulary of the characters and some word pieces of the texts to path, in the form
    GGUF files have; returns the oracle."""
    import gguf
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    norm = normalizers.BertNormalizer(lowercase=not cased)
    chars = sorted({c for t in texts for c in norm.normalize_str(t) if not c.isspace()})
    chars = [c for i, c in enumerate(chars) if i % 11]  # some are unknown
    raw = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + chars + ["##" + c for c in chars if c != "#"]
    raw += ["the", "##ing", "func", "##tion", "hello", "world", "##el", "##lo", "he"]
    raw = list(dict.fromkeys(raw if cased else [r for r in raw if r.startswith("[") or
                                                 r == r.lower()]))
    tok = Tokenizer(models.WordPiece({t: i for i, t in enumerate(raw)}, unk_token="[UNK]",
                                     max_input_chars_per_word=100))
    tok.normalizer = norm
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    w = gguf.GGUFWriter(path, "none")
    w.add_tokenizer_model("bert")
    special = [3, 2, 3, 3]
    w.add_token_list(raw[:4] + [r[2:] if r.startswith("##") and len(r) > 2 else "▁" + r
                                for r in raw[4:]])
    w.add_token_types(special + [1] * (len(raw) - 4))
    w.add_unk_token_id(1)
    finish(w)
    return lambda text: tok.encode(text, add_special_tokens=False).ids


def run_lines(exe, command, path, values):
    with tempfile.TemporaryFile() as stdin:
        for v in values:
            stdin.write(json.dumps(v).encode() + b"\n")
        stdin.seek(0)
        p = subprocess.run([exe, command, path, "--json-lines"], stdin=stdin, capture_output=True)
    if p.returncode != 0:
        raise SystemExit("%s %s: exit %d: %s" % (command, path, p.returncode, p.stderr.decode()))
    return [json.loads(line) for line in p.stdout.splitlines()]


def main():
    exe = sys.argv[1]
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    repo = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    shared = os.environ.get("LAC_SHARED", os.path.join(repo, "../shared"))
    files = sorted(glob.glob(os.path.join(shared, "data/vocab/*.gguf")))
    if not files:
        print("skip: no vocabularies at %s/data/vocab" % shared)
    if os.environ.get("LAC_MODEL"):
        files.append(os.environ["LAC_MODEL"])
    import gguf
    SPLITS["deepseek-llm"] = [
        r"[\r\n]", r"\s?" + letters_of_deepseek(repo),
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"]
    pools = alphabet()
    totals = [0, 0]

    def texts_of(how_many):
        rng = random.Random(seed)
        return [random_text(rng, pools) for _ in range(how_many)]

    def compare(name, path, texts, oracle, expect_back, package):
        ids = run_lines(exe, "tokenize", path, texts)
        back = run_lines(exe, "detokenize", path, ids)
        compared = bad = 0
        for text, got, again in zip(texts, ids, back):
            want = oracle(text)
            if want is None:
                continue
            compared += 1
            if got != want or (expect_back and again != expect_back(text)):
                bad += 1
                if bad <= 3:
                    print("  %r\n    want %s\n    got  %s\n    back %r" % (text, want, got, again))
        print("%s: %d of %d equal to %s, seed %d" % (name, compared - bad, compared, package, seed),
              flush=True)
        totals[0] += compared - bad
        totals[1] += bad

    gpt2 = None
    for path in files:
        reader = gguf.GGUFReader(path)
        name = os.path.basename(path)
        kind, pre = field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre", "")
        if pre == "gpt-2":
            gpt2 = reader
        if kind == "gpt2" and pre in SPLITS:
            oracle, back = bpe_oracle(reader, SPLITS[pre], pre in IGNORE_MERGES)
            compare(name, path, texts_of(n), oracle, back, "tokenizers")
        elif kind == "llama":
            oracle, back = spm_oracle(reader)
            compare(name, path, texts_of(n), oracle, back, "sentencepiece")
        else:
            print("skip: no oracle for %s (%s, %s)" % (name, kind, pre))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "variant.gguf")
        for pre, splits in VARIANTS.items() if gpt2 else ():
            write_variant(gpt2, pre, path)
            oracle, back = bpe_oracle(gpt2, splits, False)
            compare("gpt-2 cut as " + pre, path, texts_of(n // 5), oracle, back, "tokenizers")
        for cased in (False, True):
            texts = texts_of(n // 2)
            oracle = wordpiece(path, texts, cased)
            compare("wordpiece, %scased" % ("" if cased else "un"), path, texts, oracle, None,
                    "tokenizers")
    passed, failed = totals
    print("%d passed, %d failed" % (passed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
