#!/usr/bin/env python3
"""Start-up, memory, and decoding beside a neighbour that keeps one core busy: against the peer, in turn, on one machine.

usage: machine.py PEER_BIN MODEL [--reps N] [--out F.json]
start-up: from exec to the first 200 of /ready (the peer: /health), the file in the page cache; resident: after a prompt of
about 500 tokens with 16 tokens of answer, context 4,096. The peer is the better of 1 and 2 threads, flash attention on and off.
neighbour: decode of 128 tokens by `bench` while another process spins on the last core; the peer is the best of compare.py's
grid. Its other load is printed; measure on an idle machine.
"""
import argparse, http.client, json, os, socket, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'perf'))
from compare import Row, busy_share, ours, peer, run


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    try:
        c.request(method, path, body, {'Content-Type': 'application/json'})
        r = c.getresponse()
        return r.status, r.read()
    except OSError:
        return 0, b''
    finally:
        c.close()


def resident_mib(pid):
    for line in open(f'/proc/{pid}/status'):
        if line.startswith('VmRSS'): return int(line.split()[1]) / 1024
    raise RuntimeError('no VmRSS')


def start(cmd, port, ready):
    """Seconds from exec to ready, MiB after a request."""
    t0 = time.monotonic()
    p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while ask(port, 'GET', ready)[0] != 200:
            if p.poll() is not None: raise RuntimeError(f'{cmd[0]} ended with {p.returncode}')
            if time.monotonic() - t0 > 120: raise RuntimeError(f'{cmd[0]} is not ready after 120 s')
            time.sleep(0.005)
        seconds = time.monotonic() - t0
        body = json.dumps({'model': 'default', 'max_tokens': 16, 'temperature': 0, 'messages': [{'role': 'user', 'content': 'A word of advice. ' * 120}]})
        status, answer = ask(port, 'POST', '/v1/chat/completions', body)
        if status != 200: raise RuntimeError(f'{cmd[0]}: {status} {answer[:200]}')
        return seconds, resident_mib(p.pid)
    finally:
        p.terminate()
        p.wait()


def start_ours(laconic, model):
    port = free_port()
    return start([laconic, 'serve', model, '--port', str(port), '--ctx', '4096'], port, '/ready')


def start_peer(bin, model, threads, fa):
    port = free_port()
    return start([f'{bin}/llama-server', '-m', model, '--port', str(port), '-c', '4096', '-t', str(threads), '-fa', 'on' if fa else 'off'], port, '/health')


def middle(v): return f'{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})'


def main():
    a = argparse.ArgumentParser()
    a.add_argument('peer'); a.add_argument('model'); a.add_argument('--q4_0', required=False); a.add_argument('--reps', type=int, default=5); a.add_argument('--out')
    o = a.parse_args()
    laconic = os.path.join(ROOT, 'build/laconic')
    q4 = o.q4_0 or os.path.join(ROOT, 'build/peer', os.path.basename(o.model) + '.q4_0.gguf')
    os.makedirs(os.path.dirname(q4), exist_ok=True)
    if not os.path.exists(q4): run([f'{o.peer}/llama-quantize', '--allow-requantize', o.model, q4, 'Q4_0'])
    result = {'busy_before': busy_share()}
    print(f"busy before: {100 * result['busy_before']:.0f} %")
    start_ours(laconic, o.model)
    grid = [(start_peer(o.peer, o.model, t, fa), t, fa) for t in (1, 2) for fa in (0, 1)]
    _, t, fa = min(grid)
    mine, theirs = [], []
    for _ in range(o.reps):
        theirs.append(start_peer(o.peer, o.model, t, fa)); mine.append(start_ours(laconic, o.model))
    for i, name in enumerate(('start to ready, s', 'resident, MiB')):
        m, p = [x[i] for x in mine], [x[i] for x in theirs]
        result[name] = {'ours': m, 'peer': p}
        print(f'{name:20} peer {middle(p)}, {t} threads, fa {fa}; ours {middle(m)}; ratio {statistics.median(m) / statistics.median(p):.2f}')
    cpu = os.cpu_count() - 1
    busy = subprocess.Popen(['taskset', '-c', str(cpu), sys.executable, '-c', 'while True: pass'])
    try:
        row = Row('tg128', tg=128)
        grid = [(peer(o.peer, m, row, t, fa), m, t, fa) for m in (o.model, q4) for t in (1, 2) for fa in (0, 1)]
        _, m, t, fa = max(grid)
        mine, theirs = [], []
        for _ in range(o.reps):
            theirs.append(peer(o.peer, m, row, t, fa)); mine.append(ours(laconic, o.model, row, 2, []))
    finally:
        busy.kill()
        busy.wait()
    result['neighbour'] = {'ours': mine, 'peer': theirs, 'grid': [[g[0], os.path.basename(g[1]), g[2], g[3]] for g in grid]}
    print(f'{"neighbour, tok/s":20} peer {middle(theirs)}, {os.path.basename(m)}, {t} threads, fa {fa}; ours {middle(mine)}; ratio {statistics.median(mine) / statistics.median(theirs):.2f}')
    if o.out:
        with open(o.out, 'w') as f: json.dump(result, f, indent=1)


if __name__ == '__main__': main()
