#!/usr/bin/env python3
"""Compare `laconic template` with Python's jinja2 on random templates.

usage: compare_jinja.py LACONIC N [SEED]
Each case is a small template and a JSON object of variables. Both must print the same text, or both must fail.
Needs jinja2 (3.1). A failing case prints its seed; run it alone with N = 1 and that seed.
"""
import json, os, random, subprocess, sys, tempfile

import jinja2
import jinja2.ext


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


WORDS = ["", "a", "B", "user", "hello world", "  pad\t", "x,y,,z", "Ünï çødé", "日本語", "😀 ok", "it's", 'say "hi"', "line\nbreak\r\n",
         "tab\t", "back\\slash", "<|im_end|>", "1", "-3", "2.5", "aaa", "\u200b", "\u00a0nb", "{}", "%s", "A-b c_d", "&<>"]
NAMES = ["s", "t", "n", "m", "f", "b", "l", "d", "rows", "nothing", "missing", "u"]


class Make:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        return self.r.choice(WORDS) if self.r.random() < 0.8 else "".join(self.r.choice("ab .-\n'\"é本😀") for _ in range(self.r.randrange(9)))

    def data(self, depth=0):
        r = self.r
        k = r.randrange(9 if depth < 3 else 6)
        if k == 0: return None
        if k == 1: return r.random() < 0.5
        if k == 2: return r.randrange(-20, 50)
        if k == 3: return round(r.uniform(-100, 100), r.randrange(4)) * 10 ** r.choice([0, 0, 0, 5, 16, -6])
        if k < 6: return self.text()
        if k < 8: return [self.data(depth + 1) for _ in range(r.randrange(4))]
        return {r.choice(["a", "b", "c", "items", "x y", "é"]): self.data(depth + 1) for _ in range(r.randrange(4))}

    def variables(self):
        r = self.r
        return {"s": self.text(), "t": self.text(), "n": r.randrange(-9, 30), "m": r.randrange(0, 5), "f": round(r.uniform(-9, 9), 2),
                "b": r.random() < 0.5, "l": [self.data(1) for _ in range(r.randrange(5))], "d": {w: self.data(1) for w in ["a", "b", "c"][:r.randrange(4)]},
                "rows": [{"role": r.choice(["user", "assistant"]), "content": self.text(), "k": r.randrange(5)} for _ in range(r.randrange(5))],
                "nothing": None, "u": [r.randrange(9) for _ in range(r.randrange(6))]}

    def literal(self):
        r = self.r
        k = r.randrange(8)
        if k < 3: return repr_string(self.text(), r)
        if k == 3: return str(r.randrange(0, 12))
        if k == 4: return r.choice(["1.5", "0.1", "2.0", "1e3", "1_000", "0x1f", "1e20", "3.0e-7"])
        if k == 5: return r.choice(["true", "False", "none", "None", "True"])
        if k == 6: return "[" + ", ".join(self.expr(3) for _ in range(r.randrange(3))) + "]"
        return "{" + ", ".join(f"{repr_string(self.text(), r)}: {self.expr(3)}" for _ in range(r.randrange(3))) + "}"

    def expr(self, depth=0):
        r = self.r
        if depth > 3 or r.random() < 0.2: return r.choice(NAMES) if r.random() < 0.65 else self.literal()
        e = lambda: self.expr(depth + 1)
        k = r.randrange(17)
        if k == 0: return f"({e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~'])} {e()})"
        if k == 1: return f"{r.choice(['n', 'm', 'f', '3', '4'])} {r.choice(['+', '-', '*', '/', '//', '%', '**'])} {r.choice(['n', 'm', 'f', '2', '7'])}"
        if k == 2: return f"({e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()})"
        if k == 3: return f"(n {r.choice(['<', '<='])} m {r.choice(['<', '<=', '!='])} {r.randrange(9)})"
        if k == 4: return f"({e()} {r.choice(['and', 'or'])} {e()})"
        if k == 5: return f"(not {e()})"
        if k == 6: return f"({e()} if {e()} else {e()})"
        if k == 7: return f"({r.choice(['s', 't', 'l', 'u', 'rows', repr_string(self.text(), r), 'range(7)'])}[{self.index()}:{self.index()}{r.choice(['', ':' + self.index()])}])"
        if k == 8: return f"{r.choice(['l', 'd', 's', 'rows', 'u'])}[{r.choice(['0', '-1', '1', '9', repr_string('a', r), 'n'])}]"
        if k == 9: return f"(d.{r.choice(['a', 'b', 'zz'])})"
        if k in (10, 11): return f"({e()} is {r.choice(['', 'not '])}{self.test()})"
        if k in (12, 13, 14): return f"({e()} | {self.filter(depth)})"
        return self.method(depth)

    def index(self):
        return self.r.choice(["", "", "0", "1", "2", "-1", "-3", "5", "100"])

    def test(self):
        r = self.r
        return r.choice(["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false",
                         "callable", "odd", "even", "divisibleby 3", "divisibleby(2)", "eq 1", "equalto 'a'", "ne n", "lt 5", "gt(2)", "ge 0", "in [1, 'a', none]", "upper", "lower", "sameas true"])

    def filter(self, depth):
        r = self.r
        q = lambda: repr_string(self.text(), r)
        return r.choice([
            "trim", "upper", "lower", "title", "capitalize", "length", "count", "string", "list", "first", "last", "reverse | list", "reverse | join('|')", "int", "float", "abs",
            "int(7)", "int(default=5)", "float(1.5)", "round", "round(1)", "round(1, 'floor')", "round(method='ceil')", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=True)",
            "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "tojson(indent=1, sort_keys=True)", f"join({q()})", "join", f"replace({q()}, {q()})", f"replace({q()}, {q()}, 1)", f"default({q()})", "d(3, true)",
            "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "unique | list", "dictsort", "dictsort(by='value')", "dictsort(reverse=true)", "items | list", "min", "max", "sum",
            "sum(start=2)", "batch(2) | list", "batch(3, 'x') | list", "slice(2) | list", "map('upper') | list", "map('string') | join(',')", "map(attribute='role') | list", "map(attribute='zz', default='-') | list",
            "select | list", "reject | list", "select('string') | list", "select('gt', 2) | list", "reject('none') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('k') | list", "selectattr('k', 'in', [1, 2]) | map(attribute='content') | join('/')",
            "groupby('role') | list", "sort(attribute='k')", "sort(attribute='role,k')", "map(attribute='k') | sum", "max(attribute='k')", "unique(attribute='role') | list", "indent", "indent(2, true)", "indent('> ', blank=true)",
            "wordcount", "urlencode", "e | string", "center(12)", "truncate(8)", "truncate(5, true, '..', 0)", f"trim({q()})", "safe", "escape | length", "format(n, s)", "attr('a')"])

    def method(self, depth):
        r = self.r
        q = lambda: repr_string(self.text(), r)
        s = r.choice(["s", "t", repr_string(self.text(), r)])
        return r.choice([
            f"{s}.upper()", f"{s}.lower()", f"{s}.title()", f"{s}.capitalize()", f"{s}.swapcase()", f"{s}.strip()", f"{s}.strip({q()})", f"{s}.lstrip()", f"{s}.rstrip('\\n')", f"{s}.split()", f"{s}.split({q()})", f"{s}.split(' ', 1)", f"{s}.split(none, 1)",
            f"{s}.rsplit({q()}, 1)", f"{s}.rsplit(none, 1)", f"{s}.rsplit()", f"{s}.splitlines()", f"{s}.splitlines(true)", f"{s}.startswith({q()})", f"{s}.endswith(({q()}, {q()}))", f"{s}.find({q()})", f"{s}.rfind({q()}, 1)", f"{s}.find({q()}, -3, 9)", f"{s}.count({q()})", f"{s}.replace({q()}, {q()})",
            f"{s}.replace({q()}, {q()}, 2)", f"{s}.partition({q()})", f"{s}.rpartition({q()})", f"{s}.join(['a', {q()}])", f"{s}.isdigit()", f"{s}.isalpha()", f"{s}.isalnum()", f"{s}.isspace()", f"{s}.isupper()", f"{s}.islower()", f"{s}.zfill(6)", f"{s}.ljust(6, '.')",
            f"{s}.rjust(7)", f"{s}.center(9, '*')", f"{s}.center(6)", f"{s}.removeprefix({q()})", f"{s}.removesuffix({q()})", f"{s}.index({q()})", f"'{{}}-{{}}'.format({q()}, n)", "'{0}{a}{0!r}'.format(s, a=d)", "'{x[a]}'.format(x=d)", "'%s %d|%5.1f|%-5s|%05d|%x' % (s, n, f, t, n, m)", "'%r' % s", "'%s' % n",
            "d.get('a')", f"d.get({q()}, 'dflt')", "d.items() | list", "d.keys()", "d.values() | list", "d.items()", "d.copy()", "l.index(1)", "u.count(3)", "l.copy()", "rows[0].content", "(l + u)", "(u * 2)", "range(m)", "range(n, m, -2) | list", "dict(a=1, b=s)", "(1, s)", "(n,)", "s[::-1]", "-n | abs", "2 ** m", "n | string | length"])

    def target(self):
        return self.r.choice(["x", "x", "y"])

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randrange(1, 4)))

    def space(self):
        return self.r.choice(["", " ", "\n", "  \n ", "\n\n", "text ", "é\n", "\t"])

    def tag(self, inside):
        r = self.r
        return "{%" + r.choice(["", "", "-", "+"]) + " " + inside + " " + r.choice(["", "", "-", "+"]) + "%}"

    def statement(self, depth=0):
        r, sp, tag = self.r, self.space, self.tag
        k = r.randrange(20) if depth < 3 else r.randrange(9)
        e = lambda: self.expr(1)
        if k < 5: return sp() + "{{" + r.choice(["", "-"]) + " " + e() + " " + r.choice(["", "-"]) + "}}" + sp()
        if k == 5: return sp() + tag(f"set {self.target()} = {e()}") + sp() + "{{ x }}"
        if k == 6: return sp() + "{#" + r.choice(["", "-"]) + " note " + r.choice(["", "-"]) + "#}" + sp()
        if k == 7: return sp()
        if k == 8: return sp() + tag(f"set x, y = {e()}, {e()}") + sp() + "{{ y }}"
        b = lambda: self.body(depth + 1)
        if k < 12: return sp() + tag(f"if {e()}") + b() + r.choice(["", tag(f"elif {e()}") + b()]) + r.choice(["", tag("else") + b()]) + tag("endif") + sp()
        if k < 16:
            over = r.choice(["l", "u", "rows", "d", "range(4)", "s", e(), "d.items()", "rows | reverse", "u | sort"])
            loop = r.choice(["{{ loop.index }}", "{{ loop.first }}{{ loop.last }}", "{{ loop.length - loop.revindex0 }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.changed(x) }}", "", "{{ x }}", "{{ loop.index0 }}/{{ loop.revindex }}"])
            stop = r.choice(["", "", tag(f"if {e()}") + tag(r.choice(["break", "continue"])) + tag("endif")])
            return sp() + tag(f"for {r.choice(['x', 'x', 'x, y'])} in {over}{r.choice(['', '', f' if {e()}'])}") + loop + stop + b() + r.choice(["", tag("else") + b()]) + tag("endfor") + sp()
        if k == 16: return tag(f"macro mac(p, q={e()})") + "[{{ p }}{{ q }}" + b() + "]" + tag("endmacro") + "{{ mac(" + r.choice(["1", "s, 2", "q=3", "p=n", "1, 2, 3", ""]) + ") }}"
        if k == 17: return tag("set ns = namespace(v=0)") + tag(f"for x in {r.choice(['u', 'l'])}") + tag(r.choice(["set ns.v = x", "set ns.v = ns.v + 1"])) + tag("endfor") + "{{ ns.v }}" + sp()
        if k == 18: return r.choice([tag("set x") + b() + tag("endset") + "{{ x | length }}", tag("filter upper") + b() + tag("endfilter"), tag(f"with x = {e()}") + b() + tag("endwith"), tag("set x | trim | upper") + b() + tag("endset") + "[{{ x }}]"])
        return tag("macro wrap(z='')") + "<{{ caller() }}>" + tag("endmacro") + tag("call wrap()") + b() + tag("endcall")


