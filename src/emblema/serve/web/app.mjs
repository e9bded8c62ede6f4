// The page: pictures in an order, a question, and two answers: computed from the start, and with what is kept.
import { h, render } from "preact";
import { useEffect, useState } from "hooks";
import htm from "htm";

const html = htm.bind(h);
const DEMO = ["legend-3.png", ...[1, 2, 3, 4, 5, 6, 7].map((number) => `map-0${number}.png`)];
const QUESTION = "on which land does the moon stand ?";
const WAYS = [
  { strategy: "full", name: "Computed from the start" },
  { strategy: "auto", name: "With what is kept" },
];
const SOURCES = [
  ["taken", "taken as kept"],
  ["patched", "taken and patched"],
  ["computed", "computed"],
];

let key = sessionStorage.getItem("key") || "";

async function call(path, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw Object.assign(new Error(body?.error?.message || `the server answered ${answer.status}`), { status: answer.status });
}

async function upload(blob, name) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", blob, name);
  return (await call("/v1/files", { method: "POST", body: form })).json();
}

async function processed(id) {
  for (;;) {
    const file = await (await call(`/v1/files/${id}`)).json();
    if (file.status === "error") throw new Error(file.status_details);
    if (file.status === "processed") return file;
    await new Promise((done) => setTimeout(done, 200));
  }
}

async function ask(model, pictures, opening, question, strategy) {
  const parts = pictures.map((picture) => ({ type: "file", file: { file_id: picture.id } }));
  const text = (words) => (words ? [{ type: "text", text: words }] : []);
  const content = [...text(opening), ...parts, ...text(question)];
  const body = JSON.stringify({ model, strategy, temperature: 0, max_tokens: 64, messages: [{ role: "user", content }] });
  const headers = { "content-type": "application/json" };
  return (await call("/v1/chat/completions", { method: "POST", headers, body })).json();
}

function moved(list, from, to) {
  const rest = list.filter((_, index) => index !== from);
  return [...rest.slice(0, to), list[from], ...rest.slice(to)];
}

function shuffled(list) {
  const copy = [...list];
  for (let last = copy.length - 1; last > 0; last--) {
    const other = Math.floor(Math.random() * (last + 1));
    [copy[last], copy[other]] = [copy[other], copy[last]];
  }
  return copy;
}

function Picture({ picture, index, count, act }) {
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.altKey) { event.preventDefault(); act.move(index, index + step); }
    if (event.key === "Delete") act.remove(index);
  };
  const dropped = (event) => {
    const from = event.dataTransfer.getData("text/index");
    if (from !== "") { event.preventDefault(); event.stopPropagation(); act.move(Number(from), index); }
  };
  const label = `Picture ${index + 1} of ${count}: ${picture.name}`;
  return html`<li class=${picture.error ? "broken" : ""} tabindex="0" draggable="true" aria-label=${label} onKeyDown=${keys}
      onDragStart=${(event) => event.dataTransfer.setData("text/index", index)} onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
    ${picture.url ? html`<img src=${picture.url} alt="" draggable="false" />` : html`<div class="blank">${picture.name}</div>`}
    <p class="state">${picture.error || (picture.ready ? "kept" : "being read …")}</p>
    <div class="buttons">
      <button aria-label=${`Move ${picture.name} left`} disabled=${index === 0} onClick=${() => act.move(index, index - 1)}>◀</button>
      <button aria-label=${`Remove ${picture.name}`} onClick=${() => act.remove(index)}>✕</button>
      <button aria-label=${`Move ${picture.name} right`} disabled=${index + 1 === count} onClick=${() => act.move(index, index + 1)}>▶</button>
    </div>
  </li>`;
}

