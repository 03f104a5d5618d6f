-- What the tables of the docs are made of (article_tables.lua, memory_tables.lua): numbers as texts, Markdown, and predicted rows.
local cell = require "memtide.net.cell"
local report = require "memtide.results.report"
local row = require "memtide.sweep.row"
local scripts = require "memtide.sweep.script"

local tables = {}

-- 12345 -> "12,345"
function tables.grouped(n)
  local text = ("%d"):format(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

function tables.percent(value, base) return ("%+.0f %%"):format(100 * (value / base - 1)):gsub("^[+-]0 %%$", "0 %%") end

-- lines: the head first; words: {[column] = true}, those that are no numbers, nil: the first
function tables.put(lines, words) report.print_markdown(lines, words or {true}) end

-- The experiment of experiments/NAME.lua; args: of the script, {"gpt2"}; nil: none
function tables.script(name, args) return (scripts.load_experiment(("experiments/%s.lua"):format(name), args or {})) end

-- The predicted rows of an experiment, in their order and by case. set: settings {name = value}, or {name = list of values};
-- where(values): which cells; nil: all
function tables.predicted(experiment, set, where)
  local out = {}
  for key, value in pairs(set or {}) do experiment:set(key, type(value) == "table" and value or {value}) end
  for _, one in ipairs(experiment:cells()) do
    if not where or where(one.values) then
      local found = row.predicted(cell.compile(cell.build(one)))
      found.case = one.values.case or one.name
      out[#out + 1], out[found.case] = found, found
    end
  end
  return out
end

-- Runs the function of that name of a file's tables.
function tables.run(list, name)
  if not list[name] then error(("expected a table's name, found %s"):format(name), 0) end
  list[name]()
end

return tables
