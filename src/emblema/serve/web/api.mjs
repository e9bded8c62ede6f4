// The server: its files, caches and answers. Errors say what a reader can do.
let key = sessionStorage.getItem("key") || "";

export function useKey(given) {
  key = given;
  sessionStorage.setItem("key", given);
}

export async function call(path, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let answer;
  try { answer = await fetch(path, { ...options, headers }); } catch { throw Object.assign(new Error("the server is gone"), { gone: true }); }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  const said = answer.status === 401 && key ? "that key is not known" : body?.error?.message || `the server answered ${answer.status}`;
  throw Object.assign(new Error(said), { status: answer.status, wait: Number(answer.headers.get("retry-after")) });
}

const json = async (path, options) => (await call(path, options)).json();
const post = (path, body) => call(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const listModels = async () => (await json("/v1/models")).data;
export const listFiles = async () => (await json("/v1/files?limit=200")).data;
export const deleteFile = (id) => call(`/v1/files/${id}`, { method: "DELETE" });

export async function upload(blob, name) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", blob, name);
  const { id } = await json("/v1/files", { method: "POST", body: form });
  for (;;) {
    const file = await json(`/v1/files/${id}`);
    if (file.status === "error") throw new Error(file.status_details);
    if (file.status === "processed") return file;
    await new Promise((done) => setTimeout(done, 100));
  }
}

const addresses = new Map();

// A picture of a file for this page; null for clips and documents.
export async function thumbnail(file) {
  if (file.emblema.kind !== "image") return null;
  if (!addresses.has(file.id)) addresses.set(file.id, call(`/v1/files/${file.id}/content`).then((answer) => answer.blob()).then((blob) => URL.createObjectURL(blob)));
  return addresses.get(file.id).catch((error) => { addresses.delete(file.id); throw error; });
}

// Makes the rows and patches of an order ready; returns the seconds that took.
export async function makeReady(pictures) {
  const began = performance.now();
  await post("/v1/caches?wait=true", { content: pictures.map((picture) => ({ type: "file", file: { file_id: picture.id } })), ttl: 3600 });
  return (performance.now() - began) / 1000;
}

// The body of a question: what is sent is what can be copied.
export function bodyOf(model, pictures, opening, question, strategy) {
  const parts = pictures.map((picture) => ({ type: "file", file: { file_id: picture.id }, ...(picture.slid && { slid: true }) }));
  const text = (words) => (words ? [{ type: "text", text: words }] : []);
  const content = [...text(opening), ...parts, ...text(question)];
  return { model, strategy, temperature: 0, max_tokens: 64, messages: [{ role: "user", content }] };
}

// Asks, and calls `told` with the text so far; returns the whole answer.
export async function ask(body, told) {
  const answer = await post("/v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } });
  const result = { text: "", report: null, total: 0 };
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch(() => { throw Object.assign(new Error("the server is gone"), { gone: true }); });
    const lines = (rest + (value || "")).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: {")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      result.text += event.choices[0]?.delta.content || "";
      result.report = event.emblema || result.report;
      result.total = event.usage?.prompt_tokens || result.total;
      told(result.text);
    }
    if (done) break;
  }
  if (!result.report) throw new Error("the answer broke off");
  return result;
}
