-- Rows with dotted paths as a tree: sums, equal blocks as one, depth.
local tap = dofile "tests/tap.lua"
local tree = require "memtide.results.tree"

-- rows: {{path, kind, number}, ...} -> "name kind sum count" of each line
local function shown(rows, depth)
  local list, lines = {}, {}
  for i, row in ipairs(rows) do list[i] = {path = row[1], same = row[2], n = row[3]} end
  local root = tree.build(list, function(row) return {n = row.n} end)
  tree.each(root, depth, function(node, name)
    lines[#lines + 1] = ("%s %s %d %d"):format(name, node.row and node.row.same or "-", node.sums.n, node.count)
  end)
  return table.concat(lines, "\n"), root
end

local flat, root = shown{{"0", "Conv", 1}, {"1", "ReLU", 2}, {"2", "Conv", 4}}
tap.is(flat, "0 Conv 1 1\n1 ReLU 2 1\n2 Conv 4 1", "layers without containers are a list")
tap.is(root.sums.n, 7, "with a sum")

local blocks = {{"embed", "Embedding", 1}}
for i = 0, 11 do
  blocks[#blocks + 1] = {("blocks.%d.attn"):format(i), "Attention", 10}
  blocks[#blocks + 1] = {("blocks.%d.mlp.up"):format(i), "Linear", 100}
  blocks[#blocks + 1] = {("blocks.%d.mlp.down"):format(i), "Linear", 1000}
end
blocks[#blocks + 1] = {"head", "Linear", 5}
tap.is((shown(blocks)), table.concat({"embed Embedding 1 1", "blocks.0-11 x 12 - 13320 12", "  attn Attention 120 12",
  "  mlp - 13200 12", "    up Linear 1200 12", "    down Linear 12000 12", "head Linear 5 1"}, "\n"),
  "equal blocks are one, with the sums of all")
tap.is((shown(blocks, 1)), "embed Embedding 1 1\nblocks.0-11 x 12 - 13320 12\nhead Linear 5 1", "to a depth of 1")
tap.is((shown(blocks, 2)), table.concat({"embed Embedding 1 1", "blocks.0-11 x 12 - 13320 12", "  attn Attention 120 12",
  "  mlp - 13200 12", "head Linear 5 1"}, "\n"), "of 2")

tap.is((shown{{"l.0.a", "A", 1}, {"l.1.a", "A", 1}, {"l.2.a", "B", 1}, {"l.3.a", "B", 1}, {"l.4.a", "B", 1}}),
  "l - 5 1\n  0-1 x 2.a A 2 2\n  2-4 x 3.a B 3 3", "a block that differs begins another run")
tap.is((shown{{"l.0", "A", 1}, {"l.2", "A", 1}}), "l - 2 1\n  0 A 1 1\n  2 A 1 1", "numbers with a gap are no run")
tap.is((shown{{"l.0.x.0", "A", 1}, {"l.0.x.1", "A", 1}, {"l.1.x.0", "A", 1}, {"l.1.x.1", "A", 1}}),
  "l.0-1 x 2.x.0-1 x 2 A 4 4", "runs in runs")
tap.is((shown{{"l.a", "A", 1}, {"l.b", "A", 1}}), "l - 2 1\n  a A 1 1\n  b A 1 1", "names that are no numbers stay apart")
tap.is((shown{{"", "Linear", 3}, {"", "view", 1}, {"x", "X", 1}}), ". Linear 4 1\nx X 1 1",
  "the network itself, of which there may be several rows")
tap.is((shown{{"a", "A", 3}, {"a.b", "B", 1}}), "a A 4 1\n  b B 1 1", "a layer that has layers, too")
tap.is((shown{}), "", "nothing")
tap.done()
