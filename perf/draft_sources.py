#!/usr/bin/env python3
"""Each source of drafts alone and all together, against no drafts, in turn on one machine.

usage: draft_sources.py MODEL [--side-car F] [--kinds copy,bank,open] [--batch 1,8] [--requests N] [--minutes M] [--cpu] [--out F.json]
       draft_sources.py MODEL --write-prompts F
Kinds of work: copy (perf/drafts.py), bank (questions of ../shared/data/intents, of every fifth intent) and open (../shared/data/prompts).
--write-prompts: questions of the other intents, 13 of each, for `laconic tune --prompts F`: with that side-car the measured intents
are topics that it has not seen, as all are with the default one. Greedy. A round is one request, or as many at once as the batch;
every server does every round, each time another one first. Every kind and batch has its share of --minutes and ends after the round
that passes it. Compared is the time per token of the same round, whose prompts are in the prefix cache already: wall clock from sending
to the last piece, or with --cpu the server's CPU time with one thread, for machines that have other work. The bytes must be those without
drafts. Printed: the ratio of all time, the median ratio with a 95 % interval (bootstrap over rounds), steps, and accepted and rejected
tokens by source. Measure on an idle machine.
"""
import argparse, csv, json, os, random, re, statistics, subprocess, sys, threading, time, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'perf'))
from compare import busy_share
import drafts
from drafts import interval, rows

SOURCES = [('plain', ['--drafts', 'off']), ('without side-car', ['--side-car', 'off']), ('suffix', ['--drafts', 'suffix']), ('ngram', ['--drafts', 'ngram']),
           ('draft-block', ['--drafts', 'draft-block']), ('exit-block', ['--drafts', 'exit-block']), ('suffix,ngram', ['--drafts', 'suffix,ngram']), ('auto', [])]


HELD_OUT, PER_INTENT = 5, 13
START_SECONDS = 10  # of a kind's share: its servers start


def intents(shared):
    """Questions by intent: those that are measured (every fifth intent), and those that may be learnt from."""
    by = {}
    for r in csv.DictReader(open(f'{shared}/data/intents/banking77_train.csv', encoding='utf-8')): by.setdefault(r['category'], []).append(' '.join(r['text'].split()))
    names = sorted(by)
    return {c: by[c] for c in names[::HELD_OUT]}, {c: by[c] for i, c in enumerate(names) if i % HELD_OUT}


def write_prompts(shared, path):
    rng = random.Random(11)
    with open(path, 'w', encoding='utf-8') as f:
        for c, texts in intents(shared)[1].items():
            for x in rng.sample(texts, min(PER_INTENT, len(texts))): f.write(f'{c}\t{x}\n')


def work(shared, n):
    rng = random.Random(11)
    bank = [x for texts in intents(shared)[0].values() for x in rng.sample(texts, min(n, len(texts)))]
    rng.shuffle(bank)
    kinds = drafts.work(shared, n)
    return {'copy': kinds['copy'], 'bank': bank[:n], 'open': kinds['open']}


