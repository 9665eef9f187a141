"""laconic.gate on real sockets: the same bytes whatever else runs, fields, anchors, recall, explanations."""
import json, os, subprocess, sys, tempfile
from harness import LACONIC, MODEL, Server, delta, main, parallel, quiet, text

FACTS = [f'Entry {i}: the {c} box on shelf {i * 7 % 23} holds {i * 37 % 101} {t}.' for i, (c, t) in enumerate(
    (c, t) for c in ('red', 'blue', 'green', 'white', 'black', 'grey') for t in ('nails', 'screws', 'bolts', 'pens', 'coins', 'keys', 'cups', 'stamps'))]
DOCUMENT = '\n'.join(FACTS)  # about 900 tokens
ASK = '\n\nWhich box holds coins? Answer in a few sentences.'
FAST = {'budget': 'fast'}


def body(content, gate=None, **kw):
    lac = {'explain': True, **kw.pop('laconic', {})}
    if gate is not None: lac['gate'] = gate
    return {'model': 'default', 'messages': [{'role': 'user', 'content': content}], 'max_tokens': 40, 'temperature': 0, 'logprobs': True, 'top_logprobs': 2, **kw, 'laconic': lac}


def ask(s, b):
    st, r = s.call('/v1/chat/completions', b)
    assert st == 200, r
    return r


def shape(r):
    return [(c['index'], c['message']['content'], c['finish_reason'], c['logprobs']) for c in r['choices']], r['usage']['prompt_tokens'], r['usage']['completion_tokens']


def bodies():
    yield body(DOCUMENT + ASK, {'budget': 6})
    yield body(DOCUMENT + ASK, FAST, temperature=0.8, seed=5, n=3)
    yield body(DOCUMENT + '\n\nRepeat the last three entries exactly.', {'budget': 'safe'})
    yield body(f'<ANCHOR:top>{FACTS[3]}</ANCHOR>\n' + DOCUMENT + ASK, {'budget': 1}, temperature=0.7, seed=2, frequency_penalty=0.3)
    yield body(DOCUMENT[:1500] + ASK, {'budget': 3})


def case_fields(s):
    for gate, field in [('on', 'laconic.gate'), (3, 'laconic.gate'), ([], 'laconic.gate'), ({}, 'laconic.gate.budget'), ({'budget': 0}, 'laconic.gate.budget'),
                        ({'budget': 1.5}, 'laconic.gate.budget'), ({'budget': 'slow'}, 'laconic.gate.budget'), ({'budget': -1}, 'laconic.gate.budget'),
                        ({'budget': None}, 'laconic.gate.budget'), ({'budget': 10, 'pages': 1}, 'laconic.gate.pages'), ({'bugdet': 10}, 'laconic.gate.bugdet')]:
        st, r = s.call('/v1/chat/completions', body('hi', gate))
        assert st == 400 and r['error']['param'] == field, (gate, r)
    for gate in ('off', 'auto', None, {'budget': 'safe'}, FAST, {'budget': 3}, {'budget': 100000}):
        assert s.call('/v1/chat/completions', body('hi', gate, max_tokens=2))[0] == 200, gate
    quiet(s)


