-- The figures of the docs: each is what a command prints. `make figures` runs the commands and writes their output into the
-- pages; tests/lua/t_figures.lua runs the quick ones and compares. A figure in a page:
--
--   <!-- figure: memtide predict hello.lua -->
--   ...
--   <!-- end -->
--
-- What stands between the two lines is replaced by what the command prints, as it is if it is a Markdown table, else in a
-- fence, and by a line "`COMMAND`, commit, device, date". That line stays while the output stays the same and the commit is one
-- of the history, because a prediction does not age. Commands run in the root of the checkout; `memtide` is the program that was built, $PYTHON the
-- interpreter that may have torch, and MEMTIDE_PLAN is none. What is not measured is made for one thread of a processor with AVX2,
-- as every one can take itself for: so a prediction is the same wherever it is made.
--
-- A comment at the command's end marks what the test does not run: "# (minutes)" takes long, "# (measured)" prints what
-- another run or another machine prints otherwise, "# (needs PyTorch)" is left out where $PYTHON has no torch, "# (needs bf16)", which is
-- made for a processor with instructions for bf16, where this one has none. Several figures
-- of one measurement read its file:
--
--   <!-- data experiments/results/article-cpu.csv: memtide run experiments/article.lua --csv $FILE # (minutes) -->
--   ...
--   <!-- end -->
--
-- makes the file anew, whose name until it is whole the command has in $FILE; the page shows where and when. A command may end in status 5 or
-- 6, as `memtide run` does where claims are refuted or inconclusive. If it fails otherwise, file and page stay what they were.
--
--   memtide docs/figures.lua [--list] [--quick] [TEXT]
--
-- TEXT: those in whose "PAGE: COMMAND" it is, such as "article.md"; --quick: those that the test runs; --list: which they are
local figures = {}

local MARKS = {minutes = "(minutes)", measured = "(measured)", torch = "(needs PyTorch)", bf16 = "(needs bf16)"}
local GOOD = {[0] = true, [5] = true, [6] = true}

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

local function write(path, text)
  local file <close> = assert(io.open(path .. ".new", "wb"))
  assert(file:write(text))
  assert(file:close())
  assert(os.rename(path .. ".new", path))
end

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- The command without its comment, and its marks
local function command_of(text)
  local command, comment = text:match "^(.-)%s+#%s(.*)$"
  local one = {command = command or text}
  for name, mark in pairs(MARKS) do one[name] = comment ~= nil and comment:find(mark, 1, true) ~= nil end
  one.comment = comment
  return one
end

