// What deploykit and a runner say to each other: {inputs: [...]} with the tensors' bytes, {outputs: [...]} with theirs.
import { runModel, tensorOf } from "./model.mjs";

/** The frame for a request, or for what a function gives: {headSize, parts}. */
export async function answer(ort, session, head, body) {
  try {
    const result = typeof ort === "function" ? await ort() : await runModel(session, feedsOf(ort, head, body));
    return framed({ ...result, outputs: result.outputs.map(({ data, ...facts }) => facts) }, result.outputs);
  } catch (problem) {
    return framed({ error: String(problem?.message ?? problem), outputs: [] }, []);
  }
}

function feedsOf(ort, head, body) {
  const feeds = {};
  for (const { name, dtype, shape, offset, size, texts } of head.inputs) {
    feeds[name] = tensorOf(ort, dtype, shape, texts ?? body.slice(offset, offset + size));
  }
  return feeds;
}

function framed(head, outputs) {
  const parts = [];
  outputs.forEach(({ dtype, data }, place) => {
    if (dtype === "string") head.outputs[place].texts = data;
    else {
      head.outputs[place].size = data.byteLength;
      parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
  });
  const bytes = new TextEncoder().encode(JSON.stringify(head));
  return { headSize: bytes.byteLength, parts: [bytes, ...parts] };
}
