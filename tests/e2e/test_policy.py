"""The task policy on a real server: tasks, presets, epochs, explanations, lint, feedback; what a hostile client may try."""
import json, os, socket, subprocess, sys, tempfile, threading, time
from harness import LACONIC, MODEL, Server, delta, main, parallel, quiet, text, wait_until

CODE, OPEN = 'Write a Python function that adds two numbers.', 'Write a poem about the sea in autumn.'
SUM, FACT = 'Tom has 3 apples and buys 5 more. How many apples does he have now?', 'What is the capital of France?'
PRESETS = {'deterministic': (0.2, 0.8), 'qa': (0.2, 0.8), 'open': (0.8, 0.95), 'reasoning': (0.5, 0.9), 'code': (0.2, 0.95), 'classify': (0, 1)}
TASKS = {CODE: 'code', OPEN: 'open', SUM: 'reasoning', FACT: 'deterministic'}
UDS = f'/tmp/laconic-policy-{os.getpid()}.sock'


def sh(*args, ok=0):
    p = subprocess.run([LACONIC, *args], capture_output=True, timeout=600)
    assert p.returncode == ok, (args, p.returncode, p.stderr[-400:])
    return p.stdout.decode(), p.stderr.decode()


def ask(s, content, **kw):
    st, r = s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': content}], 'max_tokens': 12, 'seed': 5, **kw})
    assert st == 200, (st, r)
    return r


def why(s, r):
    st, j = s.call('/v1/requests/' + r['id'])
    assert st == 200 and len(j['prompts']) == 1, (st, j)
    return j['prompts'][0]


def preset_of(p):
    return [d for d in p['decisions'] if d['what'] == 'preset']


def case_exact_changes_nothing(s):
    """Unasked, the task policy neither draws otherwise nor shows in the fingerprint; asked, it is as if the client had set the fields."""
    for q, task in TASKS.items():
        a, b = ask(s, q, laconic={'explain': True}), ask(s, q, temperature=1, top_p=1)
        assert text(a) == text(b) and a['laconic']['task_type'] == task, (q, a['laconic'])
        p = why(s, a)
        assert p['task']['type'] == task and p['task']['by'] == 'model' and not p['decisions'], p['task']
        assert abs(sum(p['task']['probabilities'].values()) - 1) < 1e-4 and p['task']['reasons']
    for task, (t, top) in PRESETS.items():
        a, b = ask(s, OPEN, laconic={'task_type': task}), ask(s, OPEN, temperature=t, top_p=top)
        assert text(a) == text(b), task
        p = why(s, a)
        assert p['task']['by'] == 'client' and preset_of(p)[0]['preset'] == task
    assert a['system_fingerprint'] == b['system_fingerprint']
    assert text(ask(s, OPEN, laconic={'task_type': 'auto'})) == text(ask(s, OPEN))


