// Three answers beside each other, what they cost, and one line that sums them up.
import { h } from "preact";
import htm from "htm";

const html = htm.bind(h);
export const WAYS = [
  { strategy: "full", name: "Computed in full", told: "every row, every time" },
  { strategy: "auto", name: "Emblema", told: "kept rows, patched for what stands before them" },
  { strategy: "blind", name: "Blind reuse", told: "kept rows as they are" },
];
const number = (value) => value.toLocaleString("en");
const seconds = (value) => (value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(1)} s`);

export function Headline({ results, total, made, working }) {
  const { auto, full } = results;
  if (working) return html`<p class="headline quiet" role="status">${working}</p>`;
  if (!auto?.report || !full?.report) return null;
  const times = full.report.ttft_seconds / auto.report.ttft_seconds;
  const gained = full.report.ttft_seconds - auto.report.ttft_seconds;
  return html`<div role="status"><p class="headline"><b>${number(auto.report.cached_tokens)}</b> of ${number(auto.total)} rows reused · <b>${times >= 1 ? `${times.toFixed(1)}×` : `${(1 / times).toFixed(1)}×`}</b> ${times >= 1 ? "sooner" : "later"} · ${auto.text === full.text ? "same answer" : "another answer"}</p>
    <p class="soft">${made > 0 && gained > 0 ? `This order was made ready once, in ${seconds(made)}: ${Math.ceil(made / gained) === 1 ? "one question repays" : `${Math.ceil(made / gained)} questions repay`} it. ` : ""}This session: ${number(total.computed)} of ${number(total.rows)} rows computed for ${total.answers} ${total.answers === 1 ? "answer" : "answers"}; first tokens after ${seconds(total.auto)} beside ${seconds(total.full)}${total.making ? `, and ${seconds(total.making)} of making ready` : ""}.</p></div>`;
}

function Rows({ report, total }) {
  const taken = report.cached_tokens - report.patched_tokens;
  const prefix = report.lane.startsWith("auto:prefix") || report.lane === "prefix";
  const counts = [[prefix ? "prefix" : "taken", taken, prefix ? "from an earlier prompt" : "taken"], ["patched", report.patched_tokens, "patched"], ["computed", report.computed_tokens, "computed"]];
  const said = counts.filter(([, count]) => count > 0);
  return html`<div class="rows" role="img" aria-label=${`Of ${total} rows: ${said.map(([, count, words]) => `${count} ${words}`).join(", ")}`}>${said.map(([name, count]) => html`<span class=${name} style=${`flex-grow:${count}`}></span>`)}</div>
    <p class="key">${said.map(([name, count, words]) => html`<span><i class=${name}></i>${number(count)} ${words}</span>`)}</p>`;
}

// Which pictures were computed, and why, as the report has it: number, rows, reason, detail.
function Misses({ misses }) {
  if (!misses?.length) return null;
  return html`<details class="misses"><summary>${misses.length === 1 ? "1 picture" : `${misses.length} pictures`} computed: ${[...new Set(misses.map(([, , reason]) => reason.replaceAll("_", " ")))].join(", ")}</summary>
    <ul>${misses.slice(0, 60).map(([part, rows, reason, detail]) => html`<li>Picture ${part + 1}, ${number(rows)} rows: ${reason.replaceAll("_", " ")}${detail && `, ${detail}`}</li>`)}</ul></details>`;
}

function Answer({ way, result, longest, right }) {
  const time = result?.report?.ttft_seconds;
  const verdict = result?.report && right !== null ? (result.text.trim() === right ? "right" : "wrong") : null;
  return html`<section class=${`answer ${way.strategy}`} aria-label=${way.name}>
    <h2>${way.name} <small>${way.told}</small></h2>
    ${result?.error ? html`<p class="error" role="alert">${result.error}</p>` : html`<p class=${`text ${verdict || ""}`}>${result ? result.text || (result.report ? "(no text)" : "…") : " "}${verdict && html` <span role="img" aria-label=${verdict}>${verdict === "right" ? "✓" : "✗"}</span>`}</p>`}
    <div class="bar"><span class=${way.strategy} style=${`width:${time ? Math.max(1, (100 * time) / longest) : 0}%`}></span></div>
    <p class="time">${time ? `${seconds(time)} to the first token` : result?.running ? "running …" : " "}</p>
    ${result?.report && html`<${Rows} report=${result.report} total=${result.total} /><${Misses} misses=${way.strategy === "full" ? [] : result.report.misses} />${result.report.remark && html`<p class="warning" role="alert">${result.report.remark}</p>`}`}
  </section>`;
}

export function Answers({ results, right }) {
  const longest = Math.max(0.001, ...Object.values(results).map((result) => result.report?.ttft_seconds || 0));
  return html`<section aria-label="Answers">${right !== null && html`<p class="truth">The true answer: <b>${right}</b></p>`}
    <div class="answers" aria-live="polite">${WAYS.map((way) => html`<${Answer} way=${way} result=${results[way.strategy]} longest=${longest} right=${right} />`)}</div></section>`;
}
