"""--backend cuda on the software device, with a tiny random model: answers, a pack, and what goes wrong.

LONG=1: the default model's first 8 greedy tokens under the full checks, equal to the CPU's.
"""
import json, os, subprocess, sys, tempfile, time
import gguf
import numpy as np
from harness import BUILD, LACONIC, MODEL, ROOT, Server
from test_bake import NVRTC, nvrtc_loads

sys.path.insert(0, os.path.join(ROOT, 'tests/models'))
from tiny_models import CASES, write

SOFTGPU = os.path.join(ROOT, BUILD, 'tests/softgpu') if not os.path.isabs(BUILD) else os.path.join(BUILD, 'tests/softgpu')
ENV = {'LD_LIBRARY_PATH': SOFTGPU, 'SOFTGPU_CHECK': 'bounds', 'SOFTGPU_COUNT': '0', 'SOFTGPU_DEVICE': 'A100', 'SOFTGPU_SMS': '2'}
TINY = tempfile.mkdtemp()
M, CACHE = TINY + '/tiny.gguf', TINY + '/kernels'
# A vocabulary of bytes, as GPT-2 writes them, so that there is text to ask with.
PLAIN = [b for b in range(256) if 33 <= b < 127 or 161 <= b < 173 or 174 <= b]
BYTES = [chr(b) if b in PLAIN else chr(256 + [x for x in range(256) if x not in PLAIN].index(b)) for b in range(256)]
add_token_list = gguf.GGUFWriter.add_token_list
gguf.GGUFWriter.add_token_list = lambda g, words: add_token_list(g, BYTES + words[256:])
write(next(c for c in CASES if c.name == 'llama-tied-q4_1'), M, np.random.default_rng(7))


def sh(*args, ok=0, env=ENV, model=M):
    nvrtc = ['--nvrtc', NVRTC] if NVRTC and args[0] == 'run' and '--nvrtc' not in args else []
    p = subprocess.run([LACONIC, args[0], model, *args[1:], *nvrtc], capture_output=True, timeout=900, env={**os.environ, **env})
    assert p.returncode == ok, (args, p.returncode, p.stderr[-600:])
    err = p.stderr.decode()
    # ASan remarks once that chores switch stacks; that line is not the program's.
    if os.environ.get('V') == 'asan': err = ''.join(l for l in err.splitlines(True) if 'makecontext/swapcontext' not in l)
    return p.stdout, err


def tokens(*args, cache=CACHE, **kw):
    return sh('run', '-p', 'abcabc', '--raw', '-n', '8', '--temp', '0', '--cache-dir', cache, *args, **kw)


def case_run():
    """The same text as the CPU's, from a cold cache and a warm one, and by default where there is a device."""
    want = tokens('--backend', 'cpu')[0]
    assert tokens('--backend', 'cuda') == (want, '')
    assert tokens('--backend', 'cuda', '--jit', 'off') == (want, '')
    assert tokens('--jit', 'off') == (want, '')


def case_what_is_missing():
    assert 'libcuda' in tokens('--backend', 'cuda', env={'LD_LIBRARY_PATH': '/nowhere'}, ok=1)[1]
    err = tokens('--backend', 'cuda', '--nvrtc', '/nowhere', cache=TINY + '/empty', ok=1)[1]
    assert '/nowhere' in err and err.count('\n') == 1, err
    assert tokens('--backend', 'auto', '--nvrtc', '/nowhere', cache=TINY + '/empty')[1].count('not used') == 1
    assert 'f16 only' in tokens('--backend', 'cuda', '--kv', 'q8', ok=1)[1]
    assert tokens('--kv', 'q8')[1].count('not used') == 1


def case_damaged_artefact():
    want = tokens('--backend', 'cpu')[0]
    victim = sorted(f for f in os.listdir(CACHE) if f.endswith('.lack') and 'matmul' in f)[0]
    with open(f'{CACHE}/{victim}', 'r+b') as f: f.seek(3000); f.write(b'\xff' * 64)
    out, err = tokens('--backend', 'cuda')
    assert out == want and 'corrupt' in err and victim in err, err
    assert tokens('--backend', 'cuda') == (want, '')


def case_pack():
    """What bake made is all that a server without a compiler needs; another chip's is refused by name."""
    want, pack = tokens('--backend', 'cpu')[0], TINY + '/80.lacp'
    nvrtc = ['--nvrtc', NVRTC] if NVRTC else []
    sh('bake', '--arch', '80', '--sms', '2', '-o', pack, '--cache-dir', CACHE, *nvrtc)
    alone = ['--backend', 'cuda', '--jit', 'off', '--nvrtc', '/nowhere']
    assert tokens('--pack', pack, *alone, cache='off') == (want, '')
    err = tokens('--pack', pack, *alone, cache='off', env={**ENV, 'SOFTGPU_SMS': '3'}, ok=1)[1]
    assert 'sm_80 with 3 SMs' in err and 'sm_80 x 2 SMs' in err and err.count('\n') == 1, err
    with open(pack, 'r+b') as f: f.seek(5000); f.write(b'\xff' * 64)
    assert 'pack' in tokens('--pack', pack, *alone, cache='off', ok=1)[1]


