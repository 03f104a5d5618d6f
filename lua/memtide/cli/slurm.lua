-- memtide slurm: a sweep as an array of Slurm jobs. Writes the list of cells with their parts, a script for the array,
-- one for the merge after it, and one that submits both. It submits nothing itself.
local cell_list = require "memtide.sweep.cell_list"
local core = require "memtide.core"
local options = require "memtide.cli.options"
local util = require "memtide.base.util"

local slurm = {words = "SCRIPT [-- ARGS]", text = "the parts as an array of Slurm jobs: a folder of scripts to submit"}

local WARNING = 120 -- seconds before the time limit
local REQUEUES = 20 -- times that a part puts itself into the queue again

local function quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Options of sbatch, for each part
local SBATCH = {
  {name = "time", argument = "T", text = "the time limit of a part, as sbatch has it"},
  {name = "partition", argument = "NAME", text = "where the jobs run"},
  {name = "gres", argument = "LIST", text = "what a part needs, such as gpu:1"},
}
slurm.options = {options.ROWS, options.try_oom, options.PARTS, SBATCH}
local OWN = {quiet = true, verbose = true} -- options that are not passed on to memtide run
for _, option in ipairs(options.flat{options.PARTS, SBATCH}) do OWN[option.name] = true end

-- The words after `memtide run`: the script, options and arguments as they were given.
local function run_words(given)
  local words = {quote(given.script.path)}
  for _, one in ipairs(given.given) do
    if not OWN[one.name] then
      words[#words + 1] = quote("--" .. one.name .. (one.value and "=" .. one.value or ""))
    end
  end
  for _, own in ipairs(given.own) do
    words[#words + 1] = quote("--" .. own.name .. (own.value and "=" .. own.value or ""))
  end
  return table.concat(words, " ")
end

local function arguments_text(args)
  local words = {}
  for _, word in ipairs(args) do words[#words + 1] = " " .. quote(word) end
  return #words > 0 and " --" .. table.concat(words) or ""
end

-- Working folder and program file of this process, which the jobs need.
local function here()
  local pipe <close> = assert(io.popen('pwd -P && readlink "/proc/$PPID/exe"'))
  return pipe:read("l"), pipe:read("l")
end

-- A line "#SBATCH --name=value" for each option of the list that was given
local function directives(given, list)
  local lines = {}
  for _, option in ipairs(list) do
    local name, value = option.name, given[option.name]
    if value and value:find("[%s%c'\"\\]") then
      util.fail_usage('--%s: expected a word of Slurm\'s, found "%s"', name, value)
    end
    if value then lines[#lines + 1] = ("#SBATCH --%s=%s\n"):format(name, value) end
  end
  return table.concat(lines)
end

-- Replaces @name@ in the template by values.name.
local function fill(template, values) return (template:gsub("@(%l+)@", values)) end

local ARRAY = [[
#!/bin/sh
#SBATCH --array=1-@parts@
#SBATCH --ntasks=1
#SBATCH --signal=USR1@@warning@
#SBATCH --requeue
#SBATCH --open-mode=append
@directives@
# One part of the cells in cells.csv. After Slurm's warning only the running cell is finished. Status 75: cells are
# left; then this part is put into the queue again, at most @requeues@ times, and continues where it stopped.
part=$SLURM_ARRAY_TASK_ID
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" # srun ignores the other one
status=0
srun "${MEMTIDE:-@program@}" run @words@ \
    --cells @cells@ --shard "$part/@parts@" --csv @folder@/@name@".$part-of-@parts@.csv"@args@ || status=$?
if [ $status = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @requeues@ ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$part" # SLURM_JOB_ID may be that of the whole array
fi
exit $status
]]

local MERGE = [[
#!/bin/sh
#SBATCH --ntasks=1
#SBATCH --open-mode=append
@directives@
# Merges the rows of all parts. Status 1: a part has ended without all of its rows.
set --
part=1
while [ $part -le @parts@ ]; do
    set -- "$@" @folder@/@name@".$part-of-@parts@.csv"
    part=$((part + 1))
done
exec "${MEMTIDE:-@program@}" merge @folder@/@name@.csv "$@" --cells @cells@
]]

local SUBMIT = [[
#!/bin/sh
# sh submit.sh [options of sbatch]: submits all parts, and the merge for when they have ended, also if some failed. Run
# it again if cells are missing: cells that have a row are not run again.
set -e
cd @here@
array=$(sbatch --parsable --job-name=@job@ --output=@log@%a.log "$@" @folder@/array.sh)
merge=$(sbatch --parsable --job-name=@job@-merge --output=@log@merge.log \
    --dependency="afterany:${array%%;*}" @folder@/merge.sh)
echo "array job ${array%%;*}, merge job ${merge%%;*}"
]]

local FILES = {["array.sh"] = ARRAY, ["merge.sh"] = MERGE, ["submit.sh"] = SUBMIT}

function slurm.run(experiment, given)
  if given.script.path == "-" then
    util.fail_usage("slurm: expected a script in a file: jobs have no standard input")
  end
  local folder = (given.output or given.name .. ".slurm"):gsub("(.)/+$", "%1"):gsub("^%-", "./-")
  local parts, folder_now, program = given.shards or 1, here()
  local values = {
    parts = parts, warning = WARNING, requeues = REQUEUES, words = run_words(given),
    args = arguments_text(given.args), here = quote(folder_now), folder = quote(folder),
    name = quote(given.name), cells = quote(folder .. "/cells.csv"), program = program:gsub('["$`\\]', "\\%0"),
    job = quote(given.name:gsub("[^%w_.-]", "_")), log = quote(folder:gsub("%%", "%%%%") .. "/"),
  }
  local of_array, of_merge = directives(given, SBATCH), directives(given, {SBATCH[2]})
  util.must(core.make_folder(folder))
  local counts, all = cell_list.write(experiment, given, parts, folder .. "/cells.csv")
  for name, template in pairs(FILES) do
    values.directives = name == "array.sh" and of_array or of_merge
    util.replace(folder .. "/" .. name, function(write) write(fill(template, values)) end)
  end
  print(("%s: %s; sh %s/submit.sh"):format(folder, cell_list.text(counts, all), folder))
  return 0
end

return slurm
