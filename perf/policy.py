#!/usr/bin/env python3
"""What the task policy does to a seeded mixed workload, against everything off: length of answers, latency, task scores; and
what admission and explanations cost.

Questions over a passage (exact match, token F1), intents among four (accuracy), and prompts of the calibration set (open,
reasoning, code, deterministic: no score, lengths only). Both policies get the same requests with the same seeds and no
sampling fields. Answers are functions of request and seed, so lengths and scores repeat exactly; times are of this machine.
Needs LAC_SHARED. usage: policy.py [--rows N] [--parallel N] [--max-tokens N] [--admissions N] [--skip-workload] [--skip-costs]"""
import argparse, collections, csv, json, os, random, re, string, sys, threading, time
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'tests/e2e'))
from harness import Server, text

DATA = os.path.join(os.environ['LAC_SHARED'], 'data')
INTENTS = {'card_arrival': 'card arrival', 'change_pin': 'change pin', 'exchange_rate': 'exchange rate', 'lost_or_stolen_card': 'lost or stolen card'}


def words(s):
    s = ''.join(c for c in s.lower() if c not in string.punctuation)
    return re.sub(r'\b(a|an|the)\b', ' ', s).split()


def f1(answer, truths):
    best = 0
    for t in truths:
        a, b = words(answer), words(t)
        same = sum((collections.Counter(a) & collections.Counter(b)).values())
        if same: best = max(best, 2 * same / (len(a) + len(b)))
    return best


def score_qa(answer, row):
    truths = [t['text'] for t in row['answers']]
    first = answer.strip().split('\n')[0]
    said = f' {" ".join(words(answer))} '
    return {'exact match': any(words(first) == words(t) for t in truths), 'answer within': any(f' {" ".join(words(t))} ' in said for t in truths),
            'token F1': f1(first, truths)}


def score_intent(answer, intent):
    said = answer.lower().replace('_', ' ')
    found = {said.find(v): k for k, v in INTENTS.items() if v in said}
    return {'label right': bool(found) and found[min(found)] == intent}


def workload(n):
    r, out = random.Random(11), []
    qa = [json.loads(l) for l in open(f'{DATA}/qa/extractive.jsonl')]
    for row in r.sample([q for q in qa if q['lang'] == 'en'], min(n, 100)):
        out.append(('qa', f'{row["context"]}\n\nQuestion: {row["question"]}\nAnswer with a few words from the text.', lambda a, row=row: score_qa(a, row)))
    rows = [x for x in csv.DictReader(open(f'{DATA}/intents/banking77_train.csv')) if x['category'] in INTENTS]
    for x in r.sample(rows, min(n, len(rows))):
        out.append(('intent', f'Which topic is this bank customer\'s message about: {", ".join(INTENTS.values())}?\nMessage: {x["text"]}\nAnswer with the topic only.',
                    lambda a, x=x: score_intent(a, x['category'])))
    cal = [json.loads(l) for l in open(f'{DATA}/prompts/calibration.jsonl')]
    for label in ('open', 'reasoning', 'code', 'deterministic'):
        for row in r.sample([c for c in cal if c['label'] == label and c['lang'] == 'en'], n // 2):
            out.append((label, row['prompt'], lambda a: {}))
    r.shuffle(out)
    return out


def run(s, work, parallel, max_tokens):
    out, lock, todo = [None] * len(work), threading.Lock(), list(range(len(work)))
    def go():
        while True:
            with lock:
                if not todo: return
                i = todo.pop(0)
            t0 = time.time()
            st, r = s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': work[i][1]}], 'seed': 1000 + i, 'max_tokens': max_tokens,
                                                    'laconic': {'explain': True}}, timeout=600)
            assert st == 200, r
            out[i] = {'kind': work[i][0], 'n': r['usage']['completion_tokens'], 's': time.time() - t0, 'task': r['laconic']['task_type'],
                      'scores': work[i][2](text(r)), 'cut': r['choices'][0]['finish_reason'] == 'length'}
    ts = [threading.Thread(target=go) for _ in range(parallel)]
    for t in ts: t.start()
    for t in ts: t.join()
    return out


def quantile(v, q):
    v = sorted(v)
    return v[min(len(v) - 1, int(q * len(v)))]


