"""/v1/embeddings of a server with the MiniLM encoder, by hand and through the openai client."""
import base64, json, os, struct, subprocess, sys, threading, time
import openai
from harness import ROOT, SLOW, main, parallel, quiet, text, wait_until

ENCODER = os.environ.get('LAC_ENCODER') or subprocess.run(
    [os.path.join(ROOT, 'scripts/model.sh'), 'path', 'encoder'], capture_output=True, text=True).stdout.strip()
M = os.path.basename(ENCODER.rstrip('/'))
DIM = 384


def client(s): return openai.OpenAI(base_url=s.base + '/v1', api_key='none', max_retries=0, timeout=120 * SLOW)


def embed(s, text, as_model=False, **kw):
    st, r = s.call('/v1/embeddings', {'model': M, 'input': text, **kw})
    assert st == 200, (st, r)
    if as_model: return [d['embedding'] for d in r['data']], r['usage']
    assert [d['index'] for d in r['data']] == list(range(len(r['data']))) and r['object'] == 'list' and r['model'] == M
    return [d['embedding'] for d in r['data']], r['usage']


def f32(v): return [struct.unpack('<f', struct.pack('<f', x))[0] for x in v]
def dot(a, b): return sum(x * y for x, y in zip(a, b))


def case_one(s):
    (v,), usage = embed(s, 'What is the capital of France?')
    assert len(v) == DIM and abs(dot(v, v) - 1) < 1e-5, dot(v, v)
    # [CLS] what is the capital of france ? [SEP]
    assert usage == {'prompt_tokens': 9, 'total_tokens': 9}, usage


def case_meaning(s):
    a, b, c, d, e = embed(s, ['How do I reset my password?', 'I forgot my login credentials.',
                              'The cat sat on the mat.', '今天天气很好', '今天天气不错'])[0]
    assert dot(a, b) > 0.5 > dot(a, c) + 0.2 and dot(d, e) > dot(d, a), (dot(a, b), dot(a, c), dot(d, e))


def case_client_float_and_base64_equal(s):
    texts = ['one', 'two words', 'Ünïcödé, ça va? 中文 🙂', 'x' * 5000]
    c = client(s)
    plain = c.embeddings.create(model=M, input=texts, encoding_format='float')
    coded = c.embeddings.create(model=M, input=texts, encoding_format='base64')
    default = c.embeddings.create(model=M, input=texts) # base64 on the wire, decoded by the client
    assert len(plain.data) == 4 and plain.usage.prompt_tokens == coded.usage.prompt_tokens > 8
    for p, b, d in zip(plain.data, coded.data, default.data):
        raw = base64.b64decode(b.embedding, validate=True)
        assert len(raw) == 4 * DIM
        floats = list(struct.unpack(f'<{DIM}f', raw))
        assert f32(p.embedding) == floats == f32(d.embedding), p.index


def case_batch_equals_alone(s):
    texts = [f'text number {i} ' + 'and more ' * (i % 40) for i in range(60)]
    together, usage = embed(s, texts)
    tokens = 0
    for i in range(0, 60, 7):
        (v,), _ = embed(s, texts[i])
        assert v == together[i], i
    for t in texts: tokens += embed(s, t)[1]['prompt_tokens']
    assert usage['prompt_tokens'] == tokens == usage['total_tokens']


def case_long_text_is_cut(s):
    (a,), usage = embed(s, 'word ' * 254 + 'tail')
    (b,), _ = embed(s, 'word ' * 100000)
    assert a == b and usage['prompt_tokens'] == 256, usage


def case_most_inputs(s):
    n = 2048 if SLOW == 1 else 256 # a sanitizer would take minutes
    v, usage = embed(s, ['hi'] * n)
    assert len(v) == n and v[0] == v[n - 1] and usage['prompt_tokens'] == 3 * n
    st, r = s.call('/v1/embeddings', {'model': M, 'input': ['hi'] * 2049})
    assert st == 400 and r['error']['param'] == 'input', r


