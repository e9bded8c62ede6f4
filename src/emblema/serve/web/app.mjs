// The page: pictures in an order, a question, and three answers to it.
import { h, render } from "preact";
import { useEffect, useState } from "hooks";
import htm from "htm";
import { Answers, Headline } from "./answers.mjs";
import * as api from "./api.mjs";
import * as state from "./state.mjs";
import { Chosen, Shelf, Strip } from "./strip.mjs";

const html = htm.bind(h);
const QUESTION = "on which land does the boat stand ?";
const scheme = () => sessionStorage.getItem("scheme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.documentElement.dataset.scheme = scheme();
let counted = 0;
const token = () => `t${++counted}`;

function Theme() {
  const [shown, setShown] = useState(scheme());
  const other = shown === "dark" ? "light" : "dark";
  return html`<button onClick=${() => { sessionStorage.setItem("scheme", other); document.documentElement.dataset.scheme = other; setShown(other); }}>${other === "dark" ? "Dark" : "Light"}</button>`;
}

function Copy({ body }) {
  const [said, setSaid] = useState("");
  const copy = async (name, text) => {
    try { await navigator.clipboard.writeText(text); setSaid(`${name} copied`); } catch { setSaid(`${name} could not be copied: this address is not secure`); }
  };
  return html`<p class="copy">Copy what was asked as <button onClick=${() => copy("curl", state.asCurl(body, location.origin))}>curl</button> <button onClick=${() => copy("Python", state.asPython(body, location.origin))}>Python</button>${" "}
    or <button onClick=${() => copy("The link", location.href)}>a link</button> <span role="status">${said}</span></p>`;
}

function Fault({ fault, again }) {
  if (fault.status === 401) return html`<form class="fault" onSubmit=${(event) => { event.preventDefault(); api.useKey(event.target.elements.key.value); again(); }}>
    <label>This server needs a key <input name="key" type="password" autocomplete="off" /></label> <button>Use it</button>
    ${fault.message === "that key is not known" && html`<p class="error" role="alert">${fault.message}</p>`}</form>`;
  return html`<p class="fault error" role="alert">${fault.message} ${fault.gone && html`<button onClick=${again}>Try again</button>`}</p>`;
}

function Page({ demo }) {
  const [model, setModel] = useState(null);
  const [pictures, setPictures] = useState([]);
  const [opening, setOpening] = useState("");
  const [question, setQuestion] = useState(QUESTION);
  const [results, setResults] = useState({});
  const [asked, setAsked] = useState(null);
  const [files, setFiles] = useState([]);
  const [thumbnails, setThumbnails] = useState({});
  const [working, setWorking] = useState(null);
  const [fault, setFault] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [ahead, setAhead] = useState(true);
  const [made, setMade] = useState({});
  const [total, setTotal] = useState(state.NOTHING);

  const failed = (error) => setFault({ message: error.message, status: error.status, gone: error.gone });
  const refresh = async () => {
    try {
      setModel((await api.listModels())[0].id);
      const found = await api.listFiles();
      setFiles(found);
      setFault(null);
      for (const file of found.slice(0, 60)) if (file.status === "processed") api.thumbnail(file).then((url) => url && setThumbnails((all) => ({ ...all, [file.id]: url }))).catch(() => {});
      return found;
    } catch (error) {
      failed(error);
      // The model is being loaded.
      if (error.status === 503 && error.wait) setTimeout(begin, 1000 * error.wait);
      return null;
    }
  };
  const known = async (file, more) => ({ token: token(), id: file.id, name: file.filename, url: await api.thumbnail(file), chunks: file.emblema.chunks, ...more });
  const change = (key, more) => setPictures((list) => list.map((picture) => (picture.token === key ? { ...picture, ...more } : picture)));
  const add = async (source, name, more = {}) => {
    const key = token();
    setPictures((list) => [...list, { token: key, name, ...more }]);
    try {
      const file = await api.upload(typeof source === "string" ? await (await fetch(source)).blob() : source, name);
      change(key, { id: file.id, chunks: file.emblema.chunks, url: await api.thumbnail(file) });
    } catch (error) { change(key, { error: error.message }); if (error.status === 401 || error.gone) { failed(error); return false; } }
    return true;
  };
  // Puts pictures of a link or of the demo into the prompt: those that the server has, and the demo's others.
  const fill = async (wanted, list) => {
    setPictures([]);
    for (const { name, slid } of wanted) {
      const file = list.find((one) => one.status === "processed" && (one.id === name || (one.filename === name && demo.pictures.includes(name))));
      if (file) { const picture = await known(file, { slid }); setPictures((all) => [...all, picture]); }
      else if (!demo.pictures.includes(name)) setPictures((all) => [...all, { token: token(), name, slid, error: "this server does not have it" }]);
      else if (!(await add(`/page/demo/${name}`, name, { slid }))) return;
    }
    await refresh();
  };
  const busily = async (words, work) => { setWorking(words); try { await work(); } catch (error) { failed(error); } setWorking(null); };
  const begin = async () => {
    const found = await refresh(), link = state.fromLink(location.hash);
    if (found && link && pictures.length === 0) { setQuestion(link.question); setOpening(link.opening); await busily("Reading the pictures …", () => fill(link.pictures, found)); }
  };
  useEffect(() => { begin(); }, []);
  useEffect(() => { if (pictures.length > 0 && working === null) history.replaceState(null, "", state.toLink({ pictures, opening, question }, demo)); }, [pictures, opening, question, working]);

  const addDemo = () => busily("Reading 23 pages, once …", () => fill(demo.pictures.map((name) => ({ name, slid: demo.legends.includes(name) })), files));
  const addAll = (list) => busily("Reading …", async () => { for (const file of list) if (!(await add(file, file.name))) break; await refresh(); });
  const act = {
    move: (from, to) => setPictures((list) => (to < 0 || to >= list.length ? list : state.moved(list, from, to))),
    remove: (index) => setPictures((list) => list.filter((_, other) => other !== index)),
    slide: (index) => setPictures((list) => list.map((picture, other) => (other === index ? { ...picture, slid: !picture.slid } : picture))),
    choose: (key) => setChosen((now) => (now === key ? null : key)),
    question: setQuestion,
    drop: async (file) => { try { await api.deleteFile(file.id); setPictures((list) => list.filter((picture) => picture.id !== file.id)); await refresh(); } catch (error) { failed(error); } },
    use: async (id, place) => { try {
      const picture = await known(files.find((file) => file.id === id));
      setPictures((list) => { const at = place ?? list.length; return [...list.slice(0, at), picture, ...list.slice(at)]; });
    } catch (error) { failed(error); } },
  };
  const usable = pictures.filter((picture) => picture.id && !picture.error);
  const run = (list = usable, words = opening, wanted = question) => busily("Asking …", async () => {
    setResults({});
    setFault(null);
    const order = list.map((picture) => picture.id).join(" ");
    let spent = made[order] || 0;
    if (ahead && !(order in made)) {
      setWorking("Making this order ready, once …");
      spent = await api.makeReady(list);
      setMade((all) => ({ ...all, [order]: spent }));
      setTotal((sum) => ({ ...sum, making: sum.making + spent }));
      setWorking("Asking …");
    }
    const found = {};
    // What is kept answers first: the full way leaves the whole prompt behind, which would be taken as it is.
    for (const strategy of ["auto", "blind", "full"]) {
      const put = (result) => { found[strategy] = result; setResults({ ...found }); };
      put({ running: true, text: "" });
      try { put(await api.ask(api.bodyOf(model, list, words, wanted, strategy), (text) => put({ running: true, text }))); }
      catch (error) { put({ error: error.message }); if (error.status === 401 || error.gone) { failed(error); break; } }
    }
    setAsked({ body: api.bodyOf(model, list, words, wanted, "auto"), spent, right: state.truth(demo, wanted, list), sources: state.sourcesOf(list, found.auto?.report?.parts) });
    setTotal((sum) => state.added(sum, found));
  });
  const preset = (list, words) => { setPictures(list); setOpening(words); run(list.filter((picture) => picture.id && !picture.error), words); };
  const presets = [
    ["New opening", () => preset(pictures, state.newOpening())],
    ["New order", () => preset(state.reordered(pictures), state.newOpening())],
    ["Slide the window", () => { const first = pictures.findIndex((picture) => !picture.slid); preset(pictures.map((picture, index) => (index === first ? { ...picture, slid: true } : picture)), opening); }],
  ];
  const idle = working === null && model !== null;
  const index = pictures.findIndex((picture) => picture.token === chosen);
  const dropped = (event) => {
    event.preventDefault();
    const file = event.dataTransfer.getData("text/file");
    if (file) act.use(file); else addAll([...event.dataTransfer.files]);
  };

  return html`<main>
    <header><div><h1>Emblema</h1><p>A picture is read once; its rows are kept, and used at any place of any prompt.</p></div><${Theme} /></header>
    ${fault && html`<${Fault} fault=${fault} again=${begin} />`}
    <section class="prompt" aria-label="Prompt" onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
      ${pictures.length === 0 ? html`<p class="empty">${working || html`<button class="main" disabled=${!idle} onClick=${addDemo}>Open an atlas of 23 pages</button> or drop pictures, clips and documents here.`}</p>` : html`<${Strip} pictures=${pictures} sources=${asked?.sources || {}} chosen=${chosen} act=${act} />`}
      ${pictures.length > 0 && html`<p class="key">${[["prefix", "from an earlier prompt"], ["taken", "taken"], ["patched", "patched"], ["computed", "computed"]].map(([name, words]) => html`<span><i class=${name}></i>${words}</span>`)}<span><i class="slid"></i>has left the context</span></p>`}
    </section>
    ${index >= 0 && html`<${Chosen} picture=${pictures[index]} index=${index} pictures=${pictures} demo=${demo} act=${act} />`}
    <form onSubmit=${(event) => { event.preventDefault(); run(); }}>
      <label>Question <input name="question" value=${question} onInput=${(event) => setQuestion(event.target.value)} /></label>
      <button class="main" disabled=${!idle || usable.length === 0}>Ask three ways</button>
    </form>
    <${Headline} results=${results} total=${total} made=${asked?.spent} working=${pictures.length > 0 ? working : null} />
    ${Object.keys(results).length > 0 && html`<${Answers} results=${results} right=${working === null && asked ? asked.right : state.truth(demo, question, usable)} />`}
    ${usable.length > 1 && html`<p class="presets">Change something and ask again: ${presets.map(([name, go]) => html`<button disabled=${!idle} onClick=${go}>${name}</button> `)}</p>`}
    ${opening && html`<p class="opening">Opening: “${opening}” <button onClick=${() => setOpening("")}>Leave it out</button></p>`}
    ${usable.length > 0 && html`<div class="chips" role="group" aria-label="Questions that these pictures answer">${state.questionsOf(demo, usable).slice(0, 12).map(({ text }) => html`<button disabled=${!idle} aria-pressed=${text === question} onClick=${() => { setQuestion(text); run(usable, opening, text); }}>${text}</button>`)}</div>`}
    ${asked && html`<${Copy} body=${asked.body} />`}
    <p class="about">A legend says which land a colour means; a map has icons on coloured cells; to say where an icon stands, a model has to join the two. Blind reuse takes a map as it was read alone, before any legend: once the legends have left the context, it has to guess.</p>
    <p><label class="button">Add pictures, clips or documents<input type="file" multiple accept="image/*,video/*,application/pdf" onChange=${(event) => { addAll([...event.target.files]); event.target.value = ""; }} /></label>${" "}
      ${pictures.length > 0 && html`<button onClick=${() => { setPictures([]); setResults({}); setAsked(null); history.replaceState(null, "", location.pathname); }}>Clear the prompt</button>`}${" "}
      <label class="check"><input type="checkbox" checked=${ahead} onChange=${(event) => setAhead(event.target.checked)} /> make a new order ready before it is asked about</label></p>
    <${Shelf} files=${files} thumbnails=${thumbnails} act=${act} />
  </main>`;
}

state.readDemo().then((demo) => render(html`<${Page} demo=${demo} />`, document.body)).catch(() => { document.body.textContent = "The server is gone: load this page again."; });