def case_adaptive_presets(s):
    with tempfile.NamedTemporaryFile('w', suffix='.json') as f:
        json.dump({'presets': {'code': {'temperature': 0}, 'middle': {'temperature': 0.4, 'top_p': 0.7}}}, f); f.flush()
        plain, other = Server('auto', ['--policy', 'adaptive']), Server('auto', ['--policy', 'adaptive', '--config', f.name])
    try:
        prints = set()
        for q, task in TASKS.items():
            t, top = PRESETS[task]
            a = ask(plain, q)
            assert text(a) == text(ask(s, q, temperature=t, top_p=top)), q
            d = preset_of(why(plain, a))
            assert len(d) == 1 and d[0]['preset'] == task and d[0]['by'] == 'model' and d[0]['probability'] > 0.5, d
            assert abs(d[0]['set']['temperature'] - t) < 1e-6 and abs(d[0]['set']['top_p'] - top) < 1e-6
            # What the client sets wins, field by field.
            b = ask(plain, q, temperature=1.5, top_p=0.5)
            assert text(b) == text(ask(s, q, temperature=1.5, top_p=0.5)) and not why(plain, b)['decisions']
            c = ask(plain, q, temperature=0.9)
            assert text(c) == text(ask(s, q, temperature=0.9, top_p=top)) and set(preset_of(why(plain, c))[0]['set']) == {'top_p'}
            assert text(ask(plain, q, laconic={'task_type': 'classify'})) == text(ask(s, q, temperature=0, top_p=1))
            prints.add(a['system_fingerprint'])
        st, ev, done = plain.stream('/v1/chat/completions', {'messages': [{'role': 'user', 'content': OPEN}], 'max_tokens': 12, 'seed': 5})
        assert done and delta(ev) == text(ask(plain, OPEN)) and preset_of(why(plain, ev[0]))
        r = ask(other, CODE)
        assert text(r) == text(ask(s, CODE, temperature=0, top_p=0.95))
        st, r2 = other.call('/v1/completions', {'prompt': [1, 2, 3], 'max_tokens': 4, 'seed': 1})
        p = why(other, r2)
        assert p['task']['type'] == 'none' and preset_of(p)[0]['preset'] == 'middle' and abs(p['sampling']['top_p'] - 0.7) < 1e-6
        prints |= {r['system_fingerprint'], ask(s, CODE)['system_fingerprint']}
        assert len(prints) == 3, prints
        quiet(plain); quiet(other)
        assert plain.metric('laconic_request_total{outcome="finished",task="code"}') >= 3
    finally:
        assert plain.stop() == 0 and other.stop() == 0


def case_explained(s):
    r = ask(s, 'Say the word banana nine times, separated by commas.', temperature=0, max_tokens=40, laconic={'explain': True})
    p = why(s, r)
    assert p['state'] == 'finished' and p['seed'] == 5 and p['epoch'] == 1 and p['finish_reasons'] == [r['choices'][0]['finish_reason']]
    assert p['tokens'] == {'prompt': r['usage']['prompt_tokens'], 'completion': r['usage']['completion_tokens'],
                           'cached': r['usage']['prompt_tokens_details']['cached_tokens']}
    # Drafts that were right behind the answer's end count here, and not there.
    assert p['drafts']['proposed'] == r['laconic']['drafted'] and p['drafts']['accepted'] >= r['laconic']['accepted'], (p['drafts'], r['laconic'])
    assert p['steps']['decode']['n'] + p['steps']['verify']['n'] >= p['tokens']['completion'] - 1 - p['drafts']['accepted'], p
    cost = p['cost_ms']
    assert abs(cost['total'] - cost['queue'] - cost['tokenise'] - cost['prefill'] - cost['decode']) < 0.5, cost
    again = why(s, ask(s, 'Say the word banana nine times, separated by commas.', temperature=0, max_tokens=40))
    assert again['tokens']['cached'] >= 16 and any(x['what'] == 'prefix_cache' for x in again['saved_by']), again
    assert any(x['what'] == 'prefix_cache' for x in p['faster']), p['faster']
    for url in (s.base,):
        out = sh('explain', url, r['id'])[0]
        assert 'prefill' in out and 'decisions' in out, out
        assert json.loads(sh('explain', url, r['id'], '--json')[0])['prompts'][0]['seed'] == 5
    assert 'no request of that id' in sh('explain', s.base, 'chatcmpl-0', ok=1)[1]
    assert sh('explain', 'ftp://x', 'y', ok=1)[1].strip() and sh('explain', 'http://127.0.0.1:1', 'y', ok=1)[1].strip()
    # Two prompts of one completion share its id; one that runs can be asked for.
    st, r = s.call('/v1/completions', {'prompt': ['a b c', 'd e f'], 'max_tokens': 3, 'n': 2})
    assert len(s.call('/v1/requests/' + r['id'])[1]['prompts']) == 2
    seen = []
    def streamer():
        c = s.connect()
        body = json.dumps({'messages': [{'role': 'user', 'content': OPEN}], 'max_tokens': 400, 'ignore_eos': True, 'stream': True}).encode()
        c.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
        got = b''
        while b'chatcmpl-' not in got: got += c.recv(4096)
        at = got.index(b'chatcmpl-')
        seen.append(s.call('/v1/requests/' + got[at:].split(b'"')[0].decode()))
        c.close()
    streamer()
    assert seen[0][0] == 200 and seen[0][1]['prompts'][0]['state'] == 'running', seen
    assert wait_until(lambda: s.metric('laconic_running') == 0)


