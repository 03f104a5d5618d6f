"""memtide's CSV files in Python: the columns, and which of them make two rows comparable."""
import csv
import os

WHAT = ["experiment", "case", "cell", "repeat"]
SETTINGS = ["model", "device", "batch", "accumulate", "effective_batch", "precision", "checkpoint", "inplace", "mode",
            "optimizer", "allocator", "workspace_limit", "graph"]
RESULTS = ["status", "reason", "predicted_peak_bytes", "lower_bound_bytes", "peak_bytes", "allocated_bytes",
           "reserved_bytes", "device_used_bytes", "untracked_bytes", "weights_bytes", "gradients_bytes",
           "optimizer_bytes", "activations_bytes", "activation_gradients_bytes", "input_bytes", "workspace_bytes",
           "other_bytes", "peak_op", "steps", "step_ms", "step_ms_min", "step_ms_p90", "graph_ms", "samples_per_s",
           "loss_first", "loss_last", "seed", "device_name", "driver", "emulated", "version", "started_at"]
LATER = {"emulated", "graph_ms"}  # files of earlier versions lack it
# Two programs under these do the same work; how they do it is what they are compared in.
HOW = ("allocator", "workspace_limit", "graph")
KEYS = [name for name in SETTINGS if name not in HOW]


def columns(*axes):
    """The header: a script's own axes stand after the settings."""
    return WHAT + SETTINGS + list(axes) + RESULTS


def own_axes(header):
    known = set(columns())
    return [name for name in header if name not in known]


def read(path):
    """The header and the rows; of several rows of one cell and repeat, the last one counts."""
    with open(path, newline="") as f:
        reader = csv.DictReader(f)
        header, rows = reader.fieldnames or [], {}
        missing = [name for name in WHAT + KEYS + RESULTS if name not in header and name not in LATER]
        if missing:
            raise SystemExit(f"{path}: not a CSV of memtide: no column {missing[0]}")
        axes = own_axes(header)
        for row in reader:
            if None in row or None in row.values():
                raise SystemExit(f"{path}:{reader.line_num}: expected {len(header)} values")
            rows[tuple(row.get(name) for name in WHAT + SETTINGS + axes)] = row
    return header, list(rows.values())


class Writer:
    """Appends rows to a file of this header, a line at a time; one of an earlier version keeps its own."""

    def __init__(self, path, header):
        self.path, self.header, self.rows = path, header, []
        if os.path.exists(path) and os.path.getsize(path):
            found, self.rows = read(path)
            if found == [name for name in header if name not in LATER]:
                self.header = found
            elif found != header:
                raise SystemExit(f"{path}: other columns are there already: {', '.join(found)}")
        else:
            self.append_line(header)

    def append_line(self, values):
        with open(self.path, "a", newline="") as f:
            csv.writer(f, lineterminator="\n").writerow(values)

    def append(self, row):
        self.append_line([row.get(name, "") for name in self.header])
