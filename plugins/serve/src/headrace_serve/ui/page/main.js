// The live page: asks once a second how the server does, and shows it.

import { made } from "./elements.js";
import { buildForm } from "./form.js";
import { drawGraph, figuresOf } from "./graph.js";
import { KEPT_S, drawTimeline, showLoad } from "./plots.js";
import { ask, follow, read, watch } from "./server.js";

const MOST_FAILURES = 50, RATE_S = 5; // rates are those of so many last seconds
const shown = new Map(); // by the id of the model
let catalogue = null, lastFailure = 0, lastBucket = 0, buckets = [], loadPath = null;

for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", follow);

watch(1000, document.getElementById("note"), async () => {
  const state = await read(`ui/state.json?${cursor()}`);
  if (state.catalogue !== catalogue) await readModels();
  showState(state);
  return `${state.in_flight} requests in flight`;
});

function cursor() {
  const since = new URLSearchParams({ failures: lastFailure, load: lastBucket });
  for (const [id, one] of shown) since.set(`batches.${id}`, one.lastBatch);
  return since;
}

async function readModels() {
  const described = await read("ui/models.json");
  document.getElementById("server").textContent = `${described.server} ${described.version}`;
  document.getElementById("metrics").hidden = !described.metrics;
  catalogue = described.catalogue;
  for (const one of shown.values()) one.article.remove();
  shown.clear();
  for (const model of described.models) shown.set(model.id, showModel(model, described.examples));
  [...shown.values()].find((one) => one.runFirst)?.runFirst(); // an answer to look at, of one model
}

function showModel(model, examples) {
  const article = document.getElementById("model").content.cloneNode(true).querySelector("article");
  const part = (name) => article.querySelector(`.${name}`);
  article.dataset.model = model.id;
  part("name").textContent = model.name;
  part("version").textContent = `version ${model.version}`;
  const slider = part("clients"), count = part("count");
  slider.max = model.most_clients;
  const one = {
    model, article, slider, count, ready: part("ready"), latency: part("latency"), load: part("load"), timeline: part("timeline"), about: part("about"), limit: part("limit"), exchange: part("exchange"), slow: part("slow"),
    lastBatch: 0, batches: [], seen: [], request: null, update: drawGraph(part("graph"), model),
  };
  one.runFirst = buildForm(part("form"), part("answer"), model, examples, (request) => {
    one.request = request;
    slider.disabled = false;
    if (Number(slider.value) === 0) count.textContent = "0 clients";
  });
  slider.addEventListener("input", () => setLoad(one, Number(slider.value)));
  document.getElementById("models").append(article);
  return one;
}

async function setLoad(one, clients) {
  one.count.textContent = `${clients} clients`;
  for (const other of shown.values()) if (other !== one) other.slider.value = 0;
  const { path, body, headers } = one.request;
  const to = new URLSearchParams({ to: `/${path}`, clients });
  const answer = await ask(`ui/load/${encodeURIComponent(one.model.name)}?${to}`, { method: "POST", body, headers });
  if (!answer.ok) one.count.textContent = (await answer.json()).error;
}

function showState(state) {
  const { load } = state;
  if (load.path !== loadPath && load.path !== null) buckets = [];
  loadPath = load.path ?? loadPath;
  for (const bucket of load.buckets) lastBucket = Math.max(lastBucket, bucket.number);
  buckets = [...buckets, ...load.buckets].filter((one) => state.now - one.from < KEPT_S.buckets);
  for (const model of state.models) {
    const one = shown.get(model.id);
    if (!one) continue;
    one.ready.textContent = model.ready ? "ready" : "not ready";
    one.ready.classList.toggle("good", model.ready);
    one.ready.classList.toggle("bad", !model.ready);
    while (one.seen.length > 1 && state.now - one.seen[0].at > RATE_S) one.seen.shift();
    one.update(figuresOf(model.stats, one.seen[0]?.stats, state.now - one.seen[0]?.at, model.running, state.now), model.limit.node);
    one.limit.textContent = model.limit.text;
    showExchange(one.exchange, state.exchanges[one.model.name]);
    showSlowest(one.slow, model.slowest ?? []);
    one.seen.push({ at: state.now, stats: model.stats });
    for (const batch of model.batches) one.lastBatch = Math.max(one.lastBatch, batch[0]);
    one.batches = [...one.batches, ...model.batches].filter((batch) => state.now - batch[5] < KEPT_S.batches);
    const own = one.request && `/${one.request.path}`.split("?")[0] === loadPath;
    one.load.hidden = one.latency.hidden = !own;
    if (own) showLoad(one.latency, one.load, buckets, state.now);
    one.about.textContent = model.missed ? "too many to show all: the first of each second" : "the number in a bar is the size of its batch";
    drawTimeline(one.timeline, one.batches, model.running, one.model, state.now);
    if (own) one.count.textContent = `${load.clients} clients`;
    if (!load.clients && document.activeElement !== one.slider) one.slider.value = 0;
  }
  showFailures(state.failures, state.now);
}

// How an exchange goes, or has ended, and the worst pairs of answers: the old one and the new one.
function showExchange(section, told) {
  section.hidden = !told;
  if (!told) return;
  section.querySelector(".summary").textContent = told.summary;
  const rows = told.worst.map((pair) => made("tr", {}, ...[pair.old, pair.new, pair.inputs ?? ""].map((one) => made("td", { className: "said" }, JSON.stringify(one)))));
  section.querySelector("tbody").replaceChildren(...rows);
}

// What took longest, each with the parts of its time: there are none where the pipeline has no probe Remember.
function showSlowest(section, slowest) {
  const rows = slowest.map((one) => made("tr", {}, made("td", { className: "id" }, one.request_id), made("td", { className: "said" }, one.text)));
  section.querySelector("tbody").replaceChildren(...rows);
  section.hidden = rows.length === 0;
}

function showFailures(failures, now) {
  const section = document.getElementById("failures"), body = section.querySelector("tbody");
  for (const one of failures) {
    lastFailure = Math.max(lastFailure, one.number);
    const time = new Date(Date.now() - (now - one.at) * 1000).toLocaleTimeString("en-GB");
    const cells = [[time], [one.model], [one.node ?? ""], [one.code, "code"], [one.text, "said"], [one.request_id || one.trace_id || "", "id"]];
    body.prepend(made("tr", {}, ...cells.map(([text, className = ""]) => made("td", { className }, text))));
  }
  while (body.rows.length > MOST_FAILURES) body.lastChild.remove();
  section.hidden = body.rows.length === 0;
}
