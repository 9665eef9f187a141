#!/usr/bin/env python3
"""What choosing pages costs and saves, as a Markdown report: distribution (laconic calibrate --gate), noise floor
(default numerics against --exact), planted facts through a server, step times (bench --gate, in turn).

perf/gate_quality.py MODEL --data DIR [--documents 16] [--contexts 2048,4096,8128] [--facts 40] [--depth-reps 3]
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
                        '--documents', str(a.documents), '-o', car, '--json'], capture_output=True, text=True)
    if r.returncode: sys.exit(r.stderr)
    c = json.loads(r.stdout)
    print(f'## Distribution\n\n{a.documents} documents (English Wikipedia paragraphs, joined without repetition), the last 64 positions of each context, '
          'teacher-forced behind a dense prompt; besides the budget: 1 sink page, 4 recent pages, two dense layers. KL and NLL in nats; upper: end of the 95 % interval over documents.\n')
    print('| context | budget | positions | KL | upper | delta NLL | equal arg-maxes | step time, one sequence |\n|---|---|---|---|---|---|---|---|')
    for x in c['rows']: print(f"| {x['context']} | {x['budget']} | {x['positions']} | {x['kl']:.4f} | {x['kl_upper']:.4f} | {x['delta_nll']:+.4f} | {x['agreement']:.3f} | {x['step'] * 100 - 100:+.0f} % |")
    pays = 'at no context measured' if c['least_context'] > 1 << 30 else f"from {c['least_context']} tokens on"
    print(f"\nThe safe budget comes to {c['safe_pages']} pages and {c['safe_share'] * 100:.1f} % of those there are; it pays {pays}.\n", flush=True)
    return car


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


def facts(a, ps, car):
    s = Server('auto', ['--side-car', car, '--max-batch', '2'], model=a.model)
    rng, count, attended = random.Random(1), {}, {}
    variants = {'full': (None, 0), 'safe': ('safe', 0), 'safe, anchored': ('safe', 1), 'safe, recalled': ('safe', 2), 'fast': ('fast', 0), 'fast, anchored': ('fast', 1)}
    try:
        for i in range(a.facts):
            ps_i = shuffled(ps, 1000 + i, (9000, 18000, 26000)[i % 3])
            color, number = rng.choice(['maroon', 'teal', 'amber', 'violet', 'silver', 'crimson', 'olive']), rng.randrange(100000, 999999)
            fact = f'Archive note: the reference number of the {color} ledger is {number}.'
            at = rng.randrange(len(ps_i))
            for name, (budget, how) in variants.items():
                told = f'<ANCHOR:note>{fact}</ANCHOR>' if how == 1 else fact
                doc = '\n\n'.join(p + ' ' + told if k == at else p for k, p in enumerate(ps_i))
                body = {'model': 'default', 'temperature': 0, 'max_tokens': 48, 'laconic': {'explain': True, **({'gate': {'budget': budget}} if budget else {})},
                        'messages': [{'role': 'user', 'content': f'{doc}\n\n{"<RECALL>" if how == 2 else ""}What is the reference number of the {color} ledger?'}]}
                st, r = s.call('/v1/chat/completions', body, timeout=600)
                if st != 200: sys.exit(f'{st}: {r}')
                count[name] = count.get(name, 0) + (str(number) in r['choices'][0]['message']['content'])
                g = r['laconic'].get('gate')
                if g: attended.setdefault(name, []).append(g['pages_attended'] / g['pages_there'])
    finally: s.stop()
    print(f'## Planted facts\n\n{a.facts} documents of 2,000 to 6,000 tokens with one sentence that holds a random number, asked for at the end, greedy.\n')
    print('| attention | answered | pages read |\n|---|---|---|')
    for name in variants: print(f"| {name} | {count[name]} of {a.facts} ({100 * count[name] / a.facts:.0f} %) | {100 * statistics.mean(attended.get(name, [1])):.0f} % |")
    print(flush=True)


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
    p.add_argument('--budgets', default='10,20,30,40,50,70,100,140'); p.add_argument('--facts', type=int, default=60)
    p.add_argument('--noise', type=int, default=4); p.add_argument('--rounds', type=int, default=2)
    p.add_argument('--gates', type=lambda s: [int(x) for x in s.split(',')], default=[10, 40, 50, 100, 160])
    p.add_argument('--statistic', default='median', choices=('median', 'max'), help='of the repetitions; max where the machine is not idle')
    p.add_argument('--only', default='calibrate,noise,facts,times')
    a = p.parse_args()
    todo = a.only.split(',')
    ps = paragraphs([json.loads(l) for l in open(os.path.join(a.data, 'longdocs.jsonl'))])
    print(f'# Page choices, {time.strftime("%Y-%m-%d")}\n\nload before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n', flush=True)
    with tempfile.TemporaryDirectory() as d:
        car = calibrate(a, ps, d) if 'calibrate' in todo else 'off'
        if 'noise' in todo: noise(a, ps, d)
        if 'facts' in todo: facts(a, ps, car)
    if 'times' in todo: times(a)
