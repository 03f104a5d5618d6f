-- digits.lua: draws a small dataset of digits that look handwritten and writes it as IDX files with MNIST's names, so
-- that a convolutional network can be trained where MNIST itself is not at hand. Plain Lua; the same seed gives the
-- same bytes on every machine.
--
--   require "memtide.digits".write(dir, n_train, n_test, seed)        from a script
--   lua5.4 digits.lua OUTDIR [count_train] [count_test] [seed]        from a shell
--
-- Each image is a 5 x 7 glyph with a random scale, rotation, slant, shift, stroke width and intensity, and noise on
-- top, so that a network cannot learn a digit from fixed pixels.
local M = {}

local SIDE, WIDE, HIGH = 28, 5, 7

local GLYPHS = {
  [0] = ".###. #...# #...# #...# #...# #...# .###.",
  "..#.. .##.. ..#.. ..#.. ..#.. ..#.. .###.",
  ".###. #...# ....# ...#. ..#.. .#... #####",
  ".###. #...# ....# ..##. ....# #...# .###.",
  "...#. ..##. .#.#. #..#. ##### ...#. ...#.",
  "##### #.... ####. ....# ....# #...# .###.",
  ".###. #.... #.... ####. #...# #...# .###.",
  "##### ....# ...#. ..#.. ..#.. .#... .#...",
  ".###. #...# #...# .###. #...# #...# .###.",
  ".###. #...# #...# .#### ....# ....# .###.",
}

-- Rows of 0 and 1 with two cells of border, [-1 .. HIGH + 2][-1 .. WIDE + 2], so that sampling needs no check of bounds
local function grid(text)
  local g = {}
  for r = -1, HIGH + 2 do
    g[r] = {}
    for c = -1, WIDE + 2 do
      local at = (r - 1) * (WIDE + 1) + c
      local inside = r >= 1 and r <= HIGH and c >= 1 and c <= WIDE
      g[r][c] = inside and text:sub(at, at) == "#" and 1 or 0
    end
  end
  return g
end

local grids = {}
for digit = 0, 9 do grids[digit] = grid(GLYPHS[digit]) end

-- xorshift64* (Vigna 2016): a function that draws a number in [0, 1)
local function generator(seed)
  local x = (seed * 0x9E3779B97F4A7C15) ~ 0x2545F4914F6CDD1D
  if x == 0 then x = 1 end
  return function()
    x = x ~ (x >> 12)
    x = x ~ (x << 25)
    x = x ~ (x >> 27)
    return ((x * 0x2545F4914F6CDD1D) >> 40) * 0x1p-24
  end
end

-- One image of `digit` as a string of SIDE * SIDE bytes.
local function draw(digit, random)
  local g, floor, char = grids[digit], math.floor, string.char
  local function between(low, high) return low + (high - low) * random() end
  local width, height = between(2.4, 3.3), between(2.4, 3.2) -- pixels per cell
  local turn, slant = between(-0.1, 0.1), between(-0.25, 0.25)
  local x0, y0 = 13.5 + between(-2.5, 2.5), 13.5 + between(-2, 2)
  local threshold, gain = between(0.2, 0.5), between(150, 255)
  local noise = between(10, 60)
  -- Pixel (x, y) shows the glyph at (u, v) = A (x - x0, y - y0) + centre. Cosine and sine are computed from the tangent
  -- of half the angle: only IEEE arithmetic, so the bytes are the same on every machine.
  local cos, sin = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
  local ux, uy = (cos + slant * sin) / width, (sin - slant * cos) / width
  local vx, vy = -sin / height, cos / height
  local bytes = {}
  for y = 0, SIDE - 1 do
    for x = 0, SIDE - 1 do
      local u = ux * (x - x0) + uy * (y - y0) + (WIDE + 1) / 2
      local v = vx * (x - x0) + vy * (y - y0) + (HIGH + 1) / 2
      local value = noise * (random() - 0.5)
      if u > 0 and u < WIDE + 1 and v > 0 and v < HIGH + 1 then
        local c, r = floor(u), floor(v)
        local above, below, du = g[r], g[r + 1], u - c
        local a = above[c] + (above[c + 1] - above[c]) * du
        local b = below[c] + (below[c + 1] - below[c]) * du
        local ink = (a + (b - a) * (v - r) - threshold) * 3 -- a soft edge
        if ink > 0 then value = value + gain * (ink < 1 and ink or 1) end
      end
      bytes[#bytes + 1] = value <= 0 and 0 or value >= 255 and 255 or floor(value)
    end
  end
  return char(table.unpack(bytes))
end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

-- Opens dir/name for writing; makes the folder if it is missing.
local function create(dir, name)
  local path = dir .. "/" .. name
  local file = io.open(path, "wb")
  if not file and os.execute("mkdir -p -- " .. quoted(dir)) then file = io.open(path, "wb") end
  return file or error("cannot write " .. path .. ": make the folder first", 0)
end

local function idx(dir, name, sizes, elements)
  local file = create(dir, name)
  file:write("\0\0\8", string.char(#sizes))
  for _, size in ipairs(sizes) do file:write(string.pack(">I4", size)) end
  assert(file:write(table.concat(elements)))
  assert(file:close())
end

local function set(dir, prefix, count, random)
  local images, labels = {}, {}
  for i = 1, count do
    local digit = math.floor(10 * random())
    images[i], labels[i] = draw(digit, random), string.char(digit)
  end
  idx(dir, prefix .. "-images-idx3-ubyte", {count, SIDE, SIDE}, images)
  idx(dir, prefix .. "-labels-idx1-ubyte", {count}, labels)
end

-- Raises at the line of the script that called M.write.
local function check(good, name, expected, value)
  if not good then error(("digits.write: %s: expected %s, found %s"):format(name, expected, tostring(value)), 3) end
end

-- Writes train-* and t10k-* images and labels into the folder `dir`: n_train (2000) and n_test (500) images of 28 x 28
-- bytes. Raises if an argument is wrong or a file cannot be written.
function M.write(dir, n_train, n_test, seed)
  check(type(dir) == "string", "folder", "a string", dir)
  for name, count in pairs{count_train = n_train, count_test = n_test} do
    check(math.type(count) == "integer" and count >= 1, name, "a whole number of at least 1", count)
  end
  check(seed == nil or math.type(seed) == "integer", "seed", "a whole number", seed)
  local random = generator(seed or 1)
  set(dir, "train", n_train or 2000, random)
  set(dir, "t10k", n_test or 500, random)
end

-- True when this file is run as a program, not required by one.
if arg and arg[0] and debug and debug.getinfo(1, "S").source == "@" .. arg[0] then
  local function whole(i, name)
    local n = math.tointeger(tonumber(arg[i]))
    if arg[i] and not n then error(name .. ": expected a whole number, found " .. arg[i], 0) end
    return n
  end
  if not arg[1] then
    io.stderr:write("usage: lua5.4 digits.lua OUTDIR [count_train] [count_test] [seed]\n")
    os.exit(64)
  end
  M.write(arg[1], whole(2, "count_train"), whole(3, "count_test"), whole(4, "seed"))
end

return M