def repr_string(s, r):
    q = r.choice("'\"")
    out = s.replace("\\", "\\\\").replace(q, "\\" + q)
    return q + (out.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") if r.random() < 0.9 or "\r" in out else out) + q


# Printed forms that name Python's own objects; nobody relies on them.
OBJECTS = ("<generator", "<bound method", "<built-in", "<function", " object at 0x", "<class ", "Undefined", "<list_reverse", "<Macro", "<LoopContext", "<Namespace", "<Cycler", "Markup(")


def run(exe, env, path, seed):
    m = Make(seed)
    data = m.variables()
    source = m.body(0) if m.r.random() < 0.6 else "{{ " + m.expr() + " }}"
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(source)
    try:
        want, why = env.from_string(source).render(**json.loads(json.dumps(data))), None
    except RecursionError:
        return None
    except Exception as e:
        want, why = None, f"{type(e).__name__}: {e}"
    p = subprocess.run([exe, "template", path], input=json.dumps(data).encode(), capture_output=True, timeout=60)
    got, err = p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace").strip()
    if p.returncode not in (0, 1) or (p.returncode == 1 and not err):
        return f"exit {p.returncode} {err}", source, data, want, got
    if want is None: return ("python fails", source, data, why, got) if p.returncode == 0 else True
    if any(o in want for o in OBJECTS) or "64 bits" in err or "complex numbers" in err: return None
    if p.returncode != 0: return "laconic fails: " + err, source, data, want, got
    return True if got == want else ("text differs", source, data, want, got)


def main():
    exe, n = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 40)
    env, same, skipped, bad = environment(), 0, 0, 0
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.jinja")
        for i in range(n):
            r = run(exe, env, path, seed + i)
            if r is True: same += 1
            elif r is None: skipped += 1
            else:
                bad += 1
                if bad <= 10: print(f"seed {seed + i}: {r[0]}\n  template {r[1]!r}\n  data {json.dumps(r[2])}\n  want {r[3]!r}\n  got  {r[4]!r}")
    print(f"{same} equal, {skipped} skipped, {bad} differ")
    return 1 if bad or same < n // 2 else 0


if __name__ == "__main__":
    sys.exit(main())
