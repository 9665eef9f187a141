"""bake and inspect PACK as a person types them: the default model's kernels, refusals, damage, caches."""
import ctypes, json, os, shutil, subprocess, sys, tempfile
from harness import LACONIC, MODEL

NVRTC = os.environ.get('LAC_NVRTC', '')


def nvrtc_loads(folder):
    """Whether NVRTC is there, as bake would find it."""
    for path in ([folder + '/libnvrtc.so.13', folder + '/libnvrtc.so.12'] if folder else ['libnvrtc.so.13', 'libnvrtc.so.12', '/usr/local/cuda/lib64/libnvrtc.so.13']):
        try: ctypes.CDLL(path); return True
        except OSError: pass
    return False


def sh(*args, ok=0, env=None):
    p = subprocess.run([LACONIC, *args], capture_output=True, timeout=900, env={**os.environ, **(env or {})})
    assert p.returncode == ok, (args, p.returncode, p.stderr[-600:])
    return p.stdout.decode(), p.stderr.decode()


def bake(out, *args, ok=0, archs='90', env=None):
    return sh('bake', MODEL, '--arch', archs, '-o', out, *(['--nvrtc', NVRTC] if NVRTC else []), *args, ok=ok, env=env)


def read(path):
    with open(path, 'rb') as f: return f.read()


def case_refusals(d):
    assert '--arch' in sh('bake', MODEL, '-o', d + '/x.lacp', ok=2)[1]
    assert '-o' in sh('bake', MODEL, '--arch', '90', ok=2)[1]
    assert '--sms' in sh('bake', '--help')[0]
    err = bake(d + '/x.lacp', '--cache-dir', 'off', ok=1, archs='91')[1]
    assert '91' in err and '90' in err and err.count('\n') == 1, err
    err = sh('bake', MODEL, '--arch', '90', '-o', d + '/x.lacp', '--cache-dir', 'off', '--nvrtc', '/nowhere', ok=1)[1]
    assert 'cannot compile lac_' in err and '/nowhere' in err and err.count('\n') == 1, err
    assert '/nowhere/x.lacp' in bake('/nowhere/x.lacp', ok=1)[1]
    assert '/no-such.gguf' in sh('bake', '/no-such.gguf', '--arch', '90', '-o', d + '/x.lacp', ok=1)[1]
    assert not os.path.exists(d + '/x.lacp')


def case_bake(d):
    """A cold bake, the same one from the cache, and one with a damaged artefact in it: the same bytes."""
    env = {'XDG_CACHE_HOME': d}
    cache = d + '/laconic/kernels'
    out, err = bake(d + '/a.lacp', '--jit-dump', d + '/dump', env=env)
    assert ' 0 from the cache' in out and not err, (out, err)
    out, err = bake(d + '/b.lacp', env=env)
    assert ' 0 compiled' in out and not err, (out, err)
    assert read(d + '/a.lacp') == read(d + '/b.lacp')
    # A kernel whose PTX has one shape only: NVRTC's order of instructions in the large ones can depend on where its own
    # allocations lie (seen in attention kernels under ASan, where every run allocates elsewhere).
    victim = next(f for f in sorted(os.listdir(cache)) if f.startswith('lac_page_copy') and f.endswith('.lack'))
    data = bytearray(read(f'{cache}/{victim}')); data[len(data) // 3] ^= 16
    with open(f'{cache}/{victim}', 'wb') as f: f.write(data)
    out, err = bake(d + '/c.lacp', env=env)
    assert ' 1 compiled' in out and err.count('\n') == 1 and victim in err and 'corrupt' in err, (out, err)
    assert read(d + '/a.lacp') == read(d + '/c.lacp') and os.path.exists(f'{cache}/{victim}.bad')
    out, err = bake(d + '/c.lacp', env=env)
    assert ' 0 compiled' in out and not err

    j = json.loads(sh('inspect', d + '/a.lacp', '--json')[0])
    kernels = j['kernels']
    assert j['file_bytes'] == os.path.getsize(d + '/a.lacp') and len(kernels) >= 20
    names = ' '.join(k['kernel'] for k in kernels)
    for family in ('lac_matmul_q4_1', 'lac_attention', 'lac_sampler', 'lac_embed', 'lac_page_copy'): assert family in names, family
    for k in kernels:
        assert k['arch'] == 90 and k['sms'] == 132 and k['compiler'].startswith('nvrtc 1') and k['build']
        assert k['cubin_bytes'] > 500 and k['ptx_bytes'] > 100 and f" sms={k['sms']}" in k['spec']
    text = sh('inspect', d + '/a.lacp')[0]
    assert 'sm_90 x 132 SMs' in text and text.count('\n') == len(kernels) + 2
    # The dump: a text, PTX and cubin for each, and the PTX names the text.
    files = os.listdir(d + '/dump')
    assert len(files) == 3 * len(kernels)
    for f in files:
        if f.endswith('.ptx'):
            assert f'/laconic/{f[:-4]}.cu' in read(f'{d}/dump/{f}').decode() and f[:-4] + '.cu' in files and f[:-4] + '.cubin' in files


def case_damaged_packs(d):
    whole = read(d + '/a.lacp')
    def refused(data, word=''):
        with open(d + '/bad.lacp', 'wb') as f: f.write(data)
        err = sh('inspect', d + '/bad.lacp', ok=1)[1]
        assert 'bad.lacp' in err and word in err and err.count('\n') == 1, err
    refused(whole[:len(whole) // 2], 'cut short')
    refused(whole[:100])
    refused(whole[:-64])
    for at in (5, 20, 70, 1000, len(whole) - 1): refused(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:], 'checksum')


def case_full_disk(d):
    """Files may not grow over 60 kB: said once, and the kernels go on from memory."""
    shutil.copytree(d + '/laconic/kernels', d + '/small')
    largest = sorted((f for f in os.listdir(d + '/small') if f.endswith('.lack')), key=lambda f: -os.path.getsize(f'{d}/small/{f}'))[:3]
    for f in largest: os.remove(f'{d}/small/{f}')
    limit = 'ulimit -f 60; trap "" XFSZ; exec "$@"'
    p = subprocess.run(['bash', '-c', limit, 'sh', LACONIC, 'bake', MODEL, '--arch', '90', '-o', d + '/full.lacp', '--cache-dir', d + '/small',
                        *(['--nvrtc', NVRTC] if NVRTC else [])], capture_output=True, timeout=900)
    err = p.stderr.decode()
    assert p.returncode == 1 and err.count('in memory only') == 1 and err.count('File too large') == 2 and not os.path.exists(d + '/full.lacp'), err
    assert ' 3 compiled' in p.stdout.decode() and not any(os.path.exists(f'{d}/small/{f}') for f in largest)


if __name__ == '__main__':
    good = bad = 0
    with tempfile.TemporaryDirectory() as d:
        # A missing compiler is found out before anything is compiled.
        probe = nvrtc_loads(NVRTC)
        if not probe: print('skip: kernels are not baked: no NVRTC here')
        for name, f in [(k, v) for k, v in globals().items() if k.startswith('case_')]:
            if not probe and name != 'case_refusals': continue
            try: f(d); good += 1; print('ok  ', name[5:], flush=True)
            except Exception as e: bad += 1; print('FAIL', name[5:], f'{type(e).__name__}: {str(e)[:500]}', flush=True)
    print(f'{good} passed, {bad} failed')
    sys.exit(bad != 0)
