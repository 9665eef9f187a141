#!/usr/bin/env python3
"""Files that lie, files that cannot run and split files, through the binary.

usage: odd_files.py LACONIC MODEL.gguf    ends with "N passed, N failed"
A small llama with a SentencePiece vocabulary is written here byte by byte, and runs. Then one thing in it is made untrue at
a time: `inspect` and `run` must say so in one line that names what is wrong, exit as documented (inspect 0 when the file can
be read but not run, else 1), and take no more memory than the good file and a little. MODEL is cut in three by the gguf
package: the same logits to the byte; then parts are lost, swapped and changed.
"""
import json, os, shutil, struct, subprocess, sys, tempfile
import numpy as np
import gguf

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
SLACK = 64 << 20  # bytes over the good file's peak (a template of 1 MB is compiled before it is refused)
D, FF, V = 64, 64, 3 + 256 + 41
results = []


class File:
    """A GGUF file put together field by field; at[name] is where a field's bytes begin."""

    def __init__(self): self.b, self.at, self.keys, self.tensors = b'', {}, [], []
    def put(self, name, raw): self.at[name] = len(self.b); self.b += raw
    def text(self, s): s = s if isinstance(s, bytes) else s.encode(); return struct.pack('<Q', len(s)) + s

    def value(self, name, kind, v):
        if kind == ARRAY:
            element, items = v
            self.put(name + '.element', struct.pack('<I', element)); self.put(name + '.n', struct.pack('<Q', len(items)))
            self.b += b''.join(self.text(i) for i in items) if element == STRING else struct.pack(f"<{len(items)}{'f' if element == F32 else 'i'}", *items)
        else: self.put(name + '.value', self.text(v) if kind == STRING else struct.pack({U32: '<I', I32: '<i', F32: '<f', BOOL: '<B'}[kind], v))

    def write(self):
        self.put('magic', b'GGUF'); self.put('version', struct.pack('<I', 3))
        self.put('n_tensors', struct.pack('<Q', len(self.tensors))); self.put('n_keys', struct.pack('<Q', len(self.keys)))
        for name, kind, v in self.keys:
            self.put(name + '.len', struct.pack('<Q', len(name))); self.b += name.encode()
            self.put(name + '.type', struct.pack('<I', kind)); self.value(name, kind, v)
        data = b''
        for name, x in self.tensors:
            self.put(name + '.len', struct.pack('<Q', len(name))); self.put(name + '.name', name.encode())
            self.put(name + '.n_dims', struct.pack('<I', x.ndim)); self.put(name + '.dims', struct.pack(f'<{x.ndim}Q', *x.shape[::-1]))
            self.put(name + '.type', struct.pack('<I', 0)); self.put(name + '.offset', struct.pack('<Q', len(data)))
            data += x.tobytes() + bytes(-x.nbytes % 32)
        self.b += bytes(-len(self.b) % 32); self.put('data', data)
        return self


def model(drop=(), extra=(), change={}):
    """The good file, without some keys and tensors, with others, with other values."""
    rng = np.random.default_rng(4); f = File()
    tokens = ['<unk>', '<s>', '</s>'] + [f'<0x{i:02X}>' for i in range(256)] + ['▁'] + [chr(97 + i) for i in range(26)] + ['▁' + chr(97 + i) for i in range(14)]
    keys = [('general.architecture', STRING, 'llama'), ('general.alignment', U32, 32), ('llama.block_count', U32, 1), ('llama.context_length', U32, 256),
            ('llama.embedding_length', U32, D), ('llama.feed_forward_length', U32, FF), ('llama.attention.head_count', U32, 4),
            ('llama.attention.layer_norm_rms_epsilon', F32, 1e-5), ('tokenizer.ggml.model', STRING, 'llama'), ('tokenizer.ggml.tokens', ARRAY, (STRING, tokens)),
            ('tokenizer.ggml.scores', ARRAY, (F32, [-float(i) for i in range(V)])),
            ('tokenizer.ggml.token_type', ARRAY, (I32, [2, 3, 3] + [6] * 256 + [1] * 41)), ('tokenizer.ggml.bos_token_id', U32, 1), ('tokenizer.ggml.eos_token_id', U32, 2),
            ('tokenizer.chat_template', STRING, "{% for m in messages %}{{ m['content'] }}{% endfor %}")]
    mat = lambda *shape: (rng.standard_normal(shape) / 8).astype(np.float32)
    tensors = [('token_embd.weight', mat(V, D)), ('output_norm.weight', np.ones(D, np.float32))]
    for n, shape in (('attn_norm', (D,)), ('ffn_norm', (D,)), ('attn_q', (D, D)), ('attn_k', (D, D)), ('attn_v', (D, D)), ('attn_output', (D, D)), ('ffn_gate', (FF, D)), ('ffn_up', (FF, D)), ('ffn_down', (D, FF))):
        tensors.append((f'blk.0.{n}.weight', mat(*shape) if len(shape) == 2 else np.ones(shape, np.float32)))
    f.keys = [(k, kind, change.get(k, v)) for k, kind, v in keys if k not in drop] + [x for x in extra if len(x) == 3]
    f.tensors = [(n, change.get(n, x)) for n, x in tensors if n not in drop] + [x for x in extra if len(x) == 2]
    return f.write()


