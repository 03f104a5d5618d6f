-- A test beside PyTorch, in the Python that PYTHON names: where it has none, the test ends here, and says so.
--
--   local torch = dofile "tests/lua/torch.lua"(tap, "ResNet-18")
--   torch.path "x.safetensors"             a file in a folder of the test's own
--   torch.run "tests/peers/pytorch_X.py"   the script, given that folder; whether it succeeds, and PyTorch's version
--   torch.close()
return function(tap, what)
  local python = os.getenv "PYTHON" or "/usr/bin/python3"
  local version = io.popen(python .. " -c 'import torch; print(torch.__version__)' 2>&1"):read "a"
  if not version:find "^%d" then
    tap.ok(true, ("%s beside PyTorch # SKIP no PyTorch in %s (PYTHON)"):format(what, python))
    tap.done()
  end
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)))
  return {
    path = function(name) return folder .. "/" .. name end,
    run = function(script)
      return os.execute(("PYTHONDONTWRITEBYTECODE=1 '%s' %s '%s'"):format(python, script, folder)), version:match "%S+"
    end,
    close = function() assert(os.execute(("rm -r '%s'"):format(folder))) end,
  }
end
