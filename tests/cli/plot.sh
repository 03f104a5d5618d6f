# memtide plot, tide and report: files, their checks, mistakes.
. tests/tap.sh
SCRIPT=$ROOT/experiments/article.lua RESULTS=$ROOT/experiments/results/article-cpu.csv

fails() { # status, part of the message, what, arguments...
    wanted=$1 part=$2 what=$3
    shift 3
    memtide "$@"
    is $status "$wanted" "$what"
    has "$err" "memtide: $part" "... $part"
}

# ---- pictures of a step
line=$(grep -n 'wrapped(nn.Conv2d(3, width' "$SCRIPT" | cut -d: -f1)
for kind in tide arena alive; do
    memtide plot $kind "$SCRIPT" --quiet -o $kind.svg
    is "$status$err$out" 0 "$kind: written, without a word"
    memtide plot $kind "$SCRIPT" --quiet
    is "$out" "$(cat $kind.svg)" "$kind: the same on standard output"
    has "$out" "<svg" "$kind: an SVG"
    has "$out" "article.lua:$line" "$kind: lines of the script"
done
memtide dump --plan "$SCRIPT" --quiet
peak=$(echo "$out" | sed -n 's/^ledger at the peak (\(.*\), allocator.*/\1/p')
has "$(cat tide.svg)" " MiB: $peak" "the tide names the op at the peak"
memtide plot tide "$SCRIPT" --case checkpointing --quiet
has "$out" "article: checkpointing" "--case chooses the cell"
memtide plot tide "$SCRIPT" --set framework=pytorch --quiet
has "$out" "aten::relu 1" "the tide of PyTorch's step"
memtide plot arena "$SCRIPT" --set framework=pytorch --quiet
has "$out" "222.0 MiB in 10 segments" "the arena of PyTorch's step: the segments of its allocator"

# ---- the step for PyTorch's memory_viz, and pictures of what it says
for framework in memtide pytorch; do
    memtide dump "$SCRIPT" --set framework=$framework --quiet --snapshot $framework.pickle
    is "$status$err$out" 0 "$framework: a snapshot, without a word"
    cp $framework.pickle before.pickle
    memtide dump "$SCRIPT" --set framework=$framework --quiet --snapshot $framework.pickle
    is "$(cmp before.pickle $framework.pickle 2>&1)" "" "... the same bytes again"
    for kind in tide arena alive; do
        memtide plot $kind $framework.pickle
        is "$status$err" 0 "$kind of a recording"
        has "$out" "$framework.pickle" "... with its name"
        has "$out" "there all the time" "... and what stays"
    done
done
memtide predict "$SCRIPT" --set framework=pytorch --quiet --json --case baseline
predicted=$(echo "$out" | head -n 1 | sed 's/.*"max_memory_allocated":\([0-9]*\).*/\1/')
memtide snapshot pytorch.pickle
has "$out" "max_memory_allocated          $predicted" "the peak in the snapshot is the predicted one"
has "$out" "replayed: 33 of 33 allocations at the recorded address" "... and its addresses are the allocator's"
fails 66 'cannot write nowhere/x.pickle: No such file' "a folder that is not there" dump "$SCRIPT" --quiet --snapshot nowhere/x.pickle
fails 66 'cannot write /dev/full: No space left' "a full disk" dump "$SCRIPT" --quiet --snapshot /dev/full
memtide dump "$SCRIPT" --set offload=all --quiet --perfetto trace.json
is "$status$err$out" 0 "a trace for Perfetto, without a word"
has "$(cat trace.json)" '"copies to and from the host"' "... with a track of copies"
has "$(cat trace.json)" 'not timed: an op is 1 us' "... and it says that nothing was timed"
fails 66 'cannot write nowhere/x.json: No such file' "a folder that is not there" dump "$SCRIPT" --quiet --perfetto nowhere/x.json
fails 66 'cannot write /dev/full: No space left' "a full disk" dump "$SCRIPT" --quiet --perfetto /dev/full
fails 2 'dump: expected --snapshot or --plan, found both' "two forms" dump "$SCRIPT" --snapshot x.pickle --plan

if command -v rsvg-convert >/dev/null; then
    memtide plot tide "$SCRIPT" --quiet -o "a 'b'.png"
    is "$status $(head -c 4 "a 'b'.png" | od -An -c | tr -d ' ')" '0 211PNG' "a PNG, whatever its name"
    is "$(ls | grep -c part)" 0 "nothing is left beside it"
else
    skip "a PNG" "no rsvg-convert"
fi
mkdir -p bin && ln -s "$(command -v cat)" bin/cat
PATH=$WORK/bin fails 66 'x.png: a .png needs rsvg-convert' "a PNG without a converter" plot tide "$SCRIPT" --quiet -o x.png

