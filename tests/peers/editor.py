"""What a Lua language server says of files: python3 tests/peers/editor.py SERVER FOLDER FILE.lua ...

SERVER is a command that speaks the language server protocol on its standard streams: lua-language-server, or
emmylua_ls. FOLDER is the workspace. Prints FILE:LINE: CODE: MESSAGE of each diagnostic, and at the end how many there are.
"""
import json
import pathlib
import subprocess
import sys
import threading
import time

PATIENCE = 60  # seconds for an answer
QUIET = 4      # seconds without news after which they count as complete
# without these EmmyLua reads neither the workspace nor its settings
CAPABILITIES = {"workspace": {"workspaceFolders": True, "configuration": True,
                              "didChangeWatchedFiles": {"dynamicRegistration": True}},
                "window": {"workDoneProgress": True}, "textDocument": {"publishDiagnostics": {}}}


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.published, self.answers, self.last, self.ids = {}, {}, time.time(), 0
        threading.Thread(target=self.listen, daemon=True).start()

    def send(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def listen(self):
        out = self.process.stdout
        while head := out.readline():
            length = 0
            while head.strip():
                if head.lower().startswith(b"content-length:"):
                    length = int(head.split(b":")[1])
                head = out.readline()
            self.hear(json.loads(out.read(length)))

    def hear(self, message):
        self.last = time.time()
        if "method" in message and "id" in message:  # the server asks: it gets nothing, an answer for each item
            items = message.get("params", {}).get("items") if isinstance(message.get("params"), dict) else None
            self.send({"id": message["id"], "result": [None] * len(items) if items else None})
        elif message.get("method") == "textDocument/publishDiagnostics":
            self.published[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif "id" in message:
            self.answers[message["id"]] = message.get("result")

    def ask(self, method, params):
        self.ids += 1
        mine = self.ids
        self.send({"id": mine, "method": method, "params": params})
        end = time.time() + PATIENCE
        while mine not in self.answers and time.time() < end:
            time.sleep(0.05)
        return self.answers[mine]

    def quiet(self):
        """Waits until the server has said nothing for a while: it has read the workspace, or has looked at the files."""
        self.last = time.time()
        while time.time() - self.last < QUIET:
            time.sleep(0.1)


def main(command, folder, *files):
    root = pathlib.Path(folder).resolve().as_uri()
    server = Server(command)
    server.ask("initialize", {"processId": None, "rootUri": root, "workspaceFolders": [{"uri": root, "name": "w"}],
                              "capabilities": CAPABILITIES})
    server.send({"method": "initialized", "params": {}})
    server.quiet()
    uris = {pathlib.Path(name).resolve().as_uri(): name for name in files}
    for uri, name in uris.items():
        server.send({"method": "textDocument/didOpen", "params": {"textDocument": {
            "uri": uri, "languageId": "lua", "version": 1, "text": pathlib.Path(name).read_text()}}})
    server.quiet()
    count = 0
    for uri, name in uris.items():
        for one in server.published.get(uri, [{"range": {"start": {"line": 0}}, "message": "the server has not looked at it"}]):
            count += 1
            print("%s:%d: %s: %s" % (name, one["range"]["start"]["line"] + 1, one.get("code"), one["message"].replace("\n", " ")))
    print("%d diagnostics in %d files" % (count, len(uris)))
    server.process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
