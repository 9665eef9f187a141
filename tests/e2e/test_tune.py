#!/usr/bin/env python3
"""`laconic tune` on a tiny random model: the same bytes however it was interrupted and with any number of threads; sections are kept,
replaced and refused as the side-car's contract says; answers are read from logs. Prints "N passed, N failed".
"""
import json, os, random, signal, subprocess, sys, tempfile, time, traceback
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, 'tests/models'), os.path.join(ROOT, 'tests/e2e')]
import gguf, numpy as np
from harness import LACONIC, SLOW

# The tiny models of tests/models have no text; this one reads bytes (GPT-2's map of bytes to characters).
SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [b for b in range(256) if b not in SHOWN]
TOKENS = [chr(b if b in SHOWN else 256 + HIDDEN.index(b)) for b in range(256)] + ['th', 'in'] + [f'<unused{i}>' for i in range(62)]
class Writer(gguf.GGUFWriter):
    def add_token_list(self, tokens): super().add_token_list(TOKENS[:len(tokens)])
    def add_token_merges(self, merges): super().add_token_merges(['t h', 'i n'])
gguf.GGUFWriter = Writer
import tiny_models

PROMPTS = [f'topic{t}\t{word} {t} number {i}?' for t, word in enumerate(['where is my card', 'the loan', 'close account', 'cash machine', 'new pin', 'rates']) for i in range(4)]
OPTIONS = ['--traffic', 'desk', '-n', '24', '--ctx', '128', '--shortlist', '64', '--epochs', '2', '--exit-layer', '2', '--threads', '1', '--batch', '3']


def make_model(path, seed, name='llama'):
    tiny_models.write(next(c for c in tiny_models.CASES if c.name == name), path, np.random.default_rng(seed))