# ---- ranks
SEVERAL="$ROOT/experiments/parallel.lua --case ZeRO --set precision=fp32 --quiet"
memtide plot ranks $SEVERAL -o ranks.svg
is "$status$err$out" 0 "ranks: written, without a word"
memtide predict $SEVERAL --csv ranks.csv
mib=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "predicted_peak_bytes") at = i } NR == 2 { printf "%.1f MiB", $at / 1048576 }' ranks.csv)
has "$(cat ranks.svg)" "<text class=\"muted\" x=\"20\" y=\"125\">ranks 0 and 1</text>" "ranks: who has it"
has "$(cat ranks.svg)" ">$mib</text>" "... and what is predicted"
fails 66 'article: no cell that was chosen has several ranks' "a script of one rank" plot ranks "$SCRIPT" --quiet
memtide report ranks.csv "$ROOT/experiments/parallel.lua" --quiet
has "$out" "<h2>What each rank has at its peak</h2>" "the report has it"
memtide report ranks.csv "$SCRIPT" --quiet
result $(echo "$out" | grep -c "What each rank has") "... where a script has several ranks"

# ---- pictures of results
for kind in sweep pareto; do
    memtide plot $kind "$RESULTS" -o $kind.svg
    is "$status$err$out" 0 "$kind: written"
    has "$(cat $kind.svg)" "mixed precision" "$kind: with the cases"
done
for kind in sweep pareto; do
    memtide plot $kind "$RESULTS" -o $kind.vl.json
    is "$status$err$out" 0 "$kind: written for Vega-Lite"
    has "$(cat $kind.vl.json)" '"$schema":"https://vega.github.io/schema/vega-lite/v5.json"' "... says so"
done
fails 2 'plot: .vl.json is of sweep and pareto' "a tide for Vega-Lite" plot tide "$SCRIPT" -o x.vl.json
fails 66 'cannot write nowhere/x.vl.json: No such file' "a folder that is not there" plot sweep "$RESULTS" -o nowhere/x.vl.json
memtide plot sweep "$RESULTS" --x batch
has "$out" "memory and time over batch" "--x chooses the axis"

# ---- the terminal
export LC_ALL=C.UTF-8 TERM=xterm
memtide tide "$SCRIPT" --quiet
is $status 0 "the tide in a terminal"
has "$out" "█" "in block characters"
is "$(echo "$out" | grep -c "$(printf '\033')")" 0 "without colour where it is no terminal"
LC_ALL=C memtide tide "$SCRIPT" --quiet
is "$(LC_ALL=C grep -c '[^ -~]' out.txt)" 0 "in ASCII without UTF-8"
TERM=dumb memtide tide "$SCRIPT" --quiet
is "$(LC_ALL=C grep -c '[^ -~]' out.txt)" 0 "... and on a dumb terminal"
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then # it is there, and there are terminals
    escape=$(printf '\033')
    script -qec "'$MEMTIDE' tide '$SCRIPT' --quiet" /dev/null >colour.txt </dev/null
    has "$(cat colour.txt)" "$escape[38;5;" "colours on a terminal"
    NO_COLOR=1 script -qec "'$MEMTIDE' tide '$SCRIPT' --quiet" /dev/null >plain.txt </dev/null
    is "$(grep -c "$escape" plain.txt)" 0 "but not with NO_COLOR"
else
    skip "colours on a terminal" "no script(1), or no terminals"
fi

# ---- the report
memtide report "$RESULTS" "$SCRIPT" --quiet -o report.html
is "$status$err$out" 0 "the report is written"
for part in REPRODUCED REFUTED "memory against time" "Eager PyTorch: the tide" "the arena" "mixed precision"; do
    has "$(cat report.html)" "$part" "it has: $part"
done
is "$(grep -c 'src=\|href=\|@import\|url(http' report.html)" 0 "it loads nothing"

memtide report "$RESULTS" "$SCRIPT" --profile --steps 1 --quiet -o profiled.html
is "$status$err$out" 0 "a report that measures where the time goes"
for part in "Where the time goes" "a copy of memory that fits no cache" "conv2d_dw" "op by op" "bound by"; do
    has "$(cat profiled.html)" "$part" "it has: $part"
done
is "$(grep -c "Where the time goes" report.html)" 0 "which it has only where that was asked for"

# a browser, where there is one: every picture is there, a tip shows, rows sort and filter, no error
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
    cat >probe.html <<'END'
