# Files that version 0.1.0+d97c38b wrote (tests/cli/older) are read, gone on with and merged. They were made by
#   memtide run older.lua --memory 1MB; a second later with --case fine --retry all; with --retry error
#   memtide predict older.lua --memory 1MB --csv predicted.csv
. tests/tap.sh
cp "$ROOT"/tests/cli/older/* .

value() { # COLUMN LINE FILE
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
run() { memtide run older.lua --memory 1MB "$@"; }

memtide predict older.lua --memory 1MB --csv - -q
now=$(echo "$out" | head -1)
is "$(head -1 older.csv | tr ',' '\n' | grep -vxF "$(echo "$now" | tr ',' '\n')")" "" "no column of theirs is gone"
is "$(test "$now" = "$(head -1 older.csv)" || echo others)" others "and there are others"

# ---- read
memtide verify older.csv
is "$status $out" "0 older.csv: 14 rows, 4 of them replaced by later ones, 42 samples: nothing found" "verify"
memtide verify predicted.csv
is "$status $out" "0 predicted.csv: 10 rows, 0 samples: nothing found" "verify of predictions"
memtide status older.lua --memory 1MB
has "$out" "10 cells: 0 done, 2 failed (2 error), 8 stale (8 another version), 0 missing" "status knows each cell by its id"
memtide watch older.csv --once
has "$err" "2 ok, 2 oom, 2 skipped, 2 diverged, 2 error" "watch counts the statuses as they are called now"
memtide compare older.csv older.csv
is "$status $(echo "$out" | grep -c 'diverged')" "0 2" "compare"
sed '1s/,peak_op,/,peak,/' older.csv >damaged.csv
memtide verify damaged.csv
has "$out" "damaged.csv:1: peak: column 37: expected peak_op, found peak" "a header that is damaged"
run --csv damaged.csv
is "$status $err" '65 memtide: "damaged.csv": column 37 is "peak", expected "peak_op"' "is refused"
sed '3s/,planned,/,/' older.csv >damaged.csv
run --csv damaged.csv
is "$status $err" '65 memtide: "damaged.csv" line 3: expected 49 fields, found 48' "as is a row"

# ---- gone on with
cp older.csv whole.csv
head -1 older.samples.csv >samples.header
run --retry none --json -q
is "$(cmp older.csv whole.csv && echo same)" same "every cell has its row"
is "$(echo "$out" | grep -c '"status":"diverged"')" 2 "whose status is called as it is now"
run --retry nan -q
is "$(wc -l <older.csv) $(tail -2 older.csv | grep -c ,diverged,)" "17 2" "--retry nan means diverged"
run -q
is "$(head -1 older.csv)" "$(head -1 whole.csv)" "a file that is gone on with keeps its header"
is "$(head -15 older.csv | cmp - whole.csv && echo same)" same "and its rows"
is "$(head -1 older.samples.csv | cmp - samples.header && echo same)" same "so does that of samples"
is "$(wc -l <older.csv)" 25 "after them are those that were run again: 8 of 10"
memtide verify older.csv
is "$(echo "$out" | tail -1)" \
    "older.csv: 24 rows, 14 of them replaced by later ones, $(rest() { tail -n +2 "$1"; }; rest older.samples.csv |
        wc -l) samples: nothing found" "in its columns"
memtide predict older.lua --memory 1MB --csv predicted.csv --retry none --json -q
is "$(echo "$out" | grep -c '"status":"predicted"') $(wc -l <predicted.csv)" "4 11" "predictions were called ok"

# ---- merged
memtide merge merged.csv whole.csv
is "$(head -1 merged.csv)" "$(head -1 older.csv | sed 's/,driver,/,driver,emulated,/; s/,samples_per_s,/,graph_ms,samples_per_s,/')" "merge gives today's columns"
is "$(cut -d, -f20 merged.csv | sort | uniq -c | tr -s ' \n' ' ')" \
    " 2 diverged 2 error 2 ok 2 oom 2 skipped 1 status " "and today's statuses"
is "$(value emulated 2 merged.csv) $(value version 2 merged.csv)" " 0.1.0+d97c38b" "what was not known is empty"
memtide verify merged.csv
is "$status" 0 "and verify finds nothing"
run --csv merged.csv -q
is "$(value version 12 merged.csv)" "$("$MEMTIDE" --version | cut -d' ' -f2)" "it is gone on with, too"
sed '1s/,width,/,emulated,/' whole.csv >named.csv
memtide merge again.csv named.csv
is "$status $err" '65 memtide: "named.csv", line 1: axis "emulated": every result has a column of that name already' \
    "an axis that is called as a later column is refused"

finish