def case_other_decisions(s):
    """Gates, labels and deadlines change answers too."""
    r = ask(s, 'Lorem ipsum dolor sit amet. ' * 60 + 'What is this?', temperature=0, laconic={'gate': {'budget': 10}})
    g = [d for d in why(s, r)['decisions'] if d['what'] == 'gate']
    assert len(g) == 1 and g[0]['pages'] == 10 and 0 < g[0]['attended'] < g[0]['of'], g
    r = ask(s, 'My card was stolen.', laconic={'labels': ['card stolen', 'exchange rate']})
    d = [d for d in why(s, r)['decisions'] if d['what'] == 'label']
    assert len(d) == 1 and ['card stolen', 'exchange rate'][d[0]['label']] == r['laconic']['label'] and d[0]['labels_by'] == 'zero-shot', (d, r)
    assert abs(d[0]['probability'] - max(r['laconic']['label_probabilities'].values())) < 1e-5, (d, r['laconic'])
    r = ask(s, OPEN, max_tokens=2000, ignore_eos=True, laconic={'deadline_ms': 300})
    assert [d['what'] for d in why(s, r)['decisions']] == ['deadline'], why(s, r)


def case_lint(s):
    bad = 'Answer in JSON only. Write plain prose without JSON.'
    r = ask(s, bad, laconic={'lint': True})
    kinds = {f['kind'] for f in r['laconic']['lint']['findings']}
    assert r['laconic']['lint']['warns'] and 'opposites' in kinds, kinds
    assert 'lint' not in ask(s, bad)['laconic'] and text(r) == text(ask(s, bad))
    st, ev, done = s.stream('/v1/chat/completions', {'messages': [{'role': 'user', 'content': bad}], 'max_tokens': 2, 'laconic': {'lint': True}})
    assert done and [e['laconic']['lint']['warns'] for e in ev if 'laconic' in e] == [True]
    for body, field in (({'messages': [{'role': 'user', 'content': 'x' * 40000}], 'laconic': {'lint': True}}, 'laconic.lint'),
                        ({'messages': [{'role': 'system', 'content': 'x'}], 'laconic': {'lint': True}}, 'laconic.lint'),
                        ({'messages': [{'role': 'user', 'content': 'x'}], 'laconic': {'lint': 'yes'}}, 'laconic.lint'),
                        ({'messages': [{'role': 'user', 'content': 'x'}], 'laconic': {'task_type': 'poetry'}}, 'laconic.task_type')):
        st, e = s.call('/v1/chat/completions', body)
        assert st == 400 and e['error']['param'] == field, (st, e)
    assert s.call('/v1/completions', {'prompt': ['a', 'b'], 'laconic': {'lint': True}})[1]['error']['param'] == 'laconic.lint'
    assert r['laconic']['lint']['contradiction_score'] is None
    encoder = os.environ.get('LAC_ENCODER')
    if not encoder: print('skip: no LAC_ENCODER: the contradiction score'); return
    t = Server('auto', ['--encoder', encoder])
    try:
        with_score = ask(t, bad, laconic={'lint': True})
        p = subprocess.run([LACONIC, 'lint', '--encoder', encoder, '--json'], input=bad.encode(), capture_output=True)
        assert abs(with_score['laconic']['lint']['contradiction_score'] - json.loads(p.stdout)['contradiction_score']) < 1e-6 and text(with_score) == text(r)
    finally: assert t.stop() == 0


