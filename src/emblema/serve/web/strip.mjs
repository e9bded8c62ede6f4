// The prompt as blocks whose width is their rows, the picture that is chosen, and the shelf that they come from.
import { h } from "preact";
import { useLayoutEffect, useRef } from "hooks";
import htm from "htm";

const html = htm.bind(h);
const ROWS = 66;
const SAID = { prefix: "taken from an earlier prompt", taken: "taken as kept", patched: "taken and patched", computed: "computed" };
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// Moves what changed its place within the list from where it was; what is new flies in from the shelf, over all else.
function useFlight(list) {
  const places = useRef(new Map());
  useLayoutEffect(() => {
    const now = new Map([...list.current.children].map((block) => [block.dataset.token, block.offsetLeft]));
    for (const block of still() ? [] : list.current.children) {
      const before = places.current.get(block.dataset.token), place = block.offsetLeft;
      const same = places.current.size === now.size;
      if (before === undefined) flyIn(block);
      else if (same && before !== place) block.animate([{ transform: `translateX(${before - place}px)` }, { transform: "none" }], { duration: 350, easing: "ease-out" });
    }
    places.current = now;
  });
}

function flyIn(block) {
  const start = document.querySelector(`[data-shelf="${CSS.escape(block.dataset.file)}"] img`), end = block.getBoundingClientRect();
  if (!start) return;
  const from = start.getBoundingClientRect(), flying = start.cloneNode();
  flying.className = "flying";
  flying.style.cssText = `left:${end.x}px;top:${end.y}px;width:${from.width}px`;
  document.body.append(flying);
  flying.animate([{ transform: `translate(${from.x - end.x}px, ${from.y - end.y}px)` }, { transform: "none", opacity: 0.6 }], { duration: 400, easing: "ease-out" }).finished.finally(() => flying.remove());
}

function Block({ picture, index, count, source, chosen, act }) {
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.altKey) { event.preventDefault(); act.move(index, index + step); }
    if (event.key === "Delete") act.remove(index);
  };
  const dropped = (event) => {
    const from = event.dataTransfer.getData("text/index"), file = event.dataTransfer.getData("text/file");
    if (from === "" && file === "") return;
    event.preventDefault();
    event.stopPropagation();
    if (from === "") act.use(file, index); else act.move(Number(from), index);
  };
  const state = picture.error || (picture.id ? (picture.slid ? "has left the context" : source ? `${source.rows} rows ${SAID[source.source]}` : "kept") : "being read …");
  return html`<li data-token=${picture.token} data-file=${picture.id || ""} style=${`flex-grow:${source?.rows || ROWS * (picture.chunks || 1)}`}>
    <button class=${`block ${picture.error ? "broken" : source?.source || "unknown"} ${picture.slid ? "slid" : ""}`} draggable="true" aria-pressed=${chosen}
      aria-label=${`Picture ${index + 1} of ${count}: ${picture.name}, ${state}`} title=${`${picture.name}: ${state}`} onClick=${() => act.choose(picture.token)} onKeyDown=${keys}
      onDragStart=${(event) => event.dataTransfer.setData("text/index", index)} onDragOver=${(event) => event.preventDefault()} onDrop=${dropped}>
      ${picture.url ? html`<img src=${picture.url} alt="" draggable="false" />` : html`<span class="blank">${picture.error ? "!" : picture.name}</span>`}
    </button></li>`;
}

export function Strip({ pictures, sources, chosen, act }) {
  const list = useRef(null);
  useFlight(list);
  return html`<ol class="strip" ref=${list} aria-label="The prompt's pictures; Alt and an arrow key move one, Delete removes it">
    ${pictures.map((picture, index) => html`<${Block} key=${picture.token} picture=${picture} index=${index} count=${pictures.length} source=${sources[picture.token]} chosen=${chosen === picture.token} act=${act} />`)}</ol>`;
}

// What a picture shows, as far as the demo's questions tell.
function Facts({ picture, pictures, demo, act }) {
  const about = demo.questions.filter((question) => question.pages.includes(picture.name));
  if (about.length === 0) return html`<p>${demo.pictures.includes(picture.name) ? "No question of the demo is about it." : "A picture of your own: what is true of it is not known here."}</p>`;
  const kind = demo.legends.includes(picture.name) ? "A legend: it says which land a colour means." : "A map: an icon stands on a coloured cell.";
  return html`<p>${kind}</p><ul class="facts">${about.map((question) => html`<li><button onClick=${() => act.question(question.text)}>${question.text}</button>
    <span>${question.answer}${question.pages.length > 1 ? `, joined with ${question.pages.find((name) => name !== picture.name)}` : ""}</span>
    ${question.pages.filter((name) => name !== picture.name).map((name) => pictures.find((one) => one.name === name)).filter((one) => one?.url).map((one) => html`<img src=${one.url} alt=${one.name} />`)}</li>`)}</ul>`;
}

export function Chosen({ picture, index, pictures, demo, act }) {
  return html`<section class="chosen" aria-label=${picture.name}>
    ${picture.url && html`<img src=${picture.url} alt=${picture.name} />`}
    <div><h2>${picture.name}</h2>${picture.error && html`<p class="error" role="alert">${picture.error}</p>`}
      <p class="buttons"><button disabled=${index === 0} onClick=${() => act.move(index, index - 1)}>◀ Left</button> <button disabled=${index + 1 === pictures.length} onClick=${() => act.move(index, index + 1)}>Right ▶</button>${" "}
        <button aria-pressed=${Boolean(picture.slid)} onClick=${() => act.slide(index)}>${picture.slid ? "Show it again" : "Let it leave the context"}</button> <button onClick=${() => act.remove(index)}>Remove</button> <button onClick=${() => act.choose(null)}>Close</button></p>
      <${Facts} picture=${picture} pictures=${pictures} demo=${demo} act=${act} /></div></section>`;
}

export function Shelf({ files, thumbnails, act }) {
  return html`<section><h2>What the server keeps</h2><p class="soft">Each was read once. Click one, or drag it into the prompt.</p>
    <ul class="shelf">${files.map((file) => html`<li key=${file.id} data-shelf=${file.id}>
      <button class="thumb" title=${file.filename} aria-label=${`Use ${file.filename}`} disabled=${file.status !== "processed"} draggable=${file.status === "processed"} onClick=${() => act.use(file.id)}
        onDragStart=${(event) => event.dataTransfer.setData("text/file", file.id)}>${thumbnails[file.id] ? html`<img src=${thumbnails[file.id]} alt="" draggable="false" />` : html`<span class="blank">${file.filename}</span>`}</button>
      ${file.status === "error" && html`<p class="error">${file.filename}: ${file.status_details}</p>`}
      <button class="drop" aria-label=${`Delete ${file.filename}`} onClick=${() => act.drop(file)}>✕</button></li>`)}</ul>
    ${files.length === 0 && html`<p>Nothing yet.</p>`}</section>`;
}