class Folder:
    def __init__(self):
        self.tmp = tempfile.TemporaryDirectory(); d = self.d = self.tmp.name
        self.model, self.prompts = f'{d}/m.gguf', f'{d}/prompts.txt'
        make_model(self.model, 1)
        open(self.prompts, 'w').write('# a comment\n' + '\n'.join(PROMPTS) + '\n')
        t0 = time.time(); self.whole = self.tune('whole.lacs'); self.seconds = time.time() - t0
    def args(self, out, *more, source=None, model=None):
        return [LACONIC, 'tune', model or self.model, *(source or ['--prompts', self.prompts]), '-o', f'{self.d}/{out}', *OPTIONS, *more]
    def run(self, out, *more, **k): return subprocess.run(self.args(out, *more, **k), capture_output=True, text=True, timeout=300 * SLOW)
    def tune(self, out, *more, **k):
        p = self.run(out, *more, **k)
        assert p.returncode == 0, p.stderr
        assert not os.path.exists(f'{self.d}/{out}.work'), 'the work folder was left behind'
        return open(f'{self.d}/{out}', 'rb').read()
    def sections(self, out):
        p = subprocess.run([LACONIC, 'inspect', '--json', f'{self.d}/{out}'], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        return {(s['name'], s['key']): s['bytes'] for s in json.loads(p.stdout)['sections']}


def case_report(f):
    report = json.loads(f.run('report.lacs', '--json').stdout)
    assert report['answers'] == 24 and report['left_out'] == 0 and report['traffic'] == 'desk'
    assert report['seen']['topics'] == 5 and report['unseen'] == {'topics': 1, 'answers': 4, 'tokens': 4 * 24}
    assert 0 < report['shortlist']['coverage_on_unseen'] <= 1 and report['shortlist']['ids'] == 64
    for s in ('ngram', 'prompt_lookup', 'surer_of_both'):
        d = report['drafts_on_unseen'][s]
        assert 0 <= d['right'] <= d['proposed'] <= 1 and 1 <= d['tokens_per_step_4'] <= d['tokens_per_step_8'] + 0.2 <= 9.2, d
    for s in ('draft_block', 'exit_block'): assert 0 <= report['drafts_on_unseen'][s]['agreement'] <= 1
    assert set(report['seconds']) == {'answers', 'records', 'learning'}
    assert set(f.sections('whole.lacs')) == {(n, 'desk') for n in ('shortlist', 'ngram', 'draft-block', 'exit-blocks', 'report')}
    assert f.sections('whole.lacs')['shortlist', 'desk'] == 64 + 4 * 64
    assert 'surer of both' in f.run('report.lacs').stdout


def case_interrupted_gives_the_same_bytes(f):
    rng, killed, wait = random.Random(7), 0, f.seconds
    for attempt in range(60):
        p = subprocess.Popen(f.args('cut.lacs'), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if killed < 12:
            try: p.wait(rng.uniform(0.1, 0.7) * wait)
            except subprocess.TimeoutExpired: p.send_signal(signal.SIGKILL)
        rc = p.wait()
        killed += rc == -signal.SIGKILL
        if rc == 0 and killed < 3:  # faster than it was: again, and sooner
            os.unlink(f'{f.d}/cut.lacs'); killed, wait = 0, wait * 0.7; continue
        if rc == 0: break
        assert rc == -signal.SIGKILL, p.stderr.read()
        for name in os.listdir(f'{f.d}/cut.lacs.work') if os.path.isdir(f'{f.d}/cut.lacs.work') else []:
            if name in ('answers', 'records') and rng.random() < 0.5:  # as if the last write was torn
                path = f'{f.d}/cut.lacs.work/{name}'; size = os.path.getsize(path); os.truncate(path, max(0, size - rng.randrange(1, 40)))
    assert rc == 0 and killed >= 3, (rc, killed)
    assert open(f'{f.d}/cut.lacs', 'rb').read() == f.whole


def case_threads_and_batch_do_not_matter(f):
    assert f.tune('threads.lacs', '--threads', '2', '--batch', '5') == f.whole


def case_other_settings_do_not_resume(f):
    p = subprocess.Popen(f.args('other.lacs', '-n', '12'), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.5 * f.seconds); p.kill(); p.wait()
    if os.path.exists(f'{f.d}/other.lacs'): os.unlink(f'{f.d}/other.lacs')
    assert f.tune('other.lacs') == f.whole


def case_keeps_other_traffic(f):
    f.tune('two.lacs'); f.tune('two.lacs', '--traffic', 'bank', '--draft-block', 'off', '--exit-layer', 'none')
    s = f.sections('two.lacs')
    assert {n for n, k in s if k == 'bank'} == {'shortlist', 'ngram', 'report'} and len(s) == 8, s
    f.tune('two.lacs', '--draft-block', 'off', '--exit-layer', 'none')  # its own blocks go
    assert len(f.sections('two.lacs')) == 6


def case_refuses_another_models_file(f):
    other = f'{f.d}/other.gguf'; make_model(other, 2)
    f.tune('mine.lacs'); before = open(f'{f.d}/mine.lacs', 'rb').read()
    p = f.run('mine.lacs', model=other)
    assert p.returncode == 1 and 'another model' in p.stderr, p
    assert open(f'{f.d}/mine.lacs', 'rb').read() == before


def case_serves_with_it(f):
    """Beside the model or named, the n-gram table drafts; the bytes stay; another model's file is refused."""
    def run(model, *more): return subprocess.run([LACONIC, 'run', model, '-p', 'where is my card', '--raw', '-n', '40', '--temp', '0', '--ctx', '128', *more], capture_output=True, timeout=120 * SLOW)
    plain = run(f.model, '--drafts', 'off', '--side-car', 'off')
    named = run(f.model, '--side-car', f'{f.d}/whole.lacs')
    assert plain.returncode == named.returncode == 0 and plain.stdout == named.stdout and plain.stdout, (plain, named)
    open(f'{f.d}/m.lacs', 'wb').write(f.whole)
    try: assert run(f.model).stdout == plain.stdout
    finally: os.unlink(f'{f.d}/m.lacs')
    make_model(f'{f.d}/other.gguf', 3)
    other = run(f'{f.d}/other.gguf', '--side-car', f'{f.d}/whole.lacs')
    assert other.returncode == 1 and b'model' in other.stderr, other
    assert run(f.model, '--side-car', f'{f.d}/missing.lacs').returncode == 1


def case_reads_logs(f):
    logs = f'{f.d}/logs'; os.mkdir(logs)
    with open(f'{logs}/a.jsonl', 'w') as out:
        for i in range(30):
            out.write(json.dumps({'prompt': f'question {i} about the thing', 'answer': f'the thing is in the drawer, as always ({i % 3})', 'topic': f't{i % 6}'}) + '\n')
    report = json.loads(f.run('logs.lacs', '--json', '--exit-layer', 'none', source=['--answers', logs]).stdout)
    assert report['answers'] == 30 and report['unseen']['topics'] == 1, report
    assert report['drafts_on_unseen']['ngram']['right'] > 0.9, report  # the answers are all alike
    open(f'{logs}/b.jsonl', 'w').write('{"prompt": "x"}\n')
    p = f.run('logs.lacs', source=['--answers', logs])
    assert p.returncode == 1 and 'line 1' in p.stderr, p


def case_refusals(f):
    for more, rc, words in ((['--traffic', 'a b'], 2, 'traffic'), (['--answers', f.d], 2, 'either'), (['--exit-layer', '4'], 1, 'layers')):
        p = f.run('no.lacs', *more)
        assert p.returncode == rc and words in p.stderr, (more, p)
        assert not os.path.exists(f'{f.d}/no.lacs')
    qwen = f'{f.d}/qwen.gguf'; make_model(qwen, 3, 'qwen2')
    p = f.run('no.lacs', model=qwen)
    assert p.returncode == 1 and 'qwen2' in p.stderr, p
    f.tune('plain.lacs', '--draft-block', 'off', '--exit-layer', 'none', model=qwen)  # the rest works on any model
    p = f.run('no.lacs', source=['--prompts', '/dev/null'])
    assert p.returncode == 1 and 'no prompts' in p.stderr, p


def main():
    good = bad = 0
    f = Folder()
    for name, case in [(n, c) for n, c in globals().items() if n.startswith('case_')]:
        try: case(f); good += 1; print('ok  ', name, flush=True)
        except Exception: bad += 1; print('FAIL', name, flush=True); traceback.print_exc(file=sys.stdout)
    print(f'{good} passed, {bad} failed'); return bad != 0


if __name__ == '__main__': sys.exit(main())