def report(name, rows):
    for kind in ['all'] + sorted({r['kind'] for r in rows}):
        k = [r for r in rows if kind in ('all', r['kind'])]
        n, t = [r['n'] for r in k], [r['s'] for r in k]
        scores = collections.defaultdict(list)
        for r in k:
            for key, v in r['scores'].items(): scores[key].append(float(v))
        print(f'| {name} | {kind} | {len(k)} | {sum(n) / len(n):.1f} | {quantile(n, 0.5)} | {quantile(n, 0.95)} | {100 * sum(r["cut"] for r in k) / len(k):.0f} % | '
              f'{sum(t) / len(t):.2f} | {quantile(t, 0.95):.2f} | ' + ', '.join(f'{x} {sum(v) / len(v):.3f}' for x, v in scores.items()) + ' |', flush=True)


def cpu(s):
    f = open(f'/proc/{s.p.pid}/stat').read().rsplit(')', 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf('SC_CLK_TCK')


def costs(n):
    s = Server('auto')
    r = random.Random(3)
    vocabulary = 'please explain how the interest of an account with a fixed rate is computed and paid every month by this bank to me '.split()
    explained, classified = [], []
    for i in range(n):
        prompt = ''
        while len(prompt) < 2000: prompt += r.choice(vocabulary) + (str(r.randrange(99)) if r.random() < 0.05 else '') + ' '
        st, a = s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': prompt[:2000]}], 'max_tokens': 1})
        p = s.call('/v1/requests/' + a['id'])[1]['prompts'][0]
        explained.append(p['cost_ms']['tokenise']); classified.append(p['task']['classify_ms'])
    print(f'admission of 2,000-character prompts, one at a time, {len(explained)} of them: rendering, tokenising and classifying least {min(explained):.3f} ms, p50 '
          f'{quantile(explained, 0.5):.3f} ms, p99 {quantile(explained, 0.99):.3f} ms; of it classifying least {min(classified):.3f} ms, p50 {quantile(classified, 0.5):.3f} ms, p99 {quantile(classified, 0.99):.3f} ms', flush=True)
    def block(on):
        c0 = cpu(s)
        for i in range(12):
            st, a = s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': f'Tell me about the number {i}.'}], 'max_tokens': 64, 'ignore_eos': True,
                                                    'seed': i, 'temperature': 0.5, 'top_p': 0.9, 'laconic': {'explain': on}})
            if on: assert s.call('/v1/requests/' + a['id'])[0] == 200
        return cpu(s) - c0
    block(False)
    pairs = [(block(False), block(True)) for _ in range(12)]
    off, on = min(p[0] for p in pairs), min(p[1] for p in pairs)
    ratios = sorted(p[1] / p[0] for p in pairs)
    print(f'explanations: CPU seconds of 12 answers of 64 tokens, least of {len(pairs)} interleaved pairs: {off:.2f} without, {on:.2f} with explain and every '
          f'explanation fetched (pairs: median {ratios[len(ratios) // 2]:.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f})', flush=True)
    s.stop()


def main():
    a = argparse.ArgumentParser()
    a.add_argument('--rows', type=int, default=40); a.add_argument('--parallel', type=int, default=8); a.add_argument('--max-tokens', type=int, default=384)
    a.add_argument('--admissions', type=int, default=400)
    a.add_argument('--skip-workload', action='store_true'); a.add_argument('--skip-costs', action='store_true')
    a = a.parse_args()
    if not a.skip_workload:
        work = workload(a.rows)
        print('| policy | kind | requests | mean tokens | p50 | p95 | cut | mean s | p95 s | scores |\n|---|---|---|---|---|---|---|---|---|---|')
        for name, args in (('exact', []), ('adaptive', ['--policy', 'adaptive'])):
            s = Server('auto', args)
            rows = run(s, work, a.parallel, a.max_tokens)
            report(name, rows)
            s.stop()
        tasks = collections.Counter((r['kind'], r['task']) for r in rows)
        print('tasks told: ' + ', '.join(f'{k} as {t} {n}' for (k, t), n in sorted(tasks.items())), flush=True)
    if not a.skip_costs: costs(a.admissions)


if __name__ == '__main__': main()
