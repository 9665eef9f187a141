"""The official openai client against a real server: chat and text, streaming and not."""
import sys, threading
import openai
from harness import SLOW, main, parallel, quiet, text, wait_until

M = 'default'
Q = [{'role': 'user', 'content': 'What is the capital of France? Answer in one sentence.'}]


def client(s): return openai.OpenAI(base_url=s.base + '/v1', api_key='none', max_retries=0, timeout=120 * SLOW)


def bad(f, field):
    try: f()
    except openai.BadRequestError as e:
        assert e.param == field or field in str(e.body), (field, e.body)
        return e
    raise AssertionError(f'{field}: accepted')


def case_models(s):
    ids = [m.id for m in client(s).models.list()]
    assert len(ids) >= 1 and client(s).models.retrieve(ids[0]).id == ids[0], ids


def case_chat(s):
    r = client(s).chat.completions.create(model=M, messages=Q, temperature=0, max_tokens=32)
    c = r.choices[0]
    assert 'Paris' in c.message.content and c.message.role == 'assistant' and c.finish_reason in ('stop', 'length')
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.object == 'chat.completion'
    assert r.system_fingerprint


def case_chat_stream_equals_whole(s):
    c = client(s)
    whole = c.chat.completions.create(model=M, messages=Q, temperature=0.8, seed=7, max_tokens=40)
    parts, finish, usage = [], [], None
    for ev in c.chat.completions.create(model=M, messages=Q, temperature=0.8, seed=7, max_tokens=40, stream=True,
                                        stream_options={'include_usage': True}):
        if ev.usage: usage = ev.usage
        for ch in ev.choices:
            if ch.delta.content: parts.append(ch.delta.content)
            if ch.finish_reason: finish.append(ch.finish_reason)
    assert ''.join(parts) == whole.choices[0].message.content and finish == [whole.choices[0].finish_reason]
    assert usage.completion_tokens == whole.usage.completion_tokens and len(parts) > 5


def case_text_completion(s):
    r = client(s).completions.create(model=M, prompt='The capital of France is', temperature=0, max_tokens=8)
    assert r.object == 'text_completion' and 'Paris' in r.choices[0].text, r
    r2 = client(s).completions.create(model=M, prompt='Once upon a time')
    assert r2.usage.completion_tokens <= 16
    st = ''.join(e.choices[0].text for e in client(s).completions.create(model=M, prompt='The capital of France is', temperature=0, max_tokens=8, stream=True) if e.choices)
    assert st == r.choices[0].text


def case_many_prompts(s):
    r = client(s).completions.create(model=M, prompt=['The capital of France is', 'The capital of Italy is'], temperature=0, max_tokens=6, n=1)
    assert [c.index for c in r.choices] == [0, 1] and 'Paris' in r.choices[0].text and 'Rome' in r.choices[1].text, r


def case_chat_logprobs(s):
    r = client(s).chat.completions.create(model=M, messages=Q, temperature=0, max_tokens=8, logprobs=True, top_logprobs=5)
    lp = r.choices[0].logprobs.content
    assert len(lp) == r.usage.completion_tokens or r.choices[0].finish_reason == 'stop'
    for t in lp:
        assert t.logprob <= 0 and len(t.top_logprobs) == 5 and t.top_logprobs[0].token == t.token
        assert [x.logprob for x in t.top_logprobs] == sorted((x.logprob for x in t.top_logprobs), reverse=True)
    assert b''.join(bytes(t.bytes) for t in lp).decode() == r.choices[0].message.content


def case_text_logprobs(s):
    r = client(s).completions.create(model=M, prompt='The capital of France is', temperature=0, max_tokens=6, logprobs=3)
    lp = r.choices[0].logprobs
    assert ''.join(lp.tokens) == r.choices[0].text and len(lp.token_logprobs) == len(lp.tokens) == len(lp.top_logprobs) == len(lp.text_offset)
    assert all(len(t) >= 3 for t in lp.top_logprobs)


def case_n_choices(s):
    r = client(s).chat.completions.create(model=M, messages=Q, temperature=1.3, n=3, seed=11, max_tokens=24)
    texts = [c.message.content for c in sorted(r.choices, key=lambda c: c.index)]
    assert len(texts) == 3 and len(set(texts)) > 1, texts
    again = client(s).chat.completions.create(model=M, messages=Q, temperature=1.3, n=3, seed=11, max_tokens=24)
    assert [c.message.content for c in sorted(again.choices, key=lambda c: c.index)] == texts
    first = client(s).chat.completions.create(model=M, messages=Q, temperature=1.3, seed=11, max_tokens=24)
    assert first.choices[0].message.content == texts[0], 'choice 0 depends on n'


