-- memtide compare A.csv B.csv: puts the rows of two files that did the same work side by side: of two versions of
-- memtide, of two devices, or of memtide and another program that writes the same columns.
local columns = require "memtide.results.columns"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local results = require "memtide.results.results"
local samples = require "memtide.results.samples"
local stats = require "memtide.results.stats"
local util = require "memtide.base.util"

local compare = {words = "A.csv B.csv",
  text = "the cells of two files that did the same work: ratios of time and memory", options = {options.json}}

-- WORK: columns that are equal in rows that did the same work. NAMES: rows are also joined on such a column if the two
-- files have a value in common. HOW: columns that say where and how it was done; rows are joined on one if both files
-- have the same values of it.
local WORK = columns.group "work"
local NAMES = {"experiment", "case"}
local HOW = columns.group "how"
HOW[#HOW + 1] = "emulated"
-- The network and the data of a row's cell, by their hashes: a label. A file has several of the same work after its script was
-- edited, or was run with other arguments.
local MADE = "network-data"
local NEEDED = {"cell", "repeat", "status", "reason", "peak_bytes", "reserved_bytes", "step_ms", "version"}

-- ---- reading

local function set_of(list)
  local out = {}
  for _, name in ipairs(list) do out[name] = true end
  return out
end

local function text_of(row, names)
  local words = {}
  for _, name in ipairs(names) do words[#words + 1] = row[name] end
  return table.concat(words, "\0")
end

-- Of several rows of one cell and repeat the last one counts. Another program's rows may have no cell id, so settings
-- count too.
local function latest(rows, has, own)
  local out, at, names = {}, {}, {"cell", "repeat"}
  for _, list in ipairs{WORK, HOW, own} do
    for _, name in ipairs(list) do if has[name] then names[#names + 1] = name end end
  end
  for _, row in ipairs(rows) do
    local key = text_of(row, names)
    at[key] = at[key] or #out + 1
    out[at[key]] = row
  end
  return out
end

-- {path, has = set of columns, own = the script's own columns, rows, samples}
local function load(path, say)
  local rows = {}
  local names, torn = results.read(path, function(row) rows[#rows + 1] = row end)
  local has = set_of(names)
  for _, list in ipairs{WORK, NEEDED} do columns.need(path, has, list) end
  if torn then say(("%s: the last line is incomplete, and left out"):format(path)) end
  for _, row in ipairs(rows) do row[MADE] = row.cell:match "%-(.*)" or "" end
  local own = {}
  for _, name in ipairs(names) do
    if columns.is_setting(name) and not columns.is_fixed(name) then own[#own + 1] = name end
  end
  return {path = path, has = has, own = own, rows = latest(rows, has, own), samples = samples.read(path)}
end

-- ---- joining

local function values_of(file, column)
  local out = {}
  for _, row in ipairs(file.rows) do out[row[column]] = true end
  return out
end

local function have_common(a, b, column)
  local of_b = values_of(b, column)
  for value in pairs(values_of(a, column)) do if of_b[value] then return true end end
  return false
end

local function have_equal(a, b, column)
  local of_a, of_b = values_of(a, column), values_of(b, column)
  for value in pairs(of_a) do if not of_b[value] then return false end end
  for value in pairs(of_b) do if not of_a[value] then return false end end
  return true
end

-- The columns that rows are joined on
local function keys_of(a, b)
  local keys = table.move(WORK, 1, #WORK, 1, {})
  for _, rule in ipairs{{NAMES, have_common}, {HOW, have_equal}} do
    for _, name in ipairs(rule[1]) do
      if a.has[name] and b.has[name] and rule[2](a, b, name) then keys[#keys + 1] = name end
    end
  end
  for _, name in ipairs(a.own) do if b.has[name] then keys[#keys + 1] = name end end
  return keys
end

-- Columns that distinguish the rows of one file apart from the keys: its own axes that the other file does not have,
-- and the columns of HOW.
local function labels_of(file, keys)
  local is_key, labels = set_of(keys), {}
  for _, list in ipairs{HOW, file.own} do
    for _, name in ipairs(list) do
      if file.has[name] and not is_key[name] then labels[#labels + 1] = name end
    end
  end
  labels[#labels + 1] = MADE
  return labels
end

-- {{key =, row = the first, groups = {{label =, row = the first, rows =}, ...}}, ...} in the order of the file; also by
-- key. Rows of a group have the same label: the values of the columns `labels`.
local function grouped(file, keys)
  local out, labels = {}, labels_of(file, keys)
  for _, row in ipairs(file.rows) do
    local key, label = text_of(row, keys), text_of(row, labels)
    if not out[key] then
      out[key] = {key = key, row = row, groups = {}}
      out[#out + 1] = out[key]
    end
    local groups = out[key].groups
    if not groups[label] then
      groups[label] = {label = label, rows = {}, row = row}
      groups[#groups + 1] = groups[label]
    end
    table.insert(groups[label].rows, row)
  end
  out.labels = labels
  return out
end

-- ---- figures

local function numbers(rows, column)
  local out = {}
  for _, row in ipairs(rows) do out[#out + 1] = tonumber(row[column]) end
  return out
end

-- Of a column in a group's rows: {median, low, high} if there are samples, else {median, from, to} of the rows.
local function figure(file, rows, column)
  local values = numbers(rows, column)
  if #values == 0 then return nil end
  local sorted = stats.sorted(values)
  local found = column == "step_ms" and file.samples and file.samples:interval(rows)
  if found then
    for _, name in ipairs{"median", "low", "high"} do found[name] = found[name] and found[name] * 1e3 end
    return found
  end
  return {median = stats.median(values), from = sorted[1], to = sorted[#sorted]}
end

-- b divided by a. Without samples of both, `from` and `to` are the least and largest ratio of any two rows.
local function ratio_of(a, b)
  if not a or not b then return nil end
  local out = stats.ratio(b, a)
  if out and not out.low and a.from and b.from and a.from > 0 then
    out.from, out.to = b.from / a.to, b.to / a.from
  end
  return out
end

-- "0.98 [0.96, 1.01]": with the 95 % interval; "0.98 (0.9..1.1)": with the least and the largest
local function ratio_text(r)
  if not r then return "" end
  local text = ("%.3f"):format(r.median)
  if r.low then return ("%s [%.3f, %.3f]"):format(text, r.low, r.high) end
  if r.from and r.from ~= r.to then return ("%s (%.3f..%.3f)"):format(text, r.from, r.to) end
  return text
end

local FIGURES = {
  {column = "step_ms", name = "step_ms", text = function(x) return ("%.4g"):format(x) end},
  {column = "peak_bytes", name = "peak MiB", text = function(x) return ("%.1f"):format(x / 2 ^ 20) end},
  {column = "reserved_bytes", name = "reserved MiB", text = function(x) return ("%.1f"):format(x / 2 ^ 20) end},
}

local function statuses(group)
  local out, seen = {}, {}
  for _, row in ipairs(group.rows) do
    if not seen[row.status] then out[#out + 1], seen[row.status] = row.status, true end
  end
  return table.concat(out, "+")
end

-- One pair of groups: {one =, other =, status = {a's, b's}, figures = {{a =, b =, ratio =}, ...}}; figures are empty
-- unless all rows are ok.
local function pair(a, b, one, other)
  local out = {one = one, other = other, status = {statuses(one), statuses(other)}, figures = {}}
  if out.status[1] ~= "ok" or out.status[2] ~= "ok" then return out end
  for i, what in ipairs(FIGURES) do
    local x, y = figure(a, one.rows, what.column), figure(b, other.rows, what.column)
    out.figures[i] = {a = x, b = y, ratio = ratio_of(x, y)}
  end
  return out
end

-- Do both lists of groups have the same networks and data?
local function made_alike(groups, others)
  local function rows(list)
    local out = {}
    for i, group in ipairs(list) do out[i] = group.row end
    return {rows = out}
  end
  return have_equal(rows(groups), rows(others), MADE)
end

-- Takes MADE out of the labels, which it ends, if the others tell apart all that a work has.
local function trim(labels, works)
  local others = table.move(labels, 1, #labels - 1, 1, {})
  for _, work in ipairs(works) do
    local seen = {}
    for _, group in ipairs(work.groups) do
      local text = text_of(group.row, others)
      if seen[text] then return end
      seen[text] = true
    end
  end
  table.remove(labels)
end

-- Joins two files: {keys, labels = {a's, b's}, pairs, missing = {rows only in a}, extra = {rows only in b}}.
local function join(a, b)
  local keys = keys_of(a, b)
  local first, second = grouped(a, keys), grouped(b, keys)
  local out = {keys = keys, labels = {first.labels, second.labels}, pairs = {}, missing = {}, extra = {}}
  for _, work in ipairs(first) do
    local other = second[work.key]
    if not other then out.missing[#out.missing + 1] = work.row end
    local alike = other and made_alike(work.groups, other.groups)
    for _, x in ipairs(work.groups) do
      for _, y in ipairs(other and other.groups or {}) do
        if not alike or x.row[MADE] == y.row[MADE] then out.pairs[#out.pairs + 1] = pair(a, b, x, y) end
      end
    end
  end
  for _, work in ipairs(second) do if not first[work.key] then out.extra[#out.extra + 1] = work.row end end
  trim(first.labels, first)
  trim(second.labels, second)
  return out
end

-- ---- output

-- Those of the columns `names` whose values differ between the rows
local function varying(rows, names)
  local out = {}
  for _, name in ipairs(names) do
    local seen = nil
    for _, row in ipairs(rows) do
      seen = seen or row[name]
      if row[name] ~= seen then
        out[#out + 1] = name
        break
      end
    end
  end
  return out
end

local function rows_of(joined, side)
  local out = {}
  for _, one in ipairs(joined.pairs) do out[#out + 1] = one[side].row end
  return out
end

-- The columns that name a row in the output: its case if rows are joined on it, else the settings that vary.
local function names_of(joined, all)
  for _, name in ipairs(joined.keys) do if name == "case" then return {"case"} end end
  local names = varying(all, joined.keys)
  return #names > 0 and names or {"model"}
end

local function words(row, names)
  local out = {}
  for i, name in ipairs(names) do out[i] = row[name] end
  return out
end

local function append(list, more)
  for _, item in ipairs(more) do list[#list + 1] = item end
  return list
end

local function header(names, labels)
  local out = append({}, names)
  for side, list in ipairs(labels) do
    for _, name in ipairs(list) do out[#out + 1] = ("%s %s"):format(side == 1 and "A" or "B", name) end
  end
  for _, what in ipairs(FIGURES) do append(out, {"A " .. what.name, "B " .. what.name, "B/A"}) end
  return out
end

local function line_of(one, names, labels)
  local out = append(append(words(one.one.row, names), words(one.one.row, labels[1])), words(one.other.row, labels[2]))
  if not one.figures[1] then return append(out, one.status) end
  for i, what in ipairs(FIGURES) do
    local f = one.figures[i]
    append(out, {f.a and what.text(f.a.median) or "", f.b and what.text(f.b.median) or "", ratio_text(f.ratio)})
  end
  return out
end

local function only(file, rows, names)
  if #rows == 0 then return end
  print(("only in %s:"):format(file.path))
  for _, row in ipairs(rows) do print("  " .. table.concat(words(row, names), ", ")) end
end

-- Prints the path of a file and those labels that are the same in all its rows.
local function title(letter, file, labels, rows)
  local parts, differ = {}, set_of(varying(rows, labels))
  for _, name in ipairs(append(append({}, labels), {"version"})) do
    local value = rows[1] and rows[1][name] or ""
    if value ~= "" and not differ[name] then parts[#parts + 1] = ("%s %s"):format(name, value) end
  end
  print(("%s: %s%s"):format(letter, file.path, #parts > 0 and ", " .. table.concat(parts, ", ") or ""))
end

-- The values of a pair's JSON object, and the list of their names
local function json_values(one, names, labels)
  local values, list = {}, {}
  local function put(name, value) list[#list + 1], values[name] = name, value end
  local function value(row, name) return columns.value(name, row[name]) end
  for _, name in ipairs(names) do put(name, value(one.one.row, name)) end
  for side, row in ipairs{one.one.row, one.other.row} do
    local letter = side == 1 and "a_" or "b_"
    for _, name in ipairs(labels[side]) do put(letter .. name, value(row, name)) end
    put(letter .. "status", one.status[side])
  end
  for i, what in ipairs(FIGURES) do
    local f = one.figures[i] or {}
    put("a_" .. what.column, f.a and f.a.median)
    put("b_" .. what.column, f.b and f.b.median)
    local r = f.ratio or {}
    put(what.column .. "_ratio", r.median)
    put(what.column .. "_ratio_low", r.low or r.from)
    put(what.column .. "_ratio_high", r.high or r.to)
  end
  return values, list
end

-- Prints the comparison. Returns the exit status; 1: no rows could be joined.
function compare.alone(paths, given)
  if #paths ~= 2 then util.fail_usage("compare: expected two files of results, found %d", #paths) end
  local a, b = load(paths[1], given.say), load(paths[2], given.say)
  local joined = join(a, b)
  local names = names_of(joined, append(append({}, a.rows), b.rows))
  local ones, others = rows_of(joined, "one"), rows_of(joined, "other")
  local labels = {varying(ones, joined.labels[1]), varying(others, joined.labels[2])}
  if given.json then
    for _, one in ipairs(joined.pairs) do print(report.json(json_values(one, names, labels))) end
    return joined.pairs[1] and 0 or 1
  end
  title("A", a, joined.labels[1], ones)
  title("B", b, joined.labels[2], others)
  local lines = {header(names, labels)}
  for i, one in ipairs(joined.pairs) do lines[i + 1] = line_of(one, names, labels) end
  if joined.pairs[1] then for _, line in ipairs(report.columns(lines)) do print(line) end end
  only(a, joined.missing, names)
  only(b, joined.extra, names)
  return joined.pairs[1] and 0 or 1
end

return compare
