# memtide new: scripts to start from; which scripts are here; a script that cannot be read.
. tests/tap.sh

for file in "$ROOT"/experiments/start/*.lua; do
    kind=$(basename "$file" .lua)
    memtide new "my-$kind" --from $kind
    is $status 0 "$kind: a script is written"
    is "$err" "memtide: wrote my-$kind.lua; next: memtide predict my-$kind.lua" "$kind: and what to type next"
    is "$(grep -c NAME "my-$kind.lua")" 0 "$kind: with its name"
    memtide predict "my-$kind.lua" --quiet
    is $status 0 "$kind: it predicts"
    has "$out" predicted "$kind: a table"
done
memtide run my-mlp.lua --quick --steps 1 --set batch=64 --quiet
is $status 0 "a start runs"
is "$(wc -l <my-mlp.csv)" 3 "with a row for each setting"
memtide new other
is "$(sed 's/other/my-cnn/g' other.lua)" "$(cat my-cnn.lua)" "cnn is what is written without --from"
cp other.lua before.lua
memtide new other --from gpt
is $status 66 "a script that is there stays"
is "$err" "memtide: new: other.lua is there already" "with that reason"
is "$(cat other.lua)" "$(cat before.lua)" "as it was"
memtide new 'a b'
is $status 2 "a name of other letters is refused"
memtide new x --from rnn
is "$err" 'memtide: --from: expected cnn, gpt, mlp, pytorch, found "rnn"' "starts are listed"
memtide new
is "$err" "memtide: new: expected one name, found 0" "a name is needed"

mkdir -p here && cd here || exit 1
memtide predict
is "$err" "memtide: predict: expected one script, found 0" "no script, and none is here"
memtide new a
memtide new b --from mlp
echo 'print "no experiment"' >c.lua
mkdir d.lua
memtide predict
is $status 2 "no script is named"
is "$err" "memtide: predict: expected one script, found 0; in this folder: a.lua, b.lua" "but some are here"
memtide predict missing.lua
is "$err" 'memtide: cannot open the script "missing.lua": No such file or directory' "a script that is not there, with the reason"
finish
