#!/usr/bin/env python3
"""Labels through the real server: heads trained by `laconic tune --labels` on a few texts of our own, the side-car served, zero-shot
where no head matches, hostile lists, damaged sections, and decodes beside label requests. Prints "N passed, N failed".
"""
import ctypes, json, math, os, random, signal, struct, subprocess, sys, tempfile, time, traceback
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tests/e2e'))
from harness import LACONIC, MODEL, SLOW, Server, delta, parallel, quiet, text

WORDS = {'weather': ['rain', 'sunshine', 'storm', 'wind', 'snow', 'fog', 'thunder', 'frost'],
         'cooking': ['soup', 'bread', 'pasta', 'salad', 'curry', 'cake', 'stew', 'rice'],
         'sports, indoor': ['tennis', 'chess boxing', 'squash', 'fencing', 'judo', 'climbing', 'darts', 'bowling']}
FORMS = ['tell me about {}', 'is there {} today?', 'I would like some {}', 'what is the best {} nearby', 'how long does {} take', '"{}", please', 'any news on {}']
TEXTS = [(f.format(w), label) for label, words in WORDS.items() for w in words[:6] for f in FORMS]
NEW = [(f.format(w), label) for label, words in WORDS.items() for w in words[6:] for f in FORMS[:4]]
LABELS = list(WORDS)


def write_csv(path, rows):
    with open(path, 'w', newline='') as f:
        f.write('id,text,category\r\n')
        for i, (t, label) in enumerate(rows): f.write(f'{i},"{t.replace(chr(34), chr(34) * 2)}","{label}"\r\n')


class Folder:
    def __init__(self):
        self.tmp = tempfile.TemporaryDirectory(); self.d = self.tmp.name
        self.csv, self.car = f'{self.d}/rows.csv', f'{self.d}/heads.lacs'
        write_csv(self.csv, TEXTS)
        p = self.tune('heads.lacs', '--json')
        assert p.returncode == 0, p.stderr
        self.report = json.loads(p.stdout)
        self.server = Server(args=('--side-car', self.car, '--ctx', '2048', '--max-batch', '8'))
    def tune(self, out, *more, csv=None):
        return subprocess.run([LACONIC, 'tune', MODEL, '--labels', csv or self.csv, '-o', f'{self.d}/{out}', '--label-layers', '1,2,3,6', *more],
                              capture_output=True, text=True, timeout=400 * SLOW)


def ask(s, what, labels, **kw):
    lac = {'labels': labels, 'explain': True, **kw.pop('laconic', {})}
    return s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': what}], 'laconic': lac, **kw})


def case_report(f):
    r = f.report
    assert r['rows'] == len(TEXTS) and r['labels'] == 3 and r['measured_on'] > 0 and [x['layer'] for x in r['layers']] == [1, 2, 3, 6]
    assert r['accuracy'] > 0.8 and r['accuracy_low'] <= r['accuracy'] and 1 <= r['mean_layer'] <= 6, r


def case_heads_answer(f):
    right = 0
    for what, label in NEW:
        st, r = ask(f.server, what, LABELS)
        assert st == 200, r
        lac = r['laconic']
        assert text(r) == lac['label'] and r['choices'][0]['finish_reason'] == 'stop' and r['usage']['completion_tokens'] == 0
        p = lac['label_probabilities']
        assert set(p) == set(LABELS) and abs(sum(p.values()) - 1) < 1e-3 and max(p, key=p.get) == lac['label']
        assert lac['labels_by'] == 'head' and lac['exit_layer'] in (1, 2, 3, 6) and lac['exits'] == 1, lac
        right += lac['label'] == label
    assert right >= 0.7 * len(NEW), (right, len(NEW))


def case_order_and_way_do_not_matter(f):
    what = NEW[3][0]
    _, a = ask(f.server, what, LABELS)
    for labels in (LABELS[::-1], LABELS[1:] + LABELS[:1]):
        _, b = ask(f.server, what, labels)
        assert b['laconic']['label_probabilities'] == a['laconic']['label_probabilities'], (a, b)
    _, c = f.server.call('/v1/completions', {'prompt': what, 'laconic': {'labels': LABELS, 'explain': True}})
    assert c['laconic']['label_probabilities'] == a['laconic']['label_probabilities'] and text(c) == text(a)
    st, d = f.server.call('/v1/chat/completions', {'messages': [
        {'role': 'system', 'content': 'rain rain'}, {'role': 'user', 'content': 'snow'}, {'role': 'assistant', 'content': 'fog'},
        {'role': 'user', 'content': [{'type': 'text', 'text': what}]}, {'role': 'assistant', 'content': 'storm'}], 'laconic': {'labels': LABELS, 'explain': True}})
    assert st == 200 and d['laconic']['label_probabilities'] == a['laconic']['label_probabilities'], d
    st, ev, done = f.server.stream('/v1/chat/completions', {'messages': [{'role': 'user', 'content': what}], 'laconic': {'labels': LABELS}})
    assert st == 200 and done and delta(ev) == text(a) and ev[-1]['laconic']['label_probabilities'] == a['laconic']['label_probabilities'], ev[-1]


