# The README's example: its script runs, and its row says what memtide says.
. tests/tap.sh

# The text between ``` and the next ```
fence() { awk -v what="^\`\`\`$1\$" '$0 ~ what { on = 1; next } /^```/ { on = 0 } on' "$ROOT/README.md"; }

fence lua >hello.lua
fence csv >shown.csv
is "$(wc -l <hello.lua)" 12 "the script has 12 lines"
memtide predict hello.lua --csv predicted.csv
is $status 0 "it can be predicted"
is "$(sed -n 1p shown.csv)" "$(sed -n 1p predicted.csv)" "the header that the README shows is the header"

value() {
    awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR == 2 { print $at }' "$2"
}
for name in experiment batch precision predicted_peak_bytes lower_bound_bytes weights_bytes gradients_bytes \
    optimizer_bytes activations_bytes activation_gradients_bytes input_bytes workspace_bytes other_bytes peak_op; do
    is "$(value $name shown.csv)" "$(value $name predicted.csv)" "the README's $name"
done
is "$(value status shown.csv) $(value status predicted.csv)" "ok predicted" "the one was run, the other predicted"
is "$(value peak_bytes shown.csv)" "$(value predicted_peak_bytes predicted.csv)" "and its measured peak"
finish
