-- The report: one page of HTML that needs nothing but itself. It has what ran, the verdicts of claims, pictures, and the
-- table of rows, which sorts and filters.
local claims = require "memtide.sweep.claims"
local columns = require "memtide.results.columns"
local samples = require "memtide.results.samples"
local statuses = require "memtide.results.statuses"
local svg = require "memtide.picture.svg"
local theme = require "memtide.picture.theme"
local util = require "memtide.base.util"

local page = {}

-- An element of HTML, which has an end even where it is empty
local function html(tag, attributes, ...)
  local node = svg.node(tag, attributes, ...)
  node.open = true
  return node
end

-- ---- style and script: our own, and the same in every report

local function tones(of)
  return ("--paper:%s;--ink:%s;--muted:%s;--line:%s;--shade:%s"):format(of.paper, of.ink, of.muted, of.line, of.shade)
end

local STYLE = ([[
:root{color-scheme:light dark;%s}
@media screen and (prefers-color-scheme:dark){:root{%s}}
body{margin:0 auto;max-width:1000px;padding:24px 20px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,'Liberation Sans','DejaVu Sans',sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:40px 0 10px;border-bottom:1px solid var(--line)}
p.muted,.muted{color:var(--muted)}
figure{margin:16px 0 32px;overflow-x:auto;break-inside:avoid}.picture{display:block;max-width:100%%;height:auto}
.scroll{overflow-x:auto;margin:0 0 20px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
.number{text-align:right;white-space:nowrap}td:first-child:not(.number){min-width:11em}
th{position:sticky;top:0;background:var(--paper)}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid}
th[aria-sort=ascending] button::after{content:" \2191"}th[aria-sort=descending] button::after{content:" \2193"}
.good,.bad,.open{font-weight:600;white-space:nowrap}
.good::before{content:"\2713 "}.bad::before{content:"\2717 "}.open::before{content:"? "}
input{font:inherit;padding:4px 8px;margin:0 0 10px;width:20em;max-width:90%%;color:inherit;background:var(--shade);
border:1px solid var(--line);border-radius:4px}
#tip{position:fixed;display:none;z-index:2;pointer-events:none;white-space:pre;font-size:12px;padding:6px 9px;
background:var(--paper);color:var(--ink);border:1px solid var(--muted);border-radius:4px;max-width:90vw;overflow:hidden}
@media print{body{max-width:none;padding:0;font-size:11pt}input,#tip{display:none!important}th{position:static}
section,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}table{font-size:8pt}td,th{padding-right:6px}
#more{display:none}}
]]):format(tones(theme.LIGHT), tones(theme.DARK))

-- Tips: the title of the element below the pointer, at once and beside it. Sorting: by a click on a column's head;
-- numbers by data-v.
local SCRIPT = [[
"use strict";
(function(){
var tip=document.getElementById("tip");
function told(e){
  for(;e&&e.nodeName!=="svg"&&e.getAttribute;e=e.parentNode){
    var t=e.getAttribute("data-tip");
    if(t!==null)return t;
    var c=e.firstElementChild;
    if(c&&c.nodeName==="title"){t=c.textContent;e.setAttribute("data-tip",t);c.remove();return t;}
  }
  return null;
}
document.addEventListener("mousemove",function(event){
  var t=event.target.closest&&event.target.closest("svg")?told(event.target):null;
  if(t===null){tip.style.display="none";return;}
  tip.textContent=t;tip.style.display="block";
  var x=event.clientX+14,y=event.clientY+14;
  if(x+tip.offsetWidth>innerWidth)x=Math.max(0,event.clientX-tip.offsetWidth-10);
  if(y+tip.offsetHeight>innerHeight)y=Math.max(0,event.clientY-tip.offsetHeight-10);
  tip.style.left=x+"px";tip.style.top=y+"px";
});
var table=document.getElementById("rows"),filter=document.getElementById("filter");
if(!table)return;
var body=table.tBodies[0],rows=Array.prototype.slice.call(body.rows);
function value(row,k){var c=row.cells[k],v=c.getAttribute("data-v");return v===null?c.textContent:parseFloat(v);}
Array.prototype.forEach.call(table.tHead.rows[0].cells,function(head,k){
  head.firstElementChild.addEventListener("click",function(){
    var down=head.getAttribute("aria-sort")==="ascending"?-1:1;
    Array.prototype.forEach.call(head.parentNode.cells,function(c){c.removeAttribute("aria-sort");});
    head.setAttribute("aria-sort",down>0?"ascending":"descending");
    var keyed=rows.map(function(row,i){return [value(row,k),i,row];});
    keyed.sort(function(a,b){
      var x=a[0],y=b[0];
      if(typeof x!==typeof y)return (typeof x==="string"?1:-1);
      return (x<y?-1:x>y?1:0)*down||a[1]-b[1];
    });
    var all=document.createDocumentFragment();
    keyed.forEach(function(one){all.appendChild(one[2]);});
    body.appendChild(all);
    show();
  });
});
var more=document.getElementById("more"),most=parseInt(table.getAttribute("data-most"),10);
function show(){
  var words=filter.value.toLowerCase().split(/\s+/),count=0;
  Array.prototype.forEach.call(body.rows,function(row){
    var text=filter.value===""?"":row.textContent.toLowerCase();
    var meant=words.every(function(word){return text.indexOf(word)>=0;});
    if(meant)count++;
    row.hidden=!meant||count>most;
  });
  more.hidden=count<=most;
  more.textContent="show all "+count+" rows";
}
filter.addEventListener("input",show);
more.addEventListener("click",function(){most=Infinity;show();});
})();
]]

