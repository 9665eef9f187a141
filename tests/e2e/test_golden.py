"""Committed greedy bytes of 20 prompts, on every instruction set this machine has. `--write` makes them anew."""
import hashlib, json, os, subprocess, sys
from harness import LACONIC, MODEL, ROOT

PROMPTS = ['The capital of France is', 'Once upon a time, there was a', 'def fibonacci(n):', 'Q: What is 12 + 7?\nA:', 'List three primary colours.',
           'Dear Sir or Madam,', 'import numpy as np\n', 'SELECT name FROM users WHERE', 'The quick brown fox', 'In 1969, humans first', 'Water boils at',
           '<html><body>', 'To be or not to be,', '用中文写一句话：', 'The opposite of hot is', 'A bank account is', 'My favourite recipe begins with', '1, 1, 2, 3, 5, 8,',
           'Ωμέγα und ähnliche Wörter', 'How do I reset my password?']
FILE = os.path.join(ROOT, 'tests/golden/greedy.json')


def generate(isa, threads, n=24):
    out = []
    for prompt in PROMPTS:
        p = subprocess.run([LACONIC, 'run', MODEL, '--isa', isa, '--threads', str(threads), '--raw', '-n', str(n), '--temp', '0', '--ctx', '512', '-p', prompt],
                           capture_output=True, timeout=900)
        if p.returncode != 0 and b'cannot run' in p.stderr: return None
        assert p.returncode == 0, p.stderr
        out.append(p.stdout.decode())
    return out


def main():
    if '--write' in sys.argv:
        json.dump({'model': 'SmolLM2-135M-Instruct.Q4_1', 'n': 24, 'answers': dict(zip(PROMPTS, generate('scalar', 1)))}, open(FILE, 'w'), ensure_ascii=False, indent=1)
        return 0
    want = list(json.load(open(FILE))['answers'].values())
    good = bad = 0
    for isa, threads in (('scalar', 2), ('avx2', 1), ('avxvnni', 2), ('avx512', 1), ('avx512', 2), ('amx', 2)):
        # The scalar oracle is slow: the first tokens of each prompt, all of them in make test-long.
        short = isa == 'scalar' and os.environ.get('LONG') != '1'
        got = generate(isa, threads, 4 if short else 24)
        if got is None: print(f'skip: {isa} does not run on this machine'); continue
        miss = [p for p, w, g in zip(PROMPTS, want, got) if w != g and not (short and g and w.startswith(g))]
        good, bad = good + 20 - len(miss), bad + len(miss)
        print(f"{'ok  ' if not miss else 'FAIL'} golden bytes, {isa}, {threads} threads: {20 - len(miss)} of 20 {miss[:2]}", flush=True)
    print(f'{good} passed, {bad} failed')
    return bad != 0


if __name__ == '__main__': sys.exit(main())
