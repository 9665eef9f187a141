#!/usr/bin/env python3
"""Every architecture: a tiny random GGUF made here, and a float64 NumPy reference of the published model written here.

usage: tiny_models.py LACONIC    prints "N passed, N failed"    (compare_peer.py compares the same files with llama.cpp)
Compares the 20 largest logits at every position of `laconic logits` (--exact within 1e-3; default numerics close) with the
reference. The reference reads the shapes from the case, never from our code.
"""
import json, math, os, subprocess, sys, tempfile
import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, quants

V, CTX = 320, 512


class Case:
    def __init__(self, name, arch, d=128, layers=4, heads=4, kv=2, hd=32, ff=192, **k):
        self.name, self.arch, self.d, self.layers, self.heads, self.kv, self.hd, self.ff = name, arch, d, layers, heads, kv, hd, ff
        self.base = k.pop('base', 10000.0); self.eps = 1e-5; self.tied = k.pop('tied', False); self.n_tokens = k.pop('n_tokens', 40)
        self.style = k.pop('style', 'halves'); self.qtype = k.pop('qtype', T.Q8_0)
        self.ctx = k.pop('ctx', CTX); self.rot = k.pop('rot', hd); self.o = k  # ctx: what the model is opened with


CASES = [
    Case('llama', 'llama', style='adjacent'),
    Case('llama-tied-q4_1', 'llama', style='adjacent', tied=True, qtype=T.Q4_1),
    Case('llama-bias', 'llama', style='adjacent', bias='qkvo'),
    Case('llama-rope-factors', 'llama', style='adjacent', rope_factors=True, base=500000.0),
    Case('llama-linear', 'llama', style='adjacent', linear=4.0),
    Case('llama-yarn', 'llama', style='adjacent', yarn=(4.0, 128)),
    Case('llama-head-size', 'llama', style='adjacent', hd=48),
    Case('mixtral', 'llama', style='adjacent', experts=(6, 2)),
    Case('qwen2', 'qwen2', bias='qkv', tied=True),
    Case('qwen2-yarn', 'qwen2', bias='qkv', yarn=(4.0, 128), base=1e6),
    Case('qwen3', 'qwen3', qk_norm='head', hd=48),
    Case('qwen3moe', 'qwen3moe', qk_norm='head', experts=(8, 3), expert_ff=96),
    Case('gemma2', 'gemma2', gemma=True, window=16, pattern=lambda l: l % 2 == 0, attn_softcap=50.0, softcap=30.0, tied=True),
    Case('gemma2-pattern', 'gemma2', gemma=True, window=8, pattern=lambda l: l % 3 < 2, pattern_key=3, attn_softcap=20.0, softcap=10.0, layers=5, tied=True),
    Case('gemma3', 'gemma3', gemma=True, window=16, pattern=lambda l: l % 6 != 5, qk_norm='head', layers=7, local_base=10000.0, base=1e6, tied=True, hd=64),
    Case('gemma3-linear', 'gemma3', gemma=True, window=12, pattern=lambda l: l in (0, 2, 3), pattern_key=[True, False, True, True], qk_norm='head', linear=8.0,
         local_base=10000.0, base=1e6, softcap=25.0, tied=True, hd=64),
    Case('gemma3-dense', 'gemma3', gemma=True, qk_norm='head', layers=3, base=1e6, tied=True, hd=64),
    Case('phi3', 'phi3', fused=True),
    Case('phi3-window', 'phi3', fused=True, window=16, pattern=lambda l: True),
    Case('phi3-longrope', 'phi3', fused=True, longrope=True),
    Case('phi3-shortrope', 'phi3', fused=True, longrope=True, ctx=256),
    Case('phi3-partial', 'phi3', fused=True, rot=24, longrope=True),
    Case('granite', 'granite', style='adjacent', embed_scale=12.0, residual=0.22, attn_scale=0.0156, logit_div=8.0),
    Case('granite-no-rope', 'granite', style='adjacent', embed_scale=12.0, residual=0.22, attn_scale=0.3, logit_div=8.0, nope=1, bias='qkvo', tied=True),
    Case('smollm3', 'smollm3', style='adjacent', nope=4, layers=5),
    Case('olmo2', 'olmo2', qk_norm='all', post_only=True),
    Case('olmo3', 'olmo2', qk_norm='all', post_only=True, layers=5, window=16, pattern=lambda l: l % 4 != 3, local_base=5e5, base=5e5, yarn=(8.0, 128)),
]


