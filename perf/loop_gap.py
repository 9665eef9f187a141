#!/usr/bin/env python3
"""laconic_loop_gap_seconds while 1 MB prompts arrive beside running streams, on an idle machine. LAC_IO chooses the backends.

Prints the share of gaps within 1 ms and the bucket that holds p99.9, and how busy the machine was with other things; exits 1
if p99.9 is over 1 ms. usage: loop_gap.py [SECONDS]"""
import os, sys, time
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'tests/e2e'))
from harness import Server, parallel

BIG = {'model': 'default', 'messages': [{'role': 'user', 'content': 'lorem ipsum dolor sit amet ' * 40000}], 'max_tokens': 4}
KEY = 'laconic_loop_gap_seconds_bucket{le="'


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    bad = 0
    for io in os.environ.get('LAC_IO', 'uring epoll').split():
        s = Server(io)
        s.chat('warm up', max_tokens=4)
        end = time.time() + seconds
        b0 = s.metrics()
        sent = [0]
        def streamer(i):
            while time.time() < end:
                s.stream('/v1/chat/completions', {'model': 'default', 'messages': [{'role': 'user', 'content': f'Tell a story about sea number {i}.'}], 'max_tokens': 200, 'ignore_eos': True, 'seed': i})
        def sender():
            while time.time() < end: s.call('/v1/chat/completions', BIG); sent[0] += 1
        parallel([lambda i=i: streamer(i) for i in range(2)] + [sender])
        b1 = s.metrics()
        rows = sorted((float('inf') if '+Inf' in k else float(k[len(KEY):-2]), v - b0.get(k, 0)) for k, v in b1.items() if k.startswith(KEY))
        n = rows[-1][1]
        within = max(v for le, v in rows if le <= 0.0010001)
        p999 = next(le for le, v in rows if v >= 0.999 * n)
        print(f'{io}: {sent[0]} prompts of 1 MB in {seconds:.0f} s, {n:.0f} gaps, {100 * within / n:.4f} % within 1 ms, p99.9 <= {p999 * 1000:g} ms', flush=True)
        print('   ' + ', '.join(f'{le * 1000:g} ms: {v:.0f}' for le, v in rows if v < n or le == rows[-1][0])[:400])
        bad += p999 > 0.0010001
        s.stop()
    return bad != 0


if __name__ == '__main__': sys.exit(main())