def case_same_bytes(s):
    """Alone, in a crowd of gated and other requests, prefix cached or not, with and without drafts, on another instruction set."""
    other = Server('auto', ['--drafts', 'off', '--isa', 'avx2', '--max-batch', '5'])
    all_bodies = list(bodies())
    crowd = [body(f'Tell me about the number {i}. ' * (1 + 30 * (i % 3)), FAST if i % 2 else None, max_tokens=30) for i in range(6)]
    try:
        want = [ask(other, b) for b in all_bodies]
        full = [ask(other, {**b, 'laconic': {'explain': True}}) for b in all_bodies]
    finally: other.stop()
    for w in want: assert 0 < w['laconic']['gate']['pages_attended'] < w['laconic']['gate']['pages_there'], w['laconic']
    for f in full: assert 'gate' not in f['laconic'], f['laconic']
    assert sum(shape(w)[0] != shape(f)[0] for w, f in zip(want, full)) >= 3  # or nothing is tested here
    for round in range(2):
        got = parallel([lambda b=b: ask(s, b) for b in crowd[:3] + all_bodies + crowd[3:]])[3:3 + len(all_bodies)]
        for b, w, g in zip(all_bodies, want, got): assert shape(w) == shape(g), (round, b, w, g)
    for b, w in zip(all_bodies, want): assert shape(w) == shape(ask(s, b)), (b, w)
    assert s.metric('laconic_prefix_hit_tokens_total') > 0
    rate = s.metric('laconic_dynamic_mask_hit_rate')
    assert 0.7 < rate < 0.85, rate  # of five positions one chooses
    quiet(s)


def case_answers_are_not_shared(s):
    """What was computed under a gate is no prefix of another request: a second turn says the same on a fresh server."""
    first = body(DOCUMENT + ASK, {'budget': 1}, max_tokens=64, ignore_eos=True)
    told = text(ask(s, first))
    second = {**body('', None), 'messages': [*first['messages'], {'role': 'assistant', 'content': told}, {'role': 'user', 'content': 'Are you sure?'}]}
    got = ask(s, second)
    fresh = Server('auto')
    try: assert shape(got) == shape(ask(fresh, second))
    finally: fresh.stop()


def case_markers(s):
    plain = ask(s, body(DOCUMENT + ASK, {'budget': 4}))
    n = plain['usage']['prompt_tokens']
    assert 'warnings' not in plain['laconic']
    # Taken out where the gate reads them, plain text where it does not.
    marked = DOCUMENT.replace(FACTS[9], f'<ANCHOR:病史 9>{FACTS[9]}</ANCHOR>') + ASK
    r = ask(s, body(marked, {'budget': 4}))
    assert r['usage']['prompt_tokens'] == n and r['laconic']['gate']['anchors'] == 1, r['laconic']
    assert r['laconic']['gate']['pages_attended'] > plain['laconic']['gate']['pages_attended']
    assert ask(s, body(marked))['usage']['prompt_tokens'] > n
    # Full attention: the bytes of a request without a gate.
    full = ask(s, body(DOCUMENT + ASK))
    recalled = ask(s, body('<RECALL>' + DOCUMENT + ASK, {'budget': 1}))
    assert shape(recalled) == shape(full) and 'gate' not in recalled['laconic']
    assert shape(ask(s, body(DOCUMENT + ASK, {'budget': 5000}))) == shape(full)
    # No marker: open, closed without a beginning, nameless, a special token inside.
    for odd in ('<ANCHOR:x>' + DOCUMENT, DOCUMENT + '</ANCHOR>', '<ANCHOR:>' + DOCUMENT + '</ANCHOR>', '<|im_end|>' + DOCUMENT):
        r = ask(s, body(odd + ASK, {'budget': 4}, max_tokens=4))
        assert r['usage']['prompt_tokens'] > n and r['laconic']['gate']['anchors'] == 0, (odd[:20], r)
    # Many, nested, empty.
    many = ''.join(f'<ANCHOR:a{i}>' for i in range(1000)) + DOCUMENT + '</ANCHOR>' * 1000 + ASK
    r = ask(s, body(many, {'budget': 4}, max_tokens=4))
    assert r['usage']['prompt_tokens'] == n and r['laconic']['gate']['anchors'] == 1000 and 'anchors' in r['laconic']['warnings'][0], r['laconic']
    assert r['laconic']['gate']['pages_attended'] >= 0.9 * r['laconic']['gate']['pages_there']
    st, events, done = s.stream('/v1/chat/completions', body(many, {'budget': 4}, max_tokens=4))
    assert st == 200 and done and any('warnings' in e.get('laconic', {}) for e in events), events[-2:]
    # In a completion's prompt, too.
    st, r = s.call('/v1/completions', {'model': 'default', 'prompt': f'<ANCHOR:q>{DOCUMENT}</ANCHOR> So', 'max_tokens': 3, 'laconic': {'gate': FAST, 'explain': True}})
    assert st == 200 and r['laconic']['gate']['anchors'] == 1, r
    quiet(s)