def weights(c, rng):
    w = {}
    def mat(name, *shape):  # shape outermost first, as NumPy sees it: [out, in]
        w[name] = (rng.standard_normal(shape) * (1.2 / math.sqrt(shape[-1]))).astype(np.float32)
    def vec(name, n, mean=1.0): w[name] = (mean + 0.1 * rng.standard_normal(n)).astype(np.float32)
    dq, dkv = c.heads * c.hd, c.kv * c.hd
    w['token_embd.weight'] = rng.standard_normal((V, c.d)).astype(np.float32) * np.float32(0.5 if not c.o.get('gemma') else 0.08)
    vec('output_norm.weight', c.d)
    if not c.tied: mat('output.weight', V, c.d)
    if c.o.get('rope_factors'): w['rope_freqs.weight'] = (1 + 7 * rng.random(c.rot // 2)).astype(np.float32)
    if c.o.get('longrope'):
        w['rope_factors_long.weight'] = (1 + 3 * rng.random(c.rot // 2)).astype(np.float32)
        w['rope_factors_short.weight'] = (1 + 0.2 * rng.random(c.rot // 2)).astype(np.float32)
    for l in range(c.layers):
        p = f'blk.{l}.'
        if not c.o.get('post_only'): vec(p + 'attn_norm.weight', c.d); vec(p + 'ffn_norm.weight', c.d)
        if c.o.get('fused'): mat(p + 'attn_qkv.weight', dq + 2 * dkv, c.d)
        else: mat(p + 'attn_q.weight', dq, c.d); mat(p + 'attn_k.weight', dkv, c.d); mat(p + 'attn_v.weight', dkv, c.d)
        mat(p + 'attn_output.weight', c.d, dq)
        b = c.o.get('bias', '')
        for ch, n, nm in (('q', dq, 'attn_q'), ('k', dkv, 'attn_k'), ('v', dkv, 'attn_v'), ('o', c.d, 'attn_output')):
            if ch in b: vec(p + nm + '.bias', n, 0.0)
        if c.o.get('qk_norm') == 'head': vec(p + 'attn_q_norm.weight', c.hd); vec(p + 'attn_k_norm.weight', c.hd)
        if c.o.get('qk_norm') == 'all': vec(p + 'attn_q_norm.weight', dq); vec(p + 'attn_k_norm.weight', dkv)
        if c.o.get('gemma') or c.o.get('post_only'): vec(p + 'post_attention_norm.weight', c.d); vec(p + 'post_ffw_norm.weight', c.d)
        if c.o.get('experts'):
            n, f = c.o['experts'][0], c.o.get('expert_ff', c.ff)
            mat(p + 'ffn_gate_inp.weight', n, c.d); mat(p + 'ffn_gate_exps.weight', n, f, c.d); mat(p + 'ffn_up_exps.weight', n, f, c.d); mat(p + 'ffn_down_exps.weight', n, c.d, f)
        elif c.o.get('fused'): mat(p + 'ffn_up.weight', 2 * c.ff, c.d); mat(p + 'ffn_down.weight', c.d, c.ff)
        else: mat(p + 'ffn_gate.weight', c.ff, c.d); mat(p + 'ffn_up.weight', c.ff, c.d); mat(p + 'ffn_down.weight', c.d, c.ff)
    return w


def quantised(name, x, c):
    """The type a tensor is stored in, and the values it then stands for."""
    if x.ndim == 1 or 'ffn_gate_inp' in name or x.shape[-1] % 32: return x, T.F32, x
    q = quants.quantize(x, c.qtype)
    return q, c.qtype, quants.dequantize(q, c.qtype)


def write(c, path, rng):
    g = gguf.GGUFWriter(path, c.arch)
    g.add_block_count(c.layers); g.add_context_length(CTX); g.add_embedding_length(c.d); g.add_feed_forward_length(c.ff)
    g.add_head_count(c.heads); g.add_head_count_kv(c.kv); g.add_key_length(c.hd); g.add_value_length(c.hd)
    g.add_layer_norm_rms_eps(c.eps); g.add_rope_freq_base(c.base); g.add_rope_dimension_count(c.rot); g.add_vocab_size(V)
    o = c.o
    if 'linear' in o: g.add_rope_scaling_type(gguf.RopeScalingType.LINEAR); g.add_rope_scaling_factor(o['linear'])
    if 'yarn' in o: g.add_rope_scaling_type(gguf.RopeScalingType.YARN); g.add_rope_scaling_factor(o['yarn'][0]); g.add_rope_scaling_orig_ctx_len(o['yarn'][1])
    if 'longrope' in o: g.add_rope_scaling_orig_ctx_len(256); g.add_rope_scaling_attn_factors(1.19)
    if 'experts' in o: g.add_expert_count(o['experts'][0]); g.add_expert_used_count(o['experts'][1])
    if 'expert_ff' in o: g.add_expert_feed_forward_length(o['expert_ff'])
    if 'window' in o: g.add_sliding_window(o['window'])
    if 'pattern_key' in o: g.add_sliding_window_pattern(o['pattern_key'])
    if 'softcap' in o: g.add_final_logit_softcapping(o['softcap'])
    if 'attn_softcap' in o: g.add_attn_logit_softcapping(o['attn_softcap'])
    if c.arch == 'granite' and 'nope' in o: g.add_rope_scaling_finetuned(False)
    if 'embed_scale' in o: g.add_embedding_scale(o['embed_scale']); g.add_residual_scale(o['residual']); g.add_attention_scale(o['attn_scale']); g.add_logit_scale(o['logit_div'])
    g.add_tokenizer_model('gpt2'); g.add_tokenizer_pre('default')
    g.add_token_list([f't{i}' for i in range(V)]); g.add_token_types([1] * V); g.add_token_merges(['a b'])
    seen = {}
    for name, x in weights(c, rng).items():
        raw, t, val = quantised(name, x, c)
        g.add_tensor(name, raw, raw_dtype=t if t != T.F32 else None)
        seen[name] = val.astype(np.float64)
    g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()
    return seen


def rms(x, w, eps): return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def reference(c, w, ids):
    o, n = c.o, len(ids)
    def inv_freq(local):
        i = np.arange(0, c.rot, 2) / c.rot
        if local: return o['local_base'] ** -i, 1.0
        f = c.base ** -i; m = 1.0
        if o.get('rope_factors'): f = f / w['rope_freqs.weight']
        if o.get('longrope'): f = f / w['rope_factors_long.weight' if c.ctx > 256 else 'rope_factors_short.weight']; m = 1.19
        if 'linear' in o: f = f / o['linear']
        if 'yarn' in o:
            s, n0 = o['yarn']
            at = lambda r: c.rot * math.log(n0 / (r * 2 * math.pi)) / (2 * math.log(c.base))
            lo, hi = max(0, math.floor(at(32))), min(c.rot - 1, math.ceil(at(1)))
            ramp = np.clip((np.arange(c.rot // 2) - lo) / max(0.001, hi - lo), 0, 1)
            f = f / s * ramp + f * (1 - ramp); m = 0.1 * math.log(s) + 1
        return f, m
    def rope(x, local):  # x [n, heads, hd]
        f, m = inv_freq(local)
        a = np.arange(n)[:, None] * f[None]; cs, sn = (np.cos(a) * m)[:, None], (np.sin(a) * m)[:, None]
        i0, i1 = (np.arange(c.rot // 2), np.arange(c.rot // 2, c.rot)) if c.style == 'halves' else (np.arange(0, c.rot, 2), np.arange(1, c.rot, 2))
        y = x.copy(); y[..., i0], y[..., i1] = x[..., i0] * cs - x[..., i1] * sn, x[..., i0] * sn + x[..., i1] * cs; return y
    silu = lambda z: z / (1 + np.exp(-z))
    gelu = lambda z: 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3)))
    act = gelu if o.get('gemma') else silu
    x = w['token_embd.weight'][ids]
    x = x * (math.sqrt(c.d) if o.get('gemma') else o.get('embed_scale', 1.0))
    dq, dkv = c.heads * c.hd, c.kv * c.hd
    for l in range(c.layers):
        p = f'blk.{l}.'
        g = lambda k: w[p + k]
        a = x if o.get('post_only') else rms(x, g('attn_norm.weight'), c.eps)
        if o.get('fused'): qkv = a @ g('attn_qkv.weight').T; q, k, v = qkv[:, :dq], qkv[:, dq:dq + dkv], qkv[:, dq + dkv:]
        else: q, k, v = a @ g('attn_q.weight').T, a @ g('attn_k.weight').T, a @ g('attn_v.weight').T
        b = o.get('bias', '')
        if 'q' in b: q = q + g('attn_q.bias')
        if 'k' in b: k = k + g('attn_k.bias')
        if 'v' in b: v = v + g('attn_v.bias')
        if o.get('qk_norm') == 'all': q, k = rms(q, g('attn_q_norm.weight'), c.eps), rms(k, g('attn_k_norm.weight'), c.eps)
        q, k, v = q.reshape(n, c.heads, c.hd), k.reshape(n, c.kv, c.hd), v.reshape(n, c.kv, c.hd)
        if o.get('qk_norm') == 'head': q, k = rms(q, g('attn_q_norm.weight'), c.eps), rms(k, g('attn_k_norm.weight'), c.eps)
        local = 'window' in o and o['pattern'](l)
        if not (o.get('nope') and (l + 1) % o['nope'] == 0): q, k = rope(q, local and 'local_base' in o), rope(k, local and 'local_base' in o)
        k, v = np.repeat(k, c.heads // c.kv, 1), np.repeat(v, c.heads // c.kv, 1)
        s = np.einsum('qhd,khd->hqk', q, k) * o.get('attn_scale', 1 / math.sqrt(c.hd))
        if 'attn_softcap' in o: s = o['attn_softcap'] * np.tanh(s / o['attn_softcap'])
        i = np.arange(n); ok = i[None, :] <= i[:, None]
        if local: ok &= i[None, :] > i[:, None] - o['window']
        s = np.where(ok[None], s, -np.inf); s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
        h = np.einsum('hqk,khd->qhd', s, v).reshape(n, dq) @ g('attn_output.weight').T
        if 'o' in b: h = h + g('attn_output.bias')
        if o.get('gemma') or o.get('post_only'): h = rms(h, g('post_attention_norm.weight'), c.eps)
        x = x + o.get('residual', 1.0) * h
        f = x if o.get('post_only') else rms(x, g('ffn_norm.weight'), c.eps)
        if o.get('experts'):
            n_used = o['experts'][1]; r = f @ g('ffn_gate_inp.weight').T; r = np.exp(r - r.max(-1, keepdims=True)); r /= r.sum(-1, keepdims=True)
            h = np.zeros_like(x)
            for t in range(n):
                best = np.argsort(-r[t])[:n_used]; ws = r[t][best] / r[t][best].sum()
                for e, we in zip(best, ws): h[t] += we * ((act(f[t] @ g('ffn_gate_exps.weight')[e].T) * (f[t] @ g('ffn_up_exps.weight')[e].T)) @ g('ffn_down_exps.weight')[e].T)
        else:
            if o.get('fused'): gu = f @ g('ffn_up.weight').T; ga, up = gu[:, :c.ff], gu[:, c.ff:]
            else: ga, up = f @ g('ffn_gate.weight').T, f @ g('ffn_up.weight').T
            h = (act(ga) * up) @ g('ffn_down.weight').T
        if o.get('gemma') or o.get('post_only'): h = rms(h, g('post_ffw_norm.weight'), c.eps)
        x = x + o.get('residual', 1.0) * h
    z = rms(x, w['output_norm.weight'], c.eps) @ w['token_embd.weight' if c.tied else 'output.weight'].T
    z = z / o.get('logit_div', 1.0)
    if 'softcap' in o: z = o['softcap'] * np.tanh(z / o['softcap'])
    return z


def main():
    exe = sys.argv[1]; good = bad = 0
    for i, c in enumerate(CASES):
        rng = np.random.default_rng(1000 + i)
        with tempfile.TemporaryDirectory() as d:
            w = write(c, d + '/m.gguf', rng); ids = rng.integers(0, V, c.n_tokens); z = reference(c, w, ids)
            json.dump([{'name': 'a', 'tokens': ids.tolist()}], open(d + '/in.json', 'w'))
            for extra, bound in ((['--exact'], 1e-3), ([], 0.05)):
                ctx = ['--ctx', str(c.ctx)] if c.ctx != CTX else []
                p = subprocess.run([exe, 'logits', d + '/m.gguf', '--tokens', d + '/in.json', '--out', d + '/out.json', *extra, *ctx], capture_output=True, text=True)
                if p.returncode != 0: worst, why = math.inf, p.stderr.strip()[-200:]
                else:
                    out = json.load(open(d + '/out.json'))[0]['positions']; why = ''
                    worst = max(abs(l - z[t][k]) for t, pos in enumerate(out) for k, l in pos['top'])
                    if len(out) != c.n_tokens: worst, why = math.inf, f'{len(out)} positions'
                ok = worst <= bound; good, bad = good + ok, bad + (not ok)
                print(f"{'ok  ' if ok else 'FAIL'} {c.name:20} {' '.join(extra) or 'default':8} max |dlogit| {worst:.2e} {why}", flush=True)
    print(f'{good} passed, {bad} failed'); return bad != 0


if __name__ == '__main__': sys.exit(main())
