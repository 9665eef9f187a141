#!/usr/bin/env python3
"""Label exit on a labelled CSV (columns text,category), through the real server, against full depth, words alone and zero-shot.

usage: labels.py MODEL F.csv [--folds 5] [--only-folds 1,2] [--most-frequent N] [--requests 400] [--zero-shot 60] [--out F.json]
Rows are dealt to folds by a seed, each label by itself. Per fold: `laconic tune --labels` on the other folds with heads at its own
layers, and again with one head behind the last layer (full depth); then the held-out texts are asked for, in turn from a server with
either side-car, at 1 and at 8 requests at once. Accuracy is over all held-out texts (exit) or those asked for; words alone and the best
single head are the figures of `tune` on its own held-out rows, and words alone also as a linear model on tf-idf of words and pairs
fitted here (NumPy, no text features of ours). Zero-shot is scored as the server does, and with the model's prior over the labels taken
out. Times are medians of pairs asked in turn, by the clock and by the CPU time of the server's threads (with --threads 1
none of it is waiting). The CPU's other load is printed.
"""
import argparse, collections, csv, json, os, random, re, statistics, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, 'tests/e2e'), os.path.join(ROOT, 'perf')]
os.environ.setdefault('LAC_MODEL', '-')
from harness import LACONIC, Server
from compare import busy_share


def read(path, most_frequent):
    rows = [(r['text'], r['category']) for r in csv.DictReader(open(path, newline='', encoding='utf-8'))]
    if most_frequent:
        count = collections.Counter(c for _, c in rows)
        top = {c for c, _ in sorted(count.items(), key=lambda x: (-x[1], x[0]))[:most_frequent]}
        rows = [r for r in rows if r[1] in top]
    return rows


def deal(rows, folds, seed=11):
    rng, by = random.Random(seed), collections.defaultdict(list)
    for i, (_, c) in enumerate(rows): by[c].append(i)
    fold = [0] * len(rows)
    for c in sorted(by):
        rng.shuffle(by[c])
        for k, i in enumerate(by[c]): fold[i] = k % folds
    return fold


def write(path, rows):
    with open(path, 'w', newline='', encoding='utf-8') as f:
        w = csv.writer(f); w.writerow(['text', 'category']); w.writerows(rows)


def tfidf_linear(train, test, epochs=30, seed=3):
    """Accuracy of multinomial logistic regression on tf-idf of words and pairs of words."""
    import numpy as np
    words = lambda t: (lambda w: w + [a + ' ' + b for a, b in zip(w, w[1:])])(re.findall(r'[a-z0-9\']+', t.lower()))
    docs = [collections.Counter(words(t)) for t, _ in train]
    df = collections.Counter(w for d in docs for w in d)
    vocab = {w: i for i, w in enumerate(sorted(w for w in df if df[w] >= 1))}
    idf = np.array([np.log((1 + len(docs)) / (1 + df[w])) + 1 for w in sorted(vocab)])
    def row(d):
        at = np.array([vocab[w] for w in d if w in vocab], dtype=np.int64)
        v = np.array([d[w] for w in d if w in vocab], dtype=np.float64) * idf[at] if len(at) else np.zeros(0)
        return at, v / (np.linalg.norm(v) or 1)
    labels = sorted({c for _, c in train}); k = {c: i for i, c in enumerate(labels)}
    x, y = [row(d) for d in docs], [k[c] for _, c in train]
    w, b, total, order, rng = np.zeros((len(vocab), len(labels))), np.zeros(len(labels)), 0, list(range(len(x))), random.Random(seed)
    steps = epochs * len(x)
    for _ in range(epochs):
        rng.shuffle(order)
        for i in order:
            at, v = x[i]
            z = b + v @ w[at]; p = np.exp(z - z.max()); p /= p.sum(); p[y[i]] -= 1
            rate = 3 * (1 - total / steps); total += 1
            w[at] -= rate * np.outer(v, p); b -= 0.1 * rate * p
    right = sum(labels[int(np.argmax(b + v @ w[at]))] == c for (at, v), (_, c) in zip([row(collections.Counter(words(t))) for t, _ in test], test))
    return right / len(test)