<script>window.addEventListener("load",function(){
var out=[document.querySelectorAll("figure svg").length],hit=document.querySelector("rect.hit"),box=hit.getBoundingClientRect();
hit.dispatchEvent(new MouseEvent("mousemove",{bubbles:true,clientX:box.left+1,clientY:9}));
var tip=document.getElementById("tip");out.push(tip.style.display,tip.textContent.split("\n")[0]);
var heads=document.querySelectorAll("#rows th button"),at=0;
heads.forEach(function(h,k){if(h.textContent==="step ms")at=k;});
heads[at].click();out.push(document.querySelector("#rows tbody tr").cells[0].textContent);
var f=document.getElementById("filter");f.value="amp_bf16";f.dispatchEvent(new Event("input"));
out.push(Array.from(document.querySelectorAll("#rows tbody tr")).filter(function(r){return !r.hidden;}).length);
document.body.setAttribute("data-probe",out.join("|"));});</script>
END
    { sed 's|<body>|<body><script>window.onerror=function(m){document.body.setAttribute("data-error",m);};</script>|' report.html
        cat probe.html; } >probed.html
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$WORK/chrome" --dump-dom \
        "file://$WORK/probed.html" >dom.txt 2>/dev/null
    quickest=$("$MEMTIDE" show "$RESULTS" --columns case --sort step_ms --json | sed -n '1s/.*"case":"\(.*\)".*/\1/p')
    is "$(grep -o 'data-probe="[^"]*"' dom.txt)" "data-probe=\"8|block|1 of 19: conv2d 0|$quickest|1\"" \
        "pictures, tips, order and filter in a browser"
    is "$(grep -c 'data-error=' dom.txt)" 0 "without an error"
else
    skip "the report in a browser" "no Chromium"
fi

# ---- names that mean harm
cat >evil.lua <<'END'
local mt = require "memtide"
return mt.experiment{name = "<b>&", cases = {{case = "<script>alert(1)<\u{2f}script>"}}, model = mt.nn.Linear(4, 2), input = {4},
  classes = 2, loss = mt.nn.CrossEntropyLoss(), batch = 2}
END
memtide predict evil.lua --quiet --csv evil.csv
memtide report evil.csv evil.lua --quiet
is $status 0 "a report of names that are markup"
is "$(echo "$out" | grep -c '<script>alert\|<b>')" 0 "which stay text"

# ---- mistakes
fails 2 'plot: expected a kind of picture (alive, arena, gradients, pareto, ranks, sweep, tide), found "tode" (did you mean "tide"?)' "a misspelt kind" \
    plot tode x.lua
fails 2 "plot: expected one script, found 0" "no script" plot tide
fails 2 "plot: expected one file of results, found 0" "no file" plot sweep
fails 2 'plot: --output: expected a name that ends in .svg, .png or .vl.json, found "x.jpg"' "another ending" plot tide "$SCRIPT" -o x.jpg
fails 2 'report: --output: expected a name that ends in .html' "another ending" report "$RESULTS" -o x.svg
fails 2 "report: --profile: expected a script" "a profile of a file" report "$RESULTS" --profile
fails 2 "report: --steps is of what --profile measures" "steps of nothing" report "$RESULTS" "$SCRIPT" --steps 3
fails 2 "report: --profile: PyTorch's step is predicted and never run" "a profile of PyTorch" report "$RESULTS" "$SCRIPT" --profile \
    --set framework=pytorch --quiet
fails 2 "report: expected a file of results" "a report of nothing" report
fails 2 "plot: --set is of a script, x.pickle is a recording" "a setting of a recording" plot tide x.pickle --set batch=3
fails 2 "plot: --gpu is of a recording" "a GPU of a script" plot tide "$SCRIPT" --gpu 1
fails 2 'plot: expected one recording, found 2' "two recordings" plot tide x.pickle y.pickle
fails 66 "cannot open none.pickle" "a recording that is not there" plot tide none.pickle
fails 2 "plot: --x is of sweep" "an axis of a step" plot tide "$SCRIPT" --x batch
fails 2 'unknown option --kase (did you mean "case"?)' "a misspelt option of a file" plot sweep "$RESULTS" --kase 1
fails 2 'unknown option --kase (did you mean "case"?)' "... of a report" report "$RESULTS" --kase 1
fails 2 'unknown option --kase (did you mean "case"?)' "... with a script" report "$RESULTS" "$SCRIPT" --kase 1
fails 66 'cannot open "none.csv"' "a file that is not there" plot sweep none.csv
head -1 "$RESULTS" >empty.csv
fails 66 "empty.csv: there are no rows" "a file without rows" plot sweep empty.csv
echo "a,b" >other.csv
fails 65 '"other.csv", line 1: no results of memtide' "a file of something else" report other.csv
fails 66 "evil.csv: no cell has both memory and time" "no times" plot pareto evil.csv
finish