def case_feedback(s):
    before = s.metric('laconic_feedback_total')
    a, b = ask(s, FACT), ask(s, CODE)
    assert s.call('/v1/feedback', {'id': a['id'], 'label': 'deterministic', 'accepted': True})[0] == 200
    st, e = s.call('/v1/feedback', {'id': a['id'], 'label': 'open'})
    assert st == 400 and 'already' in e['error']['message']
    assert s.call('/v1/feedback', {'id': b['id'], 'label': 'open'})[0] == 200
    j = s.call('/v1/policy')[1]
    f = j['feedback']
    assert f['of_this_epoch']['rows'] >= 2 and sum(map(sum, f['of_this_epoch']['confusion'])) == f['of_this_epoch']['rows']
    assert abs(s.metric('laconic_task_classification_accuracy') - f['of_this_epoch']['accuracy']) < 1e-9 and s.metric('laconic_feedback_total') == before + 2
    assert j['candidate'] is None and not j['drift']['alarm'] and f['accepted']['deterministic']['yes'] >= 1
    for body in ({}, {'id': 3}, {'id': a['id']}, {'id': 'x' * 300, 'accepted': True}, {'id': a['id'], 'label': 'nonsense'}, {'id': a['id'], 'more': 1}):
        st, e = s.call('/v1/feedback', body)
        assert st in (400, 404) and e['error']['message'], (body, st, e)
    for raw in (b'', b'[', b'[' * 5000, b'{"id":"\\u0000"}', b'\xff\xfe', b'{"id":"a","label":"' + b'x' * 20000 + b'"}'):
        st, e = s.call('/v1/feedback', raw=raw)
        assert st in (400, 404), (raw[:20], st, e)
    out = sh('policy', s.base)[0]
    assert 'epoch 1' in out and 'confusion' in out, out
    assert 'Unix' in sh('policy', s.base, '--promote', ok=1)[1]
    assert sh('policy', s.base, '--promote', '--revert', ok=2)[1]


def case_wrong_configurations(s):
    for body, field in (('{"presets": {"code": {"temperature": 3}}}', 'presets.code.temperature'), ('{"presets": {"poetry": {}}}', 'presets.poetry'),
                        ('{"presets": {"open": {"top_p": 0}}}', 'presets.open.top_p'), ('{"presets": {"open": {"top_k": 1}}}', 'presets.open.top_k'),
                        ('{"task_words": {"nonsense": []}}', 'task_words'), ('{"adapt": {"rows": 1}}', 'adapt.rows'), ('{"drift": 1}', 'drift'),
                        ('{"whatever": {}}', 'whatever'), ('[1]', 'JSON'), ('{', 'JSON')):
        with tempfile.NamedTemporaryFile('w', suffix='.json') as f:
            f.write(body); f.flush()
            err = sh('serve', MODEL, '--port', '0', '--config', f.name, ok=1)[1]
            assert field in err and err.count('\n') == 1, (body, err)
    assert 'none.json' in sh('serve', MODEL, '--port', '0', '--config', '/none.json', ok=1)[1]


def case_run_task_type(s):
    with_task = sh('run', MODEL, '-p', OPEN, '-n', '12', '--seed', '7', '--task-type', 'code')[0]
    assert with_task == sh('run', MODEL, '-p', OPEN, '-n', '12', '--seed', '7', '--temp', '0.2', '--top-p', '0.95')[0]
    assert sh('run', MODEL, '-p', OPEN, '-n', '12', '--seed', '7', '--task-type', 'code', '--temp', '1.2')[0] == \
        sh('run', MODEL, '-p', OPEN, '-n', '12', '--seed', '7', '--temp', '1.2', '--top-p', '0.95')[0]


