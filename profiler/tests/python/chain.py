"""Comes to `leaf` by recursion and through functions that are written in C, says by which way, and stays there."""

import json
import re
import sys
import threading


def leaf():
    chain = []
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        chain.append([name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    print(json.dumps(chain), flush=True)
    while True:
        pass


class Service:
    def matched(self, match):
        leaf()

    def key(self, item):
        return re.sub("a", self.matched, item)

    def handle(self, depth):
        if depth > 0:
            return self.handle(depth - 1)
        return sorted(["a", "b"], key=self.key)


def generator():
    yield Service().handle(3)


def main():
    for _ in generator():
        pass


if "deep" in sys.argv:
    # Deeper than a walk goes.
    Service().handle(600)
elif "thread" in sys.argv:
    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join()
else:
    exec(compile("main()", "<made>", "exec"))
