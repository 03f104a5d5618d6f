-- The statements of a forward function, from its steps: which values get a variable is as in the Python code, since a
-- variable keeps its value alive (docs/pytorch.md). What had none there is written where it is used.
local forms = require "memtide.import.forms"
local util = require "memtide.base.util"

local forward = {}

local TAKEN = {self = true, nn = true, F = true, mt = true, optim = true} -- by the script

-- Letters that Lua does not know are written as their bytes.
function forward.name(word)
  local name = word:gsub("[\128-\255]", function(c) return ("x%02x"):format(c:byte()) end)
  return (TAKEN[name] or not forms.is_name(name)) and name .. "_" or name
end

-- Calls visit(n) for every value in the form, in the order of evaluation.
local function values_in(form, visit)
  if type(form) ~= "table" then return end
  if form.tag == "value" then return visit(form.n) end
  for _, one in ipairs(form) do values_in(one, visit) end
end

local Writer = {}
Writer.__index = Writer

-- ---- which variable holds what

function Writer:variable_of(n)
  local best
  for name, held in pairs(self.holds) do
    if held == n and (not best or self.since[name] < self.since[best]) then best = name end
  end
  return best
end

-- A variable for a value that has none in Python, named after the child that gives it: it is released once nobody reads it.
function Writer:temporary(form)
  local name = self:new_name(form)
  self.released[name] = true
  return name
end

function Writer:new_name(form)
  local child = form and form.tag == "text" and type(form[1]) == "string" and form[1]:match "^self%.([%w_]+)$"
  if child and not self.reserved[child] then
    self.reserved[child] = true
    return forward.name(child)
  end
  local name
  repeat
    self.temporaries = self.temporaries + 1
    name = "v" .. self.temporaries
  until not self.reserved[name]
  return name
end

-- Is the value read after the Python variable has got another one, and only this variable holds it?
function Writer:outlives(name, n)
  for _, one in ipairs(self.bindings[n] or {}) do if one.name ~= name then return false end end
  for _, one in ipairs(self.by_name[name] or {}) do
    if one.at > self.at and one.n ~= n then return (self.last[n] or 0) >= one.at end
  end
  return false
end

-- Does an entry that is not yet written read the value?
function Writer:awaits(n, entries)
  local found = false
  for _, one in pairs(entries) do
    values_in(one.form, function(value) found = found or value == n and not one.inner[n] end)
    found = found or self:awaits(n, one.inner)
  end
  return found
end

function Writer:assign(name, n, text)
  local old = self.holds[name]
  local needed = old and old ~= n and ((self.last[old] or 0) >= self.at or self:awaits(old, self.pending))
  if needed then
    self.holds[name] = nil
    if not self:variable_of(old) then
      local kept = self:temporary()
      self:line(("local %s = %s"):format(kept, name))
      self.holds[kept], self.since[kept], self.declared[kept] = old, self:tick(), true
    end
  end
  self:line(("%s%s = %s"):format(self.declared[name] and "" or "local ", name, text))
  self.declared[name], self.holds[name], self.since[name] = true, n, self:tick()
end

-- Lets go what variables hold that Python has not, or no more, once nobody reads it, as PyTorch does.
function Writer:release()
  for _, name in ipairs(util.sorted_keys(self.released)) do
    local n = self.holds[name]
    local needed = n and ((self.last[n] or 0) >= self.at or self:awaits(n, self.pending))
    for _, one in ipairs(n and self.bindings[n] or {}) do needed = needed or one.at >= self.at end
    if n and not needed then
      self:line(name .. " = nil")
      self.holds[name] = nil
    end
  end
end

function Writer:tick()
  self.clock = self.clock + 1
  return self.clock
end

