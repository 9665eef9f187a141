"""diagnose as a user runs it: against a real server, and against one of another make that this file plays, with a tail, a
divergent stretch and failures planted into it."""
import http.server, json, os, struct, subprocess, sys, tempfile, threading, time, zlib
from harness import LACONIC, Server


def sh(*args, ok=0):
    p = subprocess.run([LACONIC, 'diagnose', *args], capture_output=True, timeout=600)
    assert p.returncode == ok, (args, p.returncode, p.stderr[-400:])
    return p.stdout.decode(), p.stderr.decode()


def png(path):
    """(width, height, lines of RGB bytes); every checksum is looked at."""
    raw = open(path, 'rb').read()
    assert raw[:8] == b'\x89PNG\r\n\x1a\n', path
    at, parts = 8, {}
    while at < len(raw):
        n, kind = struct.unpack('>I4s', raw[at:at + 8])
        assert struct.unpack('>I', raw[at + 8 + n:at + 12 + n])[0] == zlib.crc32(raw[at + 4:at + 8 + n]), (path, kind)
        parts[kind] = raw[at + 8:at + 8 + n]
        at += 12 + n
    w, h, bits, colour, *rest = struct.unpack('>IIBBBBB', parts[b'IHDR'])
    assert (bits, colour, rest) == (8, 2, [0, 0, 0]) and parts[b'IEND'] == b''
    data, lines, before = zlib.decompress(parts[b'IDAT']), [], bytes(3 * w)
    assert len(data) == h * (3 * w + 1)
    for y in range(h):
        line = data[y * (3 * w + 1):(y + 1) * (3 * w + 1)]
        assert line[0] == 2
        before = bytes((a + b) & 255 for a, b in zip(line[1:], before))
        lines.append(before)
    return w, h, lines


class Other(http.server.BaseHTTPRequestHandler):
    """A server that knows nothing of `laconic`: one request in ten is slow, prompt 3's tokens are all uncertain from the 10th
    to the 30th, prompts with 'fail' are refused."""
    protocol_version = 'HTTP/1.1'
    bodies = []

    def log_message(self, *a): pass

    def plain(self, status, o):
        b = json.dumps(o).encode()
        self.send_response(status); self.send_header('Content-Length', str(len(b))); self.end_headers(); self.wfile.write(b)

    def do_GET(self):
        if self.path == '/v1/models': return self.plain(200, {'data': [{'id': 'theirs'}]})
        self.plain(404, {'error': {'message': 'not here'}})

    def chunk(self, o):
        b = f'data: {o if isinstance(o, str) else json.dumps(o)}\n\n'.encode()
        for piece in (b[:7], b[7:]): self.wfile.write(b'%x\r\n%s\r\n' % (len(piece), piece))

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.bodies.append(q)
        assert 'laconic' not in q and q['model'] == 'theirs' and q['stream'], q
        prompt = q['messages'][0]['content']
        if 'fail' in prompt: return self.plain(429, {'error': {'message': 'too many'}})
        self.send_response(200); self.send_header('Transfer-Encoding', 'chunked'); self.end_headers()
        if not q.get('logprobs') and 'slow' in prompt: time.sleep(0.3)
        for t in range(40):
            c = {'index': 0, 'delta': {'content': f'w{t + q["seed"] % 7} '}}
            if q.get('logprobs'):
                wide = 'p3' in prompt and 10 <= t < 30
                c['logprobs'] = {'content': [{'token': 'w', 'top_logprobs': [{'logprob': v} for v in ([-2.9957] * 20 if wide else [-0.01])]}]}
            self.chunk({'id': 'x', 'choices': [c]})
            if t == 0: time.sleep(0.01)
        self.chunk({'id': 'x', 'choices': [], 'usage': {'prompt_tokens': 3, 'completion_tokens': 40}})
        self.chunk('[DONE]')
        self.wfile.write(b'0\r\n\r\n')


def other():
    s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Other)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s, f'http://127.0.0.1:{s.server_port}'


def case_usage():
    assert '--plots' in sh('--help')[0]
    for args in ([], ['http://x', '--a', '[1]'], ['http://x', '--b', '{"n": 2}'], ['http://x', '--requests', '0']):
        assert sh(*args, ok=2)[1].strip(), args
    assert 'nobody' in sh('http://127.0.0.1:1', ok=1)[1]
    assert 'cannot be opened' in sh('http://127.0.0.1:1', '--prompts', '/nowhere', ok=1)[1]


