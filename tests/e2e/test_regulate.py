"""Regulation: a head in a side-car that says temperature and top_p of each token: refusals, the same bytes at any batch and with
drafts, what a client sets wins, and what the explanation tells. The head is written here, of a known shape."""
import ctypes, ctypes.util, os, random, struct, subprocess, sys, tempfile, time
from harness import LACONIC, MODEL, ROOT, Server, parallel, text

D = 576  # the default model's


def xxh128(data):
    lib = ctypes.CDLL(ctypes.util.find_library('xxhash') or 'libxxhash.so.0')

    class Hash(ctypes.Structure): _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]
    lib.XXH3_128bits.restype, lib.XXH3_128bits.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
    h = lib.XXH3_128bits(data, len(data))
    return struct.pack('<QQ', h.low, h.high)


def side_car(path, spread=0.02, bias=(0.0, 1.0), most=(1.6, 1.0)):
    """models/sidecar.h and models/regulation.h, written down a second time. The default model's digest is in its own side-car."""
    r = random.Random(3)
    section = struct.pack('<II6f', D, 0, *bias, 0.1, 0.3, *most).ljust(64, b'\0')
    section += struct.pack(f'<{2 * D}f', *(r.gauss(0, spread) for _ in range(2 * D))) + b'{}'
    digest = open(os.path.join(ROOT, 'assets/default.lacs'), 'rb').read(32)[16:]
    offset = 192  # 64 of header, 80 of table, to a multiple of 64
    table = struct.pack('<II', 9, 1) + b'default'.ljust(40, b'\0') + struct.pack('<QQ', offset, len(section)) + xxh128(section)
    head = b'LACSIDE1' + struct.pack('<II', 1, 1) + digest + struct.pack('<Q', offset + len(section))
    whole = xxh128(head + bytes(24) + table)
    open(path, 'wb').write((head + whole + bytes(8) + table).ljust(offset, b'\0') + section)


ASK = {'max_tokens': 24, 'seed': 5, 'temperature': None}


def ask(s, prompt='Write two sentences about rivers.', own=None, **kw):
    st, r = s.chat(prompt, **{**ASK, **kw, 'laconic': {'regulate': True, 'explain': True, **(own or {})}})
    assert st == 200, r
    return r


def case_refusals():
    s = Server(IO, ('--side-car', 'off'))
    st, r = s.chat('Hi', laconic={'regulate': True})
    assert st == 400 and r['error']['param'] == 'laconic.regulate' and '--regulate' in r['error']['message'], r
    assert s.chat('Hi', laconic={'regulate': False})[0] == 200 and s.chat('Hi', laconic={'regulate': 1})[0] == 400
    assert s.stop() == 0
    with tempfile.TemporaryDirectory() as d:
        side_car(d + '/bad.lacs', most=(2.5, 1.0))
        p = subprocess.run([LACONIC, 'serve', MODEL, '--port', '0', '--side-car', d + '/bad.lacs'], capture_output=True, timeout=120)
        assert p.returncode == 1 and b'out of range' in p.stderr, p.stderr


def case_serving():
    with tempfile.TemporaryDirectory() as d:
        side_car(d + '/a.lacs')
        s = Server(IO, ('--side-car', d + '/a.lacs'))
        plain = s.chat('Write two sentences about rivers.', **ASK)[1]
        alone = ask(s)
        told = alone['laconic']['regulation']
        assert told['tokens'] == alone['usage']['completion_tokens'] and 0.1 < told['temperature'] < 1.6 and 0.3 < told['top_p'] < 1, told
        assert text(alone) != text(plain) and 'regulation' not in plain.get('laconic', {})
        # Unasked, the same bytes as without the head.
        why = s.call('/v1/requests/' + alone['id'])[1]['prompts'][0]['decisions']
        said = [x for x in why if x['what'] == 'regulation'][0]
        assert said['least_temperature'] < said['temperature'] < said['most_temperature'], said
        assert said['least_top_p'] < said['top_p'] < said['most_top_p'] and abs(said['temperature'] - told['temperature']) < 2e-3, said
        # The same bytes beside others, some of them regulated, and with what is cached and drafted by now.
        both = parallel([lambda i=i: text(ask(s) if i == 0 else ask(s, f'Count to {i}.') if i % 2 else s.chat(f'Hello {i}', max_tokens=30, temperature=1)[1])
                         for i in range(6)])
        assert both[0] == text(alone)
        # What the client sets wins: greedy is greedy, and a top_p of next to nothing too.
        greedy = text(s.chat('Write two sentences about rivers.', max_tokens=24)[1])
        assert text(ask(s, temperature=0)) == greedy and text(ask(s, top_p=1e-6)) == greedy
        two = ask(s, n=2, max_tokens=12)
        assert two['laconic']['regulation']['tokens'] == two['usage']['completion_tokens']
        finger = alone['system_fingerprint']
        assert s.stop() == 0
        off = Server(IO, ('--side-car', d + '/a.lacs', '--drafts', 'off', '--threads', '1'))
        assert text(ask(off)) == text(alone) and off.stop() == 0
        side_car(d + '/b.lacs', bias=(-1.0, 1.0))
        other = Server(IO, ('--side-car', d + '/b.lacs'))
        r = ask(other)
        assert r['system_fingerprint'] != finger and r['laconic']['regulation']['temperature'] < told['temperature']
        assert text(other.chat('Write two sentences about rivers.', **ASK)[1]) == text(plain)
        assert other.stop() == 0


def case_calibrate():
    with tempfile.TemporaryDirectory() as d:
        open(d + '/few.jsonl', 'w').write('{"text": "one two three"}\n{"prompt": "a", "answer": "b c"}\n')
        def run(path): return subprocess.run([LACONIC, 'calibrate', MODEL, '--regulate', '--file', path, '-o', d + '/x.lacs'], capture_output=True, timeout=300)
        p = run(d + '/few.jsonl')
        assert p.returncode == 1 and b'40 are needed' in p.stderr, p.stderr
        open(d + '/bad.jsonl', 'w').write('{"prompt": "a"}\n')
        p = run(d + '/bad.jsonl')
        assert p.returncode == 1 and b'line 1' in p.stderr and not os.path.exists(d + '/x.lacs'), p.stderr


if __name__ == '__main__':
    IO = os.environ.get('LAC_IO', 'auto').split()[0]
    good = bad = 0
    for name, f in [(k, v) for k, v in globals().items() if k.startswith('case_')]:
        if sys.argv[1:] and name not in sys.argv[1:]: continue
        t0 = time.time()
        try: f(); good += 1; print(f'ok   {name[5:]} ({time.time() - t0:.1f} s)', flush=True)
        except Exception as e: bad += 1; print(f'FAIL {name[5:]} {type(e).__name__}: {str(e)[:900]}', flush=True)
    print(f'{good} passed, {bad} failed')
    sys.exit(bad > 0)