function Rows({ report, total }) {
  const counts = { taken: report.cached_tokens - report.patched_tokens, patched: report.patched_tokens, computed: report.computed_tokens };
  const said = SOURCES.map(([name, words]) => `${counts[name]} ${words}`).join(", ");
  return html`<div class="rows" role="img" aria-label=${`Of ${total} rows: ${said}`}>
      ${SOURCES.map(([name]) => html`<span class=${name} style=${`flex-grow:${counts[name]}`}></span>`)}
    </div>
    <p class="key">${SOURCES.map(([name, words]) => html`<span><i class=${name}></i>${counts[name]} ${words}</span>`)}</p>`;
}

function Answer({ way, result, longest }) {
  const milliseconds = result?.report ? Math.round(result.report.ttft_seconds * 1000) : null;
  const width = milliseconds === null ? 0 : Math.max(1, (100 * milliseconds) / longest);
  return html`<section class="answer" aria-label=${way.name}>
    <h3>${way.name}</h3>
    <div class="bar"><span class=${way.strategy} style=${`width:${width}%`}></span></div>
    <p class="time">${milliseconds === null ? (result?.running ? "running …" : " ") : `${milliseconds} ms to the first token`}</p>
    ${result?.error && html`<p class="error" role="alert">${result.error}</p>`}
    ${result?.report && html`<p class="text">${result.text || "(no text)"}</p><${Rows} report=${result.report} total=${result.total} />
      <p class="lane">lane ${result.report.lane}${result.report.remark ? `; ${result.report.remark}` : ""}</p>`}
  </section>`;
}

function Kept({ files, act }) {
  return html`<section><h2>What the server keeps</h2>
    <ul class="kept">${files.map((file) => html`<li key=${file.id}>
      <button onClick=${() => act.use(file)} disabled=${file.status !== "processed"}>${file.filename}</button>
      <span>${Math.ceil(file.bytes / 1024)} KB, ${file.status}</span>
      <button aria-label=${`Delete ${file.filename}`} onClick=${() => act.drop(file)}>✕</button></li>`)}</ul>
    ${files.length === 0 && html`<p>Nothing yet.</p>`}</section>`;
}

