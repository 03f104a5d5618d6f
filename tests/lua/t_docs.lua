-- The docs: every command in them runs, every inline one has options that exist, every link leads somewhere.
--
-- A fence ```sh holds commands, one a line; each must end with status 0. A line whose comment has one of these marks is not
-- run here, and a reader sees why. A ```lua fence after a line that ends in "`NAME.lua`:" is that file, for its page and, of
-- the README, for all pages.
local commands = require "memtide.cli.commands"
local tap = dofile "tests/tap.lua"

local MARKS = {"(minutes)", "(hours)", "(needs a GPU)", "(needs PyTorch)", "(needs Slurm)", "(needs root)", "(your files)"}

local function lines_of(path)
  local lines = {}
  for line in io.lines(path) do lines[#lines + 1] = line end
  return lines
end

local function output_of(command)
  local pipe <close> = assert(io.popen(("(%s) 2>&1; echo $?"):format(command)))
  local text, status = pipe:read("a"):match "^(.-)(%d+)\n$"
  return tonumber(status), text
end

-- ---- a page: its fences, and the lines outside of them

local function read_page(path)
  local page, fence = {path = path, fences = {}, prose = {}}, nil
  local before = ""
  for number, line in ipairs(lines_of(path)) do
    if line:find "^```" then
      if fence then fence = nil
      else
        fence = {kind = line:match "^```(%S*)", line = number, file = before:match "`([%w_./-]+%.lua)`:$", lines = {}}
        page.fences[#page.fences + 1] = fence
      end
    elseif fence then fence.lines[#fence.lines + 1] = line
    else
      page.prose[#page.prose + 1] = {line = number, text = line}
      if line ~= "" then before = line end
    end
  end
  return page
end

local pages, by_path = {}, {}
local list <close> = assert(io.popen "ls README.md CONTRIBUTING.md docs/*.md 2>/dev/null")
for path in list:lines() do
  pages[#pages + 1] = read_page(path)
  by_path[path] = pages[#pages]
end

-- ---- links: GitHub's names of headings

local function slug(heading)
  local text = heading:gsub("`", ""):gsub("%[(.-)%]%b()", "%1"):lower()
  return (text:gsub("[^%w%s_\128-\255-]", ""):gsub("%s", "-"))
end

for _, page in ipairs(pages) do
  page.anchors = {}
  for _, one in ipairs(page.prose) do
    local heading = one.text:match "^#+%s+(.*)$"
    if heading then page.anchors[slug(heading)] = true end
  end
end

local function is_there(path)
  local file <close> = io.open(path)
  return file ~= nil
end

for _, page in ipairs(pages) do
  local folder, bad = page.path:match "^(.*/)[^/]*$" or "", {}
  for _, one in ipairs(page.prose) do
    for target in one.text:gmatch "%]%(([^)%s]+)%)" do
      if not target:find "^%a+:" then
        local file, anchor = target:match "^([^#]*)#?(.*)$"
        local path = file == "" and page.path or (folder .. file):gsub("[^/]+/%.%./", "")
        local good = is_there(path) and (anchor == "" or by_path[path] and by_path[path].anchors[anchor])
        if not good then bad[#bad + 1] = ("%s:%d: %s"):format(page.path, one.line, target) end
      end
    end
  end
  tap.is(table.concat(bad, "\n"), "", page.path .. ": its links lead somewhere")
end

-- ---- inline commands, and those of fences that are not run: the command and its options exist

local function unknown_in(text)
  local command = text:match "^memtide (%a+)%f[%s\0]"
  if not command or text:find "%.lua$" and command ~= text:match "^memtide (%a+)%s" then return nil end
  if not commands.is_command(command) then return command end
  local cut = text:find(" -- ", 1, true)
  for option in (cut and text:sub(1, cut) or text):gmatch "%s%-%-([%a-]+)" do
    if not commands.option(nil, option) then return "--" .. option end
  end
  return nil
end

for _, page in ipairs(pages) do
  local bad = {}
  for _, one in ipairs(page.prose) do
    for code in one.text:gmatch "`([^`]+)`" do
      local unknown = unknown_in(code)
      if unknown then bad[#bad + 1] = ("%s:%d: %s in: %s"):format(page.path, one.line, unknown, code) end
    end
  end
  tap.is(table.concat(bad, "\n"), "", page.path .. ": commands in its text are commands")
end

-- ---- the fences

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text, "\n")
end

local function mark_of(line)
  local comment = line:match "%s#%s(.*)$" or ""
  for _, mark in ipairs(MARKS) do if comment:find(mark, 1, true) then return mark end end
  return nil
end

local here = io.popen("pwd"):read "l"
local folder = io.popen("mktemp -d"):read "l"
local program = os.getenv "MEMTIDE" or "build/memtide"
if not program:find "^/" then program = here .. "/" .. program end
assert(os.execute(("mkdir %s/bin && ln -s %s %s/bin/memtide"):format(folder, program, folder)))

-- A page's commands run in a folder of its own with the checkout's folders in it and the README's files. Their scripts make
-- two steps in the place of ten: what is tested is that a command runs, not how long a step takes.
local function make_folder(page)
  local place = ("%s/%s"):format(folder, page.path:gsub("[/.]", "_"))
  assert(os.execute(("mkdir %s && cd %s && ln -s %s/experiments %s/tests %s/docs %s/Makefile ."):format(place, place, here, here, here, here)))
  for _, source in ipairs{by_path["README.md"], page} do
    for _, fence in ipairs(source.fences) do
      if fence.file then
        write(place .. "/" .. fence.file, (table.concat(fence.lines, "\n"):gsub("steps = 10, warmup = 2,", "steps = 2, warmup = 0,")))
      end
    end
  end
  return place
end

local function run(page, fence, place)
  local command, first = "", nil
  for i, line in ipairs(fence.lines) do
    first = first or fence.line + i
    command = command .. line
    if command:find "\\$" then command = command:sub(1, -2)
    else
      local mark = mark_of(command)
      local what = ("%s:%d: %s"):format(page.path, first, command)
      if mark then
        local unknown = unknown_in(command:gsub("%s#.*$", ""))
        tap.is(unknown, nil, what .. ": not run here, its options exist")
      elseif command:find "%S" and not command:find "^%s*#" then
        local status, output = output_of(("cd %s && export PATH=%s/bin:$PATH XDG_CACHE_HOME=%s MEMTIDE_CUDA=none && %s </dev/null"):format(
          place, folder, folder, command:gsub("%s#%s.*$", "")))
        if not tap.is(status, 0, what) and status ~= 0 then print((output:gsub("[^\n]*\n?", "# %0"))) end
      end
      command, first = "", nil
    end
  end
end

for _, page in ipairs(pages) do
  local place = make_folder(page)
  for _, fence in ipairs(page.fences) do
    if fence.kind == "sh" then run(page, fence, place) end
  end
end

os.execute("rm -rf " .. folder)
tap.done()
