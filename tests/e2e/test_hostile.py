"""Clients that abort, lie, dawdle or send rubbish: the others are served and nothing stays behind."""
import json, random, socket, sys, threading, time
from harness import SLOW, main, parallel, quiet, text, wait_until

BODY = {'model': 'default', 'messages': [{'role': 'user', 'content': 'Tell a long story about the sea.'}], 'max_tokens': 300, 'stream': True, 'temperature': 1, 'seed': 1}


def post(body, extra=b''):
    b = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' + extra + b'Content-Length: %d\r\n\r\n' % len(b) + b


def exchange(s, data, wait=10.0, parts=None):
    k = s.connect(); out = b''
    try:
        for p in parts or [data]: k.sendall(p)
        k.settimeout(wait * SLOW)
        while True:
            b = k.recv(65536)
            if not b: break
            out += b
            if b'HTTP/1.1 4' in out and b'\r\n\r\n' in out: break
    except (TimeoutError, ConnectionError, BrokenPipeError): pass
    finally: k.close()
    return out


def case_300_aborts_leave_nothing(s):
    s.chat('warm up', max_tokens=2)
    wait_until(lambda: s.metric('laconic_running') == 0)
    before = quiet(s)
    rng = random.Random(3)
    def one(i):
        k = s.connect()
        k.sendall(post({**BODY, 'seed': i, 'messages': [{'role': 'user', 'content': f'Story {i % 5} about the sea.'}]}))
        k.settimeout(60 * SLOW)
        try:
            for _ in range(rng.choice((0, 1, 1, 3))): k.recv(4096)
            if i % 3 == 0: k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')  # RST
        except OSError: pass
        k.close()
        return True
    for r in range(10): parallel([lambda i=i: one(i) for i in range(r * 30, r * 30 + 30)])
    assert wait_until(lambda: s.metric('laconic_running') == 0 and s.metric('laconic_queue_depth') == 0, 60)
    after = quiet(s)
    assert after['laconic_kv_pages{state="used"}'] == before['laconic_kv_pages{state="used"}'] == 0, (before, after)
    assert after['laconic_kv_pages{state="reserved"}'] == 0, after
    assert wait_until(lambda: s.metric('laconic_connections') <= 1)
    aborted = sum(v for k, v in after.items() if k.startswith('laconic_request_total{') and 'aborted' in k)
    gone = sum(v for k, v in after.items() if k.startswith('laconic_shed_total{') and 'gone' in k)
    assert aborted + gone > 100, after
    assert s.chat('Say hi.', max_tokens=2)[0] == 200


def case_cancel_within_a_step(s):
    k = s.connect(); k.sendall(post({**BODY, 'ignore_eos': True, 'max_tokens': 1000})); k.recv(4096)
    wait_until(lambda: s.metric('laconic_running') == 1)
    k.close(); t0 = time.time()
    assert wait_until(lambda: s.metric('laconic_running') == 0, 5)
    assert time.time() - t0 < 1.0 * SLOW, time.time() - t0


