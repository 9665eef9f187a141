#!/usr/bin/env python3
"""The rollback monitor on planted drifts and on normal answers, the published rule beside it.

usage: rollback.py MODEL --side-car F [--shared DIR] [--encoder DIR] [--runs 200] [--normal 1000] [--tokens 96] [--threads N] [--out F.json] [--check]
The server is build/tests/planted/planted_serve: the product, with a backend in between that plants drifts (that file says how).
Normal answers: prompts of data/tasks/train.jsonl, a quarter each at temperature 0.2, 0.5 and 0.8 (top_p 0.8, 0.9, 0.95; as the presets draw)
and at the API's own 1 and 1: how many of them does a rule touch? Drifts: half are spliced (24 tokens of another prompt's answer), half steered (for 24 draws the words of that
answer get +9); caught means a trigger on one of these 24 draws. Judge, who knows nothing of the monitor: a sentence encoder; a window of 12
words is off topic when it is nearer to the donor's prompt and answer than to its own. What a client gets with the monitor is compared with
what it gets without. The side-car's calibration prompts must be others (data/prompts). The machine's load is printed: rates do not depend on
it, times do. --check: exit status 1 unless 75 % of the drifts are
caught, 3 % of the normal answers touched, and off-topic words fall by 58 %.
"""
import argparse, json, math, os, random, re, subprocess, sys, tempfile, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WITHIN = 24


def call(base, path, body):
    r = urllib.request.Request(base + path, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    with urllib.request.urlopen(r, timeout=3600) as f: return json.load(f)


class Server:
    def __init__(self, model, side_car, encoder, threads, plant):
        argv = [f'{ROOT}/build/tests/planted/planted_serve', model, '--port', '0', '--side-car', side_car, '--ctx', '2048', '--max-batch', '16']
        if encoder: argv += ['--encoder', encoder]
        if threads: argv += ['--threads', str(threads)]
        self.p = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, 'LAC_PLANT': plant}, text=True)
        self.base = re.search(r'http://\S+', next(l for l in self.p.stdout if l.startswith('ready'))).group(0)

    def ask(self, prompt, seed, knobs, n, rollback):
        laconic = {'explain': True, **({} if rollback is None else {'rollback': rollback})}
        r = call(self.base, '/v1/chat/completions', {'model': 'default', 'messages': [{'role': 'user', 'content': prompt}], 'max_tokens': n, 'seed': seed,
                                                     'logprobs': True, **knobs, 'laconic': laconic})
        c = r['choices'][0]
        return {'text': c['message']['content'], 'tokens': [t['token'] for t in c['logprobs']['content']], 'n_prompt': r['usage']['prompt_tokens'],
                'n': r['usage']['completion_tokens'], 'events': r['laconic'].get('rollback_events', []), 'rollbacks': r['laconic']['rollbacks'],
                'breakers': r['laconic'].get('breakers', 0)}

    def ids(self, text): return call(self.base, '/tokenize', {'content': text})['tokens']

    def embed(self, texts):
        out = []
        for i in range(0, len(texts), 64):
            out += [d['embedding'] for d in call(self.base, '/v1/embeddings', {'model': self.encoder, 'input': texts[i:i + 64]})['data']]
        return out


KNOBS = [{'temperature': 0.2, 'top_p': 0.8}, {'temperature': 0.5, 'top_p': 0.9}, {'temperature': 0.8, 'top_p': 0.95}, {'temperature': 1, 'top_p': 1}]  # the presets', and the API's own
RULES = {'auto': {}, 'published': {'rule': 'fixed'}}


def interval(k, n):
    """95 %, Wilson."""
    if n == 0: return 0, 1
    p, z = k / n, 1.96
    m, w = (p + z * z / 2 / n) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
    return m - w, m + w


def share(k, n): return f'{k}/{n} = {k / n if n else 0:.1%} ({interval(k, n)[0]:.1%} to {interval(k, n)[1]:.1%})'


def trigger(e): return e['position'] + e['withdrawn'] - 1


def windows(text, size=12, step=6):
    w = text.split()
    return [' '.join(w[i:i + size]) for i in range(0, max(1, len(w) - size + step), step)] if len(w) >= 4 else []


def dot(a, b): return sum(x * y for x, y in zip(a, b))


