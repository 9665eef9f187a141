#!/usr/bin/env python3
"""Laconic and the peer in turn, same file, threads and machine: the ratio of medians with its spread.

usage: compare.py PEER_BIN MODEL [--quick] [--rows decode,prefill,batch,depth,long] [--reps N] [--threads 1|2] [--kv q8]
                  [--extra OPTIONS] [--out FILE.json]
The peer's figure of a row is the best of its grid (flash attention on/off x 1, 2 threads x the file itself and a Q4_0
made from it; with --threads 1 both sides have one thread, with --kv q8 both keep 8-bit keys and values), chosen in this run from one pass over the grid; then the winner and ours run in turn, A B A B. Before each
pair the CPU must be idle (other processes' share printed). Figures are tokens per second.
"""
import argparse, json, os, platform, re, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def cpu_times():
    f = [int(x) for x in open('/proc/stat').readline().split()[1:]]
    return sum(f), f[3] + f[4]


def busy_share(seconds=0.5):
    t0, i0 = cpu_times(); time.sleep(seconds); t1, i1 = cpu_times()
    return 1 - (i1 - i0) / max(1, t1 - t0)


def run(cmd):
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=900)
    if p.returncode != 0: raise RuntimeError(f"{' '.join(cmd)}: {p.stderr[-500:]}")
    return p.stdout


class Row:
    def __init__(self, name, pp=0, tg=0, batch=1, depth=0): self.name, self.pp, self.tg, self.batch, self.depth = name, pp, tg, batch, depth


def peer(bin, model, row, threads, fa, kv='f16'):
    """One measurement of the peer in tokens per second."""
    kv_types = ['-ctk', 'q8_0', '-ctv', 'q8_0'] if kv == 'q8' else []
    if row.batch == 1:
        o = json.loads(run([f'{bin}/llama-bench', '-m', model, '-p', str(row.pp), '-n', str(row.tg), '-d', str(row.depth), '-t', str(threads),
                            '-fa', str(fa), '-r', '1', '-o', 'json', *kv_types]))
        return o[-1]['avg_ts']
    # Batched decode: npl sequences, each with a short prompt.
    n_ctx = row.batch * (row.tg + 16) + 64
    o = run([f'{bin}/llama-batched-bench', '-m', model, '-c', str(n_ctx), '-b', '2048', '-ub', '512', '-npp', '16', '-ntg', str(row.tg), '-npl', str(row.batch),
             '-t', str(threads), '-tb', str(threads), '-fa', 'on' if fa else 'off', '--output-format', 'jsonl', *kv_types])
    for l in o.splitlines():
        if l.startswith('{'): return json.loads(l)['speed_tg']
    raise RuntimeError(o[-300:])


def ours(laconic, model, row, threads, extra):
    o = json.loads(run([laconic, 'bench', model, '--prompt', str(row.pp), '--gen', str(row.tg), '--batch', str(row.batch), '--depth', str(row.depth),
                        '--reps', '1', '--threads', str(threads), '--json', *extra]))
    return o[-1]['tokens_per_s']['median']


def main():
    a = argparse.ArgumentParser()
    a.add_argument('peer'); a.add_argument('model'); a.add_argument('--quick', action='store_true'); a.add_argument('--rows', default='decode,prefill,batch')
    a.add_argument('--reps', type=int, default=5); a.add_argument('--out'); a.add_argument('--extra', default=''); a.add_argument('--q4_0')
    a.add_argument('--threads', type=int, choices=(1, 2), default=2); a.add_argument('--kv', choices=('f16', 'q8'), default='f16')
    o = a.parse_args()
    extra = o.extra.split() + (['--kv', 'q8'] if o.kv == 'q8' else [])
    laconic = os.path.join(ROOT, 'build/laconic')
    q4 = o.q4_0 or os.path.join(ROOT, 'build/peer', os.path.basename(o.model) + '.q4_0.gguf')
    os.makedirs(os.path.dirname(q4), exist_ok=True)
    if not os.path.exists(q4): run([f'{o.peer}/llama-quantize', '--allow-requantize', o.model, q4, 'Q4_0'])
    table = {'decode': [Row('tg128', tg=128)], 'prefill': [Row('pp512', pp=512)], 'batch16': [Row('tg64@b16', tg=64, batch=16)], 'batch': [Row(f'tg64@b{b}', tg=64, batch=b) for b in (4, 16, 32)],
             'depth': [Row('tg64@d2048', tg=64, depth=2048), Row('tg64@d7680', tg=64, depth=7680)], 'long': [Row('pp7680', pp=7680)]}
    reps = 3 if o.quick else o.reps
    cpu = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), platform.processor())
    flags = next(l for l in open('/proc/cpuinfo') if l.startswith('flags'))
    isa = [f for f in ('avx2', 'avx_vnni', 'avx512_vnni', 'avx512_bf16', 'amx_int8') if f in flags]
    print(f'CPU {cpu} ({", ".join(isa)}), {os.cpu_count()} threads; busy before: {100 * busy_share():.0f} %')
    print(f"{'row':12} {'peer best (median, min-max)':34} {'its choice':28} {'ours (median, min-max)':30} ratio of medians (pairs min-max)")
    rows = []
    for kind in o.rows.split(','):
        for row in table[kind]:
            grid = []
            for m, mn in ((o.model, 'file'), (q4, 'Q4_0')):
                for t in range(1, o.threads + 1):
                    # The peer's 8-bit values need its flash attention.
                    for fa in ((1,) if o.kv == 'q8' else (0, 1)): grid.append((peer(o.peer, m, row, t, fa, o.kv), m, mn, t, fa))
            _, m, mn, t, fa = max(grid)
            A, B = [], []
            for _ in range(reps):
                A.append(peer(o.peer, m, row, t, fa, o.kv)); B.append(ours(laconic, o.model, row, o.threads, extra))
            ratio = statistics.median(B) / statistics.median(A); pairs = [b / a for a, b in zip(A, B)]
            r = {'row': row.name, 'peer': {'median': statistics.median(A), 'min': min(A), 'max': max(A), 'file': mn, 'threads': t, 'flash_attention': fa,
                                           'grid': [{'tokens_per_s': g[0], 'file': g[2], 'threads': g[3], 'flash_attention': g[4]} for g in grid]},
                 'ours': {'median': statistics.median(B), 'min': min(B), 'max': max(B), 'threads': o.threads, 'extra': ' '.join(extra)}, 'ratio': ratio, 'pairs': [min(pairs), max(pairs)], 'reps': reps}
            rows.append(r)
            if o.out:
                with open(o.out, 'w') as f: json.dump({'date': time.strftime('%Y-%m-%d'), 'cpu': cpu, 'isa': isa, 'model': os.path.basename(o.model), 'extra': ' '.join(extra), 'rows': rows}, f, indent=1)
            print(f"{row.name:12} {r['peer']['median']:10.1f} ({min(A):.1f}-{max(A):.1f})".ljust(47), f'{mn}, {t} threads, fa {fa}'.ljust(28),
                  f"{r['ours']['median']:10.1f} ({min(B):.1f}-{max(B):.1f})".ljust(30), f'{ratio:.2f} ({min(pairs):.2f}-{max(pairs):.2f})', flush=True)


if __name__ == '__main__': main()
