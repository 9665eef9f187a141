#!/usr/bin/env python3
"""What choosing pages costs and saves, as a Markdown report: distribution (laconic calibrate --gate), noise floor
(default numerics against --exact), planted facts through a server, step times (bench --gate, in turn).

perf/gate_quality.py MODEL --data DIR [--documents 16] [--contexts 1024,2048,4096,8128] [--facts 60] [--languages en,zh] [--only calibrate,noise,facts,times]
DIR holds longdocs.jsonl (rows of document, lang, code_sentence, code_question, code_answer).
"""
import argparse, json, os, random, statistics, subprocess, sys, tempfile, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../tests/e2e'))
from harness import LACONIC, Server


def paragraphs(rows):
    seen = {}
    for r in rows:
        if r['lang'] != 'en': continue
        for p in r['document'].split('\n\n'):
            p = p.replace(r['code_sentence'], '').strip()
            if len(p) > 100: seen[p] = None
    return list(seen)


def shuffled(ps, seed, chars):
    """Each paragraph once, in an order of its own: documents of any length without a repetition in them."""
    rng, out, n = random.Random(seed), [], 0
    for p in rng.sample(ps, len(ps)):
        out.append(p); n += len(p)
        if n > chars: break
    return out


def calibrate(a, ps, d):
    path = os.path.join(d, 'docs.jsonl')
    with open(path, 'w') as f:
        for i in range(a.documents): f.write(json.dumps({'document': '\n\n'.join(shuffled(ps, i, 42000))}) + '\n')
    car = os.path.join(d, 'gate.lacs')
    r = subprocess.run([LACONIC, 'calibrate', a.model, '--gate', '--file', path, '--contexts', a.contexts, '--budgets', a.budgets,
                        '--documents', str(a.documents), '--tokens', str(a.tokens), '-o', car, '--json'], capture_output=True, text=True)
    if r.returncode: sys.exit(r.stderr)
    c = json.loads(r.stdout)
    print(f'## Distribution\n\n{a.documents} documents (English Wikipedia paragraphs, joined without repetition), the last {a.tokens} positions of each context, '
          'teacher-forced behind a dense prompt; besides the budget: 1 sink page, 4 recent pages, two dense layers. KL and NLL in nats; upper: end of the one-sided 95 % interval over documents; +-: of the two-sided.\n')
    print('| context | budget | positions | KL | upper | delta NLL | +- | equal arg-maxes | step time, one sequence |\n|---|---|---|---|---|---|---|---|---|')
    for x in c['rows']: print(f"| {x['context']} | {x['budget']} | {x['positions']} | {x['kl']:.4f} | {x['kl_upper']:.4f} | {x['delta_nll']:+.4f} | {1.96 * x['delta_nll_error']:.4f} | {x['agreement']:.3f} | {x['step'] * 100 - 100:+.0f} % |")
    pays = 'at no context measured' if c['least_context'] > 1 << 30 else f"from {c['least_context']} tokens on"
    bad = []
    for context in sorted({x['context'] for x in c['rows']}):
        safe = next((x for x in c['rows'] if x['context'] == context and x['kl_upper'] <= 0.01), None)
        if safe is None or safe['delta_nll'] > 0.005: bad.append(f'{context} tokens: ' + ('no budget keeps KL 0.01' if safe is None else f"delta NLL {safe['delta_nll']:+.4f} at {safe['budget']} pages"))
    print(f"\nThe safe budget comes to {c['safe_pages']} pages and {c['safe_share'] * 100:.1f} % of those there are; it pays {pays}.\n", flush=True)
    return car, bad


