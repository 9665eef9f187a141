#!/usr/bin/env python3
"""gemma3 with a prompt longer than its sliding window: default numerics, the FP32 path, the server and llama.cpp.

usage: compare_window.py LACONIC GEMMA.gguf [PEER_FOLDER]    ends with "N passed, N failed"
The prompt is the start of the repository's LICENSE: 1,200 tokens, the window is 512. Bounds are golden.py's: mean |d logprob|
over the five best ids, at the positions behind the window. The peer runs on the same weights as F32 (its llama-quantize
dequantises them), as its own 8-bit activations would hide what is looked for. Bits: the server's logprobs after a cold, a
warm, a forked and a crowded (chunked) prefill are equal.
"""
import json, math, os, subprocess, sys, tempfile
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, 'tests/e2e'), os.path.join(ROOT, 'tests/models')]
from compare_peer import Peer, apart, ours, same_top

N, WINDOW = 1200, 512
PEER_AT = [40, 300, 511, 512, 513, 514, 528, 600, 640, 777, 900, 1024, 1025, 1100, 1199]
results = []


def report(ok, text):
    results.append(bool(ok)); print('ok  ' if ok else 'FAIL', text, flush=True)


def five(want, got):
    """|d logprob| of want's five best ids; an id that is missing counts 5, as in golden.py."""
    got = dict(got)
    return [abs(l - got[k]) if k in got else 5.0 for k, l in want[:5]]


def mean(x): return sum(x) / len(x)


def classes(exe, model, ids):
    exact, default = ours(exe, model, ids, ['--exact', '--ctx', '2048']), ours(exe, model, ids, ['--ctx', '2048'])
    inside = [x for t in range(WINDOW) for x in five(exact[t], default[t])]
    behind = [x for t in range(WINDOW, N) for x in five(exact[t], default[t])]
    decided = [t for t in range(WINDOW, N) if exact[t][0][1] - exact[t][1][1] > 0.2]
    wrong = sum(not same_top(exact[t], default[t]) for t in decided)
    report(mean(behind) <= 0.02 and wrong == 0, f'default and --exact: mean |d logprob| {mean(behind):.5f} behind the window (max {max(behind):.4f}), '
           f'{mean(inside):.5f} inside it; best id differs {wrong}/{len(decided)}')
    # Cut at the window the answer is another one: the prompt does reach behind it.
    cut = ours(exe, model, ids[-WINDOW:], ['--exact', '--ctx', '2048'])[-1]
    report(mean(five(exact[-1], cut)) > 0.02, f'without what lies before the window the last position moves by {mean(five(exact[-1], cut)):.3f}')
    return exact, default


def peer(folder, model, ids, exact):
    if not os.access(folder + '/llama-server', os.X_OK): print(f'skip: no llama-server in {folder}'); return
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([folder + '/llama-quantize', '--allow-requantize', model, d + '/f32.gguf', 'F32'], check=True, capture_output=True,
                       env=dict(os.environ, LD_LIBRARY_PATH=folder))
        p = Peer(folder, d + '/f32.gguf', 2048, ['--swa-full'])
        try: them = [p.top(ids[:t + 1], keep=True) for t in PEER_AT]
        finally: p.close()
    for what, at in (('inside', [t for t in PEER_AT if t < WINDOW]), ('behind', [t for t in PEER_AT if t >= WINDOW])):
        diff = [x for t in at for x in apart(exact[t], them[PEER_AT.index(t)])]
        top1 = mean([same_top(exact[t], them[PEER_AT.index(t)]) for t in at])
        report(mean(diff) <= 0.005 and max(diff) <= 0.05, f'--exact and the peer, F32 weights, {what} the window: {len(diff)} ids, mean |d logprob| {mean(diff):.2e} max {max(diff):.2e}, same top-1 {top1:.3f}')


def served(exe, model, ids, default):
    os.environ['BUILD'] = os.path.abspath(os.path.dirname(exe))
    from harness import Server, parallel
    s = Server(args=['--ctx', '2048', '--max-batch', '8'], model=model)
    ask = {'model': 'default', 'temperature': 0, 'max_tokens': 12, 'logprobs': 5}
    def answer(tokens):
        st, r = s.call('/v1/completions', {**ask, 'prompt': tokens}); assert st == 200, r
        return r['choices'][0]['text'], r['choices'][0]['logprobs']['token_logprobs'], r['choices'][0]['logprobs']['top_logprobs']
    try:
        cold = answer(ids); hits = s.metric('laconic_prefix_hit_tokens_total'); warm = answer(ids)
        hits = s.metric('laconic_prefix_hit_tokens_total') - hits
        report(cold == warm and hits > WINDOW, f'prefix cached ({hits:.0f} tokens) or not: the same text and logprobs')
        short = answer(ids[:700]); again = answer(ids)
        report(again == cold and short[0] != cold[0], 'after a shorter prompt with the same start: the same')
        # Others decode and prefill beside it, so that the prompt is cut into other chunks; its own start differs: nothing is cached.
        other = [ids[0]] + ids[2:]
        def noise(i): return s.call('/v1/completions', {**ask, 'prompt': ids[:1] + ids[5 * i + 7:5 * i + 300], 'max_tokens': 60, 'ignore_eos': True})[0] == 200
        crowd = parallel([lambda i=i: noise(i) for i in range(3)] + [lambda: answer(other)] + [lambda i=i: noise(i) for i in range(3, 6)])[3]
    finally: s.stop()
    s = Server(args=['--ctx', '2048', '--max-batch', '8', '--threads', '1'], model=model)
    try: alone = answer(other)
    finally: s.stop()
    report(crowd == alone, 'in a crowd (other chunks) and alone on one thread of a fresh server: the same')
    report(abs(cold[1][0] - default[-1][0][1]) < 1e-4, f'the server and `laconic logits` at the last position: {cold[1][0]:.6f} and {default[-1][0][1]:.6f}')


def main():
    exe, model = sys.argv[1:3]
    text = open(os.path.join(ROOT, 'LICENSE'), 'rb').read()
    ids = json.loads(subprocess.run([exe, 'tokenize', model, '--bos'], input=text, capture_output=True, check=True).stdout)[:N]
    assert len(ids) == N, len(ids)
    exact, default = classes(exe, model, ids)
    if len(sys.argv) > 3: peer(sys.argv[3], model, ids, exact)
    else: print('skip: no folder of the peer given')
    served(exe, model, ids, default)
    print(f'{sum(results)} passed, {len(results) - sum(results)} failed'); return not all(results)


if __name__ == '__main__': sys.exit(main())