function Writer:line(text) self.lines[#self.lines + 1] = text end

-- ---- values that are computed, but not yet written: self.pending, a list of {n, form, inner} in their order. inner:
-- the values that are written in the form's place, as {[n] = such an entry}

function Writer:place_of(n)
  for i, one in ipairs(self.pending) do if one.n == n then return i end end
end

-- Writes the first one to a variable.
function Writer:flush(name)
  local one = table.remove(self.pending, 1)
  if not name or self:outlives(name, one.n) then name = self:temporary(one.form) end
  self:assign(name, one.n, self:text(one))
end

-- The entry of a form. Pending values that it reads become a part of it if they are the last ones, in the order in
-- which it reads them, and nobody else reads them: else they are written before it.
function Writer:entry(n, form)
  local read, one = {}, {n = n, form = form, inner = {}}
  values_in(form, function(value) read[#read + 1] = value end)
  local function last_ones()
    local places = {}
    for _, value in ipairs(read) do places[#places + 1] = self:place_of(value) end
    for i, at in ipairs(places) do
      if at ~= #self.pending - #places + i or self.uses[self.pending[at].n] > 1 then return nil end
    end
    return #places
  end
  local count = last_ones()
  while not count do
    self:flush()
    count = last_ones()
  end
  for _ = 1, count do
    local inner = table.remove(self.pending)
    one.inner[inner.n] = inner
  end
  return one
end

function Writer:text(one)
  return self.show(one.form, function(n)
    if one.inner[n] then return self:text(one.inner[n]), one.inner[n].form end
    return assert(self:variable_of(n), "a value is read that nothing holds")
  end)
end

-- A variable of the Python code has got that value; nil: it is gone.
function Writer:bind(name, n)
  name = forward.name(name)
  self.released[name] = n == nil or nil
  if n == nil or self.holds[name] == n then return end
  if self:place_of(n) then
    while self.pending[1].n ~= n do self:flush() end
    return self:flush(name)
  end
  local other = self:variable_of(n)
  if other then self:assign(name, n, other) end
end

-- Lines that differ in the index of a list alone, 1, 2, 3 and so on, become a loop.
local function with_loops(lines)
  local out, at = {}, 1
  while at <= #lines do
    local before, after = lines[at]:match "^([^%[%]]*)%[1%]([^%[%]]*)$"
    local plain = before and not before:find "^local " and not (before .. after):find "%f[%w_]i%f[^%w_]"
    local count = plain and 1 or 0
    while count > 0 and lines[at + count] == ("%s[%d]%s"):format(before, count + 1, after) do count = count + 1 end
    if count > 2 then
      table.move({("for i = 1, %d do"):format(count), ("  %s[i]%s"):format(before, after), "end"}, 1, 3, #out + 1, out)
    else out[#out + 1] = lines[at] end
    at = at + (count > 2 and count or 1)
  end
  return out
end

-- graph: a form (forms.lua) with steps {{out = n, form, binds = {{name, n}, ...}}, ...} and returns = {n, ...}.
-- show(form, value) gives the text of a form, in which value(n) is that of a value, and its form if it is no variable.
-- Returns the names of the inputs and the lines.
function forward.write(graph, show)
  local self = setmetatable({show = show, holds = {}, since = {}, declared = {}, pending = {}, lines = {},
    uses = {}, last = {}, bindings = {}, by_name = {}, clock = 0, temporaries = 0, at = 0, reserved = {}, released = {}}, Writer)
  for k, step in ipairs(graph.steps) do
    values_in(step[1], function(n) self.uses[n], self.last[n] = (self.uses[n] or 0) + 1, k end)
    for _, one in ipairs(step.binds) do
      local name, n = forward.name(one[1]), one[2] or false
      self.reserved[name] = true
      self.bindings[n], self.by_name[name] = self.bindings[n] or {}, self.by_name[name] or {}
      table.insert(self.bindings[n], {name = name, at = k})
      table.insert(self.by_name[name], {n = n, at = k})
    end
  end
  for _, n in ipairs(graph.returns) do self.uses[n], self.last[n] = (self.uses[n] or 0) + 1, math.huge end
  local inputs = {}
  for _, one in ipairs(graph.steps[1] and graph.steps[1].binds or {}) do
    local name, n = forward.name(one[1]), one[2]
    if n and n < graph.inputs and not inputs[n + 1] and not self.holds[name] then
      inputs[n + 1], self.holds[name], self.since[name], self.declared[name] = name, n, self:tick(), true
    end
  end
  for i = 1, graph.inputs do
    if not inputs[i] then
      inputs[i] = self:temporary()
      self.holds[inputs[i]], self.since[inputs[i]], self.declared[inputs[i]] = i - 1, self:tick(), true
    end
  end
  for k, step in ipairs(graph.steps) do
    self.at = k
    for _, one in ipairs(step.binds) do self:bind(one[1], one[2]) end
    self:release()
    local one = self:entry(step.out, step[1])
    self.pending[#self.pending + 1] = one
  end
  self.at = math.huge
  local all = {tag = "text"}
  for i, n in ipairs(graph.returns) do
    if i > 1 then all[#all + 1] = ", " end
    all[#all + 1] = {tag = "value", n = n}
  end
  self:line("return " .. self:text(self:entry(nil, all)))
  return inputs, with_loops(self.lines)
end

return forward