def noise(a, ps, d):
    """Equal arg-maxes of the default numerics and FP32, on texts like those above."""
    src, outs = os.path.join(d, 'noise.json'), []
    toks = subprocess.run([LACONIC, 'tokenize', a.model, '--json-lines'], text=True, capture_output=True,
                          input='\n'.join(json.dumps('\n\n'.join(shuffled(ps, 100 + i, 4000))) for i in range(a.noise))).stdout.splitlines()
    json.dump([{'name': str(i), 'tokens': json.loads(t)[:768]} for i, t in enumerate(toks)], open(src, 'w'))
    for extra in ([], ['--exact']):
        out = os.path.join(d, f'noise{len(outs)}.json')
        subprocess.run([LACONIC, 'logits', a.model, '--tokens', src, '--out', out, *extra], check=True)
        outs.append([p['top'][0][0] for l in json.load(open(out)) for p in l['positions'][256:]])
    same = sum(x == y for x, y in zip(*outs)) / len(outs[0])
    print(f'Noise floor: default numerics against FP32, full attention: {same:.4f} equal arg-maxes ({len(outs[0])} positions).\n', flush=True)


def planted(a, rows, ps):
    """(set, document, sentence in it, question, answer): the rows as they are, then shuffled paragraphs."""
    for r in rows: yield f"longdocs, {r['lang']}", r['document'], r['code_sentence'], r['code_question'], r['code_answer']
    rng = random.Random(1)
    for i in range(a.facts):
        color, number = rng.choice(['maroon', 'teal', 'amber', 'violet', 'silver', 'crimson', 'olive']), rng.randrange(100000, 999999)
        fact = f'Archive note: the reference number of the {color} ledger is {number}.'
        doc = shuffled(ps, 1000 + i, (9000, 18000, 26000)[i % 3])
        doc[rng.randrange(len(doc))] += ' ' + fact
        yield 'shuffled, en', '\n\n'.join(doc), fact, f'What is the reference number of the {color} ledger?', str(number)


def facts(a, rows, ps, car):
    s = Server('auto', ['--side-car', car, '--max-batch', '2'], model=a.model)
    variants = {'full': (None, 0), 'safe': ('safe', 0), 'safe, anchored': ('safe', 1), 'safe, recalled': ('safe', 2), 'fast': ('fast', 0), 'fast, anchored': ('fast', 1)}
    asked, too_long, count, attended = {}, {}, {}, {}
    if a.languages: rows = [r for r in rows if r['lang'] in a.languages.split(',')]
    try:
        for kind, document, fact, question, answer in planted(a, rows[:a.longdocs], ps):
            got = {}
            for name, (budget, how) in variants.items():
                doc = document.replace(fact, f'<ANCHOR:note>{fact}</ANCHOR>') if how == 1 else document
                body = {'model': 'default', 'temperature': 0, 'max_tokens': 48, 'laconic': {'explain': True, **({'gate': {'budget': budget}} if budget else {})},
                        'messages': [{'role': 'user', 'content': f'{doc}\n\n{"<RECALL>" if how == 2 else ""}{question}'}]}
                st, r = s.call('/v1/chat/completions', body, timeout=3600)
                if st == 400 and r['error']['code'] == 'context_length_exceeded': break
                if st != 200: sys.exit(f'{st}: {r}')
                got[name] = answer in r['choices'][0]['message']['content']
                g = r['laconic'].get('gate')
                if g: attended.setdefault(name, []).append(g['pages_attended'] / g['pages_there'])
            if len(got) < len(variants):
                too_long[kind] = too_long.get(kind, 0) + 1
                continue
            asked[kind] = asked.get(kind, 0) + 1
            for name in variants: count[kind, name] = count.get((kind, name), 0) + got[name]
            print(f'{kind}: {asked[kind]}', file=sys.stderr, flush=True)
    finally: s.stop()
    print('## Planted facts\n\nOne sentence that holds a random number, asked for at the end, greedy; longdocs: the rows of longdocs.jsonl as they are; shuffled: '
          f"other orders of its English paragraphs, 2,000 to 6,000 tokens. Longer than the context, left out: {', '.join(f'{n} of {k}' for k, n in too_long.items()) or 'none'}.\n")
    print('| attention | pages read |' + ''.join(f' {k} |' for k in asked) + '\n|---|---|' + '---|' * len(asked))
    for name in variants:
        print(f'| {name} | {100 * statistics.mean(attended.get(name, [1])):.0f} % |' + ''.join(f' {count[k, name]} of {n} ({100 * count[k, name] / n:.0f} %) |' for k, n in asked.items()))
    print(flush=True)
    n, by = sum(asked.values()), {name: sum(count.get((k, name), 0) for k in asked) for name in variants}
    bad = [f'{name}: {by[name]} of {n}, full attention {by["full"]}' for name in ('safe, anchored', 'safe, recalled', 'fast, anchored') if by[name] < by['full'] - 0.02 * n]
    return bad + [f'{name}: {by[name]} of {n}' for name in ('safe, anchored', 'fast, anchored') if by[name] < 0.94 * by['full']]


