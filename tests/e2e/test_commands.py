"""The commands as a person types them: outputs, exit statuses, and refusals by name."""
import json, os, subprocess, sys, tempfile
from harness import LACONIC, MODEL, Server


def sh(*args, stdin=b'', ok=0):
    p = subprocess.run([LACONIC, *args], input=stdin if isinstance(stdin, bytes) else stdin.encode(), capture_output=True, timeout=600)
    assert p.returncode == ok, (args, p.returncode, p.stderr[-400:])
    return p.stdout.decode(), p.stderr.decode()


def case_help():
    out, _ = sh('--help')
    for c in ('serve', 'run', 'bench', 'tokenize', 'detokenize', 'template', 'logits', 'perplexity', 'inspect', 'doctor'):
        assert c in out, c
        h, _ = sh(c, '--help')
        assert 'MODEL' in h and '--help' in h, (c, h)


def case_bad_usage():
    assert sh(ok=2)[1]
    assert 'frobnicate' in sh('frobnicate', ok=2)[1]
    assert '--nonsense' in sh('serve', MODEL, '--nonsense', ok=2)[1]
    assert '--port' in sh('serve', MODEL, '--port', 'x', ok=2)[1]
    for opt in (['--tls-cert', 'x'], ['--api-key-file', 'x'], ['--journal', 'd'],
                ['--activations', 'bf16']):
        assert opt[0] in sh('serve', MODEL, *opt, ok=2)[1], opt
    for cmd in ('tune', 'calibrate', 'train', 'bake', 'replay'): assert cmd in sh(cmd, ok=2)[1]


def case_missing_and_broken_models():
    assert 'no-such' in sh('run', '/no-such.gguf', '-p', 'x', ok=1)[1]
    with tempfile.NamedTemporaryFile(suffix='.gguf') as f:
        f.write(b'GGUF' + b'\xff' * 100); f.flush()
        for c in (['run', f.name, '-p', 'x'], ['inspect', f.name], ['tokenize', f.name]):
            err = sh(*c, ok=1)[1]
            assert err.strip() and err.count('\n') == 1, err


def case_run():
    out, err = sh('run', MODEL, '-p', 'What is the capital of France?', '--temp', '0', '-n', '24', '--stats')
    assert 'Paris' in out and 'tokens/s' in err, (out, err)
    a, b, c = (sh('run', MODEL, '-p', 'Tell me a joke.', '--temp', '1', '--seed', s, '-n', '24')[0] for s in ('5', '5', '6'))
    assert a == b != c


def case_tokens():
    text = 'Hello, wörld! 北京 🦙\n\n  <|im_start|>x'
    ids = json.loads(sh('tokenize', MODEL, stdin=text)[0])
    assert sh('detokenize', MODEL, stdin=json.dumps(ids))[0] == text
    special = json.loads(sh('tokenize', MODEL, '--special', stdin=text)[0])
    assert 1 in special and 1 not in ids and len(special) < len(ids)
    assert sh('tokenize', MODEL, stdin='')[0].strip() == '[]'
    assert sh('detokenize', MODEL, stdin='[1, "x"]', ok=1)[1]


def case_template():
    out, _ = sh('template', MODEL, stdin=json.dumps({'messages': [{'role': 'user', 'content': 'hi'}], 'add_generation_prompt': True}))
    assert out.endswith('<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n'), out
    with tempfile.NamedTemporaryFile('w', suffix='.jinja') as f:
        f.write("{{ raise_exception('no good') }}"); f.flush()
        assert 'no good' in sh('template', f.name, stdin='{}', ok=1)[1]


