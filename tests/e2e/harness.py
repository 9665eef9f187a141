"""Starts a real server on a free port and talks to it; counts cases. Standard library only.

A suite is a module of functions named case_*(s), s being a Server. main(globals()) runs them against
each I/O backend named in LAC_IO (default "uring epoll") and prints "N passed, N failed".
"""
import json, os, re, signal, socket, subprocess, sys, threading, time, traceback, urllib.error, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get('BUILD', 'build')
LACONIC = os.path.join(ROOT, BUILD, 'laconic') if not os.path.isabs(BUILD) else os.path.join(BUILD, 'laconic')
MODEL = os.environ.get('LAC_MODEL') or subprocess.run(
    [os.path.join(ROOT, 'scripts/model.sh'), 'path'], capture_output=True, text=True).stdout.strip()
SLOW = 8 if os.environ.get('V') in ('asan', 'tsan') else 3 if os.environ.get('V') == 'ubsan' else 1


class Server:
    def __init__(self, io='auto', args=(), model=MODEL, env=None):
        self.log = open(os.path.join(ROOT, BUILD, 'e2e-server.log') if not os.path.isabs(BUILD)
                        else os.path.join(BUILD, 'e2e-server.log'), 'ab')
        self.p = subprocess.Popen([LACONIC, 'serve', model, '--port', '0', '--io', io, *args],
                                  stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, **(env or {})})
        line = ''
        t0 = time.time()
        while time.time() - t0 < 60 * SLOW:
            raw = self.p.stdout.readline()
            if not raw: break
            line = raw.decode()
            if line.startswith('ready '): break
        m = re.search(r'http://([^\s:]+|\[[^\]]+\]):(\d+)', line)
        if not m: raise RuntimeError(f'no ready line from the server (exit {self.p.poll()}): {line!r}')
        self.ready_line, self.host, self.port = line.strip(), m.group(1), int(m.group(2))
        self.base = f'http://{self.host}:{self.port}'
        threading.Thread(target=lambda: [None for _ in self.p.stdout], daemon=True).start()

    def stop(self):
        """SIGTERM; returns the exit status."""
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try: self.p.wait(60 * SLOW)
            except subprocess.TimeoutExpired: self.p.kill(); self.p.wait(); return 'killed'
        return self.p.returncode

    def call(self, path, body=None, timeout=120, raw=None, method=None, headers=None):
        """(status, parsed JSON or text)"""
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        req = urllib.request.Request(self.base + path, data=data, method=method,
                                     headers={'Content-Type': 'application/json', **(headers or {})})
        try:
            with urllib.request.urlopen(req, timeout=timeout * SLOW) as r: st, txt = r.status, r.read()
        except urllib.error.HTTPError as e: st, txt = e.code, e.read()
        try: return st, json.loads(txt)
        except ValueError: return st, txt.decode(errors='replace')

    def chat(self, content, **kw):
        kw.setdefault('temperature', 0); kw.setdefault('max_tokens', 16)
        return self.call('/v1/chat/completions', {'model': 'default', 'messages': [{'role': 'user', 'content': content}], **kw})

    def metric(self, prefix):
        st, t = self.call('/metrics')
        assert st == 200, st
        return sum(float(l.rsplit(' ', 1)[1]) for l in t.splitlines() if l.startswith(prefix) and not l.startswith('#'))

    def metrics(self):
        return {l.rsplit(' ', 1)[0]: float(l.rsplit(' ', 1)[1]) for l in self.call('/metrics')[1].splitlines() if l and l[0] != '#'}

    def connect(self):
        s = socket.create_connection((self.host, self.port), timeout=30 * SLOW)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def rss(self):
        for l in open(f'/proc/{self.p.pid}/status'):
            if l.startswith('VmRSS'): return int(l.split()[1]) * 1024

    def stream(self, path, body, timeout=120):
        """(status, events, saw_done)"""
        req = urllib.request.Request(self.base + path, data=json.dumps({**body, 'stream': True}).encode(),
                                     headers={'Content-Type': 'application/json'})
        ev = []
        try:
            with urllib.request.urlopen(req, timeout=timeout * SLOW) as r:
                for line in r:
                    line = line.strip()
                    if not line.startswith(b'data:'): continue
                    d = line[5:].strip()
                    if d == b'[DONE]': return r.status, ev, True
                    ev.append(json.loads(d))
                return r.status, ev, False
        except urllib.error.HTTPError as e: return e.code, [e.read().decode(errors='replace')], False


def text(r):
    c = r['choices'][0]
    return c['text'] if 'text' in c else c['message']['content']


def delta(events, index=0):
    return ''.join((c.get('text') or (c.get('delta') or {}).get('content') or '')
                   for e in events for c in e.get('choices', []) if c['index'] == index)


def parallel(fs):
    """Runs the functions at once; an exception is raised here."""
    out = [None] * len(fs)
    def run(i):
        try: out[i] = (True, fs[i]())
        except Exception as e: out[i] = (False, e)
    ts = [threading.Thread(target=run, args=(i,)) for i in range(len(fs))]
    for t in ts: t.start()
    for t in ts: t.join()
    for ok, v in out:
        if not ok: raise v
    return [v for _, v in out]


def wait_until(f, seconds=10):
    t0 = time.time()
    while time.time() - t0 < seconds * SLOW:
        if f(): return True
        time.sleep(0.05)
    return False


def quiet(s):
    """Every counter reconciles and nothing is left running."""
    m = s.metrics()
    started = m['laconic_request_started_total']
    ended = sum(v for k, v in m.items() if k.startswith('laconic_request_total{'))
    assert m['laconic_running'] == 0 and m['laconic_queue_depth'] == 0, m
    assert started == ended, (started, ended)
    return m


def main(scope, args=()):
    cases = [v for k, v in scope.items() if k.startswith('case_')]
    only = sys.argv[1:]
    good = bad = 0
    for io in os.environ.get('LAC_IO', 'uring epoll').split():
        try: s = Server(io, args)
        except RuntimeError as e:
            print(f'FAIL start with --io {io}: {e}'); bad += 1; continue
        for f in cases:
            if only and f.__name__ not in only: continue
            t0 = time.time()
            try: f(s); ok, why = True, ''
            except Exception as e:
                ok, why = False, f'{type(e).__name__}: {str(e)[:600]}'
                if not isinstance(e, AssertionError) or not why.strip(): why += '\n' + traceback.format_exc()[-1200:]
            good, bad = good + ok, bad + (not ok)
            print(f"{'ok  ' if ok else 'FAIL'} {io} {f.__name__[5:]} ({time.time() - t0:.1f} s) {why}", flush=True)
        rc = s.stop()
        good, bad = good + (rc == 0), bad + (rc != 0)
        print(f"{'ok  ' if rc == 0 else 'FAIL'} {io} stops on SIGTERM with 0 ({rc})")
    print(f'{good} passed, {bad} failed')
    return bad != 0
