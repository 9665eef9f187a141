"""The same request returns the same bytes alone, in a crowd, and with its prefix cached or not."""
import sys, threading
from harness import main, parallel, quiet, text, wait_until

SYSTEM = 'You are a careful assistant of a bank. ' + 'Answer shortly and name the relevant rule if there is one. ' * 6
ASK = {'model': 'default', 'messages': [{'role': 'system', 'content': SYSTEM}, {'role': 'user', 'content': 'My card was swallowed by a machine. What now?'}],
       'temperature': 0.9, 'top_p': 0.95, 'seed': 20261130, 'max_tokens': 40, 'logprobs': True, 'top_logprobs': 3}
ALONE = {}


def answer(s, body=ASK):
    st, r = s.call('/v1/chat/completions', body)
    assert st == 200, r
    c = r['choices'][0]
    return c['message']['content'], c['finish_reason'], c['logprobs'], {k: v for k, v in r['usage'].items() if k.endswith('_tokens')}, r['system_fingerprint']


def noise(s, i):
    """Others of many lengths and kinds; some stream, some have long prompts."""
    body = {'model': 'default', 'messages': [{'role': 'user', 'content': f'Item {i}. ' + 'Tell me about rivers and mountains. ' * (1 + 13 * (i % 9))}],
            'temperature': (i % 4) * 0.4, 'seed': i, 'max_tokens': 4 + 7 * (i % 6), 'frequency_penalty': (i % 3) * 0.5}
    if i % 2: return s.stream('/v1/chat/completions', body)[0] == 200
    return s.call('/v1/chat/completions', body)[0] == 200


def in_crowd(s, others, body=ASK):
    got = parallel([lambda i=i: noise(s, i) for i in range(others // 2)] + [lambda: answer(s, body)] + [lambda i=i: noise(s, i) for i in range(others // 2, others)])
    assert all(g for g in got)
    return got[others // 2]


def case_alone_is_stable(s):
    a, b = answer(s), answer(s)  # the second finds its prefix cached
    assert a == b
    ALONE.setdefault('answer', a)
    assert ALONE['answer'] == a, 'differs between the I/O backends'
    assert s.metric('laconic_prefix_hit_tokens_total') > 0


def case_among_others(s):
    a = answer(s)
    for others in (1, 7, 31): assert in_crowd(s, others) == a, others
    assert wait_until(lambda: s.metric('laconic_running') == 0)
    quiet(s)


def case_cold_prefix(s):
    """Text never seen before, then the same text again: computed, then cached."""
    body = {**ASK, 'messages': [{'role': 'system', 'content': SYSTEM + ' Case number 4711-%s.' % s.port}, ASK['messages'][1]]}
    hits0 = s.metric('laconic_prefix_hit_tokens_total')
    cold = answer(s, body)
    hits1 = s.metric('laconic_prefix_hit_tokens_total')
    warm = answer(s, body)
    assert s.metric('laconic_prefix_hit_tokens_total') - hits1 > hits1 - hits0
    assert cold[:3] == warm[:3]


def case_continued_conversation(s):
    """A second turn re-uses the first turn's pages; the same as asking it on a server that never saw the first."""
    first = answer(s)
    body = {**ASK, 'messages': ASK['messages'] + [{'role': 'assistant', 'content': first[0]}, {'role': 'user', 'content': 'And abroad?'}]}
    a = answer(s, body)
    ALONE.setdefault('second', a)
    assert ALONE['second'] == a
    assert in_crowd(s, 7, body) == a


def case_every_sampler_knob(s):
    for k in ({'top_k': 5}, {'min_p': 0.1}, {'repetition_penalty': 1.3}, {'presence_penalty': 1, 'frequency_penalty': 1}, {'n': 1, 'stop': ['.']}, {'temperature': 0}):
        body = {**ASK, **k, 'max_tokens': 24}
        assert answer(s, body)[:3] == in_crowd(s, 5, body)[:3], k


if __name__ == '__main__': sys.exit(main(globals(), ['--max-batch', '32']))