def call(args):
    """(exit status, stdout, stderr, peak bytes). A process between, as a child's peak begins with that of its parent."""
    between = 'import subprocess, sys, resource; n = subprocess.call(sys.argv[2:], stdin=subprocess.DEVNULL); open(sys.argv[1], "w").write(f"{n} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}")'
    with tempfile.NamedTemporaryFile('r') as f:
        p = subprocess.run([sys.executable, '-S', '-E', '-c', between, f.name, *args], capture_output=True)
        rc, peak = map(int, f.read().split())
        return rc, p.stdout.decode(errors='replace'), p.stderr.decode(errors='replace'), peak * 1024


def report(ok, text): results.append(bool(ok)); print('ok  ' if ok else 'FAIL', text, flush=True)


class Tester:
    def __init__(self, exe, folder):
        self.exe, self.path = exe, folder + '/m.gguf'
        open(self.path, 'wb').write(model().b)
        a, b = call([exe, 'inspect', self.path]), call([exe, 'run', self.path, '--raw', '-p', 'a b', '-n', '2', '--temp', '0'])
        report(a[0] == 0 and 'runs          yes' in a[1] and b[0] == 0, f'the good file runs: {a[2]}{b[2]}'.strip())
        self.peak = {'inspect': a[3], 'run': b[3]}

    def refused(self, what, raw, words, readable=False, path=None):
        """words: one of them must be in the line, so that it names what is wrong."""
        path = path or self.path
        if raw is not None: open(path, 'wb').write(raw)
        good, said = True, ''
        for command, args in (('inspect', []), ('run', ['--raw', '-p', 'a b', '-n', '2'])):
            rc, out, err, peak = call([self.exe, command, path, *args])
            if command == 'inspect' and readable: line = next((l.split('no: ', 1)[1] for l in out.splitlines() if l.startswith('runs          no: ')), '')
            else: line = err.strip()
            ok = rc == (0 if command == 'inspect' and readable else 1) and line and '\n' not in line and any(w in line for w in words) and peak <= self.peak[command] + SLACK
            if not ok: said += f' [{command}: exit {rc}, {peak / 1e6:.0f} MB, {line[:300]!r}]'
            elif command == 'run' and good: said = ' — ' + line[:150]
            good = good and ok
        report(good, f'{what}{said}')


def patched(f, name, raw, skip=0): at = f.at[name] + skip; return f.b[:at] + raw + f.b[at + len(raw):]
def q(v): return struct.pack('<Q', v % (1 << 64))
def d(v): return struct.pack('<I', v % (1 << 32))