def case_zero_shot(f):
    """Labels that nothing was trained for; scores are those of the model's own logprobs."""
    labels = ['an animal', 'a colour', 'a']
    st, r = ask(f.server, 'purple', labels)
    assert st == 200 and r['laconic']['labels_by'] == 'zero-shot' and 'exit_layer' not in r['laconic'] and r['laconic']['exits'] == 0, r
    p = r['laconic']['label_probabilities']
    assert abs(sum(p.values()) - 1) < 1e-3 and p['a'] < max(p.values()), p
    _, again = ask(f.server, 'purple', labels[::-1])
    assert again['laconic']['label_probabilities'] == p and again['usage']['prompt_tokens_details']['cached_tokens'] > 0, again
    st, one = ask(f.server, 'purple', ['only'])
    assert st == 200 and one['laconic']['label_probabilities'] == {'only': 1}, one
    many = [f'label number {i}' for i in range(40)]
    st, r = ask(f.server, 'number 17', many)
    assert st == 200 and set(r['laconic']['label_probabilities']) == set(many), (st, str(r)[:200])


def case_scores_are_logprobs(f):
    """Zero-shot probabilities from the same prompt's logprobs, asked for token by token."""
    labels, what = ['refund', 'lost card', 'a very long label'], 'My card is gone'
    asked = f'Which one of these labels fits the text best? Answer with the label alone.\n\nLabels:\na very long label\nlost card\nrefund\n\nText: {what}'
    p = subprocess.run([LACONIC, 'template', MODEL], input=json.dumps({'messages': [{'role': 'user', 'content': asked}], 'add_generation_prompt': True}), capture_output=True, text=True)
    ids = lambda t: f.server.call('/tokenize', {'content': t, 'parse_special': True})[1]['tokens']
    prompt, want = ids(p.stdout), {}
    for label in labels:
        answer = ids(label) + ids('<|im_end|>')
        st, r = f.server.call('/v1/completions', {'prompt': prompt + answer, 'max_tokens': 0, 'echo': True, 'logprobs': 0})
        assert st == 200, r
        want[label] = sum(r['choices'][0]['logprobs']['token_logprobs'][-len(answer):])
    top = max(want.values()); total = sum(math.exp(v - top) for v in want.values())
    st, r = ask(f.server, what, labels)
    assert st == 200 and r['usage']['prompt_tokens'] == len(prompt), (r, len(prompt))
    for label, v in want.items(): assert abs(r['laconic']['label_probabilities'][label] - math.exp(v - top) / total) < 1e-4, (r['laconic'], want)


def case_hostile_lists(f):
    for labels, word in (([], '1 to 256'), ([''], 'labels[0]'), (['a', 'a'], 'distinct'), ([f'l{i}' for i in range(1000)], '1 to 256'), (['x' * 129], 'labels[0]'),
                         (['ok', 'y' * 5000000], 'labels[1]'), ([1, 2], 'labels[0]'), ({'a': 1}, 'list'), ('a', 'list'), (['a\0b'], 'U+0000'), ([['a']], 'labels[0]'), ([None], 'labels[0]')):
        st, r = ask(f.server, 'hello', labels)
        assert st == 400 and word in r['error']['message'] and r['error']['param'].startswith('laconic.labels'), (str(labels)[:40], st, r)
    st, r = ask(f.server, 'hello', ['\u2603' * 42, '<|im_end|>', 'a\nb', '"'])
    assert st == 200 and len(r['laconic']['label_probabilities']) == 4, r
    for extra in ({'n': 2}, {'logprobs': True}):
        st, r = ask(f.server, 'hello', ['a', 'b'], **extra)
        assert st == 400 and r['error']['param'] in extra, r
    for body in ({'prompt': ['a', 'b']}, {'prompt': [1, 2]}, {'prompt': 'a', 'echo': True}):
        st, r = f.server.call('/v1/completions', {**body, 'laconic': {'labels': ['a', 'b']}})
        assert st == 400, r
    st, r = f.server.call('/v1/chat/completions', {'messages': [{'role': 'system', 'content': 'x'}], 'laconic': {'labels': ['a', 'b']}})
    assert st == 400 and r['error']['param'] == 'messages', r
    st, r = ask(f.server, 'word ' * 4000, ['a', 'b'])
    assert st == 400 and r['error']['code'] == 'context_length_exceeded', r
    st, r = ask(f.server, 'rain ' * 4000, LABELS)  # heads read its beginning
    assert st == 200 and r['usage']['prompt_tokens'] <= 256, r
    st, r = ask(f.server, '', LABELS)
    assert st == 200, r


