// What is shown and asked, as plain data: orders, links, facts of the demo, and the sums over a session.

export function moved(list, from, to) {
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

// A new order; what has slid stays before what is shown, as it has to condition it.
export const reordered = (list) => [...shuffled(list.filter((picture) => picture.slid)), ...shuffled(list.filter((picture) => !picture.slid))];

export const newOpening = () => `here are some more pages , number ${1 + Math.floor(Math.random() * 900)} .`;

// Demo pictures are named in links, other files by their ids; "~" is before what has slid.
export function toLink({ pictures, opening, question }, demo) {
  const names = pictures.map((picture) => (picture.slid ? "~" : "") + (demo.pictures.includes(picture.name) ? picture.name : picture.id || ""));
  return `#${new URLSearchParams({ q: question, ...(opening && { o: opening }), p: names.join(",") })}`;
}

export function fromLink(hash) {
  const read = new URLSearchParams(hash.replace(/^#/, ""));
  const pictures = (read.get("p") || "").split(",").filter((name) => name.replace("~", "")).map((name) => ({ name: name.replace(/^~/, ""), slid: name.startsWith("~") }));
  return read.has("q") ? { question: read.get("q"), opening: read.get("o") || "", pictures } : null;
}

export async function readDemo() {
  const listing = await (await fetch("/page/demo/demo.json")).json();
  return { legends: listing.legends, pictures: [...listing.legends, ...listing.maps], questions: listing.questions.filter((question) => question.kind !== "count") };
}

// The true answer to a question about these pictures; null where none is known.
export function truth(demo, question, pictures) {
  const found = demo.questions.find((one) => one.text === question.trim());
  const names = pictures.map((picture) => picture.name);
  return found && found.pages.every((name) => names.includes(name)) ? found.answer : null;
}

// Questions that these pictures answer, those that join two of them first.
export function questionsOf(demo, pictures) {
  const names = pictures.map((picture) => picture.name);
  const shown = pictures.filter((picture) => !picture.slid).map((picture) => picture.name);
  const fits = ({ kind, pages }) => pages.every((name) => names.includes(name)) && (kind === "land" ? shown.includes(pages[1]) : pages.every((name) => shown.includes(name)));
  return demo.questions.filter(fits).sort((one, other) => other.pages.length - one.pages.length);
}

const SOURCES = { prefix: "prefix", patch: "patched", full: "computed", fresh: "computed" };

// The rows and the source of each picture that the model saw, by its token; slid ones are seen by no text.
export function sourcesOf(pictures, parts = []) {
  const seen = pictures.filter((picture) => !picture.slid);
  const among = (list) => list.reduce((sum, picture) => sum + (picture.chunks || 1), 0);
  const list = among(pictures) === parts.length ? pictures : among(seen) === parts.length ? seen : [];
  const found = {};
  let next = 0;
  for (const picture of list) {
    const own = parts.slice(next, (next += picture.chunks || 1));
    found[picture.token] = { rows: own.reduce((sum, [rows]) => sum + rows, 0), source: SOURCES[own[0][1]] || "taken" };
  }
  return found;
}

// Sums over a session: answers, rows, and seconds to first tokens.
export function added(total, { auto, full }) {
  if (!auto?.report || !full?.report) return total;
  return {
    ...total, answers: total.answers + 1, rows: total.rows + full.report.computed_tokens, computed: total.computed + auto.report.computed_tokens,
    auto: total.auto + auto.report.ttft_seconds, full: total.full + full.report.ttft_seconds,
  };
}

export const NOTHING = { answers: 0, rows: 0, computed: 0, auto: 0, full: 0, making: 0 };

// The same request for a shell, and for Python with OpenAI's client.
export function asCurl(body, origin) {
  return `curl -s ${origin}/v1/chat/completions -H 'content-type: application/json' \\\n  -H "authorization: Bearer $EMBLEMA_KEY" -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
}

export function asPython({ strategy, messages, ...body }, origin) {
  const literal = JSON.stringify(JSON.stringify(messages));
  return [
    "import json, os", "from openai import OpenAI", "",
    `client = OpenAI(base_url="${origin}/v1", api_key=os.environ.get("EMBLEMA_KEY", "none"))`,
    `messages = json.loads(${literal})`,
    `reply = client.chat.completions.create(model=${JSON.stringify(body.model)}, messages=messages, temperature=0, max_tokens=${body.max_tokens}, extra_body={"strategy": "${strategy}"})`,
    "print(reply.choices[0].message.content)", "",
  ].join("\n");
}