class Server:
    def __init__(self, name, args, o, batch):
        self.name = name
        self.p = subprocess.Popen([os.path.join(ROOT, 'build/laconic'), 'serve', o.model, '--port', '0', '--max-batch', str(batch), '--ctx', '2048', *(['--threads', '1'] if o.cpu else []),
                                   *(['--side-car', o.side_car] if o.side_car and '--side-car' not in args else []), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = self.p.stdout.readline().decode()
        if not line.startswith('ready '): raise RuntimeError(f'{name} did not start')
        self.base = re.search(r'http://\S+', line).group(0)

    def ask(self, prompt, n):
        body = {'model': 'default', 'messages': [{'role': 'user', 'content': prompt}], 'temperature': 0, 'max_tokens': n}
        req = urllib.request.Request(self.base + '/v1/chat/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'})
        with urllib.request.urlopen(req, timeout=600) as r: a = json.load(r)
        return a['choices'][0]['message']['content'], a['usage']['completion_tokens']

    def clock(self, cpu):
        if not cpu: return time.perf_counter()
        return sum(int(open(f'/proc/{self.p.pid}/task/{t}/schedstat').read().split()[0]) for t in os.listdir(f'/proc/{self.p.pid}/task')) * 1e-9

    def round(self, prompts, n, cpu):
        for p in prompts: self.ask(p, 1)
        out = [None] * len(prompts)
        threads = [threading.Thread(target=lambda i=i: out.__setitem__(i, self.ask(prompts[i], n))) for i in range(len(prompts))]
        t0 = self.clock(cpu)
        for t in threads: t.start()
        for t in threads: t.join()
        return [x[0] for x in out], (self.clock(cpu) - t0) / sum(x[1] for x in out)

    def counts(self):
        text = urllib.request.urlopen(self.base + '/metrics', timeout=60).read().decode()
        told = {f'{s} {o}': int(float(v)) for s, o, v in re.findall(r'laconic_draft_tokens_total\{source="([^"]+)",outcome="([^"]+)"\} (\S+)', text) if float(v)}
        steps = sum(float(v) for v in re.findall(r'laconic_step_seconds_count\{kind="(?:decode|mixed)"\} (\S+)', text))
        return int(steps), told

    def stop(self): self.p.kill(); self.p.wait()


def measure(o, kind, prompts, batch, seconds, rng):
    servers, per, want, end = [], {}, {}, time.monotonic() + seconds
    try:
        for name, args in SOURCES:
            try: servers.append(Server(name, args, o, batch))
            except RuntimeError as e: print(f'  left out: {e} (no such section in the side-car?)')
        rounds = [prompts[i:i + batch] for i in range(0, len(prompts) - batch + 1, batch)]
        done = 0
        for i, r in enumerate(rounds):
            if i > 0 and time.monotonic() > end: break
            done += 1
            for s in servers[i % len(servers):] + servers[:i % len(servers)]:
                texts, per_token = s.round(r, o.tokens, o.cpu)
                assert want.setdefault(i, texts) == texts, f'{kind}, {s.name}: the answers differ'
                per.setdefault(s.name, []).append(per_token)
        print(f'{kind}, {batch} at once: {done} rounds, bytes equal')
        out = {}
        for s in servers:
            ratios = [a / b for a, b in zip(per['plain'], per[s.name])]
            steps, told = s.counts()
            out[s.name] = {'us_per_token': sum(per[s.name]) / done * 1e6, 'total': sum(per['plain']) / sum(per[s.name]), 'median': interval(ratios, rng), 'steps': steps, 'tokens': told}
            m = out[s.name]['median']
            print(f"  {s.name:18} {out[s.name]['us_per_token']:7.0f} us/token   {out[s.name]['total']:.2f} x, median {m[0]:.2f} ({m[1]:.2f} to {m[2]:.2f})   {steps} steps  {told}", flush=True)
        return out
    finally:
        for s in servers: s.stop()


def main():
    a = argparse.ArgumentParser()
    a.add_argument('model'); a.add_argument('--side-car'); a.add_argument('--shared', default=os.environ.get('LAC_SHARED', os.path.join(ROOT, '../shared')))
    a.add_argument('--requests', type=int, default=32); a.add_argument('--batch', default='1,8'); a.add_argument('--tokens', type=int, default=160)
    a.add_argument('--kinds', default='copy,bank,open'); a.add_argument('--minutes', type=float, default=9); a.add_argument('--write-prompts')
    a.add_argument('--cpu', action='store_true'); a.add_argument('--out')
    o = a.parse_args()
    if o.write_prompts: return write_prompts(o.shared, o.write_prompts)
    print(f'other load before the run: {busy_share(1):.0%}; {"CPU time" if o.cpu else "wall clock"}; side-car: {o.side_car or "the default one"}', flush=True)
    report, runs, all_work = {}, [(k, int(b)) for k in o.kinds.split(',') for b in o.batch.split(',')], work(o.shared, o.requests)
    end = time.monotonic() + o.minutes * 60
    for i, (kind, batch) in enumerate(runs):
        share = (end - time.monotonic()) / (len(runs) - i) - START_SECONDS
        report[f'{kind} {batch}'] = measure(o, kind, all_work[kind], batch, share, random.Random(1))
    print(f'other load after the run: {busy_share(1):.0%}')
    if o.out: json.dump(report, open(o.out, 'w'), indent=1)


if __name__ == '__main__': main()
