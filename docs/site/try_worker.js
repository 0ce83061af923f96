// nccl-tuner in the browser, for files that are pasted: CPython in WebAssembly (Pyodide), loaded when first asked.
// It has the network until it is loaded and never again, so that nothing of a file can leave it.
const FOLDER = new URL("../python/", import.meta.url);
const LOAD = `
import os, sys
sys.path.insert(0, "/app")
os.makedirs("/files")
os.chdir("/files")

def ask(content, machine, nodes, columns):
    os.environ["COLUMNS"] = str(columns)
    from tuner.cli.pasted import answers
    for old in os.listdir("."):
        os.remove(old)
    for name, data in content.to_py().items():
        with open(name, "wb") as file:
            file.write(data)
    return answers(sorted(content.to_py()), machine, nodes)

def following(asked):
    import json
    found = next(asked, None)
    if found is None:
        return None
    keys = ("title", "command", "exit_code", "verdict", "output", "errors")
    return json.dumps({**{key: getattr(found, key) for key in keys}, "words": list(found.words)})

def as_json(words):
    from tuner.cli.tools import answered
    return answered([*words.to_py(), "--json"])[1]
`;

let loaded;

async function load() {
  const fetched = self.fetch.bind(self);
  const { files, unpacked } = await (await fetched(new URL("index.json", FOLDER))).json();
  const total = Object.values(files).reduce((sum, bytes) => sum + bytes, 0);
  let done = 0;
  const count = (bytes) => postMessage({ done: (done += bytes), total });
  self.fetch = async (address, options) => {
    const response = await fetched(address, options);
    if (!response.ok) throw new Error(`${address}: ${response.status}`);
    const body = response.body.pipeThrough(
      new TransformStream({
        transform(chunk, out) {
          count(chunk.length);
          out.enqueue(chunk);
        },
      }),
    );
    const type = String(address).endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
    return new Response(body, { headers: { "content-type": type } });
  };
  const archives = unpacked.map(async (name) => (await self.fetch(new URL(name, FOLDER))).arrayBuffer());
  const { loadPyodide } = await import(new URL("pyodide.mjs", FOLDER));
  const pyodide = await loadPyodide({ indexURL: FOLDER.href });
  for (const archive of archives) pyodide.unpackArchive(await archive, "zip", { extractDir: "/app" });
  for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "EventSource", "WebTransport", "Worker"]) self[name] = undefined;
  pyodide.runPython(LOAD);
  postMessage({ done: total, total });
  return pyodide;
}

self.onmessage = async ({ data }) => {
  try {
    loaded ??= load();
    const pyodide = await loaded;
    const call = (name, ...given) => pyodide.globals.get(name)(...given);
    if (data.words) {
      postMessage({ id: data.id, json: call("as_json", data.words) });
      return;
    }
    const content = new Map(data.files.map(([name, bytes]) => [name, new Uint8Array(bytes)]));
    const asked = call("ask", content, data.machine, data.nodes, data.columns);
    for (let found = call("following", asked); found !== undefined && found !== null; found = call("following", asked)) {
      postMessage({ id: data.id, answer: JSON.parse(found) });
      await new Promise((resolve) => setTimeout(resolve)); // the page shows it before the next begins
    }
    postMessage({ id: data.id, end: true });
  } catch (error) {
    if (!(await Promise.resolve(loaded).then(() => true, () => false))) loaded = undefined; // a next question tries again
    postMessage({ id: data.id, error: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
