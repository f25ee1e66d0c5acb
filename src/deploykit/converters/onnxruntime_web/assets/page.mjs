// The page: loads the model, runs the sample, and whatever files the visitor gives. Written by deploykit.
import { loadModel, readable, runModel, sampleFeeds, tensorOfNpy } from "./model.mjs";

const SHOWN = 32;
const at = (id) => document.getElementById(id);
const here = (name) => new URL(name, import.meta.url).href;
const asked = new URLSearchParams(location.search);

function cells(row, ...texts) {
  for (const text of texts) row.insertCell().append(text);
  return row;
}

function shown(dtype, shape, data) {
  const code = document.createElement("code");
  code.textContent = readable(dtype, data.slice(0, SHOWN)).join(" ") + (data.length > SHOWN ? ` ... (${data.length})` : "");
  return [`${dtype} [${shape.join(", ")}]`, code];
}

function fail(problem) {
  at("problem").hidden = false;
  at("problem").textContent = String(problem?.message ?? problem);
  at("status").textContent = "failed";
  document.body.dataset.state = "failed";
  throw problem;
}

async function begin() {
  const facts = await (await fetch(here("deploykit-web.json"))).json();
  document.title = at("title").textContent = facts.title;
  const backend = asked.get("backend") ?? facts.backend;
  for (const name of new Set(["wasm", facts.backend])) at("backend").add(new Option(name, name, false, name === backend));
  at("backend").onchange = () => location.assign(`?backend=${at("backend").value}`);
  const base = facts.runtime.startsWith("http") ? facts.runtime : here(facts.runtime);
  let ort;
  try {
    ort = await import(`${base}${facts.script}`);
  } catch (problem) {
    fail(new Error(`${facts.script} was not loaded (${problem.message}): copy dist/ of the npm package onnxruntime-web ` +
      `${facts.version} to ${facts.runtime} beside this page. A page opened as a file loads no scripts: python -m http.server`));
  }
  ort.env.wasm.wasmPaths = base;
  // Threads share memory, which browsers allow to pages served with COOP and COEP headers only.
  const threads = asked.get("threads") ?? (crossOriginIsolated ? 0 : 1);
  const begun = performance.now();
  const session = await loadModel(ort, facts, here, backend, Number(threads));
  const loaded = performance.now() - begun;
  const bytes = await (await fetch(here("sample.bin"))).arrayBuffer();
  const feeds = sampleFeeds(ort, facts, bytes);
  at("about").textContent = `${facts.model}, ONNX Runtime Web ${ort.env.versions.web}, ${backend}; loaded in ${loaded.toFixed(0)} ms`;
  for (const { name, dtype, shape } of facts.inputs) {
    const picker = document.createElement("input");
    picker.type = "file";
    picker.accept = ".npy";
    picker.ariaLabel = `values of ${name}`;
    const row = cells(at("inputs").insertRow(), name, ...shown(dtype, feeds[name].dims, feeds[name].data), picker);
    row.cells[1].title = `the model takes [${(shape ?? ["any shape"]).join(", ")}]`;
    picker.onchange = async () => {
      try {
        feeds[name] = tensorOfNpy(ort, dtype, await picker.files[0].arrayBuffer());
        const [type, values] = shown(dtype, feeds[name].dims, feeds[name].data);
        row.cells[1].textContent = type;
        row.cells[2].replaceChildren(values);
      } catch (problem) {
        fail(problem);
      }
    };
  }
  async function show() {
    at("run").disabled = true;
    at("status").textContent = "running";
    at("problem").hidden = true;
    const { outputs, milliseconds } = await runModel(session, feeds).catch(fail).finally(() => (at("run").disabled = false));
    at("outputs").replaceChildren();
    for (const { name, dtype, shape, data } of outputs) cells(at("outputs").insertRow(), name, ...shown(dtype, shape, data));
    at("status").textContent = `${milliseconds.toFixed(2)} ms`;
    document.body.dataset.state = "done";
    return outputs;
  }
  at("run").onclick = show;
  // A sample that does not run is shown as such; files that the visitor gives may.
  const problem = await show().then(() => "", (found) => String(found?.message ?? found));
  return { ort, session, facts, backend, problem };
}

/** What another script on the page may use: {ort, session, facts, backend, problem (of the sample)} once it has run. */
export const ready = begin().catch(fail);
