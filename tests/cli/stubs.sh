# memtide stubs: the annotations of editors, and the settings that point to them.
. tests/tap.sh

memtide stubs
is $status 0 "annotations are written"
is "$(head -1 .memtide/memtide.lua)" "---@meta memtide" "for require \"memtide\""
is "$(head -1 .memtide/memtide/digits.lua)" "---@meta memtide.digits" "and for its digits"
is "$(cat .luarc.json)" '{"runtime.version":"Lua 5.4","workspace.library":[".memtide"]}' "settings name the folder"
echo '{"own": true}' >.luarc.json
memtide stubs -o 'other "folder"'
is "$(cat .luarc.json)" '{"own": true}' "settings that are there stay"
has "$err" '.luarc.json is there already: its "workspace.library" must name "other "folder""' "and the reader is told what to write"
is "$(cat 'other "folder"/memtide.lua')" "$(cat .memtide/memtide.lua)" "the same in any folder"
rm .luarc.json
memtide stubs -o 'other "folder"' --quiet
has "$(cat .luarc.json)" '["other \"folder\""]' "a folder's name is quoted"
is "$err" "" "without a word"
memtide stubs somewhere
is $status 2 "a word is refused"
echo >file
memtide stubs -o file
is $status 66 "a folder that is a file is refused"

finish