-- The figures and data of a page in their order: {path, command, comment, minutes, measured, torch, file = of data, body = what
-- stands there now, first and last = its lines}, and the page's lines. Raises where a figure has no end, or an end no figure.
function figures.of_page(path)
  local list, lines, open, fence = {}, {}, nil, false
  for line in (read(path) .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  if lines[#lines] == "" then lines[#lines] = nil end
  for i, line in ipairs(lines) do
    if line:find "^```" then fence = not fence end
    local text = line:match "^<!%-%- figure: (.-) %-%->$"
    local file, maker = line:match "^<!%-%- data (%S+): (.-) %-%->$"
    if (text or maker) and (not fence or open) then
      if open then error(("%s:%d: the figure of line %d has no end"):format(path, i, open.first), 0) end
      local one = command_of(text or maker)
      one.path, one.first, one.file = path, i, file
      list[#list + 1], open = one, one
    elseif line == "<!-- end -->" and (not fence or open) then
      if not open then error(("%s:%d: an end without a figure"):format(path, i), 0) end
      open.last, open.body, open = i, table.concat(lines, "\n", open.first + 1, i - 1), nil
    end
  end
  if open then error(("%s:%d: the figure has no end"):format(path, open.first), 0) end
  return list, lines
end

-- The pages: README.md and docs/*.md
function figures.pages()
  local list, out = assert(io.popen "ls README.md docs/*.md"), {}
  for path in list:lines() do out[#out + 1] = path end
  list:close()
  return out
end

-- Runs a command in a shell with `memtide` on its path -> what it prints; nil, status, and it has told why. What a good command
-- says on standard error is no figure.
-- environment: more variables, "FILE=..."
local function output_of(command, environment)
  local bin = figures.bin or assert(os.tmpname())
  if not figures.bin then
    local program = assert(io.popen("realpath " .. quoted(os.getenv "MEMTIDE" or "build/memtide"))):read "l"
    assert(os.remove(bin) and os.execute(("mkdir %s && ln -s %s %s/memtide"):format(bin, quoted(program), bin)))
    figures.bin = bin
  end
  local around = "export PATH=%s:$PATH PYTHON=${PYTHON:-python3} MEMTIDE_PLAN=none %s; (%s) </dev/null 2>%s/errors; "
    .. "status=$?; echo; echo $status"
  local pipe <close> = assert(io.popen(around:format(bin, environment or "", command, bin)))
  local text, status = pipe:read("a"):match "^(.*)\n(%d+)\n$"
  if not GOOD[tonumber(status)] then
    io.stderr:write(read(bin .. "/errors"))
    return nil, tonumber(status)
  end
  return text
end

-- For which processor the figure is predicted: variables of oneDNN and OpenMP; nil: it is what was measured on this one.
local function predicted_for(one)
  if one.file or one.measured then return nil end
  return "ONEDNN_MAX_CPU_ISA=" .. (one.bf16 and "AVX512_CORE_BF16" or "AVX2") .. " OMP_NUM_THREADS=1"
end

-- Removes what output_of has made.
function figures.close()
  if figures.bin then os.execute("rm -r " .. figures.bin) end
  figures.bin = nil
end

local function first_line(command)
  local pipe <close> = assert(io.popen(command .. " 2>/dev/null"))
  return pipe:read "l" or ""
end

-- The checkout's; the pages and files of results that are being written do not make it dirty.
local function commit()
  local id = first_line "git rev-parse --short HEAD"
  local changed = first_line "git status --porcelain --untracked-files=no -- . ':!*.md' ':!experiments/results'" ~= ""
  return id == "" and "unknown" or id .. (changed and "-dirty" or "")
end
-- "AMD EPYC, 2 threads on 2 processors, 1 memory node, oneDNN 2.6.3"
local function device()
  return (output_of "memtide devices" or ""):match "^cpu%s+(.-), [%d.]+ %a?i?B" or "unknown device"
end

-- What a figure's command prints now, as it stands in the page; nil, status: it fails.
function figures.shown(one)
  local text, status = output_of(one.command, predicted_for(one))
  if not text then return nil, status end
  text = text:gsub("[ \t]+\n", "\n"):gsub("^\n+", ""):gsub("%s+$", "")
  return text:find "^|" and text or "```\n" .. text .. "\n```"
end

-- The part of a body that the command has printed, without the line of where and when
function figures.printed(body) return (body:gsub("\n\n`[^\n]*$", "")) end

local function where(one)
  local command = one.file and one.command:gsub("%$FILE", one.file) or one.command
  local processor = predicted_for(one)
  return ("`%s%s`, commit %s, %s, %s"):format(processor and processor .. " " or "", command, commit(), device(), os.date "!%Y-%m-%d")
end

-- Replaces the body of a figure or of data in its page.
local function put(one, body)
  local list, lines = figures.of_page(one.path)
  local now -- at its place, which others may have moved
  for _, other in ipairs(list) do
    if other.command == one.command and other.file == one.file then now = now or other end
  end
  write(one.path, ("%s\n%s\n%s\n"):format(table.concat(lines, "\n", 1, now.first), body, table.concat(lines, "\n", now.last)))
end

-- Does the body name a commit of this history? One that was made beside it (a branch, "-dirty") says nothing to a reader.
local function names_commit(body)
  local id = body:match "`, commit (%S+), [^\n]*$"
  if not id or first_line "git rev-parse HEAD" == "" then return id ~= nil end
  return os.execute(("git merge-base --is-ancestor %s HEAD 2>/dev/null"):format(quoted(id))) ~= nil
end

-- Writes the figure into its page if it is another one now, or was measured, or names no commit of this history. Returns whether it is written; nil, status: the
-- command fails.
local function renew(one)
  local text, status = figures.shown(one)
  if not text then return nil, status end
  local same = figures.printed(one.body) == text and names_commit(one.body)
  if same and not one.measured and not one.minutes then return false end
  put(one, text .. "\n\n" .. where(one))
  return true
end

-- Makes the data anew, beside the old ones, which stay until the command has ended well. Returns true; nil, status.
local function make(one)
  local made = one.file:gsub("%.csv$", ".new.csv")
  local function samples_of(path) return (path:gsub("%.csv$", ".samples.csv")) end
  os.remove(made)
  os.remove(samples_of(made))
  local text, status = output_of(one.command, "FILE=" .. quoted(made))
  if not text then return nil, status end
  os.remove(samples_of(one.file))
  assert(os.rename(made, one.file))
  os.rename(samples_of(made), samples_of(one.file))
  put(one, where(one))
  return true
end

-- What a figure may need of where it is made, by its mark
local NEEDS = {
  torch = {lack = "$PYTHON has no torch",
    is_here = function() return first_line "${PYTHON:-python3} -c 'import torch; print(1)'" == "1" end},
  bf16 = {lack = "this processor computes bf16 in fp32",
    is_here = function() return not (output_of "memtide devices" or ""):find "^cpu[^\n]*bf16[^\n]* emulated" end},
}

-- Why a figure cannot be made here; nil: it can.
function figures.lacking(one)
  for mark, need in pairs(NEEDS) do
    if one[mark] then
      if need.here == nil then need.here = need.is_here() end
      if not need.here then return need.lack end
    end
  end
end

-- Does the test run it?
function figures.is_quick(one) return not (one.file or one.minutes or one.measured or one.torch) end

-- What became of it, in words; nil: its command fails.
local function update(one)
  local why = figures.lacking(one)
  if why then return "left out, " .. why end
  local done, status = (one.file and make or renew)(one)
  if done == nil then return nil, ("FAILED with status %s"):format(status) end
  return done and "new" or "as it was"
end

-- words: the arguments; pages: paths. Returns the exit status.
function figures.main(words, pages)
  local given, only, failed = {}, nil, false
  for _, word in ipairs(words) do
    if word == "--list" or word == "--quick" then given[word] = true
    elseif only or word:find "^%-" then error("expected one text, found " .. word, 0)
    elseif word ~= "" then only = word end
  end
  for _, path in ipairs(pages) do
    for _, one in ipairs((figures.of_page(path))) do
      local name = ("%s: %s%s"):format(path, one.command, one.comment and " # " .. one.comment or "")
      if (not only or name:find(only, 1, true)) and (not given["--quick"] or figures.is_quick(one)) then
        local said, why
        if not given["--list"] then said, why = update(one) end
        failed = failed or why ~= nil
        io.stdout:write(said or why or "", (said or why) and ": " or "", name, "\n")
      end
    end
  end
  figures.close()
  return failed and 1 or 0
end

if arg[0]:find "docs/figures%.lua$" then os.exit(figures.main(arg, figures.pages())) end
return figures