def lies(t):
    f = model(); e, tok = 'blk.0.attn_q.weight', 'tokenizer.ggml.tokens'
    t.refused('offset past the end', patched(f, e + '.offset', q(1 << 40)), ['pass the end'])
    t.refused('offset near 2^64', patched(f, e + '.offset', q(-32)), ['pass the end'])
    t.refused('offset not aligned', patched(f, e + '.offset', q(33)), ['alignment'])
    t.refused('two tensors at one offset', patched(f, e + '.offset', q(0)), ['overlap'])
    t.refused('file cut in the data', f.b[:-4096], ['pass the end'])
    t.refused('file cut in the header', f.b[:100], ['ends inside', 'more than the file holds'])
    t.refused('2^63 tensors', patched(f, 'n_tensors', q(1 << 63)), ['tensors'])
    t.refused('2^64 - 1 keys', patched(f, 'n_keys', q(-1)), ['keys'])
    t.refused('one key more', patched(f, 'n_keys', q(len(f.keys) + 1)), [''])
    t.refused('one tensor less', patched(f, 'n_tensors', q(len(f.tensors) - 1)), ['ffn_down', ''], readable=True)
    t.refused('key type 77', patched(f, 'llama.block_count.type', d(77)), ['llama.block_count'])
    t.refused('a number as a string', patched(f, 'llama.block_count.type', d(STRING)), ['llama.block_count'])
    t.refused('a negative layer count', patched(f, 'llama.block_count.value', d(-1)), ['block_count'], readable=True)
    t.refused('2^32 - 1 heads', patched(f, 'llama.attention.head_count.value', d(-1)), ['head_count'], readable=True)
    t.refused('tensor type 200', patched(f, e + '.type', d(200)), ['tensor type 200'])
    t.refused('tensor type 4, dropped long ago', patched(f, e + '.type', d(4)), ['tensor type 4'])
    t.refused('Q4_K rows of 64', patched(f, e + '.type', d(12)), ['multiple'])
    t.refused('9 dimensions', patched(f, e + '.n_dims', d(9)), ['dimensions'])
    t.refused('a dimension of 0', patched(f, e + '.dims', q(0)), ['dimension'])
    t.refused('dims x type size overflows 64 bits', patched(f, e + '.dims', q(1 << 62) + q(1 << 3)), ['overflows'])
    t.refused('dims x type size overflows to a small number', patched(f, e + '.dims', q(1 << 32) + q(1 << 32)), ['overflows'])
    t.refused('dims larger than the file', patched(f, e + '.dims', q(1 << 30)), ['pass the end'])
    t.refused('alignment 0', patched(f, 'general.alignment.value', d(0)), ['general.alignment', 'power of two'])
    t.refused('alignment 24', patched(f, 'general.alignment.value', d(24)), ['general.alignment', 'power of two'])
    t.refused('alignment 2^31', patched(f, 'general.alignment.value', d(1 << 31)), ['general.alignment', 'power of two'])
    t.refused('array of 2^63 strings', patched(f, tok + '.n', q(1 << 63)), ['more than the file holds'])
    t.refused('array of 2^63 floats', patched(f, 'tokenizer.ggml.scores.n', q(1 << 63)), ['more than the file holds'])
    t.refused('array of 2^61 strings', patched(f, tok + '.n', q(1 << 61)), ['more than the file holds'])
    t.refused('a string of 2^63 bytes', patched(f, tok + '.n', q(1 << 63), skip=8), [tok, 'ends inside'])
    names = next(v for k, _, v in f.keys if k == tok)[1]
    for bad in ('<0xZZ>', '<0x>', '<0x100>', '<0x4'):
        t.refused(f'byte token {bad}', model(change={tok: (STRING, names[:70] + [bad] + names[71:])}).b, ['byte'], readable=True)
    t.refused('more tokens than embeddings', model(change={'token_embd.weight': np.ones((V - 50, D), np.float32)}).b, ['tokenizer has 300 tokens'], readable=True)
    t.refused('bos token id outside', model(change={'tokenizer.ggml.bos_token_id': 1 << 30}).b, ['bos_token_id'], readable=True)
    t.refused('fewer scores than tokens', model(change={'tokenizer.ggml.scores': (F32, [0.0] * 7)}).b, ['scores'], readable=True)
    t.refused('fewer types than tokens', model(change={'tokenizer.ggml.token_type': (I32, [1] * 7)}).b, ['token_type'], readable=True)
    t.refused('a template of 10 MB', model(change={'tokenizer.chat_template': '{{ messages }} ' * (10 * 1000 * 1000 // 15)}).b, ['template'], readable=True)
    t.refused('a template nested 100,000 deep', model(change={'tokenizer.chat_template': '{{ ' + '(' * 100000 + '1' + ')' * 100000 + ' }}'}).b, ['too many brackets'], readable=True)
    t.refused('a template of 1 MB of open tags', model(change={'tokenizer.chat_template': '{% if 1 %}' * 100000}).b, ['template'], readable=True)
    t.refused('a template that does not parse', model(change={'tokenizer.chat_template': '{% for %}'}).b, ['template', 'line 1'], readable=True)


def unrunnable(t):
    t.refused('an empty file', b'', ['empty'])
    t.refused('no GGUF file', b'PK\3\4' + bytes(1000), ['not a GGUF file'])
    t.refused('GGUF version 1', patched(model(), 'version', d(1)), ['version 1'])
    t.refused('big endian', patched(model(), 'version', struct.pack('>I', 3)), ['big-endian'])
    t.refused('vocabulary only', model(drop=[n for n, _ in model().tensors]).b, ['token_embd.weight'], readable=True)
    t.refused('no architecture', model(drop=['general.architecture']).b, ['general.architecture'], readable=True)
    t.refused('unknown architecture', model(change={'general.architecture': 'mamba'}).b, ['mamba'], readable=True)
    t.refused('no tokenizer', model(drop=[k for k, _, _ in model().keys if k.startswith('tokenizer.')]).b, ['tokenizer'], readable=True)
    t.refused('unknown tokenizer', model(change={'tokenizer.ggml.model': 'rwkv'}).b, ['rwkv'], readable=True)
    t.refused('a tensor is missing', model(drop=['blk.0.ffn_up.weight']).b, ['blk.0.ffn_up.weight'], readable=True)
    t.refused('a tensor of another shape', model(change={'blk.0.attn_k.weight': np.ones((D, D // 2), np.float32)}).b, ['blk.0.attn_k.weight'], readable=True)
    t.refused('a tensor nobody reads', model(extra=[('blk.0.ffn_up.bias', np.ones(FF, np.float32))]).b, ['blk.0.ffn_up.bias'], readable=True)
    t.refused('unknown RoPE scaling', model(extra=[('llama.rope.scaling.type', STRING, 'dynamic')]).b, ['dynamic'], readable=True)
    t.refused('bidirectional attention', model(extra=[('llama.attention.causal', BOOL, 0)]).b, ['causal'], readable=True)
    t.refused('a base that is a text', model(extra=[('llama.rope.freq_base', STRING, '1e4')]).b, ['llama.rope.freq_base', 'number'], readable=True)
    t.refused('a count that is a text', model(extra=[('llama.attention.key_length', STRING, '16')]).b, ['llama.attention.key_length', 'number'], readable=True)
    t.refused('a choice that is a number', model(extra=[('tokenizer.ggml.add_bos_token', U32, 1)]).b, ['tokenizer.ggml.add_bos_token'], readable=True)
    t.refused('an architecture with terminal codes', model(change={'general.architecture': 'a\x1b[31mb'}).b, ['a?[31mb'], readable=True)
    t.refused('head size 6', model(change={'llama.attention.head_count': 10}).b, ['head', 'heads'], readable=True)
    t.refused('no such file', None, ['No such file', 'cannot', 'not'], path=t.path + '.absent')
    t.refused('a folder', None, ['directory', 'regular', 'folder'], path=os.path.dirname(t.path))
    open(t.path, 'wb').write(model(drop=['tokenizer.chat_template']).b)
    rc, out, err, _ = call([t.exe, 'inspect', t.path, '--json']); j = json.loads(out)
    report(rc == 0 and j['runs'] is True and j['chat'] is False and j['architecture'] == 'llama', 'a base model runs, without chat')
    a, b = (json.loads(call([t.exe, 'inspect', t.path, '--json', '--ctx', '128', '--max-batch', str(n)])[1])['memory'] for n in (1, 8))
    want = 128 * 4 * 16 * 2 * 2  # positions x heads x size x (K and V) x f16
    report(a['kv_sequence_bytes'] == b['kv_sequence_bytes'] == a['kv_batch_bytes'] == want and b['kv_batch_bytes'] == 8 * want and b['backend_bytes'] > a['backend_bytes'], f'KV of a context of 128: {want} bytes a sequence, {b["kv_batch_bytes"]} for 8')


def base_model(exe, folder):
    """A file without a chat template is served: completions work, chat is refused with the reason."""
    os.environ['BUILD'] = os.path.abspath(os.path.dirname(exe))
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../e2e'))
    from harness import Server
    open(folder + '/base.gguf', 'wb').write(model(drop=['tokenizer.chat_template']).b)
    s = Server(model=folder + '/base.gguf')
    try:
        st, r = s.call('/v1/completions', {'model': 'default', 'prompt': 'a b', 'max_tokens': 3, 'temperature': 0, 'ignore_eos': True})
        report(st == 200 and r['usage']['completion_tokens'] == 3, 'a base model serves completions')
        st, r = s.chat('a')
        report(st == 400 and 'no chat template' in r['error']['message'], f'and refuses chat: {st} {r}'[:160])
    finally: rc = s.stop()
    report(rc == 0, 'and stops')


def split(exe, whole, folder, t):
    r = gguf.GGUFReader(whole); arch = r.fields['general.architecture'].contents()
    w = gguf.GGUFWriter(folder + '/part.gguf', arch, split_max_tensors=len(r.tensors) // 3 + 1)
    for name, x in r.fields.items():
        if name.startswith('GGUF.') or name == 'general.architecture': continue
        w.add_key_value(name, x.contents(), x.types[0], x.types[-1] if x.types[0] == gguf.GGUFValueType.ARRAY else None)
    for x in r.tensors: w.add_tensor(x.name, x.data, raw_shape=x.data.shape, raw_dtype=x.tensor_type)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    part = [f'{folder}/part-{i:05}-of-00003.gguf' for i in (1, 2, 3)]
    json.dump([{'name': 'a', 'tokens': list(range(100, 160))}], open(folder + '/in.json', 'w'))
    outs = []
    for m, o in ((whole, 'a'), (part[0], 'b')):
        rc, _, err, _ = call([exe, 'logits', m, '--tokens', folder + '/in.json', '--out', folder + '/' + o, '--ctx', '256'])
        outs.append(open(folder + '/' + o, 'rb').read() if rc == 0 else err)
    report(outs[0] == outs[1] and len(outs[0]) > 10000, f'three parts of {len(r.tensors)} tensors: the same logits to the byte ({len(outs[0])} bytes)')
    rc, out, _, _ = call([exe, 'inspect', part[0]])
    report(rc == 0 and 'runs          yes' in out and f' {len(r.tensors)} tensors' in out, 'inspect reads all parts')
    t.refused('the second part is given', None, ['00001-of-00003'], path=part[1])
    raw = [open(p, 'rb').read() for p in part]
    def broken(what, words, **files):
        for i, p in enumerate(part):
            if os.path.exists(p): os.remove(p)
            b = files.get(f'p{i + 1}', raw[i])
            if b is not None: open(p, 'wb').write(b)
        t.refused(what, None, words, path=part[0])
    key = lambda name, b: b.index(name) + len(name) + 4
    def with_u(name, b, v, n): at = key(name, b); return b[:at] + v.to_bytes(n, 'little') + b[at + n:]
    broken('part 2 is missing', ['00002', 'file 2 of 3'], p2=None)
    broken('part 3 is missing', ['00003', 'file 3 of 3'], p3=None)
    broken('parts 2 and 3 swapped', ['split.no', 'file 2 of 3'], p2=raw[2], p3=raw[1])
    broken('part 2 twice', ['file 3 of 3', 'split.no'], p3=raw[1])
    broken('part 2 says there are 4', ['split.count', 'file 2 of 3'], p2=with_u(b'split.count', raw[1], 4, 2))
    broken('part 1 says there are 4', ['split.count', '00004'], p1=with_u(b'split.count', raw[0], 4, 2))
    broken('part 1 says 65535', ['number of files'], p1=with_u(b'split.count', raw[0], 65535, 2))
    broken('another number of tensors in all', ['split.tensors.count', 'tensors'], p1=with_u(b'split.tensors.count', raw[0], 7, 4))
    broken('part 2 cut short', ['file 2 of 3'], p2=raw[1][:-100000])
    broken('part 3 empty', ['file 3 of 3'], p3=b'')
    broken('part 3 of another kind', ['file 3 of 3'], p3=b'<html>404</html>')
    a, b = b'blk.1.attn_q.weight', next(x for x in (b'blk.20.attn_q.weight', b'blk.15.attn_q.weight', b'blk.25.attn_q.weight') if x in raw[1] or x in raw[2])
    report(a in raw[0] and b not in raw[0], 'the parts hold different layers')
    shutil.copy(part[0], folder + '/other.gguf')
    t.refused('part 1 under another name', None, ['00001-of-00003'], path=folder + '/other.gguf')


def main():
    exe, whole = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        t = Tester(exe, folder)
        lies(t); unrunnable(t); base_model(exe, folder); split(exe, whole, folder, t)
    print(f'{sum(results)} passed, {len(results) - sum(results)} failed'); return not all(results)


if __name__ == '__main__': sys.exit(main())
