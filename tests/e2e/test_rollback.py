"""Drifts that are planted (tests/planted/planted_serve.c) are taken back before a client sees them, and nothing else changes.

The side-car is calibrated here, on a few prompts; how often drifts are caught and normal answers touched is perf/rollback.py's.
"""
import json, os, subprocess, sys, tempfile
import harness
from harness import LACONIC, MODEL, Server, delta, main, parallel, quiet, text

PLANTED = os.path.join(os.path.dirname(LACONIC), 'tests/planted/planted_serve')
ASKED = ['How do I bake bread at home?', 'What is a mortgage?', 'Explain how vaccines work.', 'Give me tips for growing tomatoes.', 'Who was Marie Curie?',
         'How does a bicycle stay upright?', 'Write a short story about a dragon.', 'What are the rules of chess?', 'How can I sleep better?',
         'Describe the water cycle.', 'What should I pack for a week in Norway?', 'Why is the sky blue?', 'How do I change a flat tyre?', 'Tell me about the Roman army.',
         'How do airplanes fly?', 'Suggest a healthy breakfast.', 'What is photosynthesis?', 'How do I write a cover letter?', 'Explain inflation.', 'How are diamonds formed?',
         'What makes a good leader?', 'How do I train a puppy?', 'What causes earthquakes?', 'How does the internet work?']
DRIFT = ' zebra stripes quarrel with volcanic submarines, whose purple tax returns juggle cathedral bananas near the frozen saxophone'
WORDS = ('volcanic', 'submarines', 'cathedral', 'bananas', 'saxophone')
STEER = ('zebra', 'stripes', 'quarrel', 'volcanic', 'submarines', 'purple', 'juggle', 'cathedral', 'bananas', 'frozen', 'saxophone')
tmp = tempfile.mkdtemp(prefix='rollback')
SIDE_CAR, PLANT = f'{tmp}/m.lacs', f'{tmp}/plant'