def times(a):
    print('## Decode, `bench --gate N`, in turn\n\n| context, sequences | full attention, tokens/s | ' + ' | '.join(f'{g} pages' for g in a.gates) + ' |\n|---' * 1 + '|---' * (1 + len(a.gates)) + '|')
    for depth, batch in ((2048, 8), (4096, 4), (7900, 1)):
        rates = {}
        for _ in range(a.rounds):
            for g in [0, *a.gates]:
                r = subprocess.run([LACONIC, 'bench', a.model, '--prompt', '0', '--gen', '20', '--batch', str(batch), '--depth', str(depth), '--reps', '10', '--json', *(['--gate', str(g)] if g else [])],
                                   capture_output=True, text=True, check=True)
                rates.setdefault(g, []).append(json.loads(r.stdout)[0]['tokens_per_s'][a.statistic])
        best = {g: max(v) for g, v in rates.items()}
        print(f'| {depth}, {batch} | {best[0]:.0f} | ' + ' | '.join(f'{best[g]:.0f} (time {100 * best[0] / best[g] - 100:+.0f} %)' for g in a.gates) + ' |', flush=True)


if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('model'); p.add_argument('--data', required=True)
    p.add_argument('--documents', type=int, default=16); p.add_argument('--contexts', default='1024,2048,4096,8128')
    p.add_argument('--budgets', default='10,20,30,40,50,70,100,140'); p.add_argument('--facts', type=int, default=60, help='shuffled documents'); p.add_argument('--longdocs', type=int, default=1000, help='most rows of longdocs.jsonl'); p.add_argument('--languages')
    p.add_argument('--tokens', type=int, default=256)
    p.add_argument('--noise', type=int, default=4); p.add_argument('--rounds', type=int, default=2)
    p.add_argument('--gates', type=lambda s: [int(x) for x in s.split(',')], default=[10, 40, 50, 100, 160])
    p.add_argument('--statistic', default='median', choices=('median', 'max'), help='of the repetitions; max where the machine is not idle')
    p.add_argument('--check', action='store_true', help='exit status 1 unless losses and facts are within the goals')
    p.add_argument('--only', default='calibrate,noise,facts,times')
    a = p.parse_args()
    todo = a.only.split(',')
    rows = [json.loads(l) for l in open(os.path.join(a.data, 'longdocs.jsonl'), encoding='utf-8')]
    ps = paragraphs(rows)
    print(f'# Page choices, {time.strftime("%Y-%m-%d")}\n\nload before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n', flush=True)
    with tempfile.TemporaryDirectory() as d:
        car, bad = calibrate(a, ps, d) if 'calibrate' in todo else ('off', [])
        if 'noise' in todo: noise(a, ps, d)
        if 'facts' in todo: bad += facts(a, rows, ps, car)
    if 'times' in todo: times(a)
    print(f'load after: {os.getloadavg()[0]:.1f}\n' + ('Over the goals: ' + '; '.join(bad) if bad else 'The goals for losses and facts are met.'))
    sys.exit(1 if a.check and bad else 0)
