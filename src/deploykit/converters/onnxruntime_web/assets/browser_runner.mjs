// deploykit's door to the page: waits for the page's own sample, then runs what the server hands out.
import { answer } from "./frames.mjs";
import { ready } from "./page.mjs";

async function post(frame) {
  const length = new DataView(new ArrayBuffer(4));
  length.setUint32(0, frame.headSize, true);
  await fetch("__result__", { method: "POST", body: new Blob([length.buffer, ...frame.parts]) });
}

async function adapter(backend) {
  if (backend !== "webgpu") return "";
  const { vendor, architecture, description } = (await navigator.gpu.requestAdapter())?.info ?? {};
  return [vendor, architecture, description].filter(Boolean).join(" ");
}

try {
  const { ort, session, backend, problem } = await ready;
  const shown = document.getElementById("outputs").innerText;
  const told = { version: ort.env.versions.web, agent: navigator.userAgent, shown, problem, adapter: await adapter(backend) };
  await post(await answer(() => ({ outputs: [], milliseconds: 0, ...told })));
  for (;;) {
    const reply = await fetch("__next__");
    if (reply.status !== 200) break;
    const bytes = await reply.arrayBuffer();
    const size = new DataView(bytes).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size)));
    await post(await answer(ort, session, head, bytes.slice(8 + size)));
  }
} catch (problem) {
  await post(await answer(() => Promise.reject(problem)));
}