-- ---- pieces

-- lines: texts, the head first; class(i, k) -> the class of a field of line i (1: the head), or nil
local function table_of(lines, class)
  local head, body = {}, {}
  for k, text in ipairs(lines[1]) do head[k] = html("th", {class = class and class(1, k)}, text) end
  for i = 2, #lines do
    local fields = {}
    for k = 1, #lines[1] do fields[k] = html("td", {class = class and class(i, k)}, tostring(lines[i][k] or "")) end
    body[i - 1] = html("tr", nil, fields)
  end
  return html("div", {class = "scroll"}, html("table", nil, html("thead", nil, html("tr", nil, head)), html("tbody", nil, body)))
end

-- The different values of a column in the order of the file: "a, b", at most eight
local function values_of(rows, name)
  local out, seen, count = {}, {}, 0
  for _, row in ipairs(rows) do
    local value = row[name]
    if value and value ~= "" and not seen[value] then
      seen[value], count = true, count + 1
      if count <= 8 then out[#out + 1] = value end
    end
  end
  return table.concat(out, ", ") .. (count > 8 and (" and %d more"):format(count - 8) or "")
end

local function statuses_of(rows)
  local count, out = {}, {}
  for _, row in ipairs(rows) do count[row.status] = (count[row.status] or 0) + 1 end
  for _, name in ipairs(statuses.names) do
    if count[name] then out[#out + 1] = ("%d %s"):format(count[name], name) end
  end
  return table.concat(out, ", ")
end

-- "from .. to .." of the times at which rows were made
local function times_of(rows)
  local first, last
  for _, row in ipairs(rows) do
    local at = row.started_at
    if at and at ~= "" then first, last = (not first or at < first) and at or first, (not last or at > last) and at or last end
  end
  return first and (first == last and first or ("%s to %s"):format(first, last)) or ""
end

local function what_ran(facts)
  local rows = facts.rows
  local lines = {{"", ""}, {"cells", ("%d, in %d rows: %s"):format(#facts.points, #rows, statuses_of(rows))}}
  local function add(text, value) if value ~= "" then lines[#lines + 1] = {text, value} end end
  add("models", values_of(rows, "model"))
  add("devices", values_of(rows, "device_name"))
  add("libraries", values_of(rows, "driver"))
  add("version", values_of(rows, "version"))
  add("when", times_of(rows))
  add("times", facts.samples and samples.told(facts.samples:disturbed(rows)) or "")
  add("seeds", values_of(rows, "seed"))
  if #facts.varying > 0 then add("what varies", table.concat(facts.varying, ", ")) end
  return table_of(lines)
end

local MARKS = {REPRODUCED = "good", REFUTED = "bad"}

-- verdicts: {{experiment, verdicts of claims.judge}, ...}
local function judged(all)
  local out = {}
  for _, one in ipairs(all) do
    local lines = claims.lines(one.verdicts)
    table.insert(lines[1], "source")
    local width = #lines[1]
    for i, found in ipairs(one.verdicts) do lines[i + 1][width] = found.source or "" end
    out[#out + 1] = html("h3", nil, one.experiment)
    out[#out + 1] = table_of(lines, function(i, k) return i > 1 and k == 2 and (MARKS[one.verdicts[i - 1].verdict] or "open") or nil end)
  end
  return out
end

-- The columns of the table: what tells rows apart, how each ended, and its figures
local FIGURES = {"predicted_peak_bytes", "peak_bytes", "reserved_bytes", "step_ms", "samples_per_s", "loss_last"}

-- Does the column say more than peak_bytes, which stands beside it?
local function adds(rows, name)
  if name == "peak_bytes" or not name:find "_bytes$" then return values_of(rows, name) ~= "" end
  for _, row in ipairs(rows) do
    if row[name] ~= "" and row[name] ~= row.peak_bytes then return true end
  end
  return false
end

local function row_columns(facts)
  local out, has = {"case"}, {}
  for _, name in ipairs(facts.names) do has[name] = true end
  local function add(name) if has[name] then out[#out + 1] = name end end
  if values_of(facts.rows, "repeat"):find(",", 1, true) then add "repeat" end
  add "status"
  for _, name in ipairs(FIGURES) do if adds(facts.rows, name) then add(name) end end
  for _, name in ipairs(facts.varying) do add(name) end
  if values_of(facts.rows, "reason") ~= "" then add "reason" end
  return out
end

-- "80.0 MiB" for bytes, the text itself for anything else; and the number to sort by, nil: it is text
local function field_of(name, text)
  local value = columns.value(name, text)
  if not math.type(value) then return text end
  if name:find "_bytes$" then text = util.show_bytes(value)
  elseif math.type(value) == "float" then text = ("%.6g"):format(value) end
  return text, ("%.17g"):format(value)
end

local SHOWN = 300 -- rows that a page shows at first: a browser takes seconds to lay out 10,000

local function row_table(facts)
  local names, head, body = row_columns(facts), {}, {}
  for k, name in ipairs(names) do head[k] = html("th", nil, html("button", {type = "button"}, (name:gsub("_", " ")))) end
  for i, row in ipairs(facts.rows) do
    local fields = {}
    for k, name in ipairs(names) do
      local text, number = field_of(name, row[name])
      fields[k] = html("td", {class = number and "number" or nil, ["data-v"] = number}, text)
    end
    body[i] = html("tr", {hidden = i > SHOWN and "" or nil}, fields)
  end
  local more = #facts.rows > SHOWN
  return {html("input", {id = "filter", type = "search", placeholder = "filter rows by words", ["aria-label"] = "filter rows"}),
    html("div", {class = "scroll"}, html("table", {id = "rows", ["data-most"] = tostring(SHOWN)}, html("thead", nil, html("tr", nil, head)),
      html("tbody", nil, body))),
    html("button", {id = "more", type = "button", hidden = not more and "" or nil}, ("show all %d rows"):format(#facts.rows)),
    html("noscript", nil, html("style", nil, svg.verbatim "tr[hidden]{display:table-row}"))}
end

-- The tables of a section, each with the columns that are words in `left`, and what stands below them
local function tables_of(section)
  local out = {}
  for i, lines in ipairs(section.tables or {}) do
    out[i] = table_of(lines, function(_, k) return not lines.left[k] and "number" or nil end)
  end
  for _, text in ipairs(section.notes or {}) do out[#out + 1] = html("p", {class = "muted"}, text) end
  return out
end

-- ---- the page

-- facts: rows.facts; verdicts: {{experiment =, verdicts =}, ...}; sections: {{title =, text =, picture = or nil, tables = {lines,
-- ...} or nil, notes = {text, ...} or nil}, ...}, of which one without a picture says why there is none, or has
-- tables. version: memtide's. Returns the page as text.
function page.text(facts, verdicts, sections, version)
  local title, shown = ("%s: memtide report"):format(values_of(facts.rows, "experiment")), {}
  for i, section in ipairs(sections) do
    shown[i] = html("section", nil, html("h2", nil, section.title),
      section.text and html("p", {class = "muted"}, section.text) or {},
      section.picture and html("figure", nil, section.picture) or {}, tables_of(section))
  end
  return "<!doctype html>\n" .. svg.text(html("html", {lang = "en"}, html("head", nil, html("meta", {charset = "utf-8"}),
    html("meta", {name = "viewport", content = "width=device-width,initial-scale=1"}), html("title", nil, title),
    html("style", nil, svg.verbatim(STYLE), svg.verbatim(theme.style))),
    html("body", nil, html("h1", nil, values_of(facts.rows, "experiment")),
      html("p", {class = "muted"}, ("%s, by memtide %s"):format(facts.path, version)),
      html("h2", nil, "What ran"), what_ran(facts),
      #verdicts > 0 and {html("h2", nil, "Claims"), judged(verdicts)} or {}, shown,
      html("h2", nil, "Rows"), row_table(facts), html("div", {id = "tip", role = "tooltip"}),
      html("script", nil, svg.verbatim(SCRIPT))))) .. "\n"
end

return page
