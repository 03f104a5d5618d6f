#!/usr/bin/env python3
"""Two CSV files of the same settings side by side, as a Markdown table.

  join.py memtide.csv pytorch.csv

Rows belong together when their settings are equal (all but allocator, workspace_limit and graph); a script's own axes,
such as the engine of pytorch.py, give a line each. Figures are medians over repeats, with the range in brackets where
there are several. faster: step_ms of the second file over that of the first; memory: peak_bytes of the first over that
of the second; reserved: the same of reserved_bytes. The exit status is 1 when nothing could be joined.
"""
import argparse
import os
import statistics
import sys

from rows import KEYS, own_axes, read

SHOWN = ["model", "batch", "accumulate", "precision", "checkpoint", "mode"]


def grouped(path):
    """{settings: {own axes: [row, ...]}} of the rows with status ok; and how many had another status."""
    header, rows = read(path)
    axes, groups, left = own_axes(header), {}, 0
    for row in rows:
        if row["status"] != "ok":
            left += 1
            continue
        group = groups.setdefault(tuple(row[name] for name in KEYS), {})
        group.setdefault(" ".join(row[name] for name in axes if row[name]), []).append(row)
    return groups, left


def numbers(rows, column):
    return sorted(float(row[column]) for row in rows if row[column])


def ranged(middle, values, form):
    text = form.format(middle)
    if len(set(values)) > 1:
        text += f" ({form.format(min(values))}..{form.format(max(values))})"
    return text


def figure(rows, column, scale, form):
    values = [x * scale for x in numbers(rows, column)]
    return ranged(statistics.median(values), values, form) if values else ""


def ratio(over, under, column):
    """Median over median; the range is that of any two rows."""
    a, b = numbers(over, column), numbers(under, column)
    if not a or not b or min(b) <= 0:
        return ""
    return ranged(statistics.median(a) / statistics.median(b), [a[0] / b[-1], a[-1] / b[0]], "{:.2f}")


def lines(first, second, names):
    """One per pair of a row group of the first file and one of the second."""
    for key, ours in first.items():
        for our_axes, a in ours.items():
            for their_axes, b in second.get(key, {}).items():
                yield ([a[0][name] for name in SHOWN]
                       + [f"{names[0]} {our_axes}".strip(), f"{names[1]} {their_axes}".strip()]
                       + [figure(rows, "step_ms", 1, "{:.4g}") for rows in (a, b)] + [ratio(b, a, "step_ms")]
                       + [figure(rows, "peak_bytes", 2**-20, "{:.1f}") for rows in (a, b)]
                       + [ratio(a, b, "peak_bytes"), ratio(a, b, "reserved_bytes")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    args = parser.parse_args()
    names = [os.path.splitext(os.path.basename(path))[0] for path in (args.first, args.second)]
    (first, left_first), (second, left_second) = grouped(args.first), grouped(args.second)
    table = list(lines(first, second, names))
    if table:
        heads = SHOWN + ["first", "second", "step ms", "step ms, second", "faster", "peak MiB", "peak MiB, second",
                         "memory", "reserved"]
        print("| " + " | ".join(heads) + " |")
        print("|" + " --- |" * len(heads))
        for line in table:
            print("| " + " | ".join(line) + " |")
        print()
    for path, groups, others, left in ((args.first, first, second, left_first),
                                       (args.second, second, first, left_second)):
        alone = sum(key not in others for key in groups)
        print(f"{path}: {alone} of {len(groups)} settings have no partner; {left} rows have another status than ok")
    if not table:
        sys.exit(1)


if __name__ == "__main__":
    main()