def calibrate():
    open(f'{tmp}/prompts.jsonl', 'w').write(''.join(json.dumps({'prompt': q}) + '\n' for q in ASKED))
    r = subprocess.run([LACONIC, 'calibrate', MODEL, '--monitor', '--file', f'{tmp}/prompts.jsonl', '-o', SIDE_CAR, '-n', '56', '--json'], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    told = json.loads(r.stdout)
    assert told['normal_answers'] == len(ASKED) and told['planted_drifts'] >= len(ASKED) // 2 and told['layer'] > 0, told
    assert told['caught_within_24'] > told['published_caught_within_24'] - 1e-9 and told['caught_within_24'] > 0.5, told
    print('     calibrated:', {k: v for k, v in told.items() if k != 'weights'})


def body(q, seed, rollback={}, n=64, **kw):
    laconic = {'explain': True} | ({'rollback': rollback} if rollback is not None else {})
    return {'model': 'default', 'messages': [{'role': 'user', 'content': q}], 'max_tokens': n, 'temperature': 0.7, 'top_p': 0.95, 'seed': seed,
            'logprobs': True, 'top_logprobs': 1, 'laconic': laconic, **kw}


def ask(s, b):
    st, r = s.call('/v1/chat/completions', b)
    assert st == 200, r
    return r


def shape(r):
    return [(c['message']['content'], c['finish_reason'], c['logprobs']) for c in r['choices']], r['usage']['completion_tokens'], \
           {k: v for k, v in r['laconic'].items() if 'roll' in k or k in ('withdrawn_tokens', 'breakers')}


def ids(s, t): return s.call('/tokenize', {'content': t})[1]['tokens']


def plant(s, seeds, at=26, kind='force'):
    """After `at` tokens of the answers of ASKED[seed] with that seed."""
    lines = []
    for seed in seeds:
        n = ask(s, body(ASKED[seed % len(ASKED)], 999, n=1, rollback=None))['usage']['prompt_tokens']
        steered = sorted({ids(s, ' ' + w)[0] for w in STEER})
        lines.append(f'{seed} {n + at} ' + (kind + ' ' + ' '.join(map(str, ids(s, DRIFT))) if kind != 'bias' else 'bias 24 11 ' + ' '.join(map(str, steered))))
    open(PLANT, 'w').write('\n'.join(lines) + '\n')


def case_planted_drifts_are_taken_back(s):
    seeds = range(8)
    for kind in ('force', 'bias'):
        open(PLANT, 'w').close()
        plant(s, seeds, kind=kind)
        off = [ask(s, body(ASKED[i], i, None)) for i in seeds]
        # Spliced words are there as they stand; steered draws say some of them, in any order.
        on = [ask(s, body(ASKED[i], i)) for i in seeds]
        words = WORDS if kind == 'force' else [w[:5] for w in STEER]
        drifted = [sum(w in text(r) for w in words) for r in off]
        caught = [i for i in seeds if on[i]['laconic']['rollbacks'] > 0]
        assert sum(d >= (3 if kind == 'force' else 1) for d in drifted) >= 5, (kind, drifted, [text(r) for r in off])
        assert len(caught) >= 5, (kind, caught, [r['laconic'] for r in on])
        for i in caught:
            r, e = on[i], on[i]['laconic']['rollback_events'][0]
            assert e['position'] >= 1 and 1 <= e['withdrawn'] <= 32 and e['entropy'] >= 0, e
            if kind == 'force': assert sum(w in text(r) for w in words) < max(drifted[i], 1), text(r)
            # Up to the place where it was cut, the text is the drifting one's.
            got, was = ([{k: v for k, v in t.items() if k != 'similarity'} for t in a['choices'][0]['logprobs']['content']] for a in (r, off[i])) # similarity: only where a monitor runs
            assert got[:e['position']] == was[:e['position']] and got[e['position']]['token'] != was[e['position']]['token']
            # Withdrawn tokens are in nobody's count; what the client has is what usage says.
            assert len(got) + (r['choices'][0]['finish_reason'] == 'stop') == r['usage']['completion_tokens'] <= 64
            assert ''.join(t['token'] for t in got).strip().startswith(text(r).strip()[:20])
        # On the socket: the stream shows exactly that text.
        for i in caught[:4]:
            st, events, done = s.stream('/v1/chat/completions', body(ASKED[i], i))
            assert st == 200 and done and delta(events) == text(on[i]), (delta(events), text(on[i]))
    assert s.metric('laconic_rollback_count_total{') > 0
    quiet(s)


def case_same_bytes_at_any_batch_cached_or_not_with_drafts_or_not(s):
    seeds = range(8)
    open(PLANT, 'w').close(); plant(s, seeds)
    plain = Server('auto', ['--side-car', SIDE_CAR, '--drafts', 'off'], env={'LAC_PLANT': PLANT})
    try: want = [shape(ask(plain, body(ASKED[i], i))) for i in seeds]
    finally: plain.stop()
    bystanders = [body(ASKED[8 + i], 100 + i, {} if i % 2 else None, n=32) for i in range(6)]
    open(f'{tmp}/none', 'w').close()
    quiet_before = [shape(ask(s, b)) for b in bystanders]
    got = parallel([lambda b=b: shape(ask(s, b)) for b in [body(ASKED[i], i) for i in seeds] + bystanders])
    assert got[:8] == want, [(g, w) for g, w in zip(got, want) if g != w][:1]
    assert got[8:] == quiet_before
    again = [ask(s, body(ASKED[i], i)) for i in seeds]
    assert [shape(r) for r in again] == want and any(r['usage']['prompt_tokens_details']['cached_tokens'] > 0 for r in again)
    assert sum(w[2]['rollbacks'] for w in want) >= 4, [w[2] for w in want]
    # Choices of one request are watched each for itself.
    three = ask(s, body(ASKED[0], 0, n=40) | {'n': 3})
    assert len(three['choices']) == 3 and three['laconic']['rollbacks'] >= 0
    open(PLANT, 'w').close()
    quiet(s)


def case_breaker_and_fixed_rule(s):
    # A drift that comes again whatever is drawn: two rollbacks, then the breaker.
    seeds = range(6)
    for limit in (2, 0, 1):
        open(PLANT, 'w').close(); plant(s, seeds, kind='force-always')
        told = [ask(s, body(ASKED[i], i, {'max': limit}))['laconic'] for i in seeds]
        assert all(t['rollbacks'] <= limit and t.get('breakers', 0) <= (t['rollbacks'] == limit) for t in told), told
        assert sum(t.get('breakers', 0) for t in told) >= 4, told
    open(PLANT, 'w').close()
    r = ask(s, body(ASKED[6], 5, {'rule': 'fixed'}))
    assert r['laconic']['rollbacks'] == 0 or r['laconic']['withdrawn_tokens'] > 0
    # Off is off: the very bytes of a request that says nothing.
    assert shape(ask(s, body(ASKED[6], 5, {'rule': 'off'}))) == shape(ask(s, body(ASKED[6], 5, None)))


def case_adaptive(s):
    """Under --policy adaptive every answer is watched by the calibrated rule, unless its request says otherwise."""
    t = Server('auto', ['--side-car', SIDE_CAR, '--policy', 'adaptive'])
    try:
        seeds = list(range(700, 708))
        plant(s, seeds)
        asked = lambda server, rollback: parallel([lambda i=i: ask(server, body(ASKED[i % len(ASKED)], i, rollback)) for i in seeds])
        unsaid, auto, off = asked(t, None), asked(s, {}), asked(t, {'rule': 'off'})
        assert [shape(r) for r in unsaid] == [shape(r) for r in auto]
        assert sum(r['laconic']['rollbacks'] > 0 for r in unsaid) >= len(seeds) // 2, [r['laconic'] for r in unsaid]
        assert [shape(r) for r in off] == [shape(r) for r in asked(s, None)] and not any(r['laconic'].get('rollbacks') for r in off)
        quiet(t)
    finally: t.stop()


def case_refusals(s):
    plain = Server('auto', ['--side-car', 'off'])
    try:
        st, r = plain.call('/v1/chat/completions', body(ASKED[0], 1))
        assert st == 400 and r['error']['param'] == 'laconic.rollback.rule', r
        assert plain.call('/v1/chat/completions', body(ASKED[0], 1, {'rule': 'fixed'}, n=4))[0] == 200
    finally: plain.stop()
    for rollback, field in (({'max': 99}, 'laconic.rollback.max'), ({'nope': 1}, 'laconic.rollback.nope'), ({'entropy_threshold': 1}, 'laconic.rollback')):
        st, r = s.call('/v1/chat/completions', body(ASKED[0], 1, rollback))
        assert st == 400 and r['error']['param'] == field, r


if __name__ == '__main__':
    if not os.path.exists(PLANTED): print(f'FAIL {PLANTED} is not built (make test-bins)\n0 passed, 1 failed'); sys.exit(1)
    calibrate()
    harness.LACONIC = PLANTED
    os.environ['LAC_PLANT'] = PLANT
    os.environ.setdefault('LAC_IO', 'uring')
    sys.exit(main(globals(), ['--side-car', SIDE_CAR]))
