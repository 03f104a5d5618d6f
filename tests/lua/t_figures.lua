-- The docs' figures: what quick commands print is what the pages show; and docs/figures.lua itself, on a page made for it.
local tap = dofile "tests/tap.lua"
local figures = dofile "docs/figures.lua"

-- ---- the pages
local found = 0
for _, path in ipairs(figures.pages()) do
  for _, one in ipairs((figures.of_page(path))) do
    if figures.is_quick(one) then
      local what, lack = ("%s:%d: %s (make figures ONLY=--quick)"):format(path, one.first, one.command), figures.lacking(one)
      if lack then tap.ok(true, ("%s # SKIP %s"):format(what, lack))
      else
        found = found + 1
        tap.is(figures.shown(one), figures.printed(one.body), what)
      end
    end
  end
end
tap.ok(found >= 7, ("%d figures are what their commands print"):format(found))

-- ---- a page made for it
local folder = io.popen("mktemp -d"):read "l"
local page, file = folder .. "/page.md", folder .. "/data.csv"

local function write(path, text)
  local out <close> = assert(io.open(path, "w"))
  assert(out:write(text))
end
local function read(path)
  local in_ <close> = assert(io.open(path))
  return in_:read "a"
end

-- The page's text after docs/figures.lua has gone over it, what that has said, and its status
local function updated(text, ...)
  write(page, text)
  local said, put = {}, io.stdout
  io.stdout = {write = function(_, ...) said[#said + 1] = table.concat{...} end} -- luacheck: ignore 122
  local good, status = pcall(figures.main, {...}, {page})
  io.stdout = put -- luacheck: ignore 122
  if not good then error(status, 0) end
  return read(page), table.concat(said), status
end

local function figure(command, body) return ("<!-- figure: %s -->\n%s<!-- end -->\n"):format(command, body or "") end

local text, said, status = updated("# A\n\n" .. figure "echo one; echo two >&2" .. "\nthe end\n")
tap.has(text, "# A\n\n<!-- figure: echo one; echo two >&2 -->\n```\none\n```\n\n" ..
  "`ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 echo one; echo two >&2`, commit ", "output in a fence")
tap.ok(text:find " on %d+ processors, [^`]*oneDNN [%d.]+, %d%d%d%d%-%d%d%-%d%d\n<!%-%- end %-%->\n\nthe end\n$", "where and when", text)
tap.is(said .. status, ("new: %s: echo one; echo two >&2\n0"):format(page), "what was done")
local known = io.popen("git rev-parse HEAD 2>/dev/null"):read "l" -- nil: no checkout, where every commit is as good
local again, said_again = updated((text:gsub("commit [%w-]+", "commit " .. (known or "before"))))
tap.has(again, "commit " .. (known or "before"), "a figure that is what it was keeps its line")
tap.has(said_again, "as it was: ", "and that is told")
if known then
  again = updated((text:gsub("commit [%w-]+", "commit 1234567-dirty")))
  tap.is(again:find("1234567", 1, true), nil, "unless it names a commit that is none of the history")
end
tap.has((updated(figure("printf '| a |\\n| --: |\\n| 1 |\\n'", "old\n"))),
  "-->\n| a |\n| --: |\n| 1 |\n\n`ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 printf", "a table is no fence")
text = updated(figure("echo 1 # (measured)", "```\n1\n```\n\n`echo 1`, commit before, x\n"))
tap.is(text:find("commit before", 1, true), nil, "what is measured is new each time")

text, said, status = updated(figure("echo 2; exit 3", "what was\n") .. figure "echo 4; exit 5")
tap.has(text, "-->\nwhat was\n<!-- end", "a command that fails leaves its figure")
tap.has(said .. status, "FAILED with status 3: ", "which is told")
tap.is(status, 1, "and is a failure")
tap.has(text, "```\n4\n```", "a refuted claim is none, and the others are made")

said = select(2, updated(figure("echo a") .. figure("echo b # (minutes)") .. figure("echo c # (needs PyTorch)"), "--quick"))
tap.is(said, ("new: %s: echo a\n"):format(page), "--quick leaves out what the test does not run")
tap.is((select(2, updated(figure "echo a" .. figure "echo b", "--list", "echo b"))), page .. ": echo b\n", "--list and a part of the text")

tap.raises("expected one text, found --quik", "an option that is none", updated, figure "echo a", "--quik")
tap.raises("expected one text, found b", "two texts", updated, figure "echo a", "a", "b")

-- ---- data
local data = ("<!-- data %s: echo new > $FILE # (minutes) -->\n<!-- end -->\n"):format(file)
write(file, "old\n")
text = updated(data .. figure(("cat %s"):format(file)))
tap.is(read(file), "new\n", "data are made anew")
tap.has(text, ("-->\n`echo new > %s`, commit "):format(file), "the page shows where")
tap.has(text, "```\nnew\n```", "a figure after it reads them")
write(file, "old\n")
updated((data:gsub("echo new > %$FILE", "false")))
tap.is(read(file), "old\n", "data stay where the command fails")

-- ---- mistakes
tap.raises(":1: the figure has no end", "a figure without its end", updated, "<!-- figure: echo -->\n")
tap.raises(":2: the figure of line 1 has no end", "a figure in a figure", updated, "<!-- figure: echo -->\n<!-- figure: echo -->\n<!-- end -->\n")
tap.raises(":1: an end without a figure", "an end by itself", updated, "<!-- end -->\n")
tap.is((updated("```\n<!-- figure: echo x -->\n```\n")), "```\n<!-- figure: echo x -->\n```\n", "a figure in a fence is an example")

figures.close()
os.execute("rm -r " .. folder)
tap.done()
