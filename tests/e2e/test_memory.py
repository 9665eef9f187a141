"""No general-heap allocation between a request's first token and its last; memory does not grow with requests.

LONG=1 runs 10,000 requests instead of 1,000."""
import http.client, json, os, sys
from harness import SLOW, main, parallel, quiet, wait_until

LONG = os.environ.get('LONG') == '1'


def burst(s, n, start=0):
    """n requests over 8 kept-alive connections, all kinds."""
    def worker(w):
        c = http.client.HTTPConnection(s.host, s.port, timeout=120 * SLOW)
        for i in range(start + w, start + n, 8):
            body = {'model': 'default', 'messages': [{'role': 'user', 'content': f'Say the number {i % 50}.'}], 'max_tokens': 3 + i % 4, 'seed': i,
                    'temperature': (i % 3) * 0.6, 'stream': i % 2 == 0, 'n': 1 + (i % 16 == 0), 'frequency_penalty': (i % 5 == 0) * 0.5}
            if i % 7 == 0: body.update(logprobs=True, top_logprobs=5)
            if i % 11 == 0: body['stop'] = ['.', 'number is']
            c.request('POST', '/v1/chat/completions', json.dumps(body), {'Content-Type': 'application/json'})
            r = c.getresponse(); t = r.read()
            assert r.status == 200, t[:300]
        c.close()
        return True
    parallel([lambda w=w: worker(w) for w in range(8)])


def case_heap_is_not_touched_while_tokens_flow(s):
    if os.environ.get('V') == 'asan': print('     skip: jemalloc counts nothing under ASan'); return
    burst(s, 40)
    h0, r0 = s.metric('laconic_decode_heap_bytes_total'), s.metric('laconic_request_started_total')
    # One at a time: nobody else's parsing falls between a first and a last token.
    for i in range(1000 // SLOW if not LONG else 1000):
        kw = dict(max_tokens=4, seed=i, temperature=0.8)
        if i % 3 == 0: kw.update(logprobs=True, top_logprobs=5)
        if i % 4 == 0: kw.update(n=2)
        if i % 5 == 0: kw.update(stop=['xyz'], frequency_penalty=0.3)
        st = s.stream('/v1/chat/completions', {'model': 'default', 'messages': [{'role': 'user', 'content': f'Number {i % 20}?'}], **kw})[0] if i % 2 else s.chat(f'Number {i % 20}?', **kw)[0]
        assert st == 200
    n = s.metric('laconic_request_started_total') - r0
    assert s.metric('laconic_decode_heap_bytes_total') == h0, (h0, s.metric('laconic_decode_heap_bytes_total'), n)


def case_memory_is_flat(s):
    n = 10000 if LONG else 1600 // SLOW
    burst(s, n // 5); wait_until(lambda: s.metric('laconic_running') == 0)
    m1 = s.rss()
    burst(s, n - n // 5, n // 5); wait_until(lambda: s.metric('laconic_running') == 0)
    m2 = s.rss()
    print(f'     resident after {n // 5}: {m1 >> 20} MiB, after {n}: {m2 >> 20} MiB')
    if os.environ.get('V') in ('asan', 'tsan'): return
    assert m2 - m1 < 8 << 20, (m1, m2)
    quiet(s)


if __name__ == '__main__': sys.exit(main(globals(), ['--max-batch', '8', '--kv-mib', '256']))
