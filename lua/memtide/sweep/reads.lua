-- What the functions of a script read of a cell's settings. They get the settings under a table that notes which names
-- are asked for: a name that is not there is a slip of the finger, and so is an axis, or a key of cases, that memtide
-- does not know and nobody reads: its rows would all be alike.
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local reads = {}
local Reads = {}
Reads.__index = Reads

local LOOKED_AT = 1000 -- cells, where no cell so far reads a name

-- known: {name, ...}, what a cell may have; own: {{name =, place =}, ...}, what somebody must read;
-- meant(name): a name of memtide's that may have been meant, or nil
function reads.new(where, known, own, meant)
  local self = setmetatable({where = where, known = {}, own = own, unread = {}, meant = meant}, Reads)
  for _, name in ipairs(known) do self.known[name] = true end
  for _, one in ipairs(own) do self.known[one.name], self.unread[one.name] = true, true end
  return self
end

-- The name is none that a cell could have.
local function fail(self, name)
  local _, message = pcall(util.fail, 'settings: there is no "%s"%s', name,
    util.meant(name, util.sorted_keys(self.known)))
  self.wrong = message
  error(message, 0)
end

-- The settings as a function of the script gets them. Tables are copies, and what it writes stays its own.
function Reads:hand_out(values)
  local handed = {}
  local function get(name)
    local value = values[name]
    self.unread[name] = nil
    if literal.is_table(value) then
      value = literal.copy(value)
      rawset(handed, name, value)
    end
    return value
  end
  return setmetatable(handed, {
    __metatable = "memtide.net.settings",
    __index = function(_, name)
      if values[name] == nil and type(name) == "string" and not self.known[name] then fail(self, name) end
      return get(name)
    end,
    __pairs = function()
      local all = {}
      for name in pairs(values) do all[name] = get(name) end
      for name, value in next, handed do all[name] = value end
      return next, all
    end,
  })
end

-- The first of the names that nobody has read.
local function first_unread(self)
  for _, one in ipairs(self.own) do if self.unread[one.name] then return one end end
end

local function refuse(self, why)
  local one = first_unread(self)
  local meant = self.meant(one.name)
  return ('%s%s: nothing reads "%s"%s%s'):format(self.where, one.place, one.name, why,
    meant and ("; did you mean %s?"):format(meant) or "")
end

-- Where there is no function of the settings, nobody can read them.
function Reads:check_none()
  if first_unread(self) then error(refuse(self, ": no model, input or where is a function of the settings"), 0) end
end

local function gcd(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

-- Some of n places that meet all values of all axes, and their pairs, as far as that goes.
local function some_of(n)
  local stride, i = math.max(n * 618 // 1000, 1), -1
  while gcd(n, stride) > 1 do stride = stride + 1 end
  return function()
    i = i + 1
    if i < math.min(n, LOOKED_AT) then return i * stride % n + 1 end
  end
end

-- Calls a function that is only looked at: true, its results; false: it failed, as nobody need know.
local function try(f, ...)
  local found = table.pack(util.try(f, nil, ...))
  if util.is_interrupt(found[2]) then error(found[2], 0) end
  return table.unpack(found, 1, found.n)
end

-- To be called when a cell's functions have been. Where names are left that nobody has read, looks at other cells, and
-- raises where none of them reads a name. positions: of the experiment's cells, or nil: count of them; call(position)
-- calls that cell's functions. What fails there may not have come to the name: then nothing is known.
function Reads:check(positions, call)
  if self.refused then error(self.refused, 0) end
  if not next(self.unread) then return end
  local good, list, count = try(positions)
  local n = good and (list and #list or count) or 0
  for i in some_of(n) do
    good = good and try(call, list and list[i] or i)
    if not good or not next(self.unread) then break end
  end
  if not good then self.unread = {} end
  if not next(self.unread) then return end
  self.refused = util.failure(refuse(self, (", in none of %d cells"):format(math.min(n, LOOKED_AT))), "script")
  error(self.refused, 0)
end

return reads
