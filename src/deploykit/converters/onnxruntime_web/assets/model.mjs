// Loads the model and runs it, in a page and in Node alike. Written by deploykit.

// Node 20 and older browsers have no Float16Array; ONNX Runtime takes the bits then.
const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  float16: globalThis.Float16Array ?? Uint16Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};

/** A session of the model that `facts` (deploykit-web.json) describes. locate: file name -> address or path. */
export async function loadModel(ort, facts, locate, backend, threads) {
  if (threads) ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
  return ort.InferenceSession.create(locate(facts.model), {
    executionProviders: [backend === "webnn" ? { name: "webnn", deviceType: "cpu" } : backend],
    externalData: facts.external.map((path) => ({ path, data: locate(path) })),
    logSeverityLevel: 3,
  });
}

/** A tensor of `data`: an ArrayBuffer in ONNX's layout, or a list of texts. */
export function tensorOf(ort, dtype, shape, data) {
  if (dtype === "string") return new ort.Tensor("string", data, shape);
  if (!ARRAYS[dtype]) throw new Error(`JavaScript has no tensors of ${dtype}`);
  return new ort.Tensor(dtype, new ARRAYS[dtype](data), shape);
}

/** One call: outputs by name as {dtype, shape, data}, and milliseconds until they are in memory. */
export async function runModel(session, feeds) {
  const start = performance.now();
  const results = await session.run(feeds);
  const outputs = [];
  for (const name of session.outputNames) {
    const tensor = results[name];
    outputs.push({ name, dtype: tensor.type, shape: [...tensor.dims], data: await tensor.getData() });
  }
  const milliseconds = performance.now() - start;
  for (const tensor of Object.values(results)) tensor.dispose();
  return { outputs, milliseconds };
}

/** The inputs of sample.bin, which lie one after the other as `facts.sample` says. */
export function sampleFeeds(ort, facts, bytes) {
  const feeds = {};
  for (const { name, dtype, shape, offset, size, texts } of facts.sample) {
    feeds[name] = tensorOf(ort, dtype, shape, texts ?? bytes.slice(offset, offset + size));
  }
  return feeds;
}

/** A tensor from the bytes of a NumPy file; `dtype` is what the model declares. */
export function tensorOfNpy(ort, dtype, buffer) {
  const view = new DataView(buffer);
  const wide = view.getUint8(6) > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  const head = new TextDecoder("latin1").decode(new Uint8Array(buffer, wide ? 12 : 10, length));
  const found = head.match(/'descr': *'([<|=])?(\w+)', *'fortran_order': *(True|False), *'shape': *\(([^)]*)\)/);
  if (!found || found[3] === "True") throw new Error("only .npy files in C order with little-endian numbers are read");
  const names = { f2: "float16", f4: "float32", f8: "float64", b1: "bool" };
  const kind = names[found[2]] ?? found[2].replace(/^([iu])(\d)$/, (_, s, n) => `${s === "u" ? "u" : ""}int${8 * n}`);
  if (kind !== dtype) throw new Error(`the file holds ${kind}, and the model takes ${dtype}`);
  const shape = found[4].split(",").filter((text) => text.trim()).map(Number);
  return tensorOf(ort, dtype, shape, buffer.slice(start));
}

/** Bits of float16 as numbers, for display. */
export function readable(dtype, data) {
  if (dtype !== "float16" || !(data instanceof Uint16Array)) return Array.from(data, String);
  return Array.from(data, (bits) => {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const sign = bits >> 15 ? -1 : 1;
    if (exponent === 31) return fraction ? "NaN" : sign > 0 ? "Infinity" : "-Infinity";
    return String(sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024)));
  });
}
