#!/usr/bin/env python3
"""Every architecture of tiny_models.py through `--backend cuda` on the software device, against the same float64 reference.

usage: compare_cuda.py LACONIC LIBCUDA_FOLDER [NAME...]    ends with "N passed, N failed"
What has no GPU kernels must be refused in one line that says so, and run on the CPU when nobody asked for the device. NVRTC is
found through LAC_NVRTC or as the loader does; without it everything is skipped. SOFTGPU_DEVICE says which chip (default A100).
"""
import json, os, subprocess, sys, tempfile
import numpy as np
from tiny_models import CASES, CTX, V, reference, write

REFUSED = ('mixtral', 'qwen3moe')


def run(exe, libcuda, case, d, backend):
    env = {**os.environ, 'LD_LIBRARY_PATH': libcuda, 'SOFTGPU_CHECK': 'bounds', 'SOFTGPU_COUNT': '0', 'SOFTGPU_SMS': '2',
           'SOFTGPU_REPORT': d + '/report.json', 'SOFTGPU_DEVICE': os.environ.get('SOFTGPU_DEVICE', 'A100')}
    nvrtc = ['--nvrtc', os.environ['LAC_NVRTC']] if os.environ.get('LAC_NVRTC') else []
    ctx = ['--ctx', str(case.ctx)] if case.ctx != CTX else []
    return subprocess.run([exe, 'logits', d + '/m.gguf', '--tokens', d + '/in.json', '--out', d + '/out.json', '--backend', backend,
                           '--cache-dir', os.environ.get('CACHE', d + '/kernels'), *nvrtc, *ctx], capture_output=True, text=True, env=env)


def main():
    exe, libcuda = sys.argv[1], os.path.abspath(sys.argv[2]); names = sys.argv[3:]; good = bad = 0
    for i, c in enumerate(CASES):
        if names and c.name not in names: continue
        rng = np.random.default_rng(1000 + i)
        with tempfile.TemporaryDirectory() as d:
            w = write(c, d + '/m.gguf', rng); ids = rng.integers(0, V, c.n_tokens); z = reference(c, w, ids)
            json.dump([{'name': 'a', 'tokens': ids.tolist()}], open(d + '/in.json', 'w'))
            p = run(exe, libcuda, c, d, 'cuda'); why = p.stderr.strip()[-200:]
            if 'cannot compile' in why or 'no compiler' in why: print(f'skip: {why}'); print('1 passed, 0 failed'); return 0
            if c.name in REFUSED:
                q = run(exe, libcuda, c, d, 'auto')
                ok = p.returncode == 1 and 'no GPU kernels' in why and q.returncode == 0 and 'not used' in q.stderr
            elif p.returncode != 0: ok = False
            else:
                out = json.load(open(d + '/out.json'))[0]['positions']; found = json.load(open(d + '/report.json'))['findings']
                worst = max(abs(l - z[t][k]) for t, pos in enumerate(out) for k, l in pos['top'])
                ok = worst <= 0.05 and len(out) == c.n_tokens and found == 0
                why = f'max |dlogit| {worst:.2e}, {found} findings'
            good, bad = good + ok, bad + (not ok)
            print(f"{'ok  ' if ok else 'FAIL'} {c.name:20} {why}", flush=True)
    print(f'{good} passed, {bad} failed'); return bad != 0


if __name__ == '__main__': sys.exit(main())
