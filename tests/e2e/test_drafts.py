"""Drafts change speed only: the same bytes, logprobs and usage as a server without them."""
import os, subprocess, sys, tempfile
from harness import LACONIC, MODEL, SLOW, Server, delta, main, parallel, quiet, text

LONG = os.environ.get('LONG') == '1'
CODE = '''def add_user(db, name, email):
    if not name:
        raise ValueError("name")
    row = {"name": name, "email": email, "active": True}
    db.insert("users", row)
    return row

def remove_user(db, name):
    row = db.find("users", name=name)
    if row is None:
        raise KeyError(name)
    db.delete("users", row)
'''
ASKED = ['Repeat this code exactly, with no change:\n' + CODE, 'List the numbers from 1 to 40.', 'Copy word for word: ' + 'The red boat is on the blue lake. ' * 6,
         'Write a short story about a dragon.', 'What is a mortgage?', 'Say "ha" twenty times.', '请重复：你好，世界。', 'Translate to French: the cat is on the table.']
KNOBS = [{'temperature': 0}, {'temperature': 0.8, 'seed': 5}, {'temperature': 0, 'frequency_penalty': 0.7, 'presence_penalty': 0.2},
         {'temperature': 0.6, 'seed': 9, 'top_p': 0.9, 'repetition_penalty': 1.2}, {'temperature': 1, 'seed': 3, 'n': 3},
         {'temperature': 0, 'repetition_penalty': 1.1, 'laconic': {'penalty_scope': 'llamacpp'}}, {'temperature': 0.3, 'seed': 1, 'logit_bias': {'198': 4}, 'stop': ['return', 'ha ha']}]


def bodies():
    for i, q in enumerate(ASKED if not LONG else ASKED * 4):
        for j, k in enumerate(KNOBS):
            if not LONG and (i + j) % 3: continue
            yield {'model': 'default', 'messages': [{'role': 'user', 'content': q}], 'max_tokens': 48, 'logprobs': True, 'top_logprobs': 2,
                   **k, 'laconic': {'explain': True, **k.get('laconic', {})}}


def shape(r):
    return [(c['index'], c['message']['content'], c['finish_reason'], c['logprobs']) for c in r['choices']], \
           r['usage']['prompt_tokens'], r['usage']['completion_tokens'], r['system_fingerprint']


def ask(s, body):
    st, r = s.call('/v1/chat/completions', body)
    assert st == 200, r
    return r


def case_same_bytes(s):
    """Asked twice, one by one and all at once: the second time the first answers are drafts."""
    plain = Server('auto', ['--drafts', 'off'])
    try:
        all_bodies = list(bodies())
        want = [ask(plain, b) for b in all_bodies]
        assert all(w['laconic']['drafted'] == 0 for w in want) and plain.metric('laconic_draft_tokens_total') == 0
    finally: plain.stop()
    got = [ask(s, b) for b in all_bodies]
    for b, w, g in zip(all_bodies, want, got): assert shape(w) == shape(g), (b, w, g)
    again = parallel([lambda b=b: ask(s, b) for b in all_bodies])
    for b, w, g in zip(all_bodies, want, again): assert shape(w) == shape(g), (b, w, g)
    drafted = sum(g['laconic']['drafted'] for g in got + again)
    accepted = sum(g['laconic']['accepted'] for g in got + again)
    told = {o: sum(v for k, v in s.metrics().items() if k.startswith('laconic_draft_tokens_total') and f'outcome="{o}"' in k) for o in ('accepted', 'rejected')}
    assert told == {'accepted': accepted, 'rejected': drafted - accepted}, (told, drafted, accepted)
    # Alone, a repeated greedy answer is mostly foretold; in a crowd, rows cost as much as they bring.
    alone = [ask(s, b) for b in all_bodies if b['temperature'] == 0]
    tokens = sum(g['usage']['completion_tokens'] for g in alone)
    assert sum(g['laconic']['accepted'] for g in alone) > tokens // 2, (tokens, [g['laconic'] for g in alone])
    quiet(s)


def told(s): return {k.split('"')[1] for k, v in s.metrics().items() if k.startswith('laconic_draft_tokens_total') and v}


def case_learnt_blocks(s):
    """Each source of the default model's side-car alone and all together: the same bytes at any batch. LONG: also a side-car that was hardly trained."""
    if s.ready_line.find('epoll') >= 0: return  # the I/O backend has no part in it
    asked = ['How do I block a lost card?', 'My new card has not arrived yet.', 'Can I change my PIN in the app?', 'What is a standing order?']
    long = 'Here is what a customer wrote to the bank. ' + 'The card was lost in a taxi and a new one is wanted soon. ' * 12
    all_bodies = [{'model': 'default', 'messages': [{'role': 'user', 'content': q}], 'max_tokens': 40, 'logprobs': True, **k, 'laconic': {'explain': True}}
                  for q in [*asked, long + 'Answer it.', long + 'Shorten it.'] for k in [*KNOBS[:2], KNOBS[4]]]
    mixtures = ['draft-block', 'exit-block', 'draft-block,exit-block,suffix,ngram']
    with tempfile.TemporaryDirectory() as d:
        side_cars = [[]]
        if LONG:
            open(f'{d}/prompts', 'w').write('\n'.join(f't{i}\t{q}' for i, q in enumerate(asked)))
            p = subprocess.run([LACONIC, 'tune', MODEL, '--prompts', f'{d}/prompts', '--traffic', 'desk', '-o', f'{d}/desk.lacs', '-n', '24', '--epochs', '1', '--exit-layer', '2', '--shortlist', '512'],
                               capture_output=True, text=True, timeout=300 * SLOW)
            assert p.returncode == 0, p.stderr
            side_cars.append(['--side-car', f'{d}/desk.lacs'])
        want = None
        for side_car in side_cars:
            for sources in ['off', *mixtures] if want is None else mixtures:
                server = Server('auto', [*side_car, '--drafts', sources])
                try:
                    crowd = parallel([lambda b=b: ask(server, b) for b in all_bodies])
                    want = want or [shape(g) for g in crowd]
                    alone = [ask(server, b) for b in all_bodies] if sources != 'off' else crowd
                    for got in (crowd, alone):
                        for b, w, g in zip(all_bodies, want, got): assert w == shape(g), (sources, b, w, g)
                    assert told(server) <= set(sources.split(',')), (sources, told(server))
                    if sources in mixtures[:2] and not side_car: assert told(server) == {sources}, told(server)
                    quiet(server)
                finally: server.stop()
    for sources in ('draft-block', 'exit-block,suffix'):
        p = subprocess.run([LACONIC, 'run', MODEL, '-p', 'x', '-n', '1', '--side-car', 'off', '--drafts', sources], capture_output=True, text=True, timeout=60 * SLOW)
        assert p.returncode == 1 and 'side-car' in p.stderr, p


def case_stream_and_leave(s):
    body = {'model': 'default', 'messages': [{'role': 'user', 'content': ASKED[0]}], 'max_tokens': 120, 'temperature': 0}
    whole = text(ask(s, body))
    st, events, done = s.stream('/v1/chat/completions', body)
    assert st == 200 and done and delta(events) == whole
    for _ in range(10):
        c = s.connect()
        c.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 65\r\n\r\n'
                  + b'{"model":"default","prompt":"1 2 3 1 2 3 1 2","max_tokens":200}  '[:65])
        c.close()
    assert text(ask(s, body)) == whole


if __name__ == '__main__': sys.exit(main(globals()))
