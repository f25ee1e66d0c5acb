// deploykit's door to a model in Node: frames on stdin and stdout, each a length, a JSON head, and the tensors' bytes.
import { readFile } from "node:fs/promises";
import { writeSync } from "node:fs";
import { pathToFileURL } from "node:url";
import path from "node:path";
import { loadModel } from "./model.mjs";
import { answer } from "./frames.mjs";

// Whatever prints goes to the log: stdout is the channel.
for (const name of ["log", "info", "debug", "warn"]) console[name] = (...texts) => console.error(...texts);

function send(bytes) {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.headSize);
  for (const part of [length, ...bytes.parts]) {
    let at = 0;
    while (at < part.byteLength) {
      try {
        at += writeSync(1, part, at);
      } catch (problem) {
        if (problem.code !== "EAGAIN") throw problem;
      }
    }
  }
}

async function* frames() {
  const wanted = [];
  let have = 0;
  const take = (count) => {
    const all = wanted.length === 1 ? wanted[0] : Buffer.concat(wanted);
    wanted.length = 0;
    have -= count;
    if (have) wanted.push(all.subarray(count));
    return all.subarray(0, count);
  };
  let head = null;
  let sizes = null;
  for await (const chunk of process.stdin) {
    wanted.push(chunk);
    have += chunk.length;
    for (;;) {
      if (!sizes && have >= 8) {
        const lengths = take(8);
        sizes = [lengths.readUInt32LE(0), lengths.readUInt32LE(4)];
      }
      if (sizes && !head && have >= sizes[0]) head = JSON.parse(take(sizes[0]).toString("utf8"));
      if (!head || have < sizes[1]) break;
      const body = sizes[1] ? take(sizes[1]) : Buffer.alloc(0);
      yield [head, body.buffer.slice(body.byteOffset, body.byteOffset + body.byteLength)];
      head = sizes = null;
    }
  }
}

const [entry, folder, threads] = process.argv.slice(2);
let ort;
let session;
try {
  ort = await import(pathToFileURL(entry));
  const facts = JSON.parse(await readFile(path.join(folder, "deploykit-web.json"), "utf8"));
  session = await loadModel(ort, facts, (name) => path.join(folder, name), "wasm", Number(threads));
  const where = `Node ${process.versions.node}`;
  send(await answer(() => ({ outputs: [], milliseconds: 0, version: ort.env.versions.web, where, program: "node" })));
} catch (problem) {
  send(await answer(() => Promise.reject(problem)));
  process.exit(0);
}
for await (const [head, body] of frames()) send(await answer(ort, session, head, body));
process.exit(0); // the threads of wasm would keep the process