def case_decodes_beside(f):
    """Neither changes the other's bytes."""
    s, rng = f.server, random.Random(5)
    decode = [lambda i=i: s.chat(f'Count from {i} upwards.', max_tokens=40, seed=i, temperature=0.8) for i in range(6)]
    label = [lambda t=t: ask(s, t, LABELS) for t, _ in NEW[:8]] + [lambda i=i: ask(s, f'thing {i}', ['a thing', 'no thing', 'two things']) for i in range(4)]
    alone = [g() for g in decode + label]
    order = list(range(len(alone))) * 2
    rng.shuffle(order)
    together = parallel([(decode + label)[i] for i in order])
    for i, (st, r) in zip(order, together):
        assert st == 200 and text(r) == text(alone[i][1]), (i, r)
        assert r['laconic'].get('label_probabilities') == alone[i][1]['laconic'].get('label_probabilities')
    quiet(s)


def case_deadline(f):
    st, r = ask(f.server, 'x ' * 300, [f'some label {i}' for i in range(256)], laconic={'deadline_ms': 1, 'on_deadline': 'truncate'})
    assert st in (503, 504), r


class Hash128(ctypes.Structure):
    _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]


def hash128(b):
    xx = ctypes.CDLL('libxxhash.so.0')
    xx.XXH3_128bits.restype, xx.XXH3_128bits.argtypes = Hash128, [ctypes.c_char_p, ctypes.c_size_t]
    h = xx.XXH3_128bits(bytes(b), len(b))
    return struct.pack('<QQ', h.low, h.high)


def plant(path, out, promise, contradict):
    """A side-car of one set with one head gets a second, behind layer 6, and a promise. The first head answers everything it is halfway sure
    of (`contradict`: everything); the second says the same, or the opposite."""
    b = open(path, 'rb').read()
    assert struct.unpack_from('<I', b, 12)[0] == 1
    offset, length = struct.unpack_from('<QQ', b, 64 + 48)
    s = b[offset:offset + length]
    k, n_heads, d, _, buckets = struct.unpack_from('<5I', s, 12)
    assert n_heads == 1
    whole = lambda n: (n + 63) // 64 * 64
    ends = 128 + 64  # an entry is 32 bytes
    words = ends + whole(4 * k)
    look = words + whole(struct.unpack_from('<I', s, ends + 4 * k - 4)[0])
    bias = look + 2 * whole(4 * k) + whole(buckets * k)
    weight = bias + whole(4 * k)
    scale, prior = struct.unpack_from('<ff', s, 128 + 4)
    sign = -1 if contradict else 1
    head = bytearray(s[:128])
    struct.pack_into('<I', head, 16, 2)
    struct.pack_into('<f', head, 68, promise)
    t = bytes(head) + struct.pack('<Ifff16x', 1, scale, prior, 0 if contradict else 0.9) + struct.pack('<Ifff16x', 6, sign * scale, sign * prior, 0)
    t += s[ends:bias] + s[bias:bias + 4 * k] + bytes(4 * k)
    t += bytes(-len(t) % 64) + s[weight:weight + 4 * k * d] + bytes(4 * k * d)
    t += bytes(-len(t) % 64)
    table = struct.pack('<II40sQQ', *struct.unpack_from('<II40s', b, 64), offset, len(t)) + hash128(t)
    front = b[:32] + struct.pack('<Q', offset + len(t)) + bytes(24)
    front = front[:40] + hash128(front + table) + front[56:]
    open(out, 'wb').write(front + table + b[144:offset] + t)


