"""memtide from Python: the program is in this package, and rows of results are dictionaries.

    import memtide, pandas
    rows = memtide.predict("hello.lua", set={"batch": [16, 32, 64]})
    frame = pandas.DataFrame(rows)
"""
import json
import os
import subprocess
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "memtide")
RESULTS = (0, 1, 5, 6)  # exit statuses with which there are rows: done, a failed cell, claims that are not reproduced


class MemtideError(RuntimeError):
    """The program's message; `status` is its exit status."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


def _rows(command, script, set, options):
    words = [PROGRAM, command, os.fspath(script), "--json", "--quiet"]
    for name, values in (set or {}).items():
        several = isinstance(values, (list, tuple, range))
        words += ["--set", f"{name}=" + ",".join(map(str, values if several else [values]))]
    for name, value in options.items():
        if value is not False and value is not None:
            words += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in RESULTS:
        raise MemtideError(done.stderr.strip(), done.returncode)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [row for row in found if "cell" in row]  # verdicts on claims are objects, too


def predict(script, set=None, **options):
    """The rows of `memtide predict`: a dictionary for each cell, by the columns of `memtide help columns`; bytes and times
    are numbers. set: {"batch": [16, 32]}, as --set. options: others of the command, memory="8GiB" as --memory 8GiB; True
    for a switch. Raises MemtideError."""
    return _rows("predict", script, set, options)


def run(script, set=None, **options):
    """The rows of `memtide run`, which go to NAME.csv, too, unless csv says otherwise."""
    return _rows("run", script, set, options)


def main():
    """The program itself, with this process's arguments."""
    os.execv(PROGRAM, [PROGRAM] + sys.argv[1:])