def case_bench():
    """Kernels alone, by family and shape; page choices; launches one by one."""
    nvrtc = ['--nvrtc', NVRTC] if NVRTC else []
    common = ['--cache-dir', CACHE, *nvrtc]
    r = json.loads(sh('bench', '--kernel', 'all', '--batch', '1,4', '--depth', '40', '--json', *common)[0])
    families = {k['family'] for k in r['kernels']}
    assert families >= {'matmul', 'ffn', 'attention', 'norm', 'embed', 'sampler', 'page_copy', 'page_seal', 'page_choose', 'tap'}, families
    assert {k['rows'] for k in r['kernels']} == {1, 4} and r['sms'] == 2
    # The software device has no clock, and nobody makes times up.
    assert r['copy_gb_per_s'] is None and all(k['median_us'] is None and k['gb_per_s'] is None and k['bytes'] > 0 for k in r['kernels'])
    name = next(k['kernel'] for k in r['kernels'] if k['family'] == 'matmul')
    n = name.split('_sm')[0].split('_')[-2]
    one = sh('bench', '--kernel', 'matmul', '--shape', f'n={n},b=1', '--graphs', 'off', *common)[0].decode().splitlines()
    assert len(one) >= 2 and 'no clock' in one[0] and all(f'_{n}_' in l for l in one[1:]), one
    assert 'no rope kernel' not in sh('bench', '--kernel', 'rope', *common, ok=1)[1]
    assert 'takes n=,k=,b=' in sh('bench', '--kernel', 'norm', '--shape', 'b=65', *common, ok=1)[1]
    assert 'that shape' in sh('bench', '--kernel', 'matmul', '--shape', 'n=7', *common, ok=1)[1]
    for more in ([], ['--gate', '1'], ['--gate', '1', '--graphs', 'off']):
        r = json.loads(sh('bench', '--backend', 'cuda', '--prompt', '0', '--gen', '7', '--batch', '1,2', '--depth', '70', '--reps', '1', '--json', *more, *common)[0])
        assert [x['test'] for x in r] == ['tg7@b1@d70', 'tg7@b2@d70'], r


def case_inspect():
    """What a device would hold: KV of every slot's context, or what is asked for."""
    d = json.loads(sh('inspect', '--json', '--max-batch', '3', '--ctx', '64')[0])['device']
    assert d['runs'] and d['sms'] == 2 and d['kv_pages'] == 3 * 5 and d['total_bytes'] == sum(d['lines'].values()) < d['limit_bytes'], d
    assert {'weights (device)', 'KV pages (device)', 'activations (device)'} <= set(d['lines']) and d['pinned_bytes'] > 0 and d['graphs'] > 0
    # q k v, attention, o, feed-forward; prefill steps also attend by tiles of rows.
    d = json.loads(sh('inspect', '--json', model=MODEL)[0])['device']
    assert d['layer_kernels'] == {'decode': 4, 'prefill': 5}, d
    assert 'weights (device)' in sh('inspect')[0].decode() and 'device' not in json.loads(sh('inspect', '--json', env={'LD_LIBRARY_PATH': '/nowhere'})[0])
    big = json.loads(sh('inspect', '--json', '--kv-mib', '100000')[0])['device']
    assert not big['runs'] and 'KV pages' in big['reason'], big


def serve(env):
    nvrtc = ['--nvrtc', NVRTC] if NVRTC else []
    return Server(model=M, args=['--backend', 'cuda', '--cache-dir', CACHE, '--max-batch', '2', '--drafts', 'off', *nvrtc], env={**ENV, **env})


def ask(s, **kw):
    return s.call('/v1/completions', {'model': 'default', 'prompt': 'abcabc', 'max_tokens': 4, 'temperature': 0, **kw})


def case_serve():
    s = serve({})
    assert 'backend cuda, NVIDIA A100' in s.ready_line, s.ready_line
    with open(s.log.name) as f: assert 'KV pages (device)' in f.read().split('memory of NVIDIA A100')[-1]
    st, r = ask(s)
    assert st == 200 and r['usage']['completion_tokens'] == 4, r
    assert ask(s)[1]['choices'] == r['choices'] and r['system_fingerprint'].startswith('lac-')
    assert s.stop() == 0


def case_lost_device():
    """Lost in the middle of a step: the answer fails, the server says that it is not ready, and ends well."""
    end = TINY + '/end'
    s = serve({'SOFTGPU_FAIL': 'lost-file=' + end})
    assert ask(s)[0] == 200 and s.call('/ready')[0] == 200
    open(end, 'w').close()
    assert 500 <= ask(s)[0] < 600 and 500 <= ask(s)[0] < 600
    assert s.call('/ready')[0] == 503 and s.call('/health')[0] == 200
    assert s.stop() == 0


def case_default_model():
    if os.environ.get('LONG') != '1': return
    args = ['run', '-p', 'The capital of France is', '--raw', '-n', '8', '--temp', '0', '--ctx', '64', '--cache-dir', CACHE]
    want = sh(*args, '--backend', 'cpu', model=MODEL)[0]
    for device in ('A100', 'RTX5090'):
        t0, report = time.time(), TINY + '/report.json'
        env = {**ENV, 'SOFTGPU_CHECK': 'full', 'SOFTGPU_SMS': '8', 'SOFTGPU_DEVICE': device, 'SOFTGPU_REPORT': report}
        assert sh(*args, '--backend', 'cuda', env=env, model=MODEL) == (want, '')
        with open(report) as f: assert json.load(f)['findings'] == 0
        print(f'{device}: 8 tokens of the default model in {time.time() - t0:.0f} s')


if __name__ == '__main__':
    if not nvrtc_loads(NVRTC): print('skip: the CUDA backend is not run: no NVRTC'); print('1 passed, 0 failed'); sys.exit(0)
    good = bad = 0
    for name, f in list(globals().items()):
        if not name.startswith('case_'): continue
        t0 = time.time()
        try: f(); good += 1; print(f'ok   {name} {time.time() - t0:.1f} s', flush=True)
        except Exception as e: bad += 1; print(f'FAIL {name}: {e!r}'[:1500], flush=True)
    print(f'{good} passed, {bad} failed'); sys.exit(bad != 0)
