# Prints what it knows of its own code objects, one JSON list a line, and waits until standard input ends.
import dis, gc, json, sys, threading, types

MODULES = """
argparse asyncio calendar collections configparser contextlib csv dataclasses decimal difflib dis email.message enum
functools html.parser http.client inspect json locale logging pickle pydoc random re sched socket sqlite3 statistics
string subprocess tempfile textwrap tokenize typing unittest.mock urllib.request xml.dom.minidom zipfile
""".split()
for name in MODULES:
    try:
        __import__(name)
    except ImportError:
        pass

exec(compile("def f\xfcr_\xe4lle():\n  return 1\n", "l\xe4tin.py", "exec"))
exec(compile("def \u540d\u524d():\n  return 1\n", "/tmp/\u540d\u524d.py", "exec"))
exec(compile("def \U00020000\u540d():\n  return 1\n", "/tmp/\U0001f40d.py", "exec"))
exec(compile("\n" * 300 + "def far(a):\n  x = a\n" + "\n" * 5000 + "  y = x\n" + "  z = [\n a\n" + "\n" * 200 + ", x]\n  return z\n", "far.py", "exec"))
exec(compile("def wide():\n  return (" + "x +\n  " * 300 + "x)\n", "wide.py", "exec"))
exec(compile("def " + "n" * 600 + "(): pass\n", "d" * 3000 + ".py", "exec"))
exec(compile("\n".join("x%d = %d" % (i, i) for i in range(3000)), "module.py", "exec"))

class Outer:
    class Inner:
        def method(self):
            return [lambda: x for x in range(3)]

found = {}

def add(code):
    if id(code) not in found:
        found[id(code)] = code
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                add(constant)

for thing in gc.get_objects():
    try:
        code = getattr(thing, "__code__", None)
    except Exception:
        continue
    if isinstance(code, types.CodeType):
        add(code)
frame = sys._getframe()
add(frame.f_code)

def lines_of(code):
    """Pairs of the first instruction behind a run and its line, 0 for none, in the units of the version."""
    runs = []

    def push(end, line):
        line = line or 0
        if runs and runs[-1][1] == line:
            runs[-1][0] = end
        else:
            runs.append([end, line])

    if sys.version_info >= (3, 10):
        for start, end, line in code.co_lines():
            if end > start:
                push(end // 2, line)
    else:
        starts = list(dis.findlinestarts(code))
        ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
        for (_, line), end in zip(starts, ends):
            push(end, line)
    return runs

ready = threading.Barrier(4)
end = threading.Event()
def wait():
    ready.wait()
    end.wait()
for _ in range(3):
    threading.Thread(target=wait, daemon=True).start()
ready.wait()

out = sys.stdout
out.write(json.dumps([list(sys.version_info[:3]), [it.ident for it in threading.enumerate()]]) + "\n")
for code in list(found.values()):
    name = getattr(code, "co_qualname", code.co_name)
    out.write(json.dumps([id(code), name, code.co_filename, code.co_firstlineno, lines_of(code)]) + "\n")
out.write("[]\n")
out.flush()
sys.stdin.read()