def case_logits_and_perplexity():
    with tempfile.TemporaryDirectory() as d:
        json.dump([{'name': 'x', 'tokens': [1, 504, 3, 77, 900]}], open(d + '/i.json', 'w'))
        def run(*extra):
            sh('logits', MODEL, '--tokens', d + '/i.json', '--out', d + '/o.json', '--ctx', '256', *extra)
            return json.load(open(d + '/o.json'))
        a = run('--threads', '1'); b = run('--threads', '2')
        assert a == b and len(a[0]['positions']) == 5 and len(a[0]['positions'][0]['top']) == 20
        e = run('--exact')
        diff = max(abs(x[1] - dict(map(tuple, q['top'])).get(x[0], x[1])) for p, q in zip(a[0]['positions'], e[0]['positions']) for x in p['top'])
        assert 0 < diff < 0.2, diff
        open(d + '/t.txt', 'w').write('The bank is open from nine to five. ' * 60)
        j = json.loads(sh('perplexity', MODEL, '--file', d + '/t.txt', '--ctx', '256', '--json')[0])
        assert j['tokens'] > 300 and 1 < j['perplexity'] < 100, j


def case_bench():
    rows = json.loads(sh('bench', MODEL, '--prompt', '64', '--gen', '8', '--batch', '1,4', '--reps', '2', '--json')[0])
    assert [r['test'] for r in rows] == ['pp64', 'tg8@b1', 'tg8@b4'] or [r['test'] for r in rows] == ['pp64', 'tg8', 'tg8@b4'], rows
    assert all(0 < r['tokens_per_s']['min'] <= r['tokens_per_s']['median'] <= r['tokens_per_s']['max'] for r in rows)
    phases = sh('bench', MODEL, '--prompt', '64', '--gen', '0', '--reps', '1', '--stats')[1]
    assert all(name in phases for name in ('q k v', 'gate_task', 'down', 'head_task', 'step')), phases
    assert 'd32' in sh('bench', MODEL, '--prompt', '0', '--gen', '4', '--batch', '1', '--depth', '32', '--reps', '1', '--json')[0]


def case_inspect_and_doctor():
    j = json.loads(sh('inspect', MODEL, '--json')[0])
    assert j['runs'] is True and j['architecture'] == 'llama' and j['layers'] == 30
    assert 'SmolLM2' in sh('inspect', MODEL)[0] or 'Smollm2' in sh('inspect', MODEL)[0]
    j = json.loads(sh('doctor', '--json')[0])
    assert j['isa'] in j['isa_supported'] and j['read_bytes_per_s_all_threads'] > 1e9
    assert j['isa'] == 'scalar' or all(v > 1e9 for v in j['multiply_adds_per_s_1_thread'][j['isa']].values()), j


def case_output_that_cannot_be_written():
    for args in (['--help'], ['inspect', MODEL], ['inspect', MODEL, '--json'], ['doctor'], ['tokenize', MODEL]):
        with open('/dev/full', 'wb') as full:
            p = subprocess.run([LACONIC, *args], input=b'x', stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert p.returncode == 1 and b'cannot be written' in p.stderr, (args, p.returncode, p.stderr)


def case_version_and_text_that_is_no_utf8():
    assert sh('--version')[0].startswith('laconic ')
    assert 'byte 3' in sh('tokenize', MODEL, stdin=b'abc\xffdef', ok=1)[1]
    assert 'byte 0' in sh('run', MODEL, '-p', b'\xc3(', ok=1)[1]


def case_unix_socket():
    import socket
    with tempfile.TemporaryDirectory() as d:
        s = Server(args=['--uds', d + '/s'])
        k = socket.socket(socket.AF_UNIX); k.settimeout(20); k.connect(d + '/s')
        k.sendall(b'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
        assert k.recv(4096).startswith(b'HTTP/1.1 200'); k.close()
        assert s.stop() == 0 and not os.path.exists(d + '/s')


def case_one_thread_and_port_in_use():
    a = Server(args=['--threads', '1'])
    assert a.chat('Say hi.', max_tokens=2)[0] == 200
    assert str(a.port) in sh('serve', MODEL, '--port', str(a.port), ok=1)[1]
    assert a.stop() == 0


if __name__ == '__main__':
    good = bad = 0
    for name, f in [(k, v) for k, v in globals().items() if k.startswith('case_')]:
        try: f(); good += 1; print('ok  ', name[5:], flush=True)
        except Exception as e: bad += 1; print('FAIL', name[5:], f'{type(e).__name__}: {str(e)[:500]}', flush=True)
    print(f'{good} passed, {bad} failed')
    sys.exit(bad != 0)
