"""`python -m tests.warm`: a process that has imported torch and scanforge, and forks once for each program.

It reads requests from stdin, each a line of JSON: the program's words, its folder, its environment and where
its streams lead. The fork runs the program as a new process would, with modules that are there already, and
leaves without taking them apart; the answer is a line with its exit status. What asks is
`tests.subprocesses.run_warm`.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import sys
import threading
from types import ModuleType
from typing import Any


def serve() -> None:
    import sympy  # noqa: F401
    import torch  # noqa: F401

    import models  # noqa: F401
    import scanforge  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(json.loads(line))
            _leave()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Run the program; what it raises ends the process as it ends any."""
    signal.alarm(request["timeout"])
    os.environ.clear()
    os.environ.update(request["environment"])
    own, wanted = os.getcwd(), os.environ.get("PYTHONPATH")
    sys.path[1:] = [*([wanted] if wanted else []), *(x for x in sys.path[1:] if x != own)]
    os.chdir(request["cwd"])
    for stream, file in enumerate(request["streams"]):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), stream)
    try:
        _run(*request["words"])
    except SystemExit as left:
        if left.code:
            raise


def _run(first: str, *rest: str) -> None:
    sys.path[0] = os.path.dirname(os.path.abspath(first)) if first.endswith(".py") else ""
    if first == "-c":
        code, *rest = rest
        sys.argv, sys.modules["__main__"] = ["-c", *rest], ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif first == "-m":
        sys.argv = [*rest]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _leave() -> None:
    """What Python does at the end, but for half a second in which torch's modules are taken apart."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve()