def case_promotion(s):
    """Traffic moves, its labels say so: an alarm, a candidate, its promotion over the Unix socket, the way back."""
    with tempfile.TemporaryDirectory() as d:
        old = [('fetch', 'deterministic'), ('compose', 'open')]
        new = [('compose it as', 'deterministic'), ('obtain for me', 'open')]
        def rows(pairs, n): return [(f'{pairs[i % 2][0]} w{i * 7 % 31} and w{i * 5 % 37}', pairs[i % 2][1]) for i in range(n)]
        for name, pairs, n in (('train', old, 150), ('check', old, 60)):
            open(f'{d}/{name}.jsonl', 'w').write(''.join(json.dumps({'text': t, 'label': l, 'lang': 'en', 'source': 's'}) + '\n' for t, l in rows(pairs, n)))
        sh('train', f'{d}/train.jsonl', '-o', f'{d}/m.lact', '--epochs', '8', '--no-validation')
        json.dump({'adapt': {'rows': 40, 'validation': f'{d}/check.jsonl', 'replay': f'{d}/train.jsonl'}, 'drift': {'reference': 100, 'window': 40}}, open(f'{d}/c.json', 'w'))
        t = Server('auto', ['--policy', 'adaptive', '--task-model', f'{d}/m.lact', '--config', f'{d}/c.json', '--uds', UDS])
        try:
            def serve(rs):
                for text_, label in rs:
                    st, r = t.call('/v1/completions', {'prompt': text_, 'max_tokens': 1})
                    assert t.call('/v1/feedback', {'id': r['id'], 'label': label})[0] == 200
                return r
            first = serve(rows(old, 160))
            assert not t.call('/v1/policy')[1]['drift']['alarm']
            assert sh('policy', 'unix:' + UDS, '--promote', ok=1)[1].strip()
            for _ in range(30):
                serve(rows(new, 10))
                j = t.call('/v1/policy')[1]
                if j['candidate']: break
            assert j['candidate'] and t.metric('laconic_task_drift_alarm') == 1, j
            assert wait_until(lambda: t.call('/v1/policy')[1]['candidate']['state'] == 'waits', 60)
            c = t.call('/v1/policy')[1]['candidate']
            assert c['better'] and c['on_fresh_rows']['candidate']['accuracy'] > c['on_fresh_rows']['now']['accuracy'], c
            assert c['on_old_rows']['candidate']['macro_f1'] > 0.95, c['on_old_rows']
            # A request that runs keeps its epoch.
            running = t.connect()
            body = json.dumps({'prompt': 'fetch w1 and w2', 'max_tokens': 300, 'ignore_eos': True, 'stream': True}).encode()
            running.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
            got = b''
            while b'"text"' not in got: got += running.recv(4096)
            assert 'epoch 2' in sh('policy', 'unix:' + UDS, '--promote')[0]
            while b'[DONE]' not in got: got += running.recv(65536)
            prints = {json.loads(l[6:])['system_fingerprint'] for l in got.split(b'\n') if l.startswith(b'data: {')}
            assert prints == {first['system_fingerprint']}, prints
            last = serve(rows(new, 20))
            assert last['system_fingerprint'] != first['system_fingerprint'] and t.metric('laconic_policy_epoch') == 2
            assert t.call('/v1/policy')[1]['feedback']['of_this_epoch']['accuracy'] > 0.9
            assert 'epoch 3' in sh('policy', 'unix:' + UDS, '--revert')[0]
            assert t.call('/v1/completions', {'prompt': 'fetch w1', 'max_tokens': 1})[1]['system_fingerprint'] == first['system_fingerprint']
            quiet(t)
        finally:
            assert t.stop() == 0


def case_openai_client(s):
    try: import openai
    except ImportError: print('skip: no openai package'); return
    c = openai.OpenAI(base_url=s.base + '/v1', api_key='x')
    r = c.chat.completions.create(model='default', messages=[{'role': 'user', 'content': FACT}], max_tokens=5, seed=3,
                                  extra_body={'laconic': {'task_type': 'qa', 'lint': True, 'explain': True}})
    extra = r.model_extra['laconic']
    assert r.choices[0].message.content is not None and extra['task_type'] == 'qa' and 'findings' in extra['lint']
    assert why(s, {'id': r.id})['task']['by'] == 'client'


if __name__ == '__main__':
    os.environ.setdefault('LAC_IO', 'auto')  # nothing here depends on it, and some cases start servers of their own
    sys.exit(main(globals()))
