// Runs the model in Node, on ONNX Runtime Web's wasm backend. Written by deploykit.
//   npm install && node run.mjs [--runs 10] [INPUT=file.npy ...]
// Inputs that are not given are those of the sample.
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { loadModel, readable, runModel, sampleFeeds, tensorOfNpy } from "./model.mjs";

const path = (name) => fileURLToPath(new URL(name, import.meta.url));
const facts = JSON.parse(await readFile(path("deploykit-web.json"), "utf8"));

async function findRuntime() {
  for (const name of ["onnxruntime-web", "./ort/ort.node.min.mjs"]) {
    try {
      return await import(name);
    } catch (problem) {
      if (problem.code !== "ERR_MODULE_NOT_FOUND") throw problem;
    }
  }
  console.error(`onnxruntime-web ${facts.version} is not installed: npm install`);
  process.exit(3);
}

const ort = await findRuntime();
const args = process.argv.slice(2);
let runs = 1;
const files = {};
for (let at = 0; at < args.length; at += 1) {
  const [name, file] = args[at].split(/=(.*)/s);
  if (args[at] === "--runs") runs = Math.max(1, Number(args[(at += 1)]) || 1);
  else if (file && facts.inputs.some((input) => input.name === name)) files[name] = file;
  else {
    console.error(`${args[at]}: --runs N, or INPUT=file.npy with INPUT one of ${facts.inputs.map((i) => i.name).join(", ")}`);
    process.exit(2);
  }
}

const begun = performance.now();
const session = await loadModel(ort, facts, path, "wasm", 0);
console.log(`onnxruntime-web ${ort.env.versions.web}, wasm, loaded in ${(performance.now() - begun).toFixed(0)} ms`);
const bytes = await readFile(path("sample.bin"));
const feeds = sampleFeeds(ort, facts, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
for (const { name, dtype } of facts.inputs) {
  if (files[name]) {
    const given = await readFile(files[name]);
    feeds[name] = tensorOfNpy(ort, dtype, given.buffer.slice(given.byteOffset, given.byteOffset + given.byteLength));
  }
  console.log(`input  ${name}: ${dtype} [${feeds[name].dims.join(", ")}]`);
}
const times = [];
let outputs;
for (let run = 0; run < runs; run += 1) {
  const result = await runModel(session, feeds);
  times.push(result.milliseconds);
  outputs = result.outputs;
}
for (const { name, dtype, shape, data } of outputs) {
  const shown = readable(dtype, data.slice(0, 8)).join(" ");
  console.log(`output ${name}: ${dtype} [${shape.join(", ")}] ${shown}${data.length > 8 ? " ..." : ""}`);
}
times.sort((a, b) => a - b);
console.log(`${times[Math.floor(times.length / 2)].toFixed(2)} ms (median of ${times.length})`);
await session.release();
process.exit(0); // the threads of wasm would keep the process