function Page() {
  const [model, setModel] = useState(null);
  const [pictures, setPictures] = useState([]);
  const [opening, setOpening] = useState("");
  const [question, setQuestion] = useState(QUESTION);
  const [results, setResults] = useState({});
  const [files, setFiles] = useState([]);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState(null);

  const failed = (error) => setFault(error.status === 401 ? "key" : error.message);
  const refresh = async () => {
    try {
      setModel((await (await call("/v1/models")).json()).data[0].id);
      setFiles((await (await call("/v1/files")).json()).data);
      setFault(null);
    } catch (error) { failed(error); }
  };
  useEffect(() => { refresh(); }, []);

  const change = (token, more) => setPictures((list) => list.map((picture) => (picture.token === token ? { ...picture, ...more } : picture)));
  const add = async (blob, name) => {
    const token = crypto.randomUUID?.() || `${name}-${Math.random()}`;
    const url = blob.type.startsWith("image/") ? URL.createObjectURL(blob) : null;
    setPictures((list) => [...list, { token, name, url }]);
    try {
      const file = await upload(blob, name);
      change(token, { id: file.id });
      await processed(file.id);
      change(token, { ready: true });
    } catch (error) { change(token, { error: error.message }); if (error.status === 401) failed(error); }
    refresh();
  };
  const addDemo = async () => {
    for (const name of DEMO) await add(await (await fetch(`/page/demo/${name}`)).blob(), name);
  };
  const act = {
    move: (from, to) => setPictures((list) => (to < 0 || to >= list.length ? list : moved(list, from, to))),
    remove: (index) => setPictures((list) => list.filter((_, other) => other !== index)),
    drop: async (file) => { try { await call(`/v1/files/${file.id}`, { method: "DELETE" }); } catch (error) { failed(error); }
      setPictures((list) => list.filter((picture) => picture.id !== file.id)); refresh(); },
    use: async (file) => { try {
      const blob = await (await call(`/v1/files/${file.id}/content`)).blob();
      const image = file.emblema.kind === "image" ? URL.createObjectURL(blob) : null;
      setPictures((list) => [...list, { token: `${file.id}-${Math.random()}`, id: file.id, name: file.filename, url: image, ready: true }]);
    } catch (error) { failed(error); } },
  };
  const usable = pictures.filter((picture) => picture.id && !picture.error);
  const run = async (list = usable, words = opening) => {
    setBusy(true);
    setResults({});
    // What is kept answers first: the other way leaves the whole prompt behind, which would be taken as it is.
    for (const way of [...WAYS].reverse()) {
      setResults((all) => ({ ...all, [way.strategy]: { running: true } }));
      let result;
      try {
        const reply = await ask(model, list, words, question, way.strategy);
        result = { text: reply.choices[0].message.content, report: reply.emblema, total: reply.usage.prompt_tokens };
      } catch (error) { result = { error: error.message }; if (error.status === 401) failed(error); }
      setResults((all) => ({ ...all, [way.strategy]: result }));
    }
    setBusy(false);
  };
  const preset = (list, words) => { setPictures(list); setOpening(words); run(list.filter((picture) => picture.id && !picture.error), words); };
  const presets = [
    ["Swap two", () => preset(moved(pictures, 0, 1), opening)],
    ["New opening", () => preset(pictures, `here are ${pictures.length} more pages , number ${1 + Math.floor(Math.random() * 900)} .`)],
    ["Slide the window", () => preset(pictures.slice(1), opening)],
    ["New combination", () => preset(shuffled(pictures), opening)],
  ];
  const longest = Math.max(1, ...Object.values(results).map((result) => (result.report ? result.report.ttft_seconds * 1000 : 0)));
  const dropped = (event) => { event.preventDefault(); for (const file of event.dataTransfer.files) add(file, file.name); };
  const chosen = (event) => { for (const file of event.target.files) add(file, file.name); event.target.value = ""; };

  return html`<main>
    <header><h1>Emblema</h1><p>Pictures are read once and kept. Ask about them in any order, two ways: one computes everything again, the other takes what is kept.</p></header>
    ${fault === "key" && html`<form class="fault" onSubmit=${(event) => { event.preventDefault(); key = event.target.elements.key.value; sessionStorage.setItem("key", key); refresh(); }}>
      <label>This server needs a key <input name="key" type="password" autocomplete="off" /></label> <button>Use it</button></form>`}
    ${fault && fault !== "key" && html`<p class="fault error" role="alert">${fault}</p>`}
    <section class="drop" onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
      <h2>Pictures, in the order in which they are shown</h2>
      <ol class="strip" aria-label="Pictures; Alt and an arrow key move one, Delete removes it">${pictures.map((picture, index) => html`<${Picture} key=${picture.token} picture=${picture} index=${index} count=${pictures.length} act=${act} />`)}</ol>
      <p><label class="button">Add pictures or a clip<input type="file" multiple accept="image/*,video/*,application/pdf" onChange=${chosen} /></label>${" "}
        <button onClick=${addDemo}>Add the demo pictures</button> or drop them here</p>
    </section>
    <section>
      <form onSubmit=${(event) => { event.preventDefault(); run(); }}>
        <label>Question <input name="question" value=${question} onInput=${(event) => setQuestion(event.target.value)} /></label>
        <button class="main" disabled=${busy || !model || usable.length === 0}>Ask both ways</button>
      </form>
      <p class="presets">Change something and ask again: ${presets.map(([name, go]) => html`<button disabled=${busy || usable.length < 2} onClick=${go}>${name}</button> `)}</p>
      ${opening && html`<p class="opening">Opening: “${opening}” <button onClick=${() => setOpening("")}>Leave it out</button></p>`}
    </section>
    <section class="answers" aria-live="polite">${WAYS.map((way) => html`<${Answer} way=${way} result=${results[way.strategy]} longest=${longest} />`)}</section>
    <${Kept} files=${files} act=${act} />
  </main>`;
}

render(html`<${Page} />`, document.body);