def case_stop(s):
    c = client(s)
    full = c.completions.create(model=M, prompt='1, 2, 3, 4, 5,', temperature=0, max_tokens=24).choices[0].text
    stop = full[10:13]
    r = c.completions.create(model=M, prompt='1, 2, 3, 4, 5,', temperature=0, max_tokens=24, stop=[stop, 'zzzz'])
    assert r.choices[0].text == full[:full.index(stop)] and r.choices[0].finish_reason == 'stop'


def case_seed(s):
    c = client(s)
    a, b, d = (c.chat.completions.create(model=M, messages=Q, temperature=1.2, seed=k, max_tokens=32).choices[0].message.content for k in (5, 5, 6))
    assert a == b and a != d
    r = c.chat.completions.create(model=M, messages=Q, temperature=1.2, max_tokens=32)
    seed = r.model_extra['laconic']['seed']
    again = c.chat.completions.create(model=M, messages=Q, temperature=1.2, max_tokens=32, seed=seed)
    assert again.choices[0].message.content == r.choices[0].message.content, 'the reported seed does not reproduce'


def case_max_tokens_both_names(s):
    c = client(s)
    for k in ('max_tokens', 'max_completion_tokens'):
        r = c.chat.completions.create(model=M, messages=[{'role': 'user', 'content': 'Count to fifty.'}], temperature=0, **{k: 5})
        assert r.usage.completion_tokens == 5 and r.choices[0].finish_reason == 'length'


def case_logit_bias_and_penalties(s):
    c = client(s)
    base = c.completions.create(model=M, prompt='The capital of France is', temperature=0, max_tokens=1, logprobs=1)
    ids = s.call('/tokenize', {'content': base.choices[0].text})[1]['tokens']
    r = c.completions.create(model=M, prompt='The capital of France is', temperature=0, max_tokens=1, logit_bias={str(ids[0]): -100})
    assert r.choices[0].text != base.choices[0].text
    loop = lambda **k: c.completions.create(model=M, prompt='la la la la la la', temperature=0, max_tokens=24, **k).choices[0].text
    assert loop() != loop(frequency_penalty=1.5) and loop() != loop(extra_body={'repetition_penalty': 1.5})


def case_errors_name_the_field(s):
    c = client(s)
    chat = lambda **k: c.chat.completions.create(**{'model': M, 'messages': Q, 'max_tokens': 4, **k})
    bad(lambda: chat(temperature=3), 'temperature'); bad(lambda: chat(top_p=1.5), 'top_p'); bad(lambda: chat(n=0), 'n')
    bad(lambda: chat(max_tokens=-1), 'max_tokens'); bad(lambda: chat(presence_penalty=5), 'presence_penalty')
    bad(lambda: chat(logprobs=True, top_logprobs=21), 'top_logprobs'); bad(lambda: chat(messages=[]), 'messages')
    bad(lambda: chat(messages=[{'role': 'user'}]), 'messages'); bad(lambda: chat(logit_bias={'x': 1}), 'logit_bias')
    bad(lambda: chat(logit_bias={'99999999': 1}), 'logit_bias')
    bad(lambda: chat(tools=[{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}]), 'tools')
    bad(lambda: chat(response_format={'type': 'json_object'}), 'response_format')
    bad(lambda: chat(extra_body={'laconic': {'gate': 'on'}}), 'gate'); bad(lambda: chat(extra_body={'laconic': {'nonsense': 1}}), 'nonsense')
    chat(extra_body={'unknown_top_level': 1})
    try: chat(model='no-such-model'); raise AssertionError('accepted')
    except openai.NotFoundError: pass
    e = bad(lambda: chat(messages=[{'role': 'user', 'content': 'word ' * 12000}]), 'messages')
    assert e.code == 'context_length_exceeded', e.body


def case_64_streams(s):
    c = client(s)
    def one(i):
        got = ''.join(ev.choices[0].delta.content or '' for ev in c.chat.completions.create(
            model=M, messages=[{'role': 'user', 'content': f'Write a sentence about the number {i % 8}.'}],
            temperature=0.7, seed=i % 8, max_tokens=24, stream=True) if ev.choices)
        return i % 8, got
    by = {}
    for k, got in parallel([lambda i=i: one(i) for i in range(64)]): by.setdefault(k, set()).add(got)
    assert len(by) == 8 and all(len(v) == 1 and next(iter(v)) for v in by.values()), by
    assert wait_until(lambda: s.metric('laconic_running') == 0)
    quiet(s)


if __name__ == '__main__': sys.exit(main(globals()))