def case_refusals(s):
    good = {'model': M, 'input': 'x'}
    for change, status, field in (
            ({'input': None}, 400, 'input'), ({'input': ''}, 400, 'input'), ({'input': []}, 400, 'input'),
            ({'input': ['a', '']}, 400, 'input'), ({'input': [1, 2]}, 400, 'input'), ({'input': [[1, 2]]}, 400, 'input'),
            ({'input': 5}, 400, 'input'), ({'input': {}}, 400, 'input'), ({'input': ['a', 1]}, 400, 'input'),
            ({'encoding_format': 'hex'}, 400, 'encoding_format'), ({'encoding_format': 1}, 400, 'encoding_format'),
            ({'dimensions': 100}, 400, 'dimensions'), ({'dimensions': 0}, 400, 'dimensions'),
            ({'dimensions': 'x'}, 400, 'dimensions'), ({'user': 5}, 400, 'user'), ({'model': None}, 400, 'model'),
            ({'model': 'nobody'}, 404, 'model'), ({'model': 'default', 'dimensions': DIM}, 400, 'dimensions'),
            ({'model': 'default', 'input': 'word ' * 9000}, 400, 'input')):
        st, r = s.call('/v1/embeddings', {**good, **change})
        assert st == status and r['error']['param'] == field, (change, st, r)
    embed(s, 'x', dimensions=DIM, user='me', encoding_format=None)


def case_language_model(s):
    """Mean-pooled states of the served model: the same alone, in a list, cut into chunks, beside decoding."""
    texts = ['hi', 'What is the capital of France?', 'Which city is the capital of France?', 'Bake the bread at 230 degrees.', 'word ' * 1500]
    together, usage = embed(s, texts, model='default', as_model=True)
    n = len(together[0])
    assert n == 576 and all(len(v) == n and abs(dot(v, v) - 1) < 1e-5 for v in together)
    assert dot(together[1], together[2]) > dot(together[1], together[3]) + 0.05, 'paraphrase is no nearer'
    results = []
    jobs = [lambda t=t: results.append((t, embed(s, t, model='default', as_model=True)[0][0])) for t in texts]
    jobs += [lambda: s.chat('Name three colours.', max_tokens=40)] * 3
    parallel(jobs)
    for t, v in results: assert v == together[texts.index(t)], t[:20]
    assert len(results) == len(texts)
    tokens = sum(len(s.call('/tokenize', {'content': t})[1]['tokens']) for t in texts)
    assert usage == {'prompt_tokens': tokens, 'total_tokens': tokens}, usage
    d = client(s).embeddings.create(model='default', input=texts[1])
    assert f32(d.data[0].embedding) == f32(together[1])
    quiet(s)


def case_models(s):
    c = client(s)
    ids = [m.id for m in c.models.list()]
    assert M in ids and len(ids) == 2, ids
    for i in ids: assert c.models.retrieve(i).id == i


def case_beside_chat(s):
    """The language model's answer is the same while texts are encoded, and nobody starves."""
    alone = text(s.chat('Name three colours.', max_tokens=24)[1])
    stop, done = threading.Event(), []
    def load():
        while not stop.is_set(): done.append(len(embed(s, ['some longer text ' * 50] * 64)[0]))
    t = threading.Thread(target=load)
    t.start()
    try:
        for _ in range(3): assert text(s.chat('Name three colours.', max_tokens=24)[1]) == alone
    finally: stop.set(); t.join()
    assert done and set(done) == {64}


def case_client_leaves(s):
    before = s.metric('laconic_shed_total')
    c = s.connect()
    body = json.dumps({'model': M, 'input': ['a long text ' * 200] * 500}).encode()
    c.sendall(b'POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
    time.sleep(0.3)
    c.close()
    assert wait_until(lambda: s.metric('laconic_shed_total') > before), 'still at work for nobody'
    embed(s, 'still there')
    quiet(s)


if __name__ == '__main__':
    if not os.path.isfile(os.path.join(ENCODER, 'model.safetensors')):
        print(f'skip: no encoder in {ENCODER} (scripts/model.sh fetch encoder)')
        print('0 passed, 0 failed')
        sys.exit(0)
    sys.exit(main(globals(), ['--encoder', ENCODER]))