def case_other_server():
    s, url = other()
    with tempfile.TemporaryDirectory() as d:
        with open(d + '/p.jsonl', 'w') as f:
            for i in range(30): print(json.dumps({'text': f'p{i}' + (' slow' if i % 10 == 9 else ' fail' if i == 20 else '')}), file=f)
        j = json.loads(sh(url, '--prompts', d + '/p.jsonl', '--json', '--plots', d + '/plots')[0])
        assert not j['laconic'] and j['model'] == 'theirs' and j['prompts'] == 30
        a = j['arms']['A']
        assert a['failed'] == 1 and a['request_seconds']['n'] == 29 and a['request_seconds']['tail_signal'], a
        assert a['request_seconds']['p95'] > 0.3 and a['tokens']['p50'] == 40
        assert not a['token_seconds']['tail_signal'] or a['token_seconds']['p95'] < 0.01, a['token_seconds']
        t = j['traces']
        assert not t['exact'] and t['answers'] == 29 and t['same_text'] == 29 and t['similarity'] is None
        found = {r['prompt']: r['divergent'] for r in t['rows'] if r['divergent']}
        assert list(found) == [3] and len(found[3]) == 1, found
        assert 7 <= found[3][0]['from'] <= 10 and 30 <= found[3][0]['to'] <= 33, found
        assert sorted(os.listdir(d + '/plots')) == ['latency.png', 'traces.png']
        w, h, lines = png(d + '/plots/traces.png')
        # The stretch is shaded in the first panel, over half of its width.
        rose = [sum(l[3 * x:3 * x + 3] == b'\xf6\xd5\xdc' for x in range(w)) for l in lines[:210]]
        assert 400 < max(rose) < 600, max(rose)
        text = sh(url, '--prompts', d + '/p.jsonl', '--no-traces', '--requests', '25')[0]
        assert 'TAIL' in text and '1 FAILED, the first: too many' in text and 'traces' not in text, text
    s.shutdown()


def case_two_settings():
    s, url = other()
    Other.bodies.clear()
    with tempfile.TemporaryDirectory() as d:
        args = (url, '--requests', '12', '--seed', '70', '--a', '{"temperature": 0.5}', '--b', '{"temperature": 0, "max_tokens": 9}', '--no-traces')
        j = json.loads(sh(*args, '--json', '--plots', d)[0])
        asked = Other.bodies[1:]
        assert len(asked) == 36 and {(q['temperature'], q['max_tokens']) for q in asked} == {(0.5, 128), (0, 9)}
        assert sorted(q['seed'] for q in asked if q['temperature'] == 0) == list(range(70, 82))
        assert sorted(q['seed'] for q in asked if q['temperature'] == 0.5) == [*range(70, 82), *range(1000070, 1000082)]
        assert [q['seed'] < 1000 and q['temperature'] for q in asked[:9]] == [0.5, 0, False, 0, False, 0.5, False, 0.5, 0]
        b, control = j['b_against_a'], j['control_against_a']
        # Same seeds, same words from this server; the control's seeds move them by one in seven.
        assert b['identical'] == 12 and b['agreement']['value'] == b['agreement']['low'] == 1
        assert control['identical'] == 0 and 0.8 < control['agreement']['value'] < 1
        v = b['latency_median_ratio']
        assert v['low'] <= v['value'] <= v['high'] and 0.3 < v['value'] < 3, v
        png(d + '/compare.png')
    s.shutdown()


def case_laconic():
    s = Server(os.environ.get('LAC_IO', 'auto').split()[0])
    with tempfile.TemporaryDirectory() as d:
        j = json.loads(sh(s.base, '--requests', '6', '-n', '24', '--clients', '2', '--a', '{"temperature": 0.7}', '--json', '--plots', d)[0])
        assert j['laconic'] and j['arms']['A']['failed'] == 0
        t = j['traces']
        # A trace watches and changes nothing: the very bytes of the timed answers.
        assert t['exact'] and t['answers'] == t['same_text'] == 6 and -1 <= t['similarity'] <= 1
        assert all(len(r['entropy']) == len(r['similarity']) and min(r['entropy']) >= 0 for r in t['rows'])
        assert j['tail']['slowest']['decode_ms'] > 0 and j['tail']['middle']['prefill_ms'] > 0
        assert {'prefix_cache'} <= {f['what'] for f in j['tail']['faster']}
        for name in ('latency.png', 'traces.png'): png(f'{d}/{name}')
        # Entropies are there for who asks for an explanation, and for nobody else.
        q = {'temperature': 0, 'max_tokens': 3, 'logprobs': True}
        assert 'entropy' not in s.chat('Hi', **q)[1]['choices'][0]['logprobs']['content'][0]
        told = s.chat('Hi', laconic={'explain': True}, **q)[1]['choices'][0]['logprobs']['content'][0]
        assert told['entropy'] > 0 and 'similarity' not in told, told
        # What the timed requests cost is the explanation's.
        assert j['arms']['A']['request_seconds']['mean'] * 1000 > j['tail']['middle']['decode_ms'] * 0.5
    assert s.stop() == 0


if __name__ == '__main__':
    good = bad = 0
    for name, f in [(k, v) for k, v in globals().items() if k.startswith('case_')]:
        if sys.argv[1:] and name not in sys.argv[1:]: continue
        t0 = time.time()
        try: f(); good += 1; print(f'ok   {name[5:]} ({time.time() - t0:.1f} s)', flush=True)
        except Exception as e: bad += 1; print(f'FAIL {name[5:]} {type(e).__name__}: {str(e)[:900]}', flush=True)
    print(f'{good} passed, {bad} failed')
    sys.exit(bad > 0)