def ask(s, text, labels):
    t0 = time.perf_counter()
    st, r = s.call('/v1/chat/completions', {'messages': [{'role': 'user', 'content': text}], 'laconic': {'labels': labels, 'explain': True}})
    assert st == 200, r
    return time.perf_counter() - t0, r['laconic']


# Zhao et al., "Calibrate Before Use" (arXiv:2102.09690): what the labels score on texts without content is the model's prior.
CONTENT_FREE = ['N/A', '[MASK]', '-']


def without_prior(s, took, labels):
    """The labels that zero-shot scoring gives when every label's probability is divided by its mean over the texts without content."""
    prior = collections.Counter()
    for text in CONTENT_FREE: prior.update(ask(s, text, labels)[1]['label_probabilities'])
    return [max(p, key=lambda l: p[l] / max(prior[l], 1e-38)) for p in (x['label_probabilities'] for _, x in took)]


def tune(model, path, out, *more):
    p = subprocess.run([LACONIC, 'tune', model, '--labels', path, '-o', out, '--json', *more], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def cpu_ms(s):
    """On the CPU so far, all threads: what another process's load does not change."""
    return sum(int(open(f'/proc/{s.p.pid}/task/{t}/schedstat').read().split()[0]) for t in os.listdir(f'/proc/{s.p.pid}/task')) / 1e6


def paired(servers, texts, labels, at_once):
    """Milliseconds per request, by server: the time of a batch of texts over their number, in turn; and of the CPU."""
    out, cpu = {n: [] for n in servers}, {n: [] for n in servers}
    pool = ThreadPoolExecutor(at_once)
    for i in range(0, len(texts) - at_once + 1, at_once):
        names = list(servers); names = names[i // at_once % 2:] + names[:i // at_once % 2]
        for n in names:
            t0, c0 = time.perf_counter(), cpu_ms(servers[n])
            list(pool.map(lambda t: ask(servers[n], t, labels), texts[i:i + at_once]))
            out[n].append((time.perf_counter() - t0) / at_once * 1e3)
            cpu[n].append((cpu_ms(servers[n]) - c0) / at_once)
    pool.shutdown()
    return out, cpu


def main():
    a = argparse.ArgumentParser()
    a.add_argument('model'); a.add_argument('csv'); a.add_argument('--folds', type=int, default=5); a.add_argument('--only-folds')
    a.add_argument('--most-frequent', type=int, default=0); a.add_argument('--requests', type=int, default=400)
    a.add_argument('--zero-shot', type=int, default=60); a.add_argument('--threads'); a.add_argument('--out'); a.add_argument('--no-tfidf', action='store_true')
    o = a.parse_args()
    rows = read(o.csv, o.most_frequent); labels = sorted({c for _, c in rows}); fold = deal(rows, o.folds)
    threads = ['--threads', o.threads] if o.threads else []
    report = {'cpu': open('/proc/cpuinfo').read().split('model name\t: ')[1].split('\n')[0], 'rows': len(rows), 'labels': len(labels), 'load_before': busy_share(1), 'folds': []}
    print(f"{len(rows)} texts, {len(labels)} labels; other load before: {report['load_before']:.0%}", flush=True)
    tmp = tempfile.mkdtemp()
    for f in [int(x) for x in o.only_folds.split(',')] if o.only_folds else range(o.folds):
        train, test = [r for r, k in zip(rows, fold) if k != f], [r for r, k in zip(rows, fold) if k == f]
        random.Random(f).shuffle(test)
        path = f'{tmp}/train{f}.csv'; write(path, train)
        exit_report = tune(o.model, path, f'{tmp}/exit{f}.lacs', *threads)
        full_report = tune(o.model, path, f'{tmp}/full{f}.lacs', '--label-layers', str(exit_report['layers'][-1]['layer']), *threads)
        servers = {n: Server(model=o.model, args=('--side-car', f'{tmp}/{n}{f}.lacs', '--ctx', '4096', '--max-batch', '16', *threads)) for n in ('exit', 'full')}
        try:
            for s in servers.values(): ask(s, 'warm', labels)
            some = test[:o.requests]
            answers = {n: [ask(s, t, labels)[1] for t, _ in (test if n == 'exit' else some)] for n, s in servers.items()}
            right = {n: statistics.mean(x['label'] == c for x, (_, c) in zip(v, test)) for n, v in answers.items()}
            (one, cpu_one), (eight, cpu_eight) = (paired(servers, [t for t, _ in some], labels, k) for k in (1, 8))
        finally:
            for s in servers.values(): s.stop()
        zero, corrected, zero_ms = None, None, None
        if o.zero_shot:
            s = Server(model=o.model, args=('--side-car', 'off', '--ctx', '4096', '--max-batch', '16', *threads))
            try: took = [ask(s, t, labels) for t, _ in test[:o.zero_shot]]; corrected = without_prior(s, took, labels)
            finally: s.stop()
            zero, zero_ms = statistics.mean(x['label'] == c for (_, x), (_, c) in zip(took, test)), statistics.median(t for t, _ in took) * 1e3
            corrected = statistics.mean(x == c for x, (_, c) in zip(corrected, test))
        row = {'fold': f, 'texts': len(test), 'accuracy_exit': right['exit'], 'accuracy_full_with_text': right['full'],
               'head_alone_full_depth': full_report['layers'][0]['state_accuracy'], 'best_head_alone': max(x['state_accuracy'] for x in exit_report['layers']),
               'words_alone': exit_report['text_accuracy'], 'tfidf_linear': None if o.no_tfidf else tfidf_linear(train, test),
               'zero_shot': zero, 'zero_shot_without_prior': corrected, 'zero_shot_ms': zero_ms, 'mean_layer': statistics.mean(x['exit_layer'] for x in answers['exit']),
               'promised': exit_report['accuracy'], 'promised_low': exit_report['accuracy_low'], 'tune_s': exit_report['seconds'],
               'ms_1': {n: statistics.median(v) for n, v in one.items()}, 'ms_8': {n: statistics.median(v) for n, v in eight.items()},
               'cpu_ms_1': {n: statistics.median(v) for n, v in cpu_one.items()}, 'cpu_ms_8': {n: statistics.median(v) for n, v in cpu_eight.items()},
               'times_cpu_1': statistics.median(b / a for a, b in zip(cpu_one['exit'], cpu_one['full'])), 'times_cpu_8': statistics.median(b / a for a, b in zip(cpu_eight['exit'], cpu_eight['full'])),
               'times_1': statistics.median(b / a for a, b in zip(one['exit'], one['full'])), 'times_8': statistics.median(b / a for a, b in zip(eight['exit'], eight['full']))}
        report['folds'].append(row)
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    mean = lambda k: statistics.mean(r[k] for r in report['folds'] if r[k] is not None) if any(r[k] is not None for r in report['folds']) else None
    report['mean'] = {k: mean(k) for k in ('accuracy_exit', 'accuracy_full_with_text', 'head_alone_full_depth', 'best_head_alone', 'words_alone', 'tfidf_linear', 'zero_shot', 'zero_shot_without_prior', 'zero_shot_ms', 'mean_layer', 'promised', 'times_1', 'times_8', 'times_cpu_1', 'times_cpu_8')}
    report['load_after'] = busy_share(1)
    print('mean over folds: ' + ', '.join(f'{k} {v:.4f}' for k, v in report['mean'].items() if v is not None))
    print(f"other load after: {report['load_after']:.0%}")
    if o.out: json.dump(report, open(o.out, 'w'), indent=1)


if __name__ == '__main__': main()
