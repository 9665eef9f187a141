#!/usr/bin/env python3
"""Every architecture: `laconic logits --exact` and llama.cpp's server on the same tiny random file.

usage: compare_peer.py LACONIC PEER_FOLDER [--type F32|F16] [--only NAME]    ends with "N passed, N failed"
PEER_FOLDER holds llama-server (absent: "skip:" and nothing is compared). The files are those of tiny_models.py. Per file:
mean and max |d logprob| over the ids in both top 20s at every position, and how often the most likely id is the same; the
float64 NumPy reference is shown against both, so that a disagreement says who is wrong. The weights are F32: with others the
peer rounds activations to the weights' type or to 8 bits, which hides what is looked for. Where the peer looks GELU up in a
table of half precision (gemma) the bounds are wider.
"""
import argparse, json, math, os, socket, subprocess, sys, tempfile, time, urllib.request
import numpy as np
from gguf import GGMLQuantizationType as T
import tiny_models

# type: mean and max bounds on |d logprob|.
BOUNDS = {'F32': (1e-5, 1e-4), 'F16': (1e-2, 5e-2)}
GELU_BOUNDS = (1e-3, 5e-3)
# What the peer does not compute as published; then only ours is held against the reference.
PEER_DIFFERS = {'phi3-window': 'the peer switches the sliding window of phi3 off'}


def free_port():
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); return s.getsockname()[1]


class Peer:
    """llama-server on one file: float32 KV, no flash attention, one slot."""

    def __init__(self, folder, model, ctx, extra=()):
        self.url = f'http://127.0.0.1:{(port := free_port())}'
        env = dict(os.environ, LD_LIBRARY_PATH=folder)
        self.log = tempfile.TemporaryFile()
        self.p = subprocess.Popen([folder + '/llama-server', '-m', model, '--port', str(port), '-c', str(ctx), '-np', '1', '-t', '2', '-fa', 'off',
                                   '-ctk', 'f32', '-ctv', 'f32', '--no-warmup', '--fit', 'off', *extra], stdout=self.log, stderr=self.log, env=env)
        for _ in range(600):
            try: urllib.request.urlopen(self.url + '/health', timeout=5).read(); return
            except OSError:
                if self.p.poll() is not None: break
                time.sleep(0.05)
        self.close()
        self.log.seek(0); raise RuntimeError('the peer does not start: ' + self.log.read().decode(errors='replace')[-300:].replace('\n', ' '))

    def top(self, ids, n=20, keep=False):
        """[(id, logprob)] of the position behind `ids`, over raw logits. keep: positions of the last request are used again."""
        body = {'prompt': ids, 'n_predict': 1, 'n_probs': n, 'temperature': 0.0, 'cache_prompt': keep, 'post_sampling_probs': False, 'samplers': []}
        r = urllib.request.Request(self.url + '/completion', json.dumps(body).encode(), {'Content-Type': 'application/json'})
        out = json.load(urllib.request.urlopen(r, timeout=300))
        return [(t['id'], t['logprob']) for t in out['completion_probabilities'][0]['top_logprobs']]

    def close(self):
        self.p.terminate(); self.p.wait()


def ours(exe, model, ids, extra):
    with tempfile.TemporaryDirectory() as d:
        json.dump([{'name': 'a', 'tokens': ids}], open(d + '/in.json', 'w'))
        p = subprocess.run([exe, 'logits', model, '--tokens', d + '/in.json', '--out', d + '/out.json', *extra], capture_output=True, text=True)
        if p.returncode != 0: raise RuntimeError(p.stderr.strip()[-200:])
        return [[(k, l - pos['lse']) for k, l in pos['top']] for pos in json.load(open(d + '/out.json'))[0]['positions']]


def apart(a, b):
    """|d logprob| over the ids both lists hold."""
    b = dict(b)
    return [abs(l - b[k]) for k, l in a if k in b]


def same_top(a, b):
    return a[0][0] == b[0][0]


def compare(c, exe, folder, d, seed):
    rng = np.random.default_rng(seed)
    w = tiny_models.write(c, d + '/m.gguf', rng)
    ids = rng.integers(0, tiny_models.V, c.n_tokens).tolist()
    z = tiny_models.reference(c, w, ids)
    ref = [list(enumerate(z[t] - (m := z[t].max()) - math.log(np.exp(z[t] - m).sum()))) for t in range(len(ids))]
    us = ours(exe, d + '/m.gguf', ids, ['--exact', *(['--ctx', str(c.ctx)] if c.ctx != tiny_models.CTX else [])])
    peer = Peer(folder, d + '/m.gguf', c.ctx)
    try: them = [peer.top(ids[:t + 1]) for t in range(len(ids))]
    finally: peer.close()
    us_them = [x for a, b in zip(us, them) for x in apart(a, b)]
    return (np.array(us_them), np.mean([same_top(a, b) for a, b in zip(us, them)]), max(x for a, b in zip(us, ref) for x in apart(a, b)),
            max(x for a, b in zip(them, ref) for x in apart(a, b)))


def main():
    a = argparse.ArgumentParser(); a.add_argument('laconic'); a.add_argument('peer'); a.add_argument('--type', default='F32'); a.add_argument('--only')
    o = a.parse_args()
    if not os.access(o.peer + '/llama-server', os.X_OK): print(f'skip: no llama-server in {o.peer}\n0 passed, 0 failed'); return 0
    good = bad = 0
    for i, c in enumerate(tiny_models.CASES):
        if o.only and o.only not in c.name: continue
        c.qtype = T[o.type]; why = ''
        mean_bound, max_bound = GELU_BOUNDS if c.o.get('gemma') and o.type == 'F32' else BOUNDS[o.type]
        with tempfile.TemporaryDirectory() as d:
            try:
                diff, top1, us_ref, them_ref = compare(c, o.laconic, o.peer, d, 1000 + i)
                if c.name in PEER_DIFFERS: ok, why = us_ref <= 1e-3 < diff.max(), PEER_DIFFERS[c.name]
                else: ok = diff.mean() <= mean_bound and diff.max() <= max_bound
                text = f'ids {len(diff):4} |d logprob| mean {diff.mean():.1e} max {diff.max():.1e} same top-1 {top1:.3f}; from float64: ours {us_ref:.1e}, peer {them_ref:.1e}'
            except (RuntimeError, OSError, KeyError) as e: ok, text = False, str(e)
        good, bad = good + bool(ok), bad + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {c.name:20} {o.type} {text} {why}", flush=True)
    print(f'{good} passed, {bad} failed'); return bad != 0


if __name__ == '__main__': sys.exit(main())
