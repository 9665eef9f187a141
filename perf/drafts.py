#!/usr/bin/env python3
"""Drafts on against drafts off, and against the peer with its own n-gram speculation, in turn on one machine.

usage: drafts.py MODEL [--peer PEER_BIN] [--shared DIR] [--per-kind N] [--out F.json]
Kinds of work: copy (answers taken from a text of ../shared/data/qa, summaries, code edits of ../shared/data/code) and open
(questions of ../shared/data/prompts). One stream, greedy. A request's speed is (tokens - 1) over the time from the first to
the last piece that the client receives; what is compared is the ratio on the same request, its median and a 95 % interval of
that median (bootstrap over requests). The bytes with drafts must be those without. The peer's figure is its best variant per
kind. The CPU's other load is printed; measure on an idle machine.
"""
import argparse, json, os, random, statistics, subprocess, sys, time, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'perf'))
from compare import busy_share


def rows(path): return [json.loads(l) for l in open(path, encoding='utf-8') if l.strip()]


def work(shared, n, seed=7):
    rng = random.Random(seed)
    qa = [r for r in rows(f'{shared}/data/qa/extractive.jsonl') if r['lang'] == 'en']
    code = rows(f'{shared}/data/code/humaneval.jsonl')
    asks = [r for r in rows(f'{shared}/data/prompts/calibration.jsonl') if r['lang'] == 'en' and r['label'] == 'open']
    for l in (qa, code, asks): rng.shuffle(l)
    kinds = {'copy': [], 'open': []}
    for i in range(n):
        kind = i % 3
        if kind == 0: kinds['copy'].append(f"{qa[i]['context']}\n\nRepeat the sentences of the text above that answer this question, word for word: {qa[i]['question']}")
        if kind == 1: kinds['copy'].append(f"Summarise this text by copying its most important sentences:\n\n{qa[i]['context']}")
        if kind == 2: kinds['copy'].append('Rename the function to `solve` and give the whole code back:\n```python\n' + code[i]['prompt'] + code[i]['canonical_solution'] + '```')
        kinds['open'].append(asks[i]['prompt'])
    return kinds


class Server:
    def __init__(self, name, argv, port, **kw):
        self.name, self.port = name, port
        self.p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kw)
        for _ in range(240):
            try: self.ask('hi', 2); return
            except OSError: time.sleep(0.25)
        raise RuntimeError(f'{name} did not start')

    def ask(self, prompt, n):
        body = {'model': 'default', 'messages': [{'role': 'user', 'content': prompt}], 'temperature': 0, 'max_tokens': n,
                'stream': True, 'stream_options': {'include_usage': True}}
        req = urllib.request.Request(f'http://127.0.0.1:{self.port}/v1/chat/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'})
        text, tokens, first, last = '', 0, None, None
        with urllib.request.urlopen(req, timeout=600) as r:
            for line in r:
                if not line.startswith(b'data:') or line.strip() == b'data: [DONE]': continue
                e = json.loads(line[5:])
                piece = ''.join(c['delta'].get('content') or '' for c in e.get('choices', []))
                if piece:
                    last = time.perf_counter()
                    first = first or last
                    text += piece
                if e.get('usage'): tokens = e['usage']['completion_tokens']
        return text, tokens, (last - first) if first else 0

    def stop(self): self.p.kill(); self.p.wait()


def interval(ratios, rng):
    meds = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), meds[50], meds[1949]


def main():
    a = argparse.ArgumentParser()
    a.add_argument('model'); a.add_argument('--peer'); a.add_argument('--shared', default=os.path.join(ROOT, '../shared'))
    a.add_argument('--per-kind', type=int, default=30); a.add_argument('--tokens', type=int, default=160); a.add_argument('--out')
    o = a.parse_args()
    laconic, rng, port = os.path.join(ROOT, 'build/laconic'), random.Random(1), 18470
    print(f'other load before the run: {busy_share(1):.0%}', flush=True)
    argv = lambda *x: [laconic, 'serve', o.model, '--port', str(port), *x]
    servers = []
    try:
        for name, extra in (('plain', ['--drafts', 'off']), ('drafts', [])):
            port += 1
            servers.append(Server(name, argv(*extra), port))
        if o.peer:
            env = {**os.environ, 'LD_LIBRARY_PATH': o.peer}
            for name, extra in (('peer', []), ('peer ngram-simple', ['--spec-type', 'ngram-simple', '--spec-ngram-simple-size-n', '4', '--spec-ngram-simple-size-m', '16']),
                                ('peer ngram-mod', ['--spec-type', 'ngram-mod', '--spec-ngram-mod-n-match', '8', '--spec-ngram-mod-n-min', '4', '--spec-ngram-mod-n-max', '32']),
                                ('peer ngram-cache', ['--spec-type', 'ngram-cache'])):
                port += 1
                try: servers.append(Server(name, [f'{o.peer}/llama-server', '-m', o.model, '--port', str(port), '-np', '1', '-c', '4096', '-t', str(os.cpu_count()), *extra], port, env=env))
                except RuntimeError as e: print(f'left out: {e}')
        report = {'cpu': open('/proc/cpuinfo').read().split('model name\t: ')[1].split('\n')[0], 'kinds': {}}
        for kind, prompts in work(o.shared, o.per_kind).items():
            speed, same, n_tokens = {s.name: [] for s in servers}, 0, 0
            for i, prompt in enumerate(prompts):
                got = {}
                for s in servers[i % len(servers):] + servers[:i % len(servers)]:
                    text, tokens, seconds = s.ask(prompt, o.tokens)
                    got[s.name] = text
                    speed[s.name].append((tokens - 1) / seconds if tokens > 8 and seconds > 0 else None)
                    if s.name == 'drafts': n_tokens += tokens
                same += got['plain'] == got['drafts']
            assert same == len(prompts), f'{kind}: {len(prompts) - same} answers differ with drafts'
            base = speed['drafts']
            out = {'requests': len(prompts), 'tokens': n_tokens, 'tokens_per_s': {}, 'drafts_over': {}}
            for s in servers:
                out['tokens_per_s'][s.name] = statistics.median(x for x in speed[s.name] if x)
                if s.name == 'drafts': continue
                ratios = [b / x for b, x in zip(base, speed[s.name]) if b and x]
                out['drafts_over'][s.name] = interval(ratios, rng)
            report['kinds'][kind] = out
            print(f"{kind}: {len(prompts)} requests, {n_tokens} tokens, bytes equal with and without drafts")
            for s in servers:
                r = out['drafts_over'].get(s.name)
                print(f"  {s.name:20} {out['tokens_per_s'][s.name]:8.1f} tok/s" + (f"   drafts are {r[0]:.2f} x ({r[1]:.2f} to {r[2]:.2f})" if r else ''), flush=True)
        print(f'other load after the run: {busy_share(1):.0%}')
        if o.out: json.dump(report, open(o.out, 'w'), indent=1)
    finally:
        for s in servers: s.stop()


if __name__ == '__main__': main()
