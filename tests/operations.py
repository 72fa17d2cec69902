"""How much work something is, without a clock: the same on every machine, however busy it is."""

import sys


def operations(work):
    """How many operations of Python a piece of work takes, in any module: a loop over clients shows.

    Count twice and take the second: since Python 3.12 a function is traced in full only after it was traced once.
    """
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