def main():
    a = argparse.ArgumentParser()
    a.add_argument('model'); a.add_argument('--side-car', required=True); a.add_argument('--shared', default=f'{ROOT}/../shared'); a.add_argument('--encoder')
    a.add_argument('--runs', type=int, default=200); a.add_argument('--normal', type=int, default=1000); a.add_argument('--tokens', type=int, default=96)
    a.add_argument('--threads', type=int); a.add_argument('--parallel', type=int, default=12); a.add_argument('--out'); a.add_argument('--check', action='store_true')
    o = a.parse_args()
    print(f'load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs', flush=True)
    rng = random.Random(17)
    rows = [json.loads(l) for l in open(f'{o.shared}/data/tasks/train.jsonl', encoding='utf-8')]
    known = {json.loads(l)['prompt'] for l in open(f'{o.shared}/data/prompts/calibration.jsonl', encoding='utf-8')}
    rows = [r for r in rows if 8 < len(r['text']) < 600 and r['text'] not in known]
    rng.shuffle(rows)
    plant = os.path.join(tempfile.mkdtemp(), 'plant')
    open(plant, 'w').close()
    s = Server(o.model, o.side_car, o.encoder, o.threads, plant)
    s.encoder = os.path.basename(o.encoder.rstrip('/')) if o.encoder else None
    pool, report, t0 = ThreadPoolExecutor(o.parallel), {}, time.time()
    try:
        # Normal answers.
        normal = rows[:o.normal]
        for name, rule in RULES.items():
            got = list(pool.map(lambda i: s.ask(normal[i]['text'], i, KNOBS[i % 4], o.tokens, rule), range(len(normal))))
            touched = [g['rollbacks'] > 0 for g in got]
            report[f'normal_{name}'] = {'answers': len(got), 'touched': sum(touched), 'tokens': sum(g['n'] for g in got),
                                        'by_temperature': [[sum(touched[k::4]), len(touched[k::4])] for k in range(4)]}
            print(f"normal answers touched, {name:9}: {share(sum(touched), len(got))}; 0.2, 0.5, 0.8, 1: "
                  + ', '.join(f'{sum(touched[k::4])}/{len(touched[k::4])}' for k in range(4)) + f'; {time.time() - t0:.0f} s', flush=True)
        # Drifts: English prompts with answers long enough.
        english = [r for r in rows[o.normal:] if r['lang'] == 'en'][:2 * o.runs + 40]
        base = [g for g in pool.map(lambda i: {**s.ask(english[i]['text'], 10 ** 6 + i, KNOBS[1 + i % 2], o.tokens, None), 'prompt': english[i]['text'], 'seed': 10 ** 6 + i,
                                               'knobs': KNOBS[1 + i % 2]}, range(len(english))) if len(g['tokens']) >= 64]
        base = base[:o.runs]
        lines = []
        for k, b in enumerate(base):
            donor = base[rng.choice([x for x in range(len(base)) if x != k])]
            b['donor'], b['at'], b['kind'] = donor, rng.randrange(24, len(b['tokens']) - WITHIN), 'splice' if k % 2 == 0 else 'steer'
            given = s.ids(donor['text'])
            if b['kind'] == 'splice': lines.append(f"{b['seed']} {b['n_prompt'] + b['at']} force " + ' '.join(map(str, given[:WITHIN])))
            else:
                words = [w for w in dict.fromkeys(re.findall(r'[A-Za-z]{6,}', donor['text'])) if w not in b['text'] and w not in b['prompt']][:20]
                ids = sorted({i for w in words for i in s.ids(' ' + w)[:1]})
                lines.append(f"{b['seed']} {b['n_prompt'] + b['at']} bias {WITHIN} 9 " + ' '.join(map(str, ids)))
        open(plant, 'w').write('\n'.join(lines) + '\n')
        drift = {name: list(pool.map(lambda b: s.ask(b['prompt'], b['seed'], b['knobs'], o.tokens, rule), base)) for name, rule in [('off', None), *RULES.items()]}
        for name in RULES:
            hit = [any(b['at'] <= trigger(e) < b['at'] + WITHIN for e in g['events']) for b, g in zip(base, drift[name])]
            delays = sorted(min(trigger(e) - b['at'] for e in g['events'] if b['at'] <= trigger(e) < b['at'] + WITHIN) for b, g, h in zip(base, drift[name], hit) if h)
            report[f'drift_{name}'] = {'runs': len(base), 'caught': sum(hit), 'splice': [sum(hit[::2]), len(hit[::2])], 'steer': [sum(hit[1::2]), len(hit[1::2])],
                                       'median_delay': delays[len(delays) // 2] if delays else None, 'breakers': sum(g['breakers'] for g in drift[name])}
            print(f"drifts caught within {WITHIN} tokens, {name:9}: {share(sum(hit), len(hit))}; spliced {sum(hit[::2])}/{len(hit[::2])}, steered {sum(hit[1::2])}/{len(hit[1::2])}, "
                  f"median delay {report[f'drift_{name}']['median_delay']}; {time.time() - t0:.0f} s", flush=True)
        # Untouched neighbours: the same requests beside planted ones and alone.
        near = [r['text'] for r in rows[-12:]]
        alone = [s.ask(t, 5, KNOBS[1], 48, {})['text'] for t in near]
        mixed = list(pool.map(lambda i: s.ask(near[i // 2], 5, KNOBS[1], 48, {})['text'] if i % 2 == 0 else s.ask(base[i]['prompt'], base[i]['seed'], base[i]['knobs'], 48, {}), range(min(24, len(base)))))
        report['neighbours_equal'] = all(mixed[i] == alone[i // 2] for i in range(0, len(mixed), 2))
        print('neighbours of planted drifts bit-equal:', report['neighbours_equal'], flush=True)
        # The judge.
        if s.encoder:
            own = s.embed([b['prompt'][:400] + '\n' + b['text'][:400] for b in base])
            other = s.embed([b['donor']['prompt'][:400] + '\n' + b['donor']['text'][:400] for b in base])
            off_topic = {}
            for name, gots in drift.items():
                n = 0
                for b, g, x, y in zip(base, gots, own, other):
                    # Behind the place of the plant: what stands before it is the same in all.
                    ws = windows(''.join(g['tokens'][b['at']:]))
                    n += sum(6 for w in s.embed(ws) if dot(w, y) > dot(w, x)) if ws else 0
                off_topic[name] = n
                report['off_topic_words'] = off_topic
                print(f"off-topic words by the judge, {name:9}: {n}" + (f" ({n / off_topic['off'] - 1:+.0%})" if name != 'off' else ''), flush=True)
        print('\n| | auto | published rule |\n|---|---|---|')
        rows_of = lambda what, of: print(f'| {what} |' + ''.join(f' {of(report, name)} |' for name in RULES))
        rows_of('normal answers touched', lambda r, n: share(r[f'normal_{n}']['touched'], r[f'normal_{n}']['answers']))
        for k, t in enumerate(KNOBS): rows_of(f"at temperature {t['temperature']}", lambda r, n: share(*r[f'normal_{n}']['by_temperature'][k]))
        rows_of(f'drifts caught within {WITHIN} tokens', lambda r, n: share(r[f'drift_{n}']['caught'], r[f'drift_{n}']['runs']))
        rows_of('spliced; steered', lambda r, n: '; '.join('/'.join(map(str, r[f'drift_{n}'][k])) for k in ('splice', 'steer')))
        rows_of('median delay, draws', lambda r, n: r[f'drift_{n}']['median_delay'])
        if s.encoder: rows_of(f"off-topic words (without a monitor: {off_topic['off']})", lambda r, n: f"{off_topic[n]} ({off_topic[n] / max(1, off_topic['off']) - 1:+.0%})")
        print(f'\nload after: {os.getloadavg()[0]:.1f}')
        n, d, w = report['normal_auto'], report['drift_auto'], report.get('off_topic_words')
        good = n['touched'] <= 0.03 * n['answers'] and d['caught'] >= 0.75 * d['runs'] and report['neighbours_equal'] and (not w or w['auto'] <= 0.42 * w['off'])
        print('the bar is', 'met' if good else 'not met', flush=True)
        if o.out: json.dump(report, open(o.out, 'w'), indent=1)
    finally: s.p.terminate(); s.p.wait()
    return 1 if o.check and not good else 0


if __name__ == '__main__': sys.exit(main())
