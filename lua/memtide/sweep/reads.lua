-- Notes what the functions of a script read of a cell's settings. A name that does not exist is an error. So is an
-- axis, or a key of cases, that memtide does not know and that no function reads: its rows would all be equal.
local literal = require "memtide.base.literal"
local util = require "memtide.base.util"

local reads = {}
local Reads = {}
Reads.__index = Reads

local LOOKED_AT = 1000 -- the most cells that are tried to find one that reads a name

-- where: the experiment's line; known: {name, ...} that a cell may have; own: {{name =, place =}, ...} that a function
-- must read; meant(name): the setting that may have been meant, or nil
function reads.new(where, known, own, meant)
  local self = setmetatable({where = where, known = {}, own = own, unread = {}, meant = meant}, Reads)
  for _, name in ipairs(known) do self.known[name] = true end
  for _, one in ipairs(own) do self.known[one.name], self.unread[one.name] = true, true end
  return self
end

-- Raises: no cell can have this name.
local function fail(self, name)
  local _, message = pcall(util.fail, 'settings: there is no "%s"%s', name,
    util.meant(name, util.sorted_keys(self.known)))
  self.wrong = message
  error(message, 0)
end

-- The settings for a function of the script. Tables are copies, and what the function writes does not reach the cell.
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

-- The first name that no function has read; nil: all were read.
local function first_unread(self)
  for _, one in ipairs(self.own) do if self.unread[one.name] then return one end end
end

local function refuse(self, why)
  local one = first_unread(self)
  local meant = self.meant(one.name)
  return ('%s%s: nothing reads "%s"%s%s'):format(self.where, one.place, one.name, why,
    meant and ("; did you mean %s?"):format(meant) or "")
end

-- For an experiment without functions of the settings: raises if there are names that a function must read.
function Reads:check_none()
  if first_unread(self) then error(refuse(self, ": no model, input, data or where is a function of the settings"), 0) end
end

local function gcd(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

-- An iterator over at most LOOKED_AT of n places, spread so that they meet the values of all axes, and pairs of them,
-- as far as possible: the stride is near the golden section of n and has no common divisor with it.
local function some_of(n)
  local stride, i = math.max(n * 618 // 1000, 1), -1
  while gcd(n, stride) > 1 do stride = stride + 1 end
  return function()
    i = i + 1
    if i < math.min(n, LOOKED_AT) then return i * stride % n + 1 end
  end
end

-- Calls a function only for what it reads: true and its results; false: it failed, which is not reported.
local function try(f, ...)
  local found = table.pack(util.try(f, nil, ...))
  if util.is_interrupt(found[2]) then error(found[2], 0) end
  return table.unpack(found, 1, found.n)
end

-- To be called after a cell's functions. If there are names that none has read yet, it calls the functions of other
-- cells, and raises if none of them reads a name. positions() -> the list of positions of cells, or nil and their
-- number; call(position) calls that cell's functions. If one fails, it may have failed before it read the name: nothing
-- is said.
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