def case_audits(f):
    """Heads whose early answers full depth contradicts are off within a few texts, in a new epoch; honest ones stay, and clients are told the
    early answer either way."""
    assert f.report['last_layer'] == 1 and f.report['early_differs'] == 0, f.report  # one head is always the last
    for promise, contradict in ((0.05, True), (0.9, False)):
        plant(f.car, f'{f.d}/planted.lacs', promise, contradict)
        s = Server(args=('--side-car', f'{f.d}/planted.lacs', '--ctx', '2048', '--max-batch', '8'))
        try:
            layers, prints, told = [], [], 0
            for what, _ in NEW[:24]:
                st, r = ask(s, what, LABELS)
                assert st == 200 and r['laconic']['labels_by'] == 'head', r
                layers.append(r['laconic']['exit_layer']); prints.append(r['system_fingerprint'])
                if contradict and prints[-1] != prints[0]: break
                why = s.call(f'/v1/requests/{r["id"]}')[1]['prompts'][0]['decisions']
                told += any(d.get('audit') == ('differed' if contradict else 'agreed') for d in why)
            m = s.metrics()
            n = {o: sum(v for k, v in m.items() if k.startswith('laconic_audit_total') and f'outcome="{o}"' in k) for o in ('agreed', 'differed')}
            assert m['laconic_exit_layer_count'] == len(layers) and m['laconic_exit_layer_sum'] == sum(layers), (m, layers)
            if contradict:
                assert layers[0] == 1 and layers[-1] == 6 and len(layers) <= 20, layers
                assert m['laconic_exit_off'] == 1 and m['laconic_policy_epoch'] == 2 and n['differed'] >= 3 and told >= 3, (n, told)
            else:
                early = sum(layer < 6 for layer in layers)
                assert n['agreed'] + n['differed'] == early > 0 and told == n['agreed'] and m['laconic_exit_off'] == 0 and len(set(prints)) == 1, (n, layers)
        finally: assert s.stop() == 0


def case_fingerprint(f):
    s = Server(args=('--side-car', 'off', '--ctx', '2048'))
    try:
        st, r = ask(s, NEW[0][0], LABELS)
        assert st == 200 and r['laconic']['labels_by'] == 'zero-shot', r
        _, mine = ask(f.server, NEW[0][0], LABELS)
        assert r['system_fingerprint'] != mine['system_fingerprint']
    finally: assert s.stop() == 0


def case_the_same_bytes(f):
    """Interrupted and with other threads; another set beside it is kept."""
    whole = open(f.car, 'rb').read()
    p = subprocess.Popen([LACONIC, 'tune', MODEL, '--labels', f.csv, '-o', f'{f.d}/cut.lacs', '--label-layers', '1,2,3,6', '--threads', '1'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    states = f'{f.d}/cut.lacs.labels.work/states'
    while p.poll() is None and not (os.path.exists(states) and os.path.getsize(states) > 100000): time.sleep(0.005)
    p.send_signal(signal.SIGKILL); p.wait()
    if os.path.exists(states): os.truncate(states, os.path.getsize(states) - 7)
    q = f.tune('cut.lacs', '--threads', '2')
    assert q.returncode == 0 and open(f'{f.d}/cut.lacs', 'rb').read() == whole, q.stderr
    assert not os.path.exists(f'{f.d}/cut.lacs.labels.work')
    write_csv(f'{f.d}/two.csv', [r for r in TEXTS if r[1] != 'cooking'])
    q = f.tune('cut.lacs', csv=f'{f.d}/two.csv')
    r = subprocess.run([LACONIC, 'inspect', '--json', f'{f.d}/cut.lacs'], capture_output=True, text=True)
    assert q.returncode == 0 and [x['name'] for x in json.loads(r.stdout)['sections']] == ['label-heads'] * 2, r.stdout


def case_refusals(f):
    def bad(rows, word, raw=None):
        path = f'{f.d}/bad.csv'
        if raw is None: write_csv(path, rows)
        else: open(path, 'w').write(raw)
        p = f.tune('bad.lacs', csv=path)
        assert p.returncode == 1 and word in p.stderr and not os.path.exists(f'{f.d}/bad.lacs'), p
    bad([('a', 'x'), ('b', 'x')], 'two categories')
    bad([('a', 'x'), ('b', 'x'), ('c', 'y')], 'one row')
    bad([('', 'x')] * 3, 'line 2')
    bad(None, 'columns', raw='a,b\n1,2\n')
    bad(None, 'does not end', raw='text,category\n"abc,x\n')
    bad(None, 'line 3', raw='text,category\nabc,x\nabd\n')
    bad([(f't{i}', f'c{i // 2}') for i in range(600)], '256')
    p = f.tune('bad.lacs', csv=f'{f.d}/none.csv')
    assert p.returncode == 1, p
    p = f.tune('bad.lacs', '--label-layers', '3,2')
    assert p.returncode == 1 and 'layers' in p.stderr, p
    p = f.tune('bad.lacs', '--traffic', 'x')
    assert p.returncode == 2, p


def main():
    good = bad = 0
    f = Folder()
    only = sys.argv[1:]
    for name, case in [(n, c) for n, c in globals().items() if n.startswith('case_')]:
        if only and name not in only: continue
        t0 = time.time()
        try: case(f); good += 1; print(f'ok   {name} ({time.time() - t0:.1f} s)', flush=True)
        except Exception: bad += 1; print('FAIL', name, flush=True); traceback.print_exc(file=sys.stdout)
    ok = f.server.stop() == 0
    print(f'{good + ok} passed, {bad + (not ok)} failed'); return bad != 0 or not ok


if __name__ == '__main__': sys.exit(main())