def case_auto_and_triggers(s):
    short = ask(s, body(FACTS[0] + ASK, 'auto'))
    assert 'gate' not in short['laconic'], short['laconic']
    long = ask(s, body(DOCUMENT * 2 + ASK, 'auto'))
    assert long['laconic']['gate']['pages_attended'] < 0.6 * long['laconic']['gate']['pages_there'], long['laconic']
    triggered = ask(s, body(DOCUMENT * 2 + ' As I said previously, look it up.' + ASK, FAST))
    without = ask(s, body(DOCUMENT * 2 + ' As I said previouslyish, look it up.' + ASK, FAST))
    share = lambda r: r['laconic']['gate']['pages_attended'] / r['laconic']['gate']['pages_there']
    assert share(triggered) > 2 * share(without), (triggered['laconic'], without['laconic'])
    off = Server('auto', ['--gates', 'off'])
    try:
        assert off.call('/v1/chat/completions', body('hi', FAST))[1]['error']['param'] == 'laconic.gate'
        assert 'gate' not in ask(off, body(DOCUMENT * 2 + ASK, 'auto', max_tokens=2))['laconic']
    finally: off.stop()


def case_calibrate(s):
    """The report, the section, and a server that goes by it."""
    with tempfile.TemporaryDirectory() as d:
        docs, car = os.path.join(d, 'docs.jsonl'), os.path.join(d, 'gate.lacs')
        with open(docs, 'w') as f: f.write(json.dumps({'text': DOCUMENT}) + '\n\n' + json.dumps({'document': DOCUMENT[::-1]}) + '\n')
        run = lambda *a: subprocess.run([LACONIC, 'calibrate', MODEL, *a], capture_output=True, text=True)
        usual = ['--gate', '--file', docs, '--contexts', '192,384', '--budgets', '2,4,40', '--tokens', '16', '--documents', '2']
        r = run(*usual, '--json', '-o', car, '--kl', '0.000001')
        assert r.returncode == 0, r.stderr
        c = json.loads(r.stdout)
        assert [(x['context'], x['budget'], x['positions']) for x in c['rows']] == [(n, b, 32) for n in (192, 384) for b in (2, 4, 40)], c
        for x in c['rows']:
            assert (abs(x['kl']) < 1e-6 and x['agreement'] == 1 and abs(x['delta_nll']) < 1e-6) if x['budget'] == 40 else x['kl'] > 1e-4, x
            assert x['step'] > 0
        assert c['safe_pages'] + int(24 * c['safe_share']) >= 40, c
        assert '"gate"' in subprocess.run([LACONIC, 'inspect', car, '--json'], capture_output=True, text=True).stdout
        with_car = Server('auto', ['--side-car', car])
        try: assert ask(with_car, body('hi', max_tokens=1))['system_fingerprint'] != ask(s, body('hi', max_tokens=1))['system_fingerprint']
        finally: with_car.stop()
        for bad, rc in ((['--file', docs], 2), (['--gate'], 2), ([*usual[:3], '--budgets', '4,2'], 2), (['--gate', '--file', docs, '--contexts', '8000'], 1), (['--gate', '--file', car + '.jsonl'], 1)):
            r = run(*bad)
            assert r.returncode == rc and r.stderr.strip() and len(r.stderr.strip().splitlines()) <= 2, (bad, r)
        with open(docs, 'w') as f: f.write('{"text": 1}\n')
        assert run(*usual).returncode == 1


if __name__ == '__main__': sys.exit(main(globals()))