def case_malformed_http(s):
    for raw in (b'\x00\x01\x02\x03\r\n\r\n', b'GET\r\n\r\n', b'GET / HTTP/9.9\r\n\r\n', b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n',
                b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456',
                b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
                b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n', b'GET / HTTP/1.1\r\nBad Header\r\n\r\n'):
        out = exchange(s, raw, 3)
        assert out == b'' or out.startswith(b'HTTP/1.1 4'), (raw, out[:100])
    assert s.call('/health')[0] == 200


def case_malformed_json(s):
    for raw in (b'', b'{', b'[]', b'nul', b'"x"', b'{"model":"default","messages":[{"role":"user","content":"\xff\xfe"}]}', b'{"messages":1}',
                b'{"model":"default","messages":[{"role":"user","content":"\\ud800"}]}', b'{"model":"default","messages":[{"role":"user","content":"a"}],"temperature":1e999}',
                b'[' * 50000, b'{"a":' * 50000, b'{"model":"default","messages":[{"role":1,"content":"a"}]}', b'\xef\xbb\xbf{}', b'{"model":"default","model":'):
        st, r = s.call('/v1/chat/completions', raw=raw)
        assert st == 400 and 'error' in r and r['error']['message'], (raw[:50], st, str(r)[:100])


def case_sizes(s):
    out = exchange(s, b'GET /health HTTP/1.1\r\nHost: x\r\nX: ' + b'a' * 300000 + b'\r\n\r\n', 3)
    assert out == b'' or b' 431 ' in out[:40] or b' 400 ' in out[:40], out[:60]
    out = exchange(s, b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{', 3)
    assert b' 413 ' in out[:40], out[:60]
    assert s.call('/health')[0] == 200


def case_slow_reader_is_paused_not_served_to_death(s):
    """A client that asks for many logprobs and does not read: the server neither grows nor stalls."""
    rss = s.rss(); ks = []
    for i in range(4):
        k = socket.socket(); k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096); k.settimeout(30 * SLOW)
        k.connect((s.host, s.port)); k.sendall(post({**BODY, 'max_tokens': 700, 'ignore_eos': True, 'logprobs': True, 'top_logprobs': 20, 'seed': i})); ks.append(k)
    time.sleep(2)
    t0 = time.time(); assert s.chat('Say hi.', max_tokens=2)[0] == 200; took = time.time() - t0
    assert took < 5 * SLOW and s.rss() - rss < 64 << 20, (took, s.rss() - rss)
    for k in ks: k.close()
    assert wait_until(lambda: s.metric('laconic_running') == 0)


def case_slow_senders_do_not_hold_others(s):
    ks = [s.connect() for _ in range(60)]
    for k in ks: k.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le')
    t0 = time.time(); assert s.chat('Say hi.', max_tokens=2)[0] == 200; assert time.time() - t0 < 5 * SLOW
    for k in ks: k.close()


def case_random_bytes(s):
    rng = random.Random(11)
    for i in range(60):
        good = bytearray(post({'model': 'default', 'messages': [{'role': 'user', 'content': 'hi'}], 'max_tokens': 1}))
        for _ in range(rng.randrange(1, 6)): good[rng.randrange(len(good))] = rng.randrange(256)
        exchange(s, bytes(good), 0.3)
    assert s.chat('Say hi.', max_tokens=2)[0] == 200
    assert wait_until(lambda: s.metric('laconic_running') == 0)
    quiet(s)


def case_megabyte_prompts_do_not_stop_the_loop(s):
    """1 MB prompts arrive (they exceed the context: 400) while a stream runs; gaps of the loop stay short."""
    big = {'model': 'default', 'messages': [{'role': 'user', 'content': 'lorem ipsum dolor sit amet ' * 40000}], 'max_tokens': 4}
    b0 = s.metrics()
    def streamer(): return s.stream('/v1/chat/completions', {**BODY, 'max_tokens': 200, 'ignore_eos': True})[2]
    def sender(): return [s.call('/v1/chat/completions', big)[0] for _ in range(3)]
    got = parallel([streamer, sender, sender])
    assert got[0] is True and got[1] == [400] * 3 and got[2] == [400] * 3, got
    b1 = s.metrics()
    key = 'laconic_loop_gap_seconds_bucket{le="'
    d = sorted((float('inf') if '+Inf' in k else float(k[len(key):-2]), v - b0.get(k, 0)) for k, v in b1.items() if k.startswith(key))
    n = d[-1][1]
    within = max((v for le, v in d if le <= 0.0010001), default=0)
    print(f'     loop gap: {n:.0f} visits, {100 * within / n:.3f} % within 1 ms')
    # The machine under test is shared: the bound of 99.9 % is asserted by perf/loop_gap.py on an idle one.
    assert n > 1000 and within / n > 0.97, (within, n)


def case_unix_of_errors_reconciles(s):
    m0 = s.metrics()
    for k in ({'temperature': 9}, {'messages': []}, {'n': 99}): s.call('/v1/chat/completions', {**BODY, 'stream': False, **k})
    m1 = quiet(s)
    assert m1['laconic_rejected_total'] - m0['laconic_rejected_total'] == 3, (m0, m1)


if __name__ == '__main__': sys.exit(main(globals(), ['--max-batch', '32']))
